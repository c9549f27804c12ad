"""Rotary embedding of a model, from transformers 5 (`rope_parameters`) and older (`rope_scaling`) configs."""

import math
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
    YARN = "yarn"


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the inverse frequencies depend on, besides the number of rotated dimensions."""

    kind: RopeKind = RopeKind.DEFAULT
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    """Context the model was first trained on; llama3 and yarn only."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """yarn: the bounds of the ramp are whole dimensions."""
    magnitude: float = 1.0
    """Factor on cosine and sine, and so on the rotated part of Q and K."""
    score_factor: float = 1.0
    """Factor on the scores of latent attention: the square of mscale_all_dim's magnitude."""


def read_rope(config: JsonFields) -> RopeSpec:
    """The rope of a config.json. Raises CheckpointError for a rope type that is not supported."""
    fields = config.child("rope_parameters") or config.child("rope_scaling") or JsonFields(config.source, {})
    return rope_of(config, fields, config.number("rope_theta", DEFAULT_THETA))


def rope_of(config: JsonFields, fields: JsonFields, theta: float) -> RopeSpec:
    """One set of rope fields; `theta` is what an absent rope_theta means."""
    theta = fields.number("rope_theta", theta)
    partial = fields.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise CheckpointError(f"{config.source}: partial_rotary_factor {partial} is not supported, only 1.0")
    kind = _kind(fields)
    if kind is RopeKind.DEFAULT:
        return RopeSpec(theta=theta)
    if kind is RopeKind.LINEAR:
        return RopeSpec(kind=kind, theta=theta, factor=fields.number("factor"))
    if kind is RopeKind.YARN:
        return _yarn(config, fields, theta)
    return RopeSpec(
        kind=kind,
        theta=theta,
        factor=fields.number("factor"),
        low_freq_factor=fields.number("low_freq_factor"),
        high_freq_factor=fields.number("high_freq_factor"),
        original_max_positions=fields.integer("original_max_position_embeddings"),
    )


def _yarn(config: JsonFields, fields: JsonFields, theta: float) -> RopeSpec:
    """YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071) with DeepSeek-V2's two magnitudes.

    `mscale` / `mscale_all_dim` scales cosine and sine; `mscale_all_dim` alone, squared, scales the scores of latent
    attention. Where the two are equal, the first is 1 and only the second remains.
    """
    factor = fields.number("factor")
    mscale, all_dim = fields.number("mscale", 0.0), fields.number("mscale_all_dim", 0.0)
    both = _magnitude(factor, mscale) / _magnitude(factor, all_dim) if mscale and all_dim else _magnitude(factor, 1.0)
    return RopeSpec(
        kind=RopeKind.YARN,
        theta=theta,
        factor=factor,
        original_max_positions=fields.integer(
            "original_max_position_embeddings", config.integer("max_position_embeddings", 2048)
        ),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.boolean("truncate", True),
        magnitude=fields.number("attention_factor", both),
        score_factor=_magnitude(factor, all_dim) ** 2 if all_dim else 1.0,
    )


def _magnitude(factor: float, mscale: float) -> float:
    """YaRN's growth of attention's temperature: 0.1 * mscale * ln(factor) + 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _kind(fields: JsonFields) -> RopeKind:
    """Old configs say `type`, newer ones `rope_type`; `default` means plain rope whatever else stands beside it."""
    name = fields.text("rope_type", fields.text("type", RopeKind.DEFAULT.value))
    try:
        return RopeKind(name)
    except ValueError:
        supported = ", ".join(kind.value for kind in RopeKind)
        raise CheckpointError(f"{fields.source}: rope type {name!r} is not supported; supported: {supported}") from None
