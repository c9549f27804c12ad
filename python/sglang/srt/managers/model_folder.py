"""The small JSON files of a model folder that concern the front of the engine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang.srt.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What generation_config.json sets where the client says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What the front knows of a model without loading it."""

    vocab_size: int
    """Rows of the embedding: valid token ids are 0 <= id < vocab_size."""
    end_token_ids: tuple[int, ...]
    defaults: SamplingDefaults


def read_model_folder(path: Path, overrides: Mapping[str, object]) -> ModelFolder:
    """What the folder says, with `overrides` in place of top-level fields of its config.json.

    Raises CheckpointError that names the folder or file that is missing or malformed.
    """
    if not path.is_dir():
        raise CheckpointError(f"--model-path: no folder {path}")
    config = _read(path / "config.json") | dict(overrides)
    text_config = config.get("text_config")
    inner = text_config if isinstance(text_config, dict) else config
    generation = _read(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
    try:
        return ModelFolder(
            vocab_size=int(str(inner["vocab_size"])),
            end_token_ids=_ids(generation.get("eos_token_id", inner.get("eos_token_id"))),
            defaults=_defaults(generation),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: config.json or generation_config.json: {error!r}") from error


def _defaults(generation: dict[str, object]) -> SamplingDefaults:
    base = SamplingDefaults()

    def number(key: str, default: float) -> float:
        value = generation.get(key)
        return float(value) if isinstance(value, int | float) else default

    return SamplingDefaults(
        temperature=number("temperature", base.temperature),
        top_p=number("top_p", base.top_p),
        top_k=int(number("top_k", base.top_k)) or -1,  # Hugging Face writes 0 for "all"
        min_p=number("min_p", base.min_p),
        repetition_penalty=number("repetition_penalty", base.repetition_penalty),
    )


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(str(value)),)


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return content
