"""Mistral 7B and what shares its architecture: Llama's layer, with a sliding window in every layer where it has one."""

from sglang.srt.models.prenorm import gqa_decoder

MODEL = gqa_decoder
