"""The forward pass that all decoder-only models share; a model file says what a layer is."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from sglang.srt.config.model import ModelSpec
from sglang.srt.kernels.residual import add_residual
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.attention.latent import LatentHeads
from sglang.srt.layers.embedding import TableUse, VocabTable
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.parameter import LayerContext, Weight
from sglang.srt.layers.rope import RotaryEmbedding, Rotation
from sglang.srt.models.base import LayerHook, ModelInput


class DecoderLayer(Protocol):
    """One layer on the residual stream `[tokens, hidden]`, which it may overwrite."""

    def attention(
        self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """The stream after attention; with `rows`, of those tokens only."""
        ...

    def store_kv(self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend) -> None:
        """Compute and store K and V, nothing else."""
        ...

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after the feed-forward block."""
        ...

    def weights(self) -> Iterator[Weight]:
        """Every parameter of the layer."""
        ...


class Decoder:
    """Embedding, layers, final norm and head."""

    def __init__(
        self,
        spec: ModelSpec,
        context: LayerContext,
        layers: Sequence[DecoderLayer],
        *,
        latent_heads: Sequence[LatentHeads] = (),
        norm: "Block | None" = None,
        embedding_scale: float = 1.0,
    ) -> None:
        """`norm`: the final one, where it is not an RMSNorm. `embedding_scale` is rounded to the model's dtype."""
        self._layers = tuple(layers)
        self._latent_heads = tuple(latent_heads)
        self._collectives = context.collectives
        self._in_step = context.expert_ranks is not None
        self._no_tokens = torch.empty(0, spec.hidden_size, dtype=context.dtype)
        ropes = [spec.rope] if spec.local_rope is None else [spec.rope, spec.local_rope]
        self._ropes = [RotaryEmbedding(rope, spec.rotary_dim, context.dtype) for rope in ropes]
        windowed = [spec.window(index) > 0 for index in range(spec.num_layers)]
        self._rope_of = [int(has and len(ropes) > 1) for has in windowed]
        self._embedding_scale = torch.tensor(embedding_scale, dtype=context.dtype)
        self._scaled = embedding_scale != 1.0
        self._softcap = spec.logit_softcap
        sizes = (spec.vocab_size, spec.hidden_size)
        tied = spec.tie_word_embeddings
        use = TableUse.BOTH if tied else TableUse.LOOKUP
        self._embedding = VocabTable(context, "model.embed_tokens", *sizes, use)
        self._head = self._embedding if tied else VocabTable(context, "lm_head", *sizes, TableUse.HEAD)
        plain = RMSNorm(context, "model.norm", spec.hidden_size, spec.rms_norm_eps)
        self._norm: Block = plain if norm is None else norm
        # Old checkpoints store what the config implies: rope's frequencies, and a tied head once more.
        self._ignored = ("rotary_emb.inv_freq", "lm_head.weight") if tied else ("rotary_emb.inv_freq",)

    def forward(self, inputs: ModelInput, backend: AttentionBackend, hook: LayerHook) -> torch.Tensor | None:
        """As CausalLM.forward."""
        x = self._embedding(inputs.tokens)
        if self._scaled:
            x = x * self._embedding_scale
        rotations = [rope.at(inputs.positions) for rope in self._ropes]
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers[:-1]):
            x = layer.attention(x, rotations[self._rope_of[index]], backend, None)
            hook.after_attention(index)
            x = layer.mlp(x)
        rotation = rotations[self._rope_of[last]]
        if inputs.wanted is None:
            self._layers[last].store_kv(x, rotation, backend)
            # No all-reduce follows, and the hook speaks for every rank.
            self._collectives.barrier()
            hook.after_attention(last)
            if self._in_step:
                self._layers[last].mlp(self._no_tokens)
            return None
        # Nothing after the last layer's attention mixes tokens, so only the wanted ones go on.
        rows = None if inputs.wanted.shape == inputs.tokens.shape else inputs.wanted
        x = self._layers[last].attention(x, rotation, backend, rows)
        hook.after_attention(last)
        x = self._layers[last].mlp(x)
        hidden = self._norm(x)
        return hidden if inputs.hidden else self._logits(hidden)

    def idle(self) -> None:
        """As CausalLM.idle: dense layers do nothing for no tokens, sparse ones serve the other ranks' tokens."""
        for layer in self._layers:
            layer.mlp(self._no_tokens)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._head.logits(hidden)
        return logits.div_(self._softcap).tanh_().mul_(self._softcap) if self._softcap else logits

    def weights(self) -> Iterator[Weight]:
        """As CausalLM.weights."""
        yield from self._embedding.weights()
        for layer in self._layers:
            yield from layer.weights()
        yield from self._norm.weights()
        if self._head is not self._embedding:
            yield from self._head.weights()

    def latent_heads(self) -> tuple[LatentHeads, ...]:
        """As CausalLM.latent_heads."""
        return self._latent_heads

    def ignored(self) -> tuple[str, ...]:
        """As CausalLM.ignored."""
        return self._ignored


class PreNormLayer:
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, norm: RMSNorm, attention: "AttentionBlock", mlp_norm: RMSNorm, mlp: "Block") -> None:
        self._norm = norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def attention(
        self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend, rows: torch.Tensor | None
    ) -> torch.Tensor:
        attended = self._attention(self._norm(x), rotation, backend, rows)
        return add_residual(attended, x if rows is None else x[rows])

    def store_kv(self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend) -> None:
        self._attention.store(self._norm(x), rotation, backend)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return add_residual(self._mlp(self._mlp_norm(x)), x)

    def weights(self) -> Iterator[Weight]:
        for part in (self._norm, self._attention, self._mlp_norm, self._mlp):
            yield from part.weights()


class Block(Protocol):
    """A token-wise block with weights; returns a tensor of its own."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def weights(self) -> Iterator[Weight]:
        """Every parameter."""
        ...


class AttentionBlock(Protocol):
    """An attention block with weights; returns a tensor of its own."""

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend, rows: torch.Tensor | None
    ) -> torch.Tensor: ...

    def store(self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend) -> None:
        """Only K and V."""
        ...

    def weights(self) -> Iterator[Weight]:
        """Every parameter."""
        ...
