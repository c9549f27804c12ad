"""Write a tiny model's folder. Names and shapes of tensors are asked of the engine's own model, so that any
architecture it has can be made.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sglang.srt.config.model import ModelSpec, read_model_spec
from sglang.srt.distributed.collectives import SoloCollectives
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.kv_pool.base import TORCH_DTYPES
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.models.checkpoint import DummyCheckpoint
from sglang.srt.models.registry import build_model
from sglang.tools.tiny.fp8 import QUANTISED, in_fp8
from sglang.tools.tiny.shapes import TinyModel
from sglang.tools.tiny.tokenizer import copy_real, train

SHARD_BYTES = 2 << 20
"""Small, so that tiny checkpoints have several shards and an index as real ones do."""
FLOAT32 = ("e_score_correction_bias",)
"""Tensors that real checkpoints keep in float32."""
Tensors = dict[str, torch.Tensor]


def write_tiny(
    model: TinyModel, folder: Path, *, seed: int, tokenizer: Path | None = None, fp8: bool = False, **sizes: int
) -> None:
    """Write tokenizer, config.json, generation_config.json and weights, a function of the arguments alone.

    `tokenizer`: a folder with a real model's tokenizer files. `fp8`: projections in e4m3 with a scale for each block of
    128 x 128, as DeepSeek-R1 and Qwen3-Coder-FP8 are published. `sizes` replace fields of config.json. Raises
    CheckpointError for sizes that make no model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = train(model, folder) if tokenizer is None else copy_real(tokenizer, folder)
    ids = {"bos_token_id": words.bos, "eos_token_id": words.eos}
    config = {**model.config, "vocab_size": words.vocab_size, **ids, **(QUANTISED if fp8 else {}), **sizes}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"do_sample": True, **ids, **model.generation})
    spec = read_model_spec(folder)
    tensors = _tensors(spec, seed)
    save_shards(in_fp8(tensors) if fp8 else tensors, folder)


def _tensors(spec: ModelSpec, seed: int) -> Tensors:
    model = build_model(spec, LayerContext(torch.bfloat16, ParallelGroup(), SoloCollectives()))
    shapes = {source.name: source.shape for weight in model.weights() for source in weight.forms[0]}
    random = DummyCheckpoint(shapes.items(), seed)
    dtype = TORCH_DTYPES[spec.dtype]
    tensors = {name: random.read(name) for name in shapes}
    tensors = {name: value if name.endswith(FLOAT32) else value.to(dtype) for name, value in tensors.items()}
    for index in range(spec.num_layers, spec.num_layers + spec.mtp_layers):
        # Published checkpoints repeat the embedding and the head in each prediction layer.
        tensors[f"model.layers.{index}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"model.layers.{index}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    return tensors


def save_shards(tensors: Tensors, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Files of about `shard_bytes` and an index, under Hugging Face's names."""
    shards: list[Tensors] = [{}]
    for name in sorted(tensors):
        if sum(tensor.nbytes for tensor in shards[-1].values()) >= shard_bytes:
            shards.append({})
        shards[-1][name] = tensors[name].contiguous()
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, metadata={"format": "pt"})
        (folder / name).chmod(0o644)  # safetensors makes its files private
    weight_map = _sorted((key, name) for name, shard in zip(names, shards, strict=True) for key in shard)
    total = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _sorted(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return dict(sorted(pairs))


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
