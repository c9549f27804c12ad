"""Experts split or packed, and weights for multi-token prediction."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang.srt.config.model import read_model_spec
from sglang.srt.distributed.collectives import SoloCollectives
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import CheckpointError
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.models.mla_decoder import MLADecoder
from sglang.srt.models.registry import build_model
from sglang.srt.models.weights import load_model
from support.exact import check_logits, every_logit, prompt_of
from support.tiny_models import ROPES, SPARSE, make_checkpoint

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small DeepSeek-V3 as transformers writes it."""
    folder = tmp_path_factory.mktemp("v3")
    kind, rope, config = SPARSE["deepseek_v3"]
    fields = {**config, "num_nextn_predict_layers": 1}
    make_checkpoint(folder, kind, rope_parameters=ROPES[rope], **fields)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[Tensors], None]) -> None:
    """Rewrite the folder's single file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def pack(tensors: Tensors, layer: int) -> None:
    """Replace a layer's split experts by two packed tensors."""
    prefix = f"model.layers.{layer}.mlp.experts"
    gates = [tensors.pop(f"{prefix}.{e}.gate_proj.weight") for e in range(16)]
    ups = [tensors.pop(f"{prefix}.{e}.up_proj.weight") for e in range(16)]
    downs = [tensors.pop(f"{prefix}.{e}.down_proj.weight") for e in range(16)]
    tensors[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gates, ups, strict=True)])
    tensors[f"{prefix}.down_proj"] = torch.stack(downs)


def load(folder: Path) -> MLADecoder:
    """The folder's model."""
    context = LayerContext(torch.float32, ParallelGroup(), SoloCollectives())
    model = build_model(read_model_spec(folder), context)
    load_model(model, folder, read_model_spec(folder))
    assert isinstance(model, MLADecoder)
    return model


def test_packed_experts_load_like_split_ones(folder: Path) -> None:
    """Reported case A18: loaded, or a hard error (the next test); never skipped."""
    prompt = prompt_of(160, 40)
    before = every_logit(folder, prompt, chunk=40)
    edit(folder, lambda tensors: pack(tensors, 1))
    assert torch.equal(before, every_logit(folder, prompt, chunk=40))


def test_a_missing_or_extra_expert_is_named(folder: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
        tensors["model.layers.2.mlp.experts.16.down_proj.weight"] = torch.zeros(64, 24)

    edit(folder, spoil)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert "missing: model.layers.1.mlp.experts.3.up_proj.weight" in str(caught.value)
    assert "unexpected: model.layers.2.mlp.experts.16.down_proj.weight" in str(caught.value)


def test_packed_experts_of_the_wrong_shape(folder: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        pack(tensors, 2)
        name = "model.layers.2.mlp.experts.gate_up_proj"
        tensors[name] = tensors[name].transpose(1, 2)

    edit(folder, spoil)
    with pytest.raises(CheckpointError, match=r"wrong shape: .*gate_up_proj \[16, 64, 48\] instead of \[16, 48, 64\]"):
        load(folder)


def predict(tensors: Tensors) -> None:
    """Add a prediction layer: layer 2 once more, and what joins it to the model."""
    for name in [name for name in tensors if name.startswith("model.layers.2.")]:
        tensors[name.replace("layers.2.", "layers.3.")] = tensors[name].clone()
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"model.layers.3.{name}.weight"] = torch.full((64,), 0.5)
    tensors["model.layers.3.eh_proj.weight"] = torch.rand(64, 128)
    tensors["model.layers.3.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.3.shared_head.head.weight"] = tensors["lm_head.weight"].clone()


def test_prediction_layers_are_kept(folder: Path) -> None:
    prompt = prompt_of(160, 40)
    before = every_logit(folder, prompt, chunk=40)
    edit(folder, predict)
    assert torch.equal(before, every_logit(folder, prompt, chunk=40))
    (predictor,) = load(folder).predictors
    assert bool((predictor.embedding_norm.weight == 0.5).all())
    tensors = load_file(folder / "model.safetensors")
    found = predictor.join(torch.eye(128)).T
    torch.testing.assert_close(found, tensors["model.layers.3.eh_proj.weight"])


def test_half_a_prediction_layer_is_an_error(folder: Path) -> None:
    edit(folder, predict)
    edit(folder, lambda tensors: tensors.pop("model.layers.3.eh_proj.weight"))
    with pytest.raises(CheckpointError, match=r"missing: model\.layers\.3\.eh_proj\.weight$"):
        load(folder)


def test_a_prediction_layer_of_a_model_without_one(folder: Path, tmp_path: Path) -> None:
    edit(folder, lambda tensors: tensors.update({"model.layers.4.enorm.weight": torch.ones(64)}))
    with pytest.raises(CheckpointError, match=r"unexpected: model\.layers\.4\.enorm\.weight"):
        load(folder)


def test_equal_magnitudes_square_the_scale(tmp_path: Path) -> None:
    """Reported case A17; position 0 has nothing to scale, so many positions are compared."""
    kind, _, config = SPARSE["deepseek_v3"]
    rope = {**ROPES["yarn"], "mscale": 0.8, "mscale_all_dim": 0.8}
    model = make_checkpoint(tmp_path, kind, rope_parameters=rope, **config)
    spec = read_model_spec(tmp_path)
    assert spec.rope.magnitude == 1.0
    assert spec.attention_scale == pytest.approx(24**-0.5 * (0.1 * 0.8 * 3.688879 + 1) ** 2)
    check_logits(tmp_path, model, length=80, chunk=80)
