"""Which safetensors files a model folder has and what their headers say, without torch and without reading weights.

Format: 8 bytes little-endian header length, a JSON header `name -> {dtype, shape, data_offsets}`, then the data.
Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from sglang.srt.config.model_json import read_json
from sglang.srt.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
FP8 = "F8_E4M3"
ELEMENT_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor of one file. `start` and `end` are byte offsets in the file."""

    name: str
    dtype: str
    """safetensors' name, one of ELEMENT_BYTES."""
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size of the data."""
        return self.end - self.start


def checkpoint_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: those that the index names, or the single file.

    Raises CheckpointError where there are none, the index is malformed, or a file that it names is missing.
    """
    if (folder / INDEX).exists():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise CheckpointError(f"{folder / INDEX}: weight_map is missing or not an object of file names")
        files = [folder / name for name in sorted(set(weight_map.values()))]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise CheckpointError(f"{folder / INDEX} names files that do not exist: {', '.join(missing)}")
        return files
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    raise CheckpointError(f"{folder} holds neither {SINGLE} nor {INDEX}")


def read_entries(file: Path) -> list[TensorEntry]:
    """Every tensor of a file, in the order of its data. Raises CheckpointError for a malformed or truncated file."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise CheckpointError(f"{file} is truncated or no safetensors file ({size} bytes)")
        text = stream.read(length)
    try:
        header = json.loads(text)
        entries = [_entry(file, 8 + length, name, value) for name, value in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file}: the safetensors header is malformed: {error}") from error
    for entry in entries:
        if entry.end > size:
            raise CheckpointError(f"{file} is truncated: {entry.name} ends at byte {entry.end} of {size}")
    return sorted(entries, key=lambda entry: entry.start)


def checkpoint_entries(folder: Path) -> list[TensorEntry]:
    """Every tensor of a checkpoint. A name that two files hold appears twice; the loader judges that."""
    return [entry for file in checkpoint_files(folder) for entry in read_entries(file)]


def _entry(file: Path, base: int, name: str, value: dict[str, Any]) -> TensorEntry:
    dtype, shape = value["dtype"], tuple(int(n) for n in value["shape"])
    start, end = (int(n) for n in value["data_offsets"])
    if dtype not in ELEMENT_BYTES:
        raise CheckpointError(f"{file}: {name} has dtype {dtype!r}, which is not supported")
    if start < 0 or end - start != math.prod(shape) * ELEMENT_BYTES[dtype]:
        raise CheckpointError(
            f"{file}: {name} of shape {list(shape)} and dtype {dtype} does not fill {end - start} bytes"
        )
    return TensorEntry(name, dtype, shape, file, base + start, base + end)
