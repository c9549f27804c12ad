"""The GGUF file of a model folder, as a digest sees it. Needs the `gguf` package only where there is such a file."""

from pathlib import Path

from sglang.srt.config.model_files import TensorEntry
from sglang.srt.errors import CheckpointError


def gguf_file(folder: Path) -> Path:
    """The folder's one GGUF file. Raises CheckpointError where there is none or more than one."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{folder} holds {len(files)} GGUF files, expected one{': ' if names else ''}{names}")
    return files[0]


def gguf_entries(folder: Path) -> list[TensorEntry]:
    """Every tensor, with its place in the file. Raises CheckpointError for a malformed file or a missing package."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise CheckpointError("--load-format gguf needs the package gguf: pip install 'sglang[convert]'") from None
    file = gguf_file(folder)
    try:
        tensors = GGUFReader(file).tensors
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise CheckpointError(f"{file} is truncated or no GGUF file: {error}") from error
    return [
        TensorEntry(
            tensor.name,
            tensor.tensor_type.name,
            tuple(int(n) for n in reversed(tensor.shape)),
            file,
            int(tensor.data_offset),
            int(tensor.data_offset) + int(tensor.n_bytes),
        )
        for tensor in tensors
    ]
