"""What the front of the engine knows of a model without loading it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang.srt.config.model import GenerationDefaults, read_model_spec


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
    """Vocabulary, end tokens and sampling defaults of a model."""

    vocab_size: int
    """Rows of the embedding: valid token ids are 0 <= id < vocab_size."""
    end_token_ids: tuple[int, ...]
    defaults: SamplingDefaults


def read_model_folder(path: Path, overrides: Mapping[str, Any]) -> ModelFolder:
    """The front's part of `read_model_spec`, whose CheckpointError it raises."""
    spec = read_model_spec(path, overrides)
    return ModelFolder(spec.vocab_size, spec.eos_token_ids, _defaults(spec.generation))


def _defaults(given: GenerationDefaults) -> SamplingDefaults:
    base = SamplingDefaults()

    def number(value: float | None, default: float) -> float:
        return default if value is None else value

    return SamplingDefaults(
        temperature=number(given.temperature, base.temperature),
        top_p=number(given.top_p, base.top_p),
        top_k=(base.top_k if given.top_k is None else given.top_k) or base.top_k,  # Hugging Face writes 0 for "all"
        min_p=number(given.min_p, base.min_p),
        repetition_penalty=number(given.repetition_penalty, base.repetition_penalty),
    )
