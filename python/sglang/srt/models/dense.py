"""The layer of the dense models with gated MLP, pre-norm and grouped-query attention."""

from sglang.srt.config.model import ModelSpec
from sglang.srt.layers.activation import gated_activation
from sglang.srt.layers.attention.gqa import GQAttention
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.models.decoder import Decoder, PreNormLayer


def dense_layer(spec: ModelSpec, context: LayerContext, index: int) -> PreNormLayer:
    """One layer under Hugging Face's common tensor names."""
    prefix = f"model.layers.{index}"
    activation = gated_activation(spec.activation)
    return PreNormLayer(
        RMSNorm(context, f"{prefix}.input_layernorm", spec.hidden_size, spec.rms_norm_eps),
        GQAttention(context, f"{prefix}.self_attn", spec, index),
        RMSNorm(context, f"{prefix}.post_attention_layernorm", spec.hidden_size, spec.rms_norm_eps),
        GatedMLP(context, f"{prefix}.mlp", spec.hidden_size, spec.intermediate_size, activation, bias=spec.mlp_bias),
    )


def dense_decoder(spec: ModelSpec, context: LayerContext) -> Decoder:
    """A decoder whose layers are all alike."""
    return Decoder(spec, context, [dense_layer(spec, context, index) for index in range(spec.num_layers)])
