"""How KV bytes lie in memory: data, not code, so that two engines can compare and map their pools.

GQA page of a rank, per layer: `[kv_heads_of_rank, 2, page_size, head_dim]` (heads outside tokens, K then V of a head
adjacent), so any head range of a page is one contiguous extent. MLA page: `[page_size, latent_dim]`, on every rank.
A rank's region holds `[layers, num_pages, page]`, C-contiguous.
"""

import hashlib
from typing import Literal

import msgspec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class KVLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What two engines must agree on before one may write into the other's pool."""

    kind: Literal["gqa", "mla"]
    layers: int
    page_size: int
    """Tokens a page."""
    kv_heads: int
    """KV heads of the whole model; 1 for MLA."""
    head_dim: int
    """Elements a head and token; kv_lora_rank + rope dim for MLA."""
    dtype: str
    model: str
    """Digest of the model's architecture and weights, so that equal shapes of different models are not mixed."""

    @property
    def planes(self) -> int:
        """2 for GQA (K and V), 1 for MLA."""
        return 2 if self.kind == "gqa" else 1

    @property
    def head_bytes(self) -> int:
        """Bytes of one head's K and V (or one latent) in one page."""
        return self.planes * self.page_size * self.head_dim * DTYPE_BYTES[self.dtype]

    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers and heads, unsharded."""
        return self.layers * self.kv_heads * self.head_bytes // self.page_size

    def digest(self) -> str:
        """Equal exactly when every field is equal."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]

    def differences(self, other: "KVLayout") -> list[str]:
        """One 'field: ours != theirs' a differing field."""
        pairs = [(f, getattr(self, f), getattr(other, f)) for f in self.__struct_fields__]
        return [f"{name}: {mine!r} here, {theirs!r} there" for name, mine, theirs in pairs if mine != theirs]


class ShardLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A KVLayout spread over the tensor-parallel ranks of one engine replica."""

    kv: KVLayout
    tp_size: int
    num_pages: int
    """Pages of each rank's pool."""

    def heads_of(self, rank: int) -> range:
        """The model's KV heads that a rank holds. Where tp_size exceeds kv_heads, neighbouring ranks hold the same
        head.
        """
        if not 0 <= rank < self.tp_size:
            raise ValueError(f"rank {rank} of tp_size {self.tp_size}")
        if self.kv.kind == "mla":
            return range(1)
        if self.tp_size >= self.kv.kv_heads:
            head = rank * self.kv.kv_heads // self.tp_size
            return range(head, head + 1)
        share, rest = divmod(self.kv.kv_heads, self.tp_size)
        if rest:
            raise ValueError(f"{self.kv.kv_heads} KV heads cannot be spread evenly over tp_size {self.tp_size}")
        return range(rank * share, (rank + 1) * share)

    def page_bytes(self, rank: int) -> int:
        """Bytes of one page of one layer on a rank."""
        return len(self.heads_of(rank)) * self.kv.head_bytes

    def layer_offset(self, rank: int, layer: int) -> int:
        """Byte offset of a layer's page 0 inside a rank's region."""
        return layer * self.num_pages * self.page_bytes(rank)

    def region_bytes(self, rank: int) -> int:
        """Bytes of a rank's whole region."""
        return self.kv.layers * self.num_pages * self.page_bytes(rank)
