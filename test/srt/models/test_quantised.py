"""fp8 checkpoints by blocks, rows and tensors, and GGUF files: the logits of the dequantised weights."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from sglang.srt.config.model import read_model_spec
from sglang.srt.errors import CheckpointError
from sglang.srt.models.open_checkpoint import open_checkpoint
from sglang.srt.models.quantised import dequantise
from support.driver import Driver, Request
from support.exact import every_logit, prompt_of, relative
from support.tiny_models import ROPES, SPARSE, make_checkpoint, reference_logits

Tensors = dict[str, torch.Tensor]
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """A sparse model with latents, whose sizes no block divides."""
    folder = tmp_path_factory.mktemp("fp8")
    kind, rope, config = SPARSE["deepseek_v3"]
    return folder, make_checkpoint(folder, kind, rope_parameters=ROPES[rope], **config)


def quantise(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(fp8 values, a scale a block) of a matrix; written out, block by block."""
    rows, columns = -(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1])
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, columns)
    for r in range(rows):
        for c in range(columns):
            place = (slice(r * block[0], (r + 1) * block[0]), slice(c * block[1], (c + 1) * block[1]))
            scales[r, c] = weight[place].abs().max() / 448.0
            values[place] = (weight[place] / scales[r, c]).to(torch.float8_e4m3fn)
    return values, scales


def is_quantised(name: str, tensor: torch.Tensor) -> bool:
    """As published checkpoints do it: projections, but neither routers, nor norms, nor embeddings."""
    return tensor.dim() == 2 and "_proj" in name


def write_fp8(source: Path, folder: Path, block: tuple[int, int] | None, suffix: str) -> Tensors:
    """Quantise a checkpoint; returns the weights that its values and scales stand for."""
    shutil.copytree(source, folder)
    tensors, meant = load_file(folder / "model.safetensors"), {}
    for name, tensor in list(tensors.items()):
        meant[name] = tensor
        if is_quantised(name, tensor):
            values, scales = quantise(tensor, block or (1 << 20, 1 << 20))
            tensors[name] = values
            tensors[name + suffix] = scales if block else scales.reshape(())
            rows = torch.arange(tensor.shape[0]) // (block or tensor.shape)[0]
            columns = torch.arange(tensor.shape[1]) // (block or tensor.shape)[1]
            meant[name] = values.float() * scales[rows][:, columns]
            if block is None:
                tensors[name.replace(".weight", ".input_scale")] = torch.ones(())
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {**FP8, **({"weight_block_size": list(block)} if block else {})}
    (folder / "config.json").write_text(json.dumps(config))
    return meant


@pytest.mark.parametrize(("block", "suffix"), [((128, 128), "_scale_inv"), ((16, 24), "_scale_inv"), (None, "_scale")])
def test_fp8_equals_what_it_stands_for(
    model: tuple[Path, PreTrainedModel], tmp_path: Path, block: tuple[int, int] | None, suffix: str
) -> None:
    source, _ = model
    meant = write_fp8(source, tmp_path / "fp8", block, suffix)
    plain = Path(shutil.copytree(source, tmp_path / "plain"))
    save_file(meant, plain / "model.safetensors")
    prompt = prompt_of(160, 50)
    assert torch.equal(every_logit(tmp_path / "fp8", prompt, chunk=50), every_logit(plain, prompt, chunk=50))


def test_rows_that_share_a_scale() -> None:
    values = torch.tensor([[1.0, -2.0], [3.0, 0.5]]).to(torch.float8_e4m3fn)
    found = dequantise(values, torch.tensor([[2.0], [10.0]]), None)
    assert found.tolist() == [[2.0, -4.0], [30.0, 5.0]]


def test_packed_experts_in_fp8() -> None:
    values = torch.ones(2, 3, 5).to(torch.float8_e4m3fn)
    scale = torch.arange(1.0, 13.0).view(2, 2, 3)
    found = dequantise(values, scale, (2, 2))
    assert found[1].tolist() == [[7, 7, 8, 8, 9], [7, 7, 8, 8, 9], [10, 10, 11, 11, 12]]


