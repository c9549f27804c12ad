"""Decode steps as one native call, in the way of a CUDA graph: recorded at start, replayed with other rows.

Between two kernels of an eager step lie Python, checks, and torch's allocator: a fifth to a quarter of a small model's
step on a CPU (docs/adr/decode-steps-are-recorded.md has the figures).
"""

import torch

from sglang.srt.kernels.cpu.ops import best_kernels
from sglang.srt.kernels.cpu.tape import NotRecordable, Tape
from sglang.srt.layers.attention.base import AttentionBackend, AttentionBatch, AttentionRow
from sglang.srt.layers.attention.cpu import single_rows
from sglang.srt.model_executor.forward_batch import ForwardBatch
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.models.base import CausalLM, ModelInput

__all__ = ["NotRecordable", "StepGraph"]


class StepGraph:
    """The forward pass of up to `rows` rows of one token each, all of which want logits.

    It computes what `model.forward` does, bit by bit: the same kernels are given the same numbers.
    """

    def __init__(self, model: CausalLM, backend: AttentionBackend, rows: int) -> None:
        """Raises NotRecordable, with the reason, for a model or a backend that asks torch to compute.

        Nothing is computed and no page is written meanwhile. Who shares the model with other ranks has no graph: what
        they exchange is not on the tape.
        """
        self._tokens = torch.zeros(rows, dtype=torch.int64)
        self._positions = torch.zeros(rows, dtype=torch.int64)
        self._tape = Tape(best_kernels(), rows)
        table = torch.zeros(rows, 1, dtype=torch.int32)
        backend.prepare(AttentionBatch((AttentionRow(0, 1),) * rows, table, self._positions))
        inputs = ModelInput(self._tokens, self._positions, torch.arange(rows))
        with torch.no_grad(), self._tape.recording():
            logits = model.forward(inputs, backend, NullHook())
        assert logits is not None
        self._logits = logits

    def takes(self, batch: ForwardBatch) -> bool:
        """Whether it can compute these rows."""
        inputs, rows = batch.inputs, len(batch.attention.rows)
        wanted = inputs.wanted is not None and inputs.wanted.shape[0] == rows
        return wanted and not inputs.hidden and inputs.tokens.shape[0] == rows <= self._tape.rows

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Logits `[rows, vocab]`, valid until the next call."""
        rows = len(batch.attention.rows)
        self._tokens[:rows] = batch.inputs.tokens
        self._positions[:rows] = batch.inputs.positions
        self._tape.play(single_rows(batch.attention))
        return self._logits[:rows]

    def __str__(self) -> str:
        return (
            f"{len(self._tape)} kernel calls for up to {self._tape.rows} rows, {self._tape.nbytes >> 10} KiB of buffers"
        )
