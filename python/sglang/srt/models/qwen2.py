"""Qwen2 and Qwen2.5 dense: Llama's layer with a bias on Q, K and V."""

from sglang.srt.models.prenorm import gqa_decoder

MODEL = gqa_decoder
