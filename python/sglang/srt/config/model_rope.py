"""Rotary embedding of a model, from transformers 5 (`rope_parameters`) and older (`rope_scaling`) configs."""

from enum import StrEnum

import msgspec

from sglang.srt.config.model_json import JsonFields
from sglang.srt.errors import CheckpointError

DEFAULT_THETA = 10000.0


class RopeKind(StrEnum):
    """How inverse frequencies are derived from theta."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the inverse frequencies depend on, besides the number of rotated dimensions."""

    kind: RopeKind = RopeKind.DEFAULT
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    """Context the model was first trained on; llama3 only."""


def read_rope(config: JsonFields) -> RopeSpec:
    """The rope of a config.json. Raises CheckpointError for a rope type that is not supported."""
    fields = config.child("rope_parameters") or config.child("rope_scaling") or JsonFields(config.source, {})
    theta = fields.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    partial = fields.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise CheckpointError(f"{config.source}: partial_rotary_factor {partial} is not supported, only 1.0")
    kind = _kind(fields)
    if kind is RopeKind.DEFAULT:
        return RopeSpec(theta=theta)
    if kind is RopeKind.LINEAR:
        return RopeSpec(kind=kind, theta=theta, factor=fields.number("factor"))
    return RopeSpec(
        kind=kind,
        theta=theta,
        factor=fields.number("factor"),
        low_freq_factor=fields.number("low_freq_factor"),
        high_freq_factor=fields.number("high_freq_factor"),
        original_max_positions=fields.integer("original_max_position_embeddings"),
    )


def _kind(fields: JsonFields) -> RopeKind:
    """Old configs say `type`, newer ones `rope_type`; `default` means plain rope whatever else stands beside it."""
    name = fields.text("rope_type", fields.text("type", RopeKind.DEFAULT.value))
    try:
        return RopeKind(name)
    except ValueError:
        supported = ", ".join(kind.value for kind in RopeKind)
        raise CheckpointError(f"{fields.source}: rope type {name!r} is not supported; supported: {supported}") from None
