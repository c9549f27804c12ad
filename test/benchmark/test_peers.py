"""The referee of engine_vs_peers.py: who runs when, what the machine allows, and that a GGUF holds the same model."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from peers.contest import Contender, ContenderError
from peers.limits import Limits, Shape, decode_rate, prefill_rate
from peers.models import QWEN3_SHAPE, gguf_name, interleaved
from peers.venvs import CONTENDERS, Peer

FAKE = f"""
import sys
sys.path.insert(0, {str(CONTENDERS)!r})
from protocol import serve
class Fake:
    version = "fake 1"
    def __init__(self, order): print("a library that prints")
    def prefill(self, prompt):
        if not prompt: raise SystemExit("no prompt")
        print("more noise"); return 0.5 * len(prompt)
    def open(self, prompts): return [len(p) for p in prompts]
    def keep(self, rows): pass
    def decode(self, steps): return 1.0, [[7] * steps]
serve(Fake)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Peer:
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    return Peer("fake", str(script))


def stopped(contender: Contender) -> bool:
    """Whether its process is stopped, or will be soon: a signal takes effect when it next runs."""
    (pid,) = contender._group()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_contender_runs_for_its_orders_only(fake: Peer, tmp_path: Path) -> None:
    with Contender(fake, {"threads": 1}, tmp_path / "log") as contender:
        assert contender.version == "fake 1", "what libraries print is not taken for an answer"
        assert stopped(contender)
        assert contender.ask({"do": "prefill", "prompt": [1, 2, 3]}) == {"seconds": 1.5}
        assert stopped(contender)
        assert contender.ask({"do": "decode", "steps": 2})["tokens"] == [[7, 7]]
        assert contender.peak_bytes() > 1 << 20
        (pid,) = contender._group()
    assert not Path(f"/proc/{pid}").exists()


def test_a_contender_that_ends_says_why(fake: Peer, tmp_path: Path) -> None:
    with (
        Contender(fake, {"threads": 1}, tmp_path / "log") as contender,
        pytest.raises(ContenderError, match="no prompt"),
    ):
        contender.ask({"do": "prefill", "prompt": []})


def test_a_peer_that_was_not_set_up_says_so() -> None:
    assert Peer("nobody", "x.py", (("pip", "install", "nothing"),)).problem.startswith("not installed")
    assert Peer("ours", "ours.py").python == Path(sys.executable)


def test_the_limits_are_those_of_the_issue() -> None:
    """Qwen3-0.6B shape: prefill at most 492 and 414 tok/s, decode 51 at 1 row, 175 at 4, about 320 at 16."""
    shape = Shape(28 * (1024 * 6144 + 3 * 1024 * 3072), 32000 * 1024, 28, 2048, 28 * 2 * 1024 * 2)
    assert shape.weight_bytes == pytest.approx(946e6, rel=0.01)
    assert shape.kv_bytes_a_token == pytest.approx(114.7e3, rel=0.01)
    genoa = Limits(bytes_per_s=52e9, flops=462e9)
    rates = [prefill_rate(shape, tokens, genoa) for tokens in (512, 2048)]
    rates += [decode_rate(shape, rows, 512, genoa) for rows in (1, 4, 16)]
    assert rates == pytest.approx([492, 414, 51.7, 176, 315], rel=0.02)


def test_every_tensor_of_the_shape_has_a_gguf_name() -> None:
    assert gguf_name("model.layers.3.mlp.up_proj.weight") == "blk.3.ffn_up.weight"
    assert gguf_name("model.embed_tokens.weight") == "token_embd.weight"
    assert gguf_name("model.norm.weight") == "output_norm.weight"
    assert json.dumps(QWEN3_SHAPE)
    with pytest.raises(KeyError):
        gguf_name("model.layers.0.self_attn.sinks.weight")


def rotate(vectors: torch.Tensor, position: int, pairs: torch.Tensor) -> torch.Tensor:
    """Rotate components (pairs[i, 0], pairs[i, 1]) of each head by position * 100^-i."""
    turned = vectors.clone()
    for i, (a, b) in enumerate(pairs.tolist()):
        angle = torch.tensor(position * 100.0**-i)
        turned[:, a] = vectors[:, a] * angle.cos() - vectors[:, b] * angle.sin()
        turned[:, b] = vectors[:, a] * angle.sin() + vectors[:, b] * angle.cos()
    return turned


def test_scores_are_the_same_whether_halves_or_neighbours_are_rotated() -> None:
    heads, dim, hidden = 3, 8, 5
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(heads * dim, hidden, generator=generator, dtype=torch.float64) for _ in range(2))
    x, y = (torch.randn(hidden, generator=generator, dtype=torch.float64) for _ in range(2))
    halves = torch.tensor([[i, i + dim // 2] for i in range(dim // 2)])
    neighbours = torch.tensor([[2 * i, 2 * i + 1] for i in range(dim // 2)])

    def scores(q: torch.Tensor, k: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        turned = rotate((q @ x).view(heads, dim), 5, pairs), rotate((k @ y).view(heads, dim), 2, pairs)
        return (turned[0] * turned[1]).sum(-1)

    wanted = scores(query, key, halves)
    assert torch.allclose(scores(interleaved(query, heads), interleaved(key, heads), neighbours), wanted)
    assert not torch.allclose(scores(query, key, neighbours), wanted), "the test can tell them apart"
