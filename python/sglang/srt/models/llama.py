"""Llama 2 and 3, SmolLM2, and what shares their architecture."""

from sglang.srt.models.dense import dense_decoder

MODEL = dense_decoder
