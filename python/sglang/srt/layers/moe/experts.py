"""The feed-forward blocks of a sparse layer. No loop over tokens: they are sorted by expert, then each expert that was
hit multiplies its own rows at once; packed weights do so in one native call for all experts.
"""

from collections.abc import Iterator

import torch

from sglang.srt.kernels.activation import silu_and_mul
from sglang.srt.kernels.linear import Matrix
from sglang.srt.kernels.moe import PackedExperts, gated_experts, group_experts
from sglang.srt.layers.activation import Activation
from sglang.srt.layers.moe.share import ExpertShare, expert_share
from sglang.srt.layers.parameter import LayerContext, Piece, Source, Weight


class Experts:
    """Routed experts of a rank: the sum over those chosen of `weight * down(act(gate(x)) * up(x))`; ranks add up later.

    Shard axes: experts over the parts of the group (axis 0 of packed tensors), columns within a part (rows of gate and
    up, columns of down). The checkpoint holds either each expert's three projections or two tensors that pack all:
    gate_up_proj `[experts, 2 * columns, hidden]` (gate above up) and down_proj `[experts, hidden, columns]`.
    """

    def __init__(
        self, context: LayerContext, prefix: str, hidden: int, columns: int, experts: int, activation: Activation
    ) -> None:
        self._prefix = prefix
        self._hidden = hidden
        self._columns = columns
        self._count = experts
        group = context.group if context.expert_ranks is None else context.expert_ranks.group
        self._share = expert_share(group, context.ep_size, experts, columns)
        self._activation = activation
        width, bits = len(self._share.columns), context.weight_bits
        self._gate_up = [Matrix(2 * width, hidden, context.dtype, bits=bits) for _ in self._share.experts]
        self._down = [Matrix(hidden, width, context.dtype, bits=bits) for _ in self._share.experts]
        self._packed: PackedExperts | None = None

    @property
    def share(self) -> ExpertShare:
        """What this rank holds."""
        return self._share

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """`x` and the answer (float32) `[tokens, hidden]`; `experts` int64 and `weights` float32 `[tokens, top_k]`."""
        if self._packed is not None:
            return gated_experts(x, experts, weights, self._packed)
        tokens, top_k = experts.shape
        local = (experts - self._share.experts.start).flatten()
        if len(self._share.experts) < self._count:
            foreign = (local < 0) | (local >= len(self._share.experts))
            local = local.masked_fill(foreign, len(self._share.experts))
        order = local.argsort(stable=True)
        counts = local.bincount(minlength=len(self._share.experts) + 1).tolist()
        rows = self._compute(x[order // top_k], counts)
        placed = torch.empty_like(rows)
        placed[order] = rows
        return torch.bmm(weights.unsqueeze(1), placed.view(tokens, top_k, self._hidden)).squeeze(1)

    def _compute(self, sorted_x: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Rows `[assignments, hidden]` sorted by expert -> float32 of the same shape; other ranks' rows stay 0."""
        out = torch.zeros(sorted_x.shape, dtype=torch.float32)
        start = 0
        for gate_up, down, count in zip(self._gate_up, self._down, counts, strict=False):
            if count:
                rows = slice(start, start + count)
                out[rows] = down(self._activation(gate_up(sorted_x[rows])))
                start += count
        return out

    def weights(self) -> Iterator[Weight]:
        """Two parameters: gate and up of all experts, and down of all experts."""
        yield Weight((self._split_gate_up(), self._packed_gate_up()), self._pack_gate_up)
        yield Weight((self._split_down(), self._packed_down()), self._pack_down)

    def _pack_gate_up(self) -> None:
        self._pack(self._gate_up)

    def _pack_down(self) -> None:
        self._pack(self._down)

    def _pack(self, matrices: list[Matrix]) -> None:
        for matrix in matrices:
            matrix.pack()
        if self._activation is silu_and_mul:
            self._packed = group_experts(self._gate_up, self._down, self._share.experts.start)

    def _halves(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        width = len(self._share.columns)
        return self._gate_up[index].weight[:width], self._gate_up[index].weight[width:]

    def _split_gate_up(self) -> tuple[Source, ...]:
        start, width, shape = self._share.columns.start, len(self._share.columns), (self._columns, self._hidden)
        sources: list[Source] = []
        for expert in range(self._count):
            held = expert in self._share.experts
            halves = self._halves(expert - self._share.experts.start) if held else ()
            for position, name in enumerate(("gate_proj", "up_proj")):
                pieces = (Piece(0, start, width, halves[position]),) if held else ()
                sources.append(Source(f"{self._prefix}.{expert}.{name}.weight", shape, pieces))
        return tuple(sources)

    def _packed_gate_up(self) -> tuple[Source, ...]:
        start, width = self._share.columns.start, len(self._share.columns)
        pieces: list[Piece] = []
        for index, expert in enumerate(self._share.experts):
            gate, up = self._halves(index)
            pieces.append(Piece(0, start, width, gate, expert))
            pieces.append(Piece(0, self._columns + start, width, up, expert))
        shape = (self._count, 2 * self._columns, self._hidden)
        return (Source(f"{self._prefix}.gate_up_proj", shape, tuple(pieces)),)

    def _split_down(self) -> tuple[Source, ...]:
        start, width, shape = self._share.columns.start, len(self._share.columns), (self._hidden, self._columns)
        sources: list[Source] = []
        for expert in range(self._count):
            held = expert in self._share.experts
            index = expert - self._share.experts.start
            pieces = (Piece(1, start, width, self._down[index].weight),) if held else ()
            sources.append(Source(f"{self._prefix}.{expert}.down_proj.weight", shape, pieces))
        return tuple(sources)

    def _packed_down(self) -> tuple[Source, ...]:
        start, width = self._share.columns.start, len(self._share.columns)
        pieces = tuple(
            Piece(1, start, width, self._down[index].weight, expert) for index, expert in enumerate(self._share.experts)
        )
        return (Source(f"{self._prefix}.down_proj", (self._count, self._hidden, self._columns), pieces),)
