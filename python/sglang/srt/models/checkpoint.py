"""Where weights come from: safetensors files through mmap, or seeded random numbers."""

import ctypes
import hashlib
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from sglang.srt.config.model_files import FP8, TensorEntry, checkpoint_entries

FLOAT_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""The dtypes that an unquantised weight may have."""
QUANTISED_DTYPES = {**FLOAT_DTYPES, FP8: torch.float8_e4m3fn}
"""The dtypes in a checkpoint whose config says that it is quantised."""


class Checkpoint(Protocol):
    """Named tensors, read one at a time."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor, in the order in which reading is cheapest."""
        ...

    def problems(self) -> list[str]:
        """What is wrong with the checkpoint itself, whatever model it is for; one line each."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """A tensor, valid until the next read."""
        ...


class SafetensorsCheckpoint:
    """The files of a model folder.

    Each tensor's pages are given back to the system once the next is read, so that the peak stays near one copy of the
    weights. Raises CheckpointError for malformed or truncated files.
    """

    def __init__(self, folder: Path, dtypes: Mapping[str, torch.dtype] = FLOAT_DTYPES) -> None:
        """`dtypes`: those that tensors may have, by safetensors' names."""
        self._dtypes = dtypes
        self._entries: dict[str, TensorEntry] = {}
        self._twice: list[str] = []
        self._maps: dict[Path, mmap.mmap] = {}
        self._last: TensorEntry | None = None
        for entry in checkpoint_entries(folder):
            if entry.name in self._entries:
                self._twice.append(f"{entry.name} in {self._entries[entry.name].file.name} and {entry.file.name}")
            self._entries[entry.name] = entry

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self._entries.items()}

    def dtype(self, name: str) -> str:
        """safetensors' name of a tensor's dtype."""
        return self._entries[name].dtype

    def problems(self) -> list[str]:
        wrong = [f"{e.name} of dtype {e.dtype}" for e in self._entries.values() if e.dtype not in self._dtypes]
        lines = [f"held twice: {', '.join(self._twice)}"] if self._twice else []
        if wrong:
            lines.append(f"unsupported dtype (supported: {', '.join(self._dtypes)}): {', '.join(wrong)}")
        return lines

    def read(self, name: str) -> torch.Tensor:
        self._drop()
        entry = self._entries[name]
        if entry.nbytes == 0:
            return torch.empty(entry.shape, dtype=self._dtypes[entry.dtype])
        raw = torch.frombuffer(self._map(entry.file), dtype=torch.uint8)[entry.start : entry.end]
        self._last = entry
        if entry.start % 8:
            raw = raw.clone()  # the format does not promise alignment
        return raw.view(self._dtypes[entry.dtype]).view(entry.shape)

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as stream:
                # A private copy-on-write map, because torch takes only writable buffers; nothing writes to it.
                self._maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[file]

    def _drop(self) -> None:
        if self._last is None:
            return
        start = -(-self._last.start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = self._last.end - start
        if length > 0:
            self._maps[self._last.file].madvise(mmap.MADV_DONTNEED, start, length)
        self._last = None


class DummyCheckpoint:
    """Random weights of the right scale, a function of the seed and each tensor's name alone.

    Vectors (norms, biases) are near 1 or 0 as their name says; matrices keep the variance of what passes through.
    """

    def __init__(self, shapes: Iterable[tuple[str, tuple[int, ...]]], seed: int) -> None:
        self._shapes = dict(shapes)
        self._seed = seed

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def problems(self) -> list[str]:
        return []

    def read(self, name: str) -> torch.Tensor:
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(ctypes.c_int64(int.from_bytes(digest[:8], "little")).value)
        shape = self._shapes[name]
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            return noise * 0.02 if name.endswith("bias") else 1.0 + noise * 0.02
        return noise * float(shape[-1] ** -0.5)
