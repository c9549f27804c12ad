"""Every model through one prefill and one decode engine over tcp: the tokens of the unified engine, real processes."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang.tools.tiny.shapes import TINY
from sglang.tools.tiny.write import write_tiny
from support.engines import Engine, cluster

FLAGS = (
    "--dtype", "float32", "--max-total-tokens", "8192", "--max-running-requests", "16", "--context-length", "1024",
    "--chunked-prefill-size", "64", "--debug-invariants",
)  # fmt: skip
TRANSFER = ("--disagg-provider", "tcp", "--disagg-local-prefill-tokens", "2")
DEFAULT = ("deepseek-r1", "gemma3")
"""What runs by default: latents, experts, windows and two ropes."""


def prompts() -> list[list[int]]:
    """Token ids; lengths at and off boundaries of pages and chunks, beyond the windows, and a shared prefix."""
    rng = random.Random(5)
    made = [[rng.randrange(10, 500) for _ in range(n)] for n in (1, 2, 15, 16, 17, 63, 64, 65, 129, 300)]
    return [*made, made[-1][:200] + made[-2][:40]]


def answers(engine: Engine) -> list[tuple[list[int], list[float]]]:
    """(token ids, logprobs) of each prompt, all asked at once."""

    def ask(prompt: list[int]) -> tuple[list[int], list[float]]:
        meta = engine.generate(prompt, 12)["meta_info"]
        assert isinstance(meta, dict)
        return [t[1] for t in meta["output_token_logprobs"]], [t[0] for t in meta["output_token_logprobs"]]

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(ask, prompts()))


def check(kind: str, folder: Path, page_size: int) -> None:
    """Unified, then disaggregated."""
    write_tiny(TINY[kind], folder, seed=1)
    flags = (*FLAGS, "--page-size", str(page_size))
    with Engine(*flags, model=folder) as engine:
        engine.wait_ready()
        expected = answers(engine)
    with cluster(*flags, *TRANSFER, model=folder) as (prefill, (decode,)):
        for index, (mine, theirs) in enumerate(zip(answers(decode), expected, strict=True)):
            assert mine[0] == theirs[0], f"prompt {index}"
            assert max(abs(a - b) for a, b in zip(mine[1], theirs[1], strict=True)) < 1e-3, f"prompt {index}"
        assert prefill.reached("num_transfers_total", 7)["num_transfer_failed_reqs_total"] == 0


@pytest.mark.parametrize("kind", DEFAULT)
def test_tokens_equal_the_unified_engines(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, 16)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(TINY) - set(DEFAULT)))
def test_every_other_model(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, 16)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deepseek-r1", "deepseek-v2-lite", "mistral", "gemma3"])
@pytest.mark.parametrize("page_size", [1, 64])
def test_page_sizes(kind: str, page_size: int, tmp_path: Path) -> None:
    check(kind, tmp_path, page_size)
