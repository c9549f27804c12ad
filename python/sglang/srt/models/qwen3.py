"""Qwen3 dense: Llama's layer with a norm over each head of Q and K."""

from sglang.srt.models.dense import dense_decoder

MODEL = dense_decoder
