"""Ten malformed model folders: each its own line, exit code 2, within seconds. And what must be insisted upon."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang.tools.tiny.shapes import TINY
from sglang.tools.tiny.write import write_tiny
from support.engines import ROOT, Engine
from support.ports import free_port

INDEX = "model.safetensors.index.json"
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads."""
    folder = tmp_path_factory.mktemp("sound")
    write_tiny(TINY["qwen3-coder"], folder, seed=0)
    return folder


def shard_of(folder: Path, name: str) -> Path:
    """The file that holds a tensor."""
    return folder / str(json.loads((folder / INDEX).read_text())["weight_map"][name])


def config(**fields: Any) -> Change:  # noqa: ANN401 - JSON
    """Replace fields of config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def tensor(name: str, make: Callable[[torch.Tensor], dict[str, torch.Tensor]]) -> Change:
    """Replace one tensor by others in its file."""

    def change(folder: Path) -> None:
        file = shard_of(folder, name)
        tensors = load_file(file)
        tensors.update(make(tensors.pop(name)))
        save_file(tensors, file)

    return change


def truncate(folder: Path) -> None:
    """Cut a shard in the middle."""
    file = sorted(folder.glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:300_000])


def duplicate(folder: Path) -> None:
    """The same tensor in two shards."""
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    name, value = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: value}, second)


def index(text: str) -> Change:
    """Another index."""

    def change(folder: Path) -> None:
        (folder / INDEX).write_text(text)

    return change


def fp8_without_scale(folder: Path) -> None:
    """A weight in fp8 as the config says, its scale forgotten."""
    config(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})(folder)
    tensor(DOWN, lambda value: {DOWN: value.to(torch.float8_e4m3fn)})(folder)


DOWN = "model.layers.1.mlp.experts.2.down_proj.weight"
EXTRA = "model.layers.1.mlp.experts.16.down_proj.weight"
MALFORMED: dict[str, tuple[Change, str]] = {
    "truncated shard": (truncate, "model-00001-of-00002.safetensors is truncated"),
    "wrong dtype": (
        tensor(DOWN, lambda v: {DOWN: v.to(torch.int8)}),
        f"unsupported dtype (supported: F32, BF16, F16): {DOWN}",
    ),
    "wrong shape": (
        tensor(DOWN, lambda v: {DOWN: v.T.contiguous()}),
        f"wrong shape: {DOWN} [64, 128] instead of [128, 64]",
    ),
    "missing scale": (fp8_without_scale, f"missing scale: {DOWN}"),
    "extra expert": (tensor(DOWN, lambda v: {DOWN: v, EXTRA: v.clone()}), f"unexpected: {EXTRA}"),
    "duplicate tensor": (duplicate, "held twice: "),
    "bad index": (index('{"weight_map": '), f"{INDEX} cannot be read as JSON"),
    "unknown architecture": (config(architectures=["Zebra"]), "architecture 'Zebra' is not supported"),
    "unknown rope": (config(rope_scaling={"rope_type": "spiral"}), "rope type 'spiral' is not supported"),
    "vocabulary": (config(vocab_size=300), "vocabulary of 512 exceeds the model's vocab_size 300"),
}  # fmt: skip


def start(folder: Path, *flags: str) -> tuple[int, str, float]:
    """(exit code, standard error, seconds) of an engine that is expected to refuse."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder), "--port", str(free_port())]
    begun = time.monotonic()
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    return done.returncode, done.stderr, time.monotonic() - begun


def refused(folder: Path, message: str, *flags: str) -> None:
    """Exit code 2, and one line that says what is wrong."""
    code, text, seconds = start(folder, *flags)
    lines = [line for line in text.splitlines() if message in line]
    assert code == 2 and len(lines) == 1, text
    assert "Traceback" not in text
    assert seconds < 60, seconds  # a few seconds of CPU, on a machine that does other things too


@pytest.mark.parametrize("fault", ["missing scale", "vocabulary"])
def test_a_malformed_folder(sound: Path, tmp_path: Path, fault: str) -> None:
    """One that the scheduler process finds, one that the HTTP process finds."""
    check(sound, tmp_path, fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(MALFORMED.keys() - {"missing scale", "vocabulary"}))
def test_every_other_malformed_folder(sound: Path, tmp_path: Path, fault: str) -> None:
    check(sound, tmp_path, fault)


def check(sound: Path, scratch: Path, fault: str) -> None:
    """Break a copy and start it."""
    change, message = MALFORMED[fault]
    folder = Path(shutil.copytree(sound, scratch / "model"))
    change(folder)
    refused(folder, message)


@pytest.mark.slow
def test_a_longer_context_must_be_insisted_upon(sound: Path) -> None:
    refused(sound, "--context-length 9000 exceeds the model's 4096", "--context-length", "9000")
    override = ("--json-model-override-args", '{"max_position_embeddings": 9000}')
    with Engine("--context-length", "9000", *override, "--max-total-tokens", "10000", model=sound) as engine:
        assert len(engine.wait_ready().generate([5] * 5000, 2)["output_ids"]) == 2  # type: ignore[arg-type]
    refused(sound, "--json-model-override-args: '[1]' is no JSON object", "--json-model-override-args", "[1]")