def test_scales_that_are_missing_or_misshapen(model: tuple[Path, PreTrainedModel], tmp_path: Path) -> None:
    write_fp8(model[0], tmp_path / "fp8", (16, 16), "_scale_inv")
    file = tmp_path / "fp8" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.0.self_attn.o_proj.weight_scale_inv"]
    tensors["model.layers.1.self_attn.o_proj.weight_scale_inv"] = torch.ones(3, 4)
    save_file(tensors, file)
    with pytest.raises(CheckpointError) as caught:
        Driver(tmp_path / "fp8", page_size=16)
    message = str(caught.value)
    assert "missing scale: model.layers.0.self_attn.o_proj.weight;" in message
    assert "o_proj.weight_scale_inv [3, 4] instead of [4, 4]" in message


def test_fp8_weights_without_a_quantization_config(model: tuple[Path, PreTrainedModel], tmp_path: Path) -> None:
    write_fp8(model[0], tmp_path / "fp8", (16, 16), "_scale_inv")
    shutil.copyfile(model[0] / "config.json", tmp_path / "fp8" / "config.json")
    with pytest.raises(CheckpointError, match=r"unsupported dtype .*F8_E4M3"):
        Driver(tmp_path / "fp8", page_size=16)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quant_method": "awq"}, "quant_method 'awq' are not supported: fp8 and compressed-tensors"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2', expected e4m3"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size is \[128\], expected two sizes"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int",
             "strategy": "group"}}}}, "4-bit int weights by group are not supported",
        ),
    ],
)  # fmt: skip
def test_other_quantisations(model: tuple[Path, PreTrainedModel], fields: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_model_spec(model[0], {"quantization_config": fields})


def test_compressed_tensors_by_channel(model: tuple[Path, PreTrainedModel]) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    fields = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    spec = read_model_spec(model[0], {"quantization_config": fields})
    assert spec.quant is not None and spec.quant.block is None


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
BIG = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
       "intermediate_size": 256, "vocab_size": 96, "num_hidden_layers": 2, "tie_word_embeddings": False}  # fmt: skip


def random_blocks(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType, seed: int) -> np.ndarray:
    """Any bytes are a tensor of these types; scales in half precision are made small and finite."""
    rng = np.random.default_rng(seed)
    size, nbytes = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] // size, nbytes), dtype=np.uint8)
    half = np.float16(0.002).tobytes()
    places = (0, 2) if kind.name == "Q4_K" else (nbytes - 2,)
    for place in places:
        data[..., place : place + 2] = np.frombuffer(half, np.uint8)
    return data.reshape(*shape[:-1], -1)


def write_gguf(source: Path, folder: Path, arch: str, kind: gguf.GGMLQuantizationType) -> Tensors:
    """Move a checkpoint into a GGUF file as llama.cpp's converter does; returns what its tensors stand for."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    meant: Tensors = {}
    experts: dict[str, list[str]] = {}
    for index, (name, tensor) in enumerate(sorted(tensors.items())):
        if ".experts." in name:
            parts = name.split(".")
            experts.setdefault(".".join([*parts[:5], "*", *parts[6:]]), []).append(name)
            continue
        meant[name] = _add(writer, gguf_name(name), name, tensor, arch, kind, index)
    for index, (pattern, names) in enumerate(experts.items()):
        ordered = sorted(names, key=lambda name: int(name.split(".")[5]))
        layer, which = pattern.split(".")[2], pattern.split(".")[6].removesuffix("_proj")
        packed = torch.stack([tensors[name] for name in ordered])
        found = _add(writer, f"blk.{layer}.ffn_{which}_exps.weight", pattern, packed, arch, kind, index)
        meant.update(zip(ordered, found, strict=True))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def gguf_name(name: str) -> str:
    """llama.cpp's name."""
    stem, kind = name.rsplit(".", 1)
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[inner]}.{kind}"


