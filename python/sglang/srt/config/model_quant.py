"""How a checkpoint's weights are quantised: 8-bit floats with a scale a block, a row or a tensor."""

from typing import Any

import msgspec

from sglang.srt.config.model_json import JsonFields
from sglang.srt.errors import CheckpointError

METHODS = "fp8 and compressed-tensors with 8-bit float weights"


class QuantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """fp8 (e4m3) weights. A weight is `value * scale`; the scale lies beside it in the checkpoint."""

    block: tuple[int, int] | None
    """Rows and columns that share a scale (DeepSeek-V3: 128 x 128, tensors named *_scale_inv); None: the scale is one
    for the tensor, or one a row.
    """


def read_quant(config: JsonFields) -> QuantSpec | None:
    """From quantization_config; None without one. Raises CheckpointError for what is not supported."""
    fields = config.child("quantization_config")
    if fields is None:
        return None
    method = fields.text("quant_method")
    if method == "fp8":
        if fields.text("fmt", "e4m3") != "e4m3":
            raise fields.wrong("fmt", "e4m3")
        return QuantSpec(block=_block(fields, fields.raw("weight_block_size")))
    if method == "compressed-tensors":
        return _compressed(fields)
    raise CheckpointError(
        f"{config.source}: quantised checkpoints of quant_method {method!r} are not supported: {METHODS}"
    )


def _compressed(fields: JsonFields) -> QuantSpec:
    groups = fields.child("config_groups")
    weights: list[dict[str, Any]] = []
    for name in groups.names() if groups is not None else ():
        group = groups.child(name) if groups is not None else None
        value = None if group is None else group.raw("weights")
        if isinstance(value, dict):
            weights.append(value)
    kinds = {(w.get("num_bits"), w.get("type"), w.get("strategy"), str(w.get("block_structure"))) for w in weights}
    if len(kinds) != 1 or not weights[0].get("symmetric", True):
        raise fields.wrong("config_groups", "one kind of symmetric weights")
    bits, kind, strategy, _ = next(iter(kinds))
    if (bits, kind) != (8, "float") or strategy not in ("tensor", "channel", "block"):
        raise CheckpointError(f"{fields.source}: {bits}-bit {kind} weights by {strategy} are not supported: {METHODS}")
    return QuantSpec(block=_block(fields, weights[0].get("block_structure")) if strategy == "block" else None)


def _block(fields: JsonFields, value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(n, int) and n > 0 for n in value):
        raise fields.wrong("weight_block_size", "two sizes")
    return value[0], value[1]
