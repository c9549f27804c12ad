"""How an embedding model makes one vector of a prompt's hidden states, as its folder declares it."""

from pathlib import Path
from typing import Literal

from sglang.srt.config.model_json import JsonFields, read_json
from sglang.srt.errors import CheckpointError

Pooling = Literal["none", "last", "mean"]
"""none: the engine generates; the last token's state; the mean of all."""

DECLARED_IN = Path("1_Pooling") / "config.json"
"""Of sentence-transformers: one boolean a way."""
_PREFIX = "pooling_mode_"
_WAYS: dict[str, Pooling] = {"pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean"}


def read_pooling(folder: Path) -> Pooling:
    """What the folder declares; the last token's state where it declares nothing, as decoder-only models mostly have.

    Raises CheckpointError for any other way, or several.
    """
    path = folder / DECLARED_IN
    if not path.exists():
        return "last"
    document = read_json(path)
    fields = JsonFields(str(path), document)
    ways = sorted(name for name in document if name.startswith(_PREFIX) and fields.boolean(name, False))
    if len(ways) != 1 or ways[0] not in _WAYS:
        names = ", ".join(way.removeprefix(_PREFIX) for way in ways) or "nothing"
        raise CheckpointError(f"{path} asks for pooling by {names}; embeddings here have lasttoken or mean_tokens")
    return _WAYS[ways[0]]
