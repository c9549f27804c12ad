"""The layer hook of a prefill engine: one more layer's KV is complete.

Bumped after the attention output projection (and, with tensor parallelism, its all-reduce, which is what makes the lead
rank's counter speak for all ranks).
"""

import time
from typing import Protocol

from sglang.srt.core.trace import Tracer


class Bumpable(Protocol):
    """A mapped 64-bit word that native code watches."""

    def add(self, n: int = 1) -> None:
        """Release-store the word plus n, and wake its watcher."""
        ...


class CounterHook:
    """A `LayerHook` that bumps a counter by one a layer, so that after step s and layer l it reads s*layers + l + 1."""

    def __init__(self, counter: Bumpable) -> None:
        self._counter = counter

    def after_attention(self, layer: int) -> None:
        """Called by the model once a layer and step, in order."""
        self._counter.add(1)


class TracedCounterHook:
    """The same, with the time of every bump in the trace, taken before the bump so that no post can precede it."""

    def __init__(self, counter: Bumpable, tracer: Tracer) -> None:
        self._counter = counter
        self._tracer = tracer
        self._bumps = 0

    def after_attention(self, layer: int) -> None:
        """Called by the model once a layer and step, in order."""
        at = time.monotonic_ns()
        self._counter.add(1)
        self._bumps += 1
        self._tracer.instant("layers", f"layer {layer}", at, layer=layer, bump=self._bumps)
