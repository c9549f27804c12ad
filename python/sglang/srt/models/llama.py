"""Llama 2 and 3, SmolLM2, and what shares their architecture."""

from sglang.srt.models.prenorm import gqa_decoder

MODEL = gqa_decoder
