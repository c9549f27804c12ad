"""Fill a model from a checkpoint: each parameter and tensor exactly once, or one error that lists all that is wrong."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    parameters = [
        _Parameter(list(_form(weight, shapes)), weight.ready)
        for weight in model.weights()
        if _is_wanted(weight, shapes)
    ]
    sources = [source for parameter in parameters for source in parameter.sources]
    _check(sources, checkpoint, model.ignored())
    progress = ByteProgress(label, sum(_nbytes(source.pieces) for source in sources))
    sources.clear()
    _fill(parameters, checkpoint, progress)


@dataclass(slots=True)
class _Parameter:
    sources: list[Source]
    """Those still to come."""
    ready: Callable[[], None]

    def receive(self, name: str, checkpoint: Checkpoint) -> int:
        """Copy one of its sources and let go of it; says how many bytes that were."""
        source = self.sources.pop(next(i for i, source in enumerate(self.sources) if source.name == name))
        _copy(source, checkpoint.read(name))
        return _nbytes(source.pieces)


def _fill(parameters: list[_Parameter], checkpoint: Checkpoint, progress: ByteProgress) -> None:
    """Each parameter is ready as soon as it is full, and its targets are nobody's then: what its layer packs takes the
    place of what was filled, so a model never lies in memory twice.
    """
    owners: dict[str, _Parameter] = {}
    while parameters:
        parameter = parameters.pop()
        parameter.sources = [source for source in parameter.sources if source.pieces]
        owners.update({source.name: parameter for source in parameter.sources})
        if not parameter.sources:
            parameter.ready()
    for name in checkpoint.shapes():
        if name in owners:
            parameter = owners.pop(name)
            progress.advance(parameter.receive(name, checkpoint))
            if not parameter.sources:
                parameter.ready()


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
