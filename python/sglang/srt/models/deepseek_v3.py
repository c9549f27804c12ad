"""DeepSeek-V3 and R1: latent attention, sigmoid-routed experts with a correction bias, multi-token prediction."""

from sglang.srt.models.mla_decoder import mla_decoder

MODEL = mla_decoder
