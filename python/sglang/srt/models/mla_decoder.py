"""Decoders with latent attention, and the layers for multi-token prediction that their checkpoints may carry."""

from collections.abc import Iterator, Sequence

from sglang.srt.config.model import ModelSpec
from sglang.srt.config.model_mla import MLASpec
from sglang.srt.errors import CheckpointError
from sglang.srt.layers.attention.latent import LatentHeads
from sglang.srt.layers.attention.mla import MLAttention
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.parameter import LayerContext, Weight
from sglang.srt.models.decoder import Decoder
from sglang.srt.models.prenorm import prenorm_layer


def mla_decoder(spec: ModelSpec, context: LayerContext) -> "MLADecoder":
    """A decoder with latent attention in every layer. Raises CheckpointError for a spec without it."""
    if spec.mla is None:
        raise CheckpointError(f"{spec.architecture}: no latent attention in this config")
    blocks = [_attention(spec, spec.mla, context, index) for index in range(spec.num_layers)]
    layers = [prenorm_layer(spec, context, index, block) for index, block in enumerate(blocks)]
    first = spec.num_layers
    predictors = [PredictionLayer(spec, spec.mla, context, first + i) for i in range(spec.mtp_layers)]
    return MLADecoder(Decoder(spec, context, layers, latent_heads=[block.heads for block in blocks]), predictors)


def _attention(spec: ModelSpec, mla: MLASpec, context: LayerContext, index: int) -> MLAttention:
    return MLAttention(context, f"model.layers.{index}.self_attn", spec, mla, index)


class PredictionLayer:
    """The weights of one layer for multi-token prediction (DeepSeek-V3, https://arxiv.org/abs/2412.19437, 2.2).

    `layer(join([norm(embedding of the next token), norm(hidden)]))`, then a norm and the head. Kept for speculation;
    nothing runs it yet. The checkpoint repeats the embedding and the head, which are the model's own.
    """

    def __init__(self, spec: ModelSpec, mla: MLASpec, context: LayerContext, index: int) -> None:
        self.prefix = f"model.layers.{index}."
        hidden, eps = spec.hidden_size, spec.rms_norm_eps
        self.embedding_norm = RMSNorm(context, f"{self.prefix}enorm", hidden, eps)
        self.hidden_norm = RMSNorm(context, f"{self.prefix}hnorm", hidden, eps)
        self.join = ReplicatedLinear(context, f"{self.prefix}eh_proj", 2 * hidden, hidden)
        self.layer = prenorm_layer(spec, context, index, _attention(spec, mla, context, index))
        self.norm = RMSNorm(context, f"{self.prefix}shared_head.norm", hidden, eps)

    def weights(self) -> Iterator[Weight]:
        """Every parameter; a checkpoint may leave out all of them together."""
        for part in (self.embedding_norm, self.hidden_norm, self.join, self.layer, self.norm):
            for weight in part.weights():
                yield weight._replace(group=self.prefix)

    def shared(self) -> tuple[str, ...]:
        """Names of the tensors that repeat the model's own."""
        return (f"{self.prefix}embed_tokens.weight", f"{self.prefix}shared_head.head.weight")


class MLADecoder:
    """A CausalLM: a Decoder beside its prediction layers."""

    def __init__(self, decoder: Decoder, predictors: Sequence[PredictionLayer]) -> None:
        self._decoder = decoder
        self.predictors = tuple(predictors)
        self.forward = decoder.forward
        self.idle = decoder.idle

    def weights(self) -> Iterator[Weight]:
        """As CausalLM.weights."""
        yield from self._decoder.weights()
        for predictor in self.predictors:
            yield from predictor.weights()

    def latent_heads(self) -> tuple[LatentHeads, ...]:
        """As CausalLM.latent_heads."""
        return self._decoder.latent_heads()

    def ignored(self) -> tuple[str, ...]:
        """As CausalLM.ignored."""
        return self._decoder.ignored() + tuple(name for layer in self.predictors for name in layer.shared())
