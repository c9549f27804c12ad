"""From an architecture's name to its model. The list itself is data, in `config/architectures.py`."""

import importlib
from collections.abc import Callable
from typing import cast

from sglang.srt.config.architectures import ARCHITECTURES
from sglang.srt.config.model import ModelSpec
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.models.base import CausalLM

ModelFactory = Callable[[ModelSpec, LayerContext], CausalLM]
"""Builds a model with unfilled weights."""


def build_model(spec: ModelSpec, context: LayerContext) -> CausalLM:
    """The model of a spec, its weights allocated and not yet filled.

    Raises ConfigError where the group's size does not divide the model. Imports only the file of that one model.
    """
    module = importlib.import_module(f"sglang.srt.models.{ARCHITECTURES[spec.architecture].module}")
    return cast(ModelFactory, module.MODEL)(spec, context)
