"""Checkpoints: forms that must load, and faults that must be listed."""

import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from sglang.srt.config.model import read_model_spec
from sglang.srt.distributed.collectives import SoloCollectives
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import CheckpointError
from sglang.srt.kernels import linear
from sglang.srt.kernels.cpu.arena import returnable
from sglang.srt.kernels.cpu.ops import PackedWeight, pack_weight
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.models.base import CausalLM
from sglang.srt.models.checkpoint import SafetensorsCheckpoint
from sglang.srt.models.registry import build_model
from sglang.srt.models.weights import load_dummy, load_model

Maker = Callable[..., tuple[Path, PreTrainedModel]]
Tensors = dict[str, torch.Tensor]


def unfilled(folder: Path, group: ParallelGroup = ParallelGroup()) -> CausalLM:  # noqa: B008 - immutable
    """The folder's model without weights."""
    return build_model(read_model_spec(folder), LayerContext(torch.float32, group, SoloCollectives()))


def loaded(folder: Path) -> list[torch.Tensor]:
    """Every parameter after loading."""
    model = unfilled(folder)
    targets = parameters(model)
    load_model(model, folder, read_model_spec(folder))
    return targets


def parameters(model: CausalLM) -> list[torch.Tensor]:
    """What a checkpoint's tensors fill."""
    return [piece.target for weight in model.weights() for source in weight.forms[0] for piece in source.pieces]


@pytest.fixture
def folder(checkpoint: Maker, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    source, _ = checkpoint("qwen2", "odd")
    return Path(shutil.copytree(source, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[Tensors], None]) -> None:
    """Rewrite the folder's single file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_fused_projections_load_like_split_ones(folder: Path) -> None:
    before = loaded(folder)

    def fuse(tensors: Tensors) -> None:
        for layer in range(3):
            prefix = f"model.layers.{layer}"
            for kind in ("weight", "bias"):
                parts = [tensors.pop(f"{prefix}.self_attn.{name}_proj.{kind}") for name in "qkv"]
                tensors[f"{prefix}.self_attn.qkv_proj.{kind}"] = torch.cat(parts)
            parts = [tensors.pop(f"{prefix}.mlp.{name}_proj.weight") for name in ("gate", "up")]
            tensors[f"{prefix}.mlp.gate_up_proj.weight"] = torch.cat(parts)

    edit(folder, fuse)
    assert all(torch.equal(a, b) for a, b in zip(before, loaded(folder), strict=True))


def split_in_two(folder: Path, twice: str = "") -> None:
    """Two shards and an index; `twice` lies in both."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in {*members, *([twice] if twice else [])}}, folder / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_sharded_checkpoint(folder: Path) -> None:
    before = loaded(folder)
    split_in_two(folder)
    assert all(torch.equal(a, b) for a, b in zip(before, loaded(folder), strict=True))


def test_every_fault_in_one_error(folder: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        del tensors["model.norm.weight"]
        del tensors["model.layers.1.mlp.down_proj.weight"]
        tensors["model.layers.0.mlp.experts.weight"] = torch.zeros(2, 2)
        tensors["lm_head.weight"] = torch.zeros(3, 42)
        tensors["model.layers.2.input_layernorm.weight"] = torch.zeros(42, dtype=torch.int8)

    edit(folder, spoil)
    with pytest.raises(CheckpointError) as caught:
        loaded(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert "missing: model.layers.1.mlp.down_proj.weight, model.norm.weight" in message
    assert "unexpected: model.layers.0.mlp.experts.weight" in message
    assert "wrong shape: lm_head.weight [3, 42] instead of [211, 42]" in message
    assert "unsupported dtype (supported: F32, BF16, F16): model.layers.2.input_layernorm.weight of dtype I8" in message


def test_a_tensor_in_two_files(folder: Path) -> None:
    split_in_two(folder, "model.norm.weight")
    with pytest.raises(CheckpointError, match=r"held twice: model\.norm\.weight in a\.safetensors and b\.safetensors"):
        loaded(folder)


def test_half_of_a_fused_form_is_missing_tensors(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.pop("model.layers.0.self_attn.k_proj.weight"))
    with pytest.raises(CheckpointError, match=r"missing: model\.layers\.0\.self_attn\.k_proj\.weight$"):
        loaded(folder)


def test_split_and_fused_at_once_is_one_too_many(folder: Path) -> None:
    def double(tensors: Tensors) -> None:
        tensors["model.layers.0.mlp.gate_up_proj.weight"] = torch.zeros(106, 42)

    edit(folder, double)
    with pytest.raises(CheckpointError, match=r"unexpected: model\.layers\.0\.mlp\.gate_up_proj\.weight$"):
        loaded(folder)


@pytest.mark.parametrize(
    ("keep", "message"), [(5, "truncated"), (200, "truncated"), (-40, "truncated: .* ends at byte")]
)
def test_truncated_file(folder: Path, keep: int, message: str) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=message):
        loaded(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "gone.safetensors"}}'])
def test_bad_index(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        loaded(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds neither"):
        loaded(folder)


def test_a_tied_head_stored_once_more_is_ignored(checkpoint: Maker, tmp_path: Path) -> None:
    source, _ = checkpoint("llama", "one_kv_head")
    folder = Path(shutil.copytree(source, tmp_path / "tied"))
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(128, 64)}))
    loaded(folder)


