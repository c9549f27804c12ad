"""What a model is to the executor, and how its forward pass goes."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch

from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.attention.latent import LatentHeads
from sglang.srt.layers.parameter import Weight


class LayerHook(Protocol):
    """Told, once a layer and in layer order, that a layer's KV of this step is in the pool."""

    def after_attention(self, layer: int) -> None:
        """Called after the layer's attention output projection (and its all-reduce), before its MLP."""
        ...


class ModelInput(NamedTuple):
    """One forward pass over the tokens of all rows, one row after the other."""

    tokens: torch.Tensor
    """int64 `[tokens]`."""
    positions: torch.Tensor
    """int64 `[tokens]`."""
    wanted: torch.Tensor | None
    """int64 `[wanted]`, ascending: the tokens whose logits are wanted. None where none are: KV alone is computed."""
    hidden: bool = False
    """The final hidden states of those tokens are wanted in place of their logits."""


class CausalLM(Protocol):
    """A decoder-only model with its weights."""

    def forward(self, inputs: ModelInput, backend: AttentionBackend, hook: LayerHook) -> torch.Tensor | None:
        """Logits `[wanted, vocab]` (or hidden states `[wanted, hidden]`) of the model's dtype, None where none are
        wanted.

        The hook is called exactly once a layer. Without wanted logits the last layer only stores its K and V.
        """
        ...

    def idle(self) -> None:
        """Take part in a step of the other ranks that divide the experts, without tokens. The hook hears nothing."""
        ...

    def weights(self) -> Iterator[Weight]:
        """Every parameter, once."""
        ...

    def latent_heads(self) -> tuple[LatentHeads, ...]:
        """Of each layer, what an attention backend over latents needs; empty unless the model's attention is MLA."""
        ...

    def ignored(self) -> tuple[str, ...]:
        """Suffixes of tensor names that a checkpoint may hold and this model has no use for."""
        ...
