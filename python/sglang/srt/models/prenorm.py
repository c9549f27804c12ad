"""Layers of pre-norm models: grouped-query or latent attention, then a dense or a sparse feed-forward block."""

from sglang.srt.config.model import ModelSpec
from sglang.srt.layers.activation import gated_activation
from sglang.srt.layers.attention.gqa import GQAttention
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.moe.block import SparseMLP
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.models.decoder import AttentionBlock, Block, Decoder, PreNormLayer


def prenorm_layer(spec: ModelSpec, context: LayerContext, index: int, attention: AttentionBlock) -> PreNormLayer:
    """One layer under Hugging Face's common tensor names, around an attention block."""
    prefix = f"model.layers.{index}"
    return PreNormLayer(
        RMSNorm(context, f"{prefix}.input_layernorm", spec.hidden_size, spec.rms_norm_eps),
        attention,
        RMSNorm(context, f"{prefix}.post_attention_layernorm", spec.hidden_size, spec.rms_norm_eps),
        feed_forward(spec, context, index),
    )


def feed_forward(spec: ModelSpec, context: LayerContext, index: int) -> Block:
    """Experts in sparse layers (those past the model's own, for multi-token prediction, are), else a gated MLP."""
    prefix = f"model.layers.{index}.mlp"
    activation = gated_activation(spec.activation)
    if spec.moe is not None and (index in spec.moe.layers or index >= spec.num_layers):
        return SparseMLP(context, prefix, spec.hidden_size, spec.moe, activation)
    return GatedMLP(context, prefix, spec.hidden_size, spec.intermediate_size, activation, bias=spec.mlp_bias)


def gqa_decoder(spec: ModelSpec, context: LayerContext) -> Decoder:
    """A decoder with grouped-query attention in every layer."""
    layers = [
        prenorm_layer(spec, context, index, GQAttention(context, f"model.layers.{index}.self_attn", spec, index))
        for index in range(spec.num_layers)
    ]
    return Decoder(spec, context, layers)
