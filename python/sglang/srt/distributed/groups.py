"""Which part of a model a rank holds."""

import msgspec

from sglang.srt.errors import ConfigError


class ParallelGroup(msgspec.Struct, frozen=True):
    """A rank's place among the ranks that share something: every layer, or the experts of every layer."""

    rank: int = 0
    size: int = 1

    def share(self, units: int, what: str) -> range:
        """The units (heads, columns, vocabulary entries) of `units` that this rank holds: an equal, contiguous part.

        Raises ConfigError where they cannot be split evenly; `what` names them.
        """
        if units % self.size:
            raise ConfigError(f"--tp-size {self.size} does not divide the model's {units} {what}")
        width = units // self.size
        return range(self.rank * width, (self.rank + 1) * width)

    def kv_share(self, kv_heads: int) -> range:
        """The KV heads that this rank holds; with more ranks than heads, neighbouring ranks hold the same head.

        The same rule as ShardLayout.heads_of, which peers rely on.
        """
        if self.size < kv_heads:
            return self.share(kv_heads, "KV heads")
        if self.size % kv_heads:
            raise ConfigError(f"--tp-size {self.size} is no multiple of the model's {kv_heads} KV heads")
        head = self.rank * kv_heads // self.size
        return range(head, head + 1)
