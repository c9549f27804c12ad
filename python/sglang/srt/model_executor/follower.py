"""The step of a rank that does not lead: it computes what the lead computes and never samples."""

import torch

from sglang.srt.config.pooling import Pooling
from sglang.srt.core.step import StepPlan
from sglang.srt.distributed.collectives import Collectives
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.model_executor.forward_batch import build_batch
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.model_executor.row_table import RowTable
from sglang.srt.models.base import CausalLM


class FollowerRunner:
    """One rank's model, KV and rows. Its collectives match those of the lead's ModelRunner, operation by operation."""

    def __init__(
        self,
        model: CausalLM,
        backend: AttentionBackend,
        table: RowTable,
        collectives: Collectives,
        *,
        vocab_size: int,
        pooling: Pooling,
    ) -> None:
        self._model = model
        self._backend = backend
        self._table = table
        self._collectives = collectives
        self._vocab_size = vocab_size
        self._pooling = pooling
        self._hook = NullHook()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> None:
        """Run one step. Raises EngineError for a plan that does not fit the rows."""
        self._table.apply(plan)
        if not plan.rows:
            return
        batch = build_batch(plan.rows, self._table, self._vocab_size, pooling=self._pooling)
        self._backend.prepare(batch.attention)
        logits = self._model.forward(batch.inputs, self._backend, self._hook)
        if logits is None or self._pooling != "none" or not len(batch.slots):
            return
        tokens = torch.empty(len(batch.slots), dtype=torch.int64)
        self._collectives.broadcast(tokens)
        self._table.last_token[batch.slots] = tokens
