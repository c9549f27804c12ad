"""Which Checkpoint a model folder is read through."""

from pathlib import Path

from sglang.srt.config.model import ModelSpec
from sglang.srt.models.checkpoint import QUANTISED_DTYPES, Checkpoint, SafetensorsCheckpoint
from sglang.srt.models.quantised import Fp8Checkpoint


def open_checkpoint(folder: Path, spec: ModelSpec, load_format: str) -> Checkpoint:
    """`load_format` as in --load-format, other than dummy. Raises CheckpointError for files that cannot be read."""
    if load_format == "gguf":
        # The package is needed for this format alone.
        from sglang.srt.models.gguf_checkpoint import GGUFCheckpoint

        return GGUFCheckpoint(folder)
    if spec.quant is None:
        return SafetensorsCheckpoint(folder)
    return Fp8Checkpoint(SafetensorsCheckpoint(folder, QUANTISED_DTYPES), spec.quant)
