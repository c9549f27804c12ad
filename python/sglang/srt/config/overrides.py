"""--json-model-override-args: fields that replace those of the model's config.json."""

import json
from typing import Any

from sglang.srt.config.server import ServerConfig
from sglang.srt.errors import ConfigError

FLAG = "--json-model-override-args"


def model_overrides(config: ServerConfig) -> dict[str, Any]:
    """The flag's object. Raises ConfigError where it is none."""
    return parse_overrides(config.json_model_override_args)


def parse_overrides(text: str) -> dict[str, Any]:
    """As model_overrides, of the flag's text."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{FLAG}: {text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{FLAG}: {text!r} is no JSON object")
    return value
