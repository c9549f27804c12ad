"""GGUF files (github.com/ggml-org/ggml, docs/gguf.md), dequantised tensor by tensor as they are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from sglang.srt.config.model_gguf import gguf_file
from sglang.srt.errors import CheckpointError

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
DERIVED = ("rope_freqs.weight",)
"""Tensors that say what config.json says too."""
PERMUTED = ("llama",)
"""Values of general.architecture whose converter interleaves the halves of Q's and K's heads for llama.cpp's rope."""
ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")


class _Part(NamedTuple):
    """Where a weight lies: a tensor, or one expert of it."""

    tensor: ReaderTensor
    expert: int | None
    heads: int
    """Heads whose halves are interleaved; 0: none are."""


class GGUFCheckpoint:
    """A Checkpoint over the one GGUF file of a folder, under Hugging Face's names, in float32.

    Raises CheckpointError for a file that is not there, malformed, or of an architecture whose names are not known.
    """

    def __init__(self, folder: Path) -> None:
        file = gguf_file(folder)
        try:
            self._reader = GGUFReader(file)
        except (ValueError, OSError, IndexError, KeyError) as error:
            raise CheckpointError(f"{file} is truncated or no GGUF file: {error}") from error
        self._kind = str(self._meta("general.architecture"))
        if self._kind not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise CheckpointError(f"{file}: architecture {self._kind!r} is not supported in GGUF; supported: {known}")
        self._unknown: list[str] = []
        self._parts: dict[str, _Part] = {}
        for tensor in self._reader.tensors:
            self._add(tensor)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: self._shape(part) for name, part in self._parts.items()}

    def problems(self) -> list[str]:
        wrong = [
            f"{t.name} of type {t.tensor_type.name}" for t in self._reader.tensors if t.tensor_type.name not in TYPES
        ]
        lines = [f"unsupported type (supported: {', '.join(TYPES)}): {', '.join(wrong)}"] if wrong else []
        if self._unknown:
            lines.append(f"unexpected: {', '.join(self._unknown)}")
        return lines

    def read(self, name: str) -> torch.Tensor:
        part = self._parts[name]
        data = part.tensor.data if part.expert is None else part.tensor.data[part.expert]
        array = np.asarray(dequantize(data, part.tensor.tensor_type), dtype=np.float32).reshape(self._shape(part))
        if part.heads:
            array = _halves(array, part.heads)
        return torch.from_numpy(np.array(array, order="C"))

    def _shape(self, part: _Part) -> tuple[int, ...]:
        """GGUF lists the innermost axis first."""
        shape = tuple(int(n) for n in reversed(part.tensor.shape))
        return shape if part.expert is None else shape[1:]

    def _meta(self, key: str) -> object:
        field = self._reader.fields.get(key)
        if field is None:
            raise CheckpointError(f"the GGUF file has no {key!r}")
        value: object = field.contents()
        return value

    def _add(self, tensor: ReaderTensor) -> None:
        stem, _, kind = tensor.name.rpartition(".")
        parts = stem.split(".")
        if tensor.name in DERIVED:
            return
        if stem in OUTER:
            self._parts[f"{OUTER[stem]}.{kind}"] = _Part(tensor, None, 0)
        elif len(parts) == 3 and parts[0] == "blk" and parts[2] in IN_LAYER:
            heads = self._interleaved(parts[2])
            self._parts[f"model.layers.{parts[1]}.{IN_LAYER[parts[2]]}.{kind}"] = _Part(tensor, None, heads)
        elif len(parts) == 3 and parts[0] == "blk" and parts[2] in EXPERTS:
            for expert in range(int(tensor.shape[-1])):
                name = f"model.layers.{parts[1]}.mlp.experts.{expert}.{EXPERTS[parts[2]]}.{kind}"
                self._parts[name] = _Part(tensor, expert, 0)
        else:
            self._unknown.append(tensor.name)

    def _interleaved(self, name: str) -> int:
        if self._kind not in PERMUTED or name not in ("attn_q", "attn_k"):
            return 0
        key = "attention.head_count" if name == "attn_q" else "attention.head_count_kv"
        return int(str(self._meta(f"{self._kind}.{key}")))


def _halves(array: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows `[heads * dim, ...]` back from llama.cpp's pairs (2i, 2i+1) to Hugging Face's (i, i + dim/2)."""
    rows = array.shape[0]
    return array.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)