def test_dummy_weights_depend_on_the_seed_alone(folder: Path) -> None:
    def dummy(seed: int) -> torch.Tensor:
        model = unfilled(folder)
        load_dummy(model, seed)
        return torch.cat([tensor.flatten() for tensor in parameters(model)])

    assert torch.equal(dummy(1), dummy(1))
    assert not torch.equal(dummy(1), dummy(2))
    assert dummy(1).isfinite().all()


def test_a_rank_takes_its_own_part(folder: Path) -> None:
    """Three ranks of the odd model: 2 query heads, 1 KV head each."""
    source = load_file(folder / "model.safetensors")
    edit(folder, lambda tensors: tensors.update(widen(tensors)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 54, "vocab_size": 213}))
    model = unfilled(folder, ParallelGroup(1, 3))
    load_model(model, folder, read_model_spec(folder))
    shares = {tuple(tensor.shape) for tensor in parameters(model)}
    assert {(71, 42), (20, 42), (10, 42), (42, 20), (18, 42), (42, 18)} <= shares
    keys = [tensor for tensor in parameters(model) if tensor.shape == (10, 42)]
    assert torch.equal(keys[0], source["model.layers.0.self_attn.k_proj.weight"][10:20])


def test_a_model_never_lies_in_memory_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been packed is gone by the time the next matrix is."""
    filled: list[weakref.ref[torch.Tensor]] = []
    living: list[int] = []

    def make(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        tensor = returnable(rows, columns, dtype)
        filled.append(weakref.ref(tensor))
        return tensor

    def pack(weight: torch.Tensor) -> PackedWeight:
        living.append(sum(tensor() is not None for tensor in filled))
        return pack_weight(weight)

    monkeypatch.setattr(linear, "returnable", make)
    monkeypatch.setattr(linear, "pack_weight", pack)
    spec = read_model_spec(folder)
    model = build_model(spec, LayerContext(torch.bfloat16, ParallelGroup(), SoloCollectives()))
    load_model(model, folder, spec)
    assert len(living) > 10
    assert living == list(range(living[0], living[0] - len(living), -1))


def widen(tensors: Tensors) -> Tensors:
    """The same with sizes that three divides."""

    def pad(tensor: torch.Tensor) -> torch.Tensor:
        for axis, size in enumerate(tensor.shape):
            more = {53: 1, 211: 2}.get(size, 0)
            if more:
                extra = list(tensor.shape)
                extra[axis] = more
                tensor = torch.cat([tensor, torch.zeros(extra)], axis)
        return tensor

    return {name: pad(tensor) for name, tensor in tensors.items()}


def test_pages_of_read_tensors_are_given_back(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.ones(16 << 18) for i in range(16)}  # 16 MiB each
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    before = resident()
    total = sum(float(checkpoint.read(name).sum()) for name in checkpoint.shapes())
    assert total == 16 * (16 << 18)
    assert resident() - before < 64 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")
