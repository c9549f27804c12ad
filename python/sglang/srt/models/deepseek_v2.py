"""DeepSeek-V2 and V2-Lite: latent attention, softmax-routed experts, greedy or limited to groups."""

from sglang.srt.models.mla_decoder import mla_decoder

MODEL = mla_decoder
