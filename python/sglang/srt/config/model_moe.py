"""Mixture of experts of a config: which layers, how many experts, how tokens find them."""

from enum import StrEnum

import msgspec

from sglang.srt.config.architectures import Experts
from sglang.srt.config.model_json import JsonFields
from sglang.srt.errors import CheckpointError


class Routing(StrEnum):
    """How a token's experts are chosen; formulas in layers/moe/router.py."""

    SOFTMAX = "softmax"
    GROUPED_SOFTMAX = "group_limited_greedy"
    GROUPED_SIGMOID = "noaux_tc"


class MoESpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The experts of a model; the same in every sparse layer."""

    layers: tuple[int, ...]
    """The sparse layers, ascending; all others are dense."""
    experts: int
    top_k: int
    intermediate: int
    """Columns of one expert."""
    shared_intermediate: int
    """Columns of the experts that see every token, together; 0: there are none."""
    routing: Routing
    groups: int = 1
    top_groups: int = 1
    normalize: bool
    """A token's weights are made to add up to 1 before `scale`."""
    scale: float = 1.0


def read_moe(config: JsonFields, kind: Experts, layers: int) -> MoESpec | None:
    """The experts of a config, None for a dense one. Raises CheckpointError for what is not supported."""
    if kind is Experts.NONE:
        return None
    spec = _qwen3(config, layers) if kind is Experts.QWEN3 else _deepseek(config, kind, layers)
    if spec is None or not spec.layers:
        return None
    _check(config, spec)
    return spec


def _qwen3(config: JsonFields, layers: int) -> MoESpec | None:
    experts = config.integer("num_experts", config.integer("num_local_experts", 0))
    step = config.integer("decoder_sparse_step", 1)
    dense = config.ids("mlp_only_layers")
    if experts == 0 or step < 1:
        return None
    return MoESpec(
        layers=tuple(i for i in range(layers) if i not in dense and (i + 1) % step == 0),
        experts=experts,
        top_k=config.integer("num_experts_per_tok"),
        intermediate=config.integer("moe_intermediate_size"),
        shared_intermediate=0,
        routing=Routing.SOFTMAX,
        normalize=config.boolean("norm_topk_prob", False),
    )


def _deepseek(config: JsonFields, kind: Experts, layers: int) -> MoESpec | None:
    if not config.has("n_routed_experts"):
        return None
    routing = _deepseek_routing(config, kind)
    intermediate = config.integer("moe_intermediate_size")
    grouped = routing is not Routing.SOFTMAX
    return MoESpec(
        layers=tuple(range(config.integer("first_k_dense_replace", 0), layers)),
        experts=config.integer("n_routed_experts"),
        top_k=config.integer("num_experts_per_tok"),
        intermediate=intermediate,
        shared_intermediate=intermediate * config.integer("n_shared_experts", 0),
        routing=routing,
        groups=config.integer("n_group", 1) if grouped else 1,
        top_groups=config.integer("topk_group", 1) if grouped else 1,
        normalize=config.boolean("norm_topk_prob", kind is Experts.DEEPSEEK_V3),
        scale=config.number("routed_scaling_factor", 1.0),
    )


def _deepseek_routing(config: JsonFields, kind: Experts) -> Routing:
    third = kind is Experts.DEEPSEEK_V3
    methods = {"noaux_tc": Routing.GROUPED_SIGMOID} if third else {"greedy": Routing.SOFTMAX}
    if not third:
        methods["group_limited_greedy"] = Routing.GROUPED_SOFTMAX
    scoring = "sigmoid" if third else "softmax"
    if config.text("scoring_func", scoring) != scoring:
        raise config.wrong("scoring_func", scoring)
    if config.integer("moe_layer_freq", 1) != 1:
        raise config.wrong("moe_layer_freq", "1")
    if not third and config.boolean("norm_topk_prob", False):
        # DeepSeek's own code and transformers disagree about it, and no published model sets it.
        raise config.wrong("norm_topk_prob", "false")
    method = config.text("topk_method", next(iter(methods)))
    if method not in methods:
        raise config.wrong("topk_method", " or ".join(methods))
    return methods[method]


def _check(config: JsonFields, spec: MoESpec) -> None:
    if min(spec.experts, spec.top_k, spec.intermediate, spec.groups, spec.top_groups) < 1:
        raise CheckpointError(f"{config.source}: the experts' sizes must all be at least 1")
    if spec.experts % spec.groups:
        raise CheckpointError(f"{config.source}: {spec.experts} experts do not divide into n_group {spec.groups}")
    if spec.top_groups > spec.groups or spec.top_k > spec.top_groups * (spec.experts // spec.groups):
        raise CheckpointError(
            f"{config.source}: num_experts_per_tok {spec.top_k} exceeds the experts of topk_group {spec.top_groups} "
            f"of {spec.groups} groups"
        )
    if spec.routing is Routing.GROUPED_SIGMOID and spec.experts // spec.groups < 2:
        raise CheckpointError(f"{config.source}: n_group {spec.groups} leaves fewer than 2 experts a group")