def _add(
    writer: gguf.GGUFWriter, gguf_name: str, name: str, tensor: torch.Tensor, arch: str,
    kind: gguf.GGMLQuantizationType, seed: int,
) -> torch.Tensor:  # fmt: skip
    if tensor.dim() == 1 or ("gate.weight" in name and "exps" not in gguf_name):
        writer.add_tensor(gguf_name, tensor.numpy())
        return tensor
    heads = {"attn_q": 4, "attn_k": 2}.get(gguf_name.split(".")[-2], 0) if arch == "llama" else 0
    if kind.name.endswith("_K"):
        data = random_blocks(tuple(tensor.shape), kind, seed)
    else:
        data = quantize(_pairs(tensor.numpy(), heads) if heads else tensor.numpy(), kind)
    writer.add_tensor(gguf_name, data, raw_dtype=kind)
    flat = dequantize(data, kind).reshape(tensor.shape)
    return torch.from_numpy((_unpairs(flat, heads) if heads else flat).copy())


def _pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Each head's rows 0, d/2, 1, d/2 + 1, ..."""
    dim = weight.shape[0] // heads
    order = [h * dim + half * (dim // 2) + i for h in range(heads) for i in range(dim // 2) for half in (0, 1)]
    return weight[order]


def _unpairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of _pairs."""
    order = _pairs(np.arange(weight.shape[0])[:, None], heads)[:, 0]
    out = np.empty_like(weight)
    out[order] = weight
    return out


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("arch", ["llama", "qwen3", "qwen3moe"])
def test_gguf_equals_what_it_stands_for(tmp_path: Path, arch: str, kind: str) -> None:
    name = {"qwen3moe": "qwen3_moe"}.get(arch, arch)
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 256} if arch == "qwen3moe" else {}
    model = make_checkpoint(tmp_path / "hf", name, **BIG, **experts)
    meant = write_gguf(tmp_path / "hf", tmp_path / "gguf", arch, gguf.GGMLQuantizationType[kind])
    prompt = prompt_of(96, 40)
    found = every_logit(tmp_path / "gguf", prompt, chunk=17, load_format="gguf")
    save_file(meant, tmp_path / "hf" / "model.safetensors")
    assert torch.equal(found, every_logit(tmp_path / "hf", prompt, chunk=17))
    reference = type(model).from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    reference.set_experts_implementation("eager")
    assert relative(found, reference_logits(reference, prompt)) < 1e-4


def test_gguf_faults(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "hf", "llama", **BIG)
    folder = tmp_path / "gguf"
    write_gguf(tmp_path / "hf", folder, "llama", gguf.GGMLQuantizationType.Q5_0)
    with pytest.raises(
        CheckpointError, match=r"unsupported type \(supported: F32.*Q6_K\): .*token_embd\.weight of type Q5_0"
    ):
        Driver(folder, page_size=16, load_format="gguf")
    with pytest.raises(CheckpointError, match="holds neither model"):
        Driver(folder, page_size=16)
    file = folder / "model.gguf"
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(CheckpointError, match="truncated or no GGUF file"):
        open_checkpoint(folder, read_model_spec(folder), "gguf")
    shutil.copyfile(file, folder / "other.gguf")
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF files, expected one: model\.gguf, other\.gguf"):
        open_checkpoint(folder, read_model_spec(folder), "gguf")
    write_gguf(tmp_path / "hf", tmp_path / "falcon", "falcon", gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(CheckpointError, match="architecture 'falcon' is not supported in GGUF; supported: llama"):
        Driver(tmp_path / "falcon", page_size=16, load_format="gguf")


def test_the_loaded_engine_generates(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "hf", "qwen3", **BIG)
    write_gguf(tmp_path / "hf", tmp_path / "gguf", "qwen3", gguf.GGMLQuantizationType.Q8_0)
    request = Request([5, 6, 7], 4)
    Driver(tmp_path / "gguf", page_size=16, load_format="gguf", dtype="bfloat16").run([request], chunk=8)
    assert len(request.tokens) == 4
