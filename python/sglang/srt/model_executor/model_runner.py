"""Executes step plans: rows, forward pass, sampling."""

import time

import torch

from sglang.srt.config.pooling import Pooling
from sglang.srt.core.step import SampledToken, StepPlan, StepResult, TokenScore
from sglang.srt.distributed.collectives import Collectives, SoloCollectives
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.model_executor.forward_batch import ForwardBatch, build_batch
from sglang.srt.model_executor.mean_pooling import MeanPooling
from sglang.srt.model_executor.prompt_scores import score
from sglang.srt.model_executor.row_table import RowTable
from sglang.srt.model_executor.sampler import Sampled, Sampler
from sglang.srt.model_executor.sampling_state import SamplingState
from sglang.srt.model_executor.step_graph import StepGraph
from sglang.srt.models.base import CausalLM, LayerHook


class ModelRunner:
    """One rank's model, KV and rows. Not thread-safe: one thread calls it, under inference mode."""

    def __init__(
        self,
        model: CausalLM,
        backend: AttentionBackend,
        hook: LayerHook,
        table: RowTable,
        state: SamplingState,
        *,
        pooling: Pooling = "none",
        collectives: Collectives | None = None,
        graph: StepGraph | None = None,
    ) -> None:
        """`pooling`: with one, rows that would sample answer with hidden states instead. `collectives`: of the ranks
        that this one leads; it alone samples, and tells them the tokens. `graph`: of the same model and pool, for
        steps that it takes; the hook does not hear of those.
        """
        self._model = model
        self._backend = backend
        self._hook = hook
        self._table = table
        self._state = state
        self._pooling = pooling
        self._mean = MeanPooling()
        self._collectives = collectives if collectives is not None else SoloCollectives()
        self._sampler = Sampler(state)
        self._graph = graph

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises EngineError for a plan that does not fit the rows."""
        started = time.monotonic_ns()
        self._table.apply(plan)
        for slot in plan.closed:
            self._state.close(slot)
        for row in plan.opened:
            self._state.open(row)
        if not plan.rows:
            return _result(plan, (), started, started)
        batch = build_batch(plan.rows, self._table, self._state.vocab_size, pooling=self._pooling)
        logits = self._forward(batch)
        forwarded = time.monotonic_ns()
        if logits is None:
            return _result(plan, (), started, forwarded)
        if self._pooling != "none":
            states = self._mean.take(plan.rows, logits) if self._pooling == "mean" else logits
            return _result(plan, _embedded(states, batch), started, forwarded)
        scored = tuple(score(logits, row, self._state.params[row.slot]) for row in batch.scored)
        if batch.samples is not None:
            logits = logits[batch.samples]
        sampled = self._sample(logits, batch) if len(batch.slots) else ()
        return _result(plan, sampled, started, forwarded, scored)

    def _forward(self, batch: ForwardBatch) -> torch.Tensor | None:
        if self._graph is not None and self._graph.takes(batch):
            return self._graph.forward(batch)
        self._backend.prepare(batch.attention)
        return self._model.forward(batch.inputs, self._backend, self._hook)

    @torch.inference_mode()
    def idle(self) -> None:
        """Take part in a step of other ranks, without rows."""
        self._model.idle()

    def _sample(self, logits: torch.Tensor, batch: ForwardBatch) -> tuple[SampledToken, ...]:
        sampled = self._sampler.sample(logits, batch.slots, batch.sampled_positions)
        self._collectives.broadcast(sampled.tokens)
        self._table.last_token[batch.slots] = sampled.tokens
        return self._state.grammars.marked(self._tokens(sampled, batch.slots.tolist()))

    def _tokens(self, sampled: Sampled, slots: list[int]) -> tuple[SampledToken, ...]:
        """The answer as Python values; only rows that asked for log probabilities carry them."""
        tokens: list[int] = sampled.tokens.tolist()
        if sampled.logprobs is None:
            return tuple(SampledToken(slot=slot, token=token) for slot, token in zip(slots, tokens, strict=True))
        logprobs: list[float] = sampled.logprobs.tolist()
        tops = self._tops(sampled, slots)
        asked = [self._state.params[slot].logprobs or self._state.params[slot].top_logprobs > 0 for slot in slots]
        rows = zip(slots, tokens, logprobs, tops, sampled.ids or [()] * len(slots), asked, strict=True)
        return tuple(
            SampledToken(slot=slot, token=token, logprob=value if ask else None, top=top, ids=ids)
            for slot, token, value, top, ids, ask in rows
        )

    def _tops(self, sampled: Sampled, slots: list[int]) -> list[tuple[tuple[int, float], ...]]:
        if sampled.top_logprobs is None or sampled.top_tokens is None:
            return [() for _ in slots]
        values, tokens = sampled.top_logprobs.tolist(), sampled.top_tokens.tolist()
        wanted = [self._state.params[slot].top_logprobs for slot in slots]
        return [tuple(zip(t[:n], v[:n], strict=True)) for t, v, n in zip(tokens, values, wanted, strict=True)]


def _embedded(hidden: torch.Tensor, batch: ForwardBatch) -> tuple[SampledToken, ...]:
    """Unit vectors of `hidden` `[sampling rows, hidden]`; the token means nothing."""
    vectors = torch.nn.functional.normalize(hidden.float(), dim=-1).tolist()
    return tuple(
        SampledToken(slot=slot, token=0, embedding=tuple(vector))
        for slot, vector in zip(batch.slots.tolist(), vectors, strict=True)
    )


def _result(
    plan: StepPlan,
    sampled: tuple[SampledToken, ...],
    started: int,
    forwarded: int,
    scored: tuple[tuple[TokenScore, ...], ...] = (),
) -> StepResult:
    return StepResult(
        step_id=plan.step_id,
        sampled=sampled,
        started_ns=started,
        forward_ended_ns=forwarded,
        ended_ns=time.monotonic_ns(),
        scored=scored,
    )
