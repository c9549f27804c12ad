"""The digest names weights and shape, not how they are stored."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sglang.srt.config.model import read_model_spec
from sglang.srt.config.model_digest import dummy_digest, model_digest

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip


def write(folder: Path, *, value: float = 1.0, shards: int = 1, **config: object) -> str:
    """A checkpoint of two tensors; its digest."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    tensors = {"a": np.full((8, 64), value, np.float32), "b": np.arange(7, dtype=np.float32)}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        for name, tensor in tensors.items():
            save_file({name: tensor}, folder / f"{name}.safetensors")
        index = {"weight_map": {name: f"{name}.safetensors" for name in tensors}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return model_digest(folder, read_model_spec(folder))


def test_equal_for_the_same_weights_however_stored(tmp_path: Path) -> None:
    one = write(tmp_path / "one")
    assert one == write(tmp_path / "two", shards=2)
    assert one == write(tmp_path / "three", rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    assert one == write(tmp_path / "four", eos_token_id=5)


def test_differs_for_other_weights_or_shapes(tmp_path: Path) -> None:
    digests = {
        write(tmp_path / "one"),
        write(tmp_path / "two", value=2.0),
        write(tmp_path / "three", rope_theta=5.0),
        write(tmp_path / "four", rms_norm_eps=1e-3),
    }
    assert len(digests) == 4


def test_dummy_weights_are_named_by_seed(tmp_path: Path) -> None:
    write(tmp_path / "one")
    spec = read_model_spec(tmp_path / "one")
    assert dummy_digest(spec, 1) == dummy_digest(spec, 1) != dummy_digest(spec, 2)


@pytest.mark.parametrize("module", ["model", "model_digest", "model_files", "architectures"])
def test_a_front_end_needs_no_torch(module: str) -> None:
    code = f"import sys, sglang.srt.config.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
