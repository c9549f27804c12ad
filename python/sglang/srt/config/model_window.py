"""Which layers of a model see a sliding window, and with which rope."""

from sglang.srt.config.architectures import Windows
from sglang.srt.config.model_json import JsonFields
from sglang.srt.config.model_rope import DEFAULT_THETA, RopeSpec, read_rope, rope_of
from sglang.srt.errors import CheckpointError

SLIDING, FULL = "sliding_attention", "full_attention"


def read_windows(config: JsonFields, kind: Windows, layers: int) -> tuple[int, ...]:
    """For each layer, how many tokens a query sees, itself included; 0: all. Empty where no layer has a window.

    Raises CheckpointError for a window that the architecture does not have, or layer types that do not fit.
    """
    if kind is Windows.NONE:
        # Some configs carry a sliding_window that use_sliding_window switches off.
        if config.has("sliding_window") and config.boolean("use_sliding_window", True):
            raise CheckpointError(f"{config.source}: sliding_window {config.raw('sliding_window')} is not supported")
        return ()
    if not config.boolean("use_sliding_window", kind is not Windows.UPPER) or not config.has("sliding_window"):
        return ()
    window = config.integer("sliding_window")
    if window < 1:
        raise config.wrong("sliding_window", "at least 1")
    sliding = _listed(config, layers) if config.has("layer_types") else _implied(config, kind, layers)
    return tuple(window if slides else 0 for slides in sliding) if any(sliding) else ()


def _listed(config: JsonFields, layers: int) -> list[bool]:
    types = config.raw("layer_types")
    if not isinstance(types, list) or len(types) != layers or any(kind not in (SLIDING, FULL) for kind in types):
        raise config.wrong("layer_types", f"a list of {layers} of {SLIDING!r} and {FULL!r}")
    return [kind == SLIDING for kind in types]


def _implied(config: JsonFields, kind: Windows, layers: int) -> list[bool]:
    if kind is Windows.UPPER:
        first = config.integer("max_window_layers", 28)
        return [layer >= first for layer in range(layers)]
    if kind is Windows.PATTERN:
        step = config.integer("sliding_window_pattern", 6)
        if step < 1:
            raise config.wrong("sliding_window_pattern", "at least 1")
        return [bool((layer + 1) % step) for layer in range(layers)]
    return [True] * layers


def read_ropes(config: JsonFields) -> tuple[RopeSpec, RopeSpec | None]:
    """(rope of full layers, rope of layers with a window where they have one of their own).

    transformers 5 nests rope_parameters by layer type; older configs give windowed layers rope_local_base_freq.
    """
    nested = config.child("rope_parameters")
    full = nested.child(FULL) if nested is not None and nested.has(FULL) else None
    local = nested.child(SLIDING) if nested is not None and nested.has(SLIDING) else None
    if nested is not None and (full is not None or local is not None):
        empty = JsonFields(config.source, {})
        return rope_of(config, full or empty, DEFAULT_THETA), rope_of(config, local or empty, DEFAULT_THETA)
    if config.has("rope_local_base_freq"):
        return read_rope(config), RopeSpec(theta=config.number("rope_local_base_freq"))
    return read_rope(config), None
