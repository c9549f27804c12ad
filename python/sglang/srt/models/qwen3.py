"""Qwen3 dense: Llama's layer with a norm over each head of Q and K."""

from sglang.srt.models.prenorm import gqa_decoder

MODEL = gqa_decoder
