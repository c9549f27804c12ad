"""What the machine allows: the least time of a forward, from the bytes it must read and the products it must form."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import Record, load, results


@dataclass(frozen=True, slots=True)
class Limits:
    """What the best loop of machine_limits.py reached with all cores."""

    bytes_per_s: float
    """Reading memory."""
    flops: float
    """Products of the widest kind that takes bfloat16, a multiplication and an addition counted as two."""


def of_this_machine() -> Limits:
    """As they were measured. Raises FileNotFoundError where machine_limits.py has not run on this kind of machine."""
    record: Record = load(results("limits") / "limits.json")
    return Limits(record["bytes_per_s"], record["flops"])


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides its cost."""

    layer_parameters: int
    """Of all layers, without embedding and head."""
    head_parameters: int
    layers: int
    query_width: int
    kv_bytes_a_token: int

    @property
    def weight_bytes(self) -> int:
        """Of bfloat16 weights, a tied embedding counted once."""
        return 2 * (self.layer_parameters + self.head_parameters)


def read_shape(folder: Path) -> Shape:
    """The shape of a dense model with tied embeddings, from its config.json."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = hidden * (2 * query + 2 * kv) + 3 * hidden * inner
    return Shape(layers * layer, config["vocab_size"] * hidden, layers, query, layers * 2 * kv * 2)


def prefill_rate(shape: Shape, tokens: int, limits: Limits) -> float:
    """Most tokens a second: every layer's products, and half of the square of attention."""
    products = 2 * shape.layer_parameters * tokens + shape.layers * 4 * shape.query_width * tokens * tokens / 2
    return tokens * limits.flops / products


def decode_rate(shape: Shape, rows: int, context: int, limits: Limits) -> float:
    """Most tokens a second: weights are read or multiplied, whichever takes longer; then the rows' KV is read."""
    weights = shape.weight_bytes
    seconds = max(weights / limits.bytes_per_s, rows * weights / limits.flops)  # 2 operations for each 2 bytes
    return rows / (seconds + rows * context * shape.kv_bytes_a_token / limits.bytes_per_s)
