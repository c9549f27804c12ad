"""Linear layers that know which axis of their weight is spread over ranks. Weights are `[out, in]`."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from sglang.srt.kernels.linear import Matrix
from sglang.srt.layers.parameter import LayerContext, Piece, Source, Weight, whole


class Part(NamedTuple):
    """One projection of a merged linear: its name, its width in the whole model and the columns of this rank."""

    name: str
    width: int
    columns: range


class ColumnLinear:
    """Projections that share their input, computed as one matrix product; shard axis 0 (output columns).

    Input `[tokens, in]`, output `[tokens, sum of this rank's columns]`, the parts side by side in order. The checkpoint
    holds either each part (`prefix.part`) or all of them stacked under `prefix.fused`.
    """

    def __init__(
        self,
        context: LayerContext,
        prefix: str,
        inputs: int,
        parts: Sequence[Part],
        *,
        fused: str,
        bias: bool,
        tail: int = 0,
    ) -> None:
        """`tail`: the part from which on `call_tail` computes; such a layer keeps those rows twice."""
        self._prefix = prefix
        self._parts = tuple(parts)
        self._fused = fused
        width = sum(len(part.columns) for part in parts)
        self._skipped = sum(len(part.columns) for part in parts[:tail])
        self._matrix = Matrix(width, inputs, context.dtype, bits=context.weight_bits)
        self._tail = Matrix(width - self._skipped if tail else 0, inputs, context.dtype, bits=context.weight_bits)
        self._bias = torch.empty(width, dtype=context.dtype) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._matrix(x, self._bias)

    def call_tail(self, x: torch.Tensor) -> torch.Tensor:
        """Only the parts from `tail` on, side by side."""
        return self._tail(x, None if self._bias is None else self._bias[self._skipped :])

    def weights(self) -> Iterator[Weight]:
        """The weight, and the bias where there is one."""
        yield self._weight("weight", self._matrix.weight)._replace(ready=self._ready)
        if self._bias is not None:
            yield self._weight("bias", self._bias)

    def _ready(self) -> None:
        if self._tail.weight.shape[0]:
            self._tail.weight.copy_(self._matrix.weight[self._skipped :])
            self._tail.pack()
        self._matrix.pack()

    def _weight(self, kind: str, tensor: torch.Tensor) -> Weight:
        rest = tuple(tensor.shape[1:])
        ends = [0]
        for part in self._parts:
            ends.append(ends[-1] + len(part.columns))
        targets = [tensor[start:end] for start, end in pairwise(ends)]
        split: list[Source] = []
        stacked: list[Piece] = []
        base = 0
        for part, target in zip(self._parts, targets, strict=True):
            piece = Piece(0, part.columns.start, len(part.columns), target)
            split.append(Source(f"{self._prefix}.{part.name}.{kind}", (part.width, *rest), (piece,)))
            stacked.append(piece._replace(start=base + piece.start))
            base += part.width
        return Weight((tuple(split), (Source(f"{self._prefix}.{self._fused}.{kind}", (base, *rest), tuple(stacked)),)))


class RowLinear:
    """A projection whose input is spread over ranks; shard axis 1 (input rows), summed over ranks afterwards.

    Input `[tokens, this rank's share of in]`, output `[tokens, out]`, complete on every rank; with `partial` the
    caller adds up over ranks.
    """

    def __init__(
        self,
        context: LayerContext,
        name: str,
        inputs: int,
        share: range,
        outputs: int,
        *,
        bias: bool = False,
        partial: bool = False,
    ) -> None:
        self._name = name
        self._inputs = inputs
        self._share = share
        self._collectives = context.collectives
        self._solo = context.group.size == 1 or partial
        self._matrix = Matrix(outputs, len(share), context.dtype, bits=context.weight_bits)
        self._bias = torch.empty(outputs, dtype=context.dtype) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._solo:
            return self._matrix(x, self._bias)
        total = self._collectives.all_reduce(self._matrix(x))
        return total if self._bias is None else total.add_(self._bias)

    def weights(self) -> Iterator[Weight]:
        """The weight, and the bias where there is one."""
        weight = self._matrix.weight
        piece = Piece(1, self._share.start, len(self._share), weight)
        source = Source(f"{self._name}.weight", (weight.shape[0], self._inputs), (piece,))
        yield Weight(((source,),), self._matrix.pack)
        if self._bias is not None:
            yield whole(f"{self._name}.bias", self._bias)


class ReplicatedLinear:
    """A projection that every rank holds completely: `[tokens, in]` -> `[tokens, out]`."""

    def __init__(self, context: LayerContext, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        self._name = name
        self._matrix = Matrix(outputs, inputs, context.dtype, bits=context.weight_bits)
        self._bias = torch.empty(outputs, dtype=context.dtype) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._matrix(x, self._bias)

    def weights(self) -> Iterator[Weight]:
        """The weight, and the bias where there is one."""
        yield whole(f"{self._name}.weight", self._matrix.weight)._replace(ready=self._matrix.pack)
        if self._bias is not None:
            yield whole(f"{self._name}.bias", self._bias)
