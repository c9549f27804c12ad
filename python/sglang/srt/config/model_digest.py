"""A short name for a model's weights and shape, so that engines of different models never exchange KV."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from sglang.srt.config.model import ModelSpec
from sglang.srt.config.model_files import TensorEntry, checkpoint_entries
from sglang.srt.config.model_gguf import gguf_entries

SAMPLED_TENSORS = 256
SAMPLED_BYTES = 256
"""From the middle of each sampled tensor: 64 KiB in all, milliseconds even from a cold disk."""
NOT_KV = ("generation", "eos_token_ids", "bos_token_id", "dtype", "max_positions")
"""Fields of a ModelSpec that do not change any KV value."""


def model_digest(folder: Path, spec: ModelSpec, load_format: str = "auto") -> str:
    """16 hex digits over the spec, every tensor's name, dtype and shape, and a sample of the weights.

    It does not depend on how tensors are spread over files. Raises CheckpointError where headers cannot be read.
    """
    read = gguf_entries if load_format == "gguf" else checkpoint_entries
    entries = sorted(read(folder), key=lambda entry: entry.name)
    digest = hashlib.sha256(_spec_bytes(spec))
    for entry in entries:
        digest.update(f"{entry.name}:{entry.dtype}:{list(entry.shape)}\n".encode())
    for sample in _samples(entries):
        digest.update(sample)
    return digest.hexdigest()[:16]


def dummy_digest(spec: ModelSpec, seed: int) -> str:
    """The same for `--load-format dummy`, whose weights are a function of the spec and the seed."""
    return hashlib.sha256(_spec_bytes(spec) + f"dummy:{seed}".encode()).hexdigest()[:16]


def _spec_bytes(spec: ModelSpec) -> bytes:
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__ if name not in NOT_KV}
    return msgspec.json.encode(fields, order="deterministic")


def _samples(entries: list[TensorEntry]) -> Iterable[bytes]:
    step = max(1, len(entries) // SAMPLED_TENSORS)
    for entry in entries[::step]:
        descriptor = os.open(entry.file, os.O_RDONLY)
        try:
            middle = entry.start + max(0, entry.nbytes - SAMPLED_BYTES) // 2
            yield os.pread(descriptor, min(SAMPLED_BYTES, entry.nbytes), middle)
        finally:
            os.close(descriptor)
