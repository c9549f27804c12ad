"""Random checkpoints, written once a session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from support.tiny_models import ROPES, SHAPES, make_checkpoint

Maker = Callable[..., tuple[Path, PreTrainedModel]]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """One thread an operation: on busy cores, threads that wait for each other took twenty times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """(kind, shape, rope) -> folder and transformers' model."""
    made: dict[tuple[str, ...], tuple[Path, PreTrainedModel]] = {}

    def make(kind: str, shape: str, rope: str = "default", **extra: object) -> tuple[Path, PreTrainedModel]:
        key = (kind, shape, rope, *(f"{name}={value}" for name, value in sorted(extra.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{kind}-{shape}-{rope}")
            model = make_checkpoint(folder, kind, **SHAPES[shape], rope_parameters=ROPES[rope], **extra)
            made[key] = folder, model
        return made[key]

    return make
