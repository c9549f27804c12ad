"""Qwen3-MoE (30B-A3B, 235B-A22B, Qwen3-Coder): Qwen3's attention, softmax-routed experts in place of the MLP."""

from sglang.srt.models.prenorm import gqa_decoder

MODEL = gqa_decoder
