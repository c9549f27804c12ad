"""Fill a model from a checkpoint: each parameter and tensor exactly once, or one error that lists all that is wrong."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from sglang.srt.config.model import ModelSpec
from sglang.srt.errors import CheckpointError
from sglang.srt.layers.parameter import Piece, Source, Weight
from sglang.srt.models.base import CausalLM
from sglang.srt.models.checkpoint import Checkpoint, DummyCheckpoint
from sglang.srt.models.open_checkpoint import open_checkpoint
from sglang.srt.models.progress import ByteProgress

LISTED = 8
"""Names that an error shows of each kind of fault; a wrong checkpoint may have thousands."""


def load_model(model: CausalLM, folder: Path, spec: ModelSpec, load_format: str = "auto") -> None:
    """Fill `model` from the files of `folder`. Raises CheckpointError, which lists every fault at once."""
    load_weights(model, open_checkpoint(folder, spec, load_format), f"load {folder.name}")


def load_dummy(model: CausalLM, seed: int) -> None:
    """Fill `model` with random numbers that depend on `seed` and each tensor's name."""
    sources = (source for weight in model.weights() for source in weight.forms[0])
    load_weights(model, DummyCheckpoint(((s.name, s.shape) for s in sources), seed), "dummy weights")


def load_weights(model: CausalLM, checkpoint: Checkpoint, label: str) -> None:
    """Check the whole checkpoint against the model, then copy in the checkpoint's own order."""
    shapes = checkpoint.shapes()
    weights = [weight for weight in model.weights() if _is_wanted(weight, shapes)]
    sources = [source for weight in weights for source in _form(weight, shapes)]
    _check(sources, checkpoint, model.ignored())
    by_name = {source.name: source for source in sources}
    progress = ByteProgress(label, sum(_nbytes(source.pieces) for source in sources))
    for name in shapes:
        source = by_name.get(name)
        if source is not None and source.pieces:
            _copy(source, checkpoint.read(name))
            progress.advance(_nbytes(source.pieces))
    for weight in weights:
        weight.ready()


def _is_wanted(weight: Weight, names: Iterable[str]) -> bool:
    return not weight.group or any(name.startswith(weight.group) for name in names)


def _form(weight: Weight, names: Mapping[str, object]) -> tuple[Source, ...]:
    """The form that the checkpoint has most of; the first where it has none, so that an error names usual tensors."""
    return max(weight.forms, key=lambda form: sum(source.name in names for source in form) / len(form))


def _check(sources: Sequence[Source], checkpoint: Checkpoint, ignored: tuple[str, ...]) -> None:
    shapes = checkpoint.shapes()
    expected = {source.name for source in sources}
    missing = [source.name for source in sources if source.name not in shapes]
    unexpected = [name for name in shapes if name not in expected and not name.endswith(ignored)]
    wrong = [
        f"{source.name} {list(shapes[source.name])} instead of {list(source.shape)}"
        for source in sources
        if source.name in shapes and shapes[source.name] != source.shape
    ]
    twice = _repeated(source.name for source in sources)
    faults = list(checkpoint.problems())
    for title, names in (
        ("missing", missing),
        ("unexpected", unexpected),
        ("wrong shape", wrong),
        ("used twice", twice),
    ):
        if names:
            faults.append(f"{title}: {_listed(names)}")
    if faults:
        raise CheckpointError(f"the checkpoint does not fit the model: {'; '.join(faults)}")


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _copy(source: Source, tensor: torch.Tensor) -> None:
    for piece in source.pieces:
        whole = tensor if piece.entry is None else tensor[piece.entry]
        piece.target.copy_(whole.narrow(piece.axis, piece.start, piece.length))


def _nbytes(pieces: Iterable[Piece]) -> int:
    return sum(piece.target.nbytes for piece in pieces)
