"""Clusters of sharded engines with a tiny model, and what must hold of them."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sglang.tools.tiny.shapes import TINY
from sglang.tools.tiny.write import write_tiny
from support.engines import Engine
from support.ports import free_range

REQUESTS = 16
FLAGS = (
    "--dtype", "float32", "--max-total-tokens", "12000", "--max-running-requests", "16", "--page-size", "4",
    "--chunked-prefill-size", "128", "--disagg-local-prefill-tokens", "3", "--debug-invariants",
    "--grammar-backend", "none", "--disagg-provider", "tcp", "--skip-server-warmup",
)  # fmt: skip
Answer = tuple[list[int], list[float]]
"""Tokens and their log probabilities."""


def tiny_model(kind: str, folder: Path) -> Path:
    """A random checkpoint of one of make_tiny's kinds."""
    write_tiny(TINY[kind], folder, seed=0)
    return folder


SEEDS = (1, 2, 3)
"""Of prompts whose answers do not hang on rounding.

Which batch a token is computed in moves its router's scores by some 1e-7. Where two experts are as near as that, the
batch decides which of them is asked: a prompt of seed 0 has such a token (deepseek-r1, 1.2e-7 between two experts), and
one rank alone answers it with log probabilities that differ by 2e-3 from batch to batch; all others differ by 6e-6.
test/e2e/test_sharded.py: test_no_prompt_hangs_on_rounding says that these have none.
"""


def prompts(seed: int) -> list[list[int]]:
    """Lengths around page and chunk boundaries, and long enough that one page is below 1% of a rank's load."""
    rng = random.Random(seed)
    lengths = [6, 128, 129, 130, 257, *(rng.randint(60, 300) for _ in range(REQUESTS - 5))]
    return [[rng.randrange(10, 250) for _ in range(length)] for length in lengths]


def answers(engine: Engine, asked: Sequence[list[int]]) -> list[Answer]:
    """All at once, greedy."""

    def ask(prompt: list[int]) -> Answer:
        meta = engine.generate(prompt, 6)["meta_info"]
        assert isinstance(meta, dict)
        pairs = meta["output_token_logprobs"]
        return [pair[1] for pair in pairs], [pair[0] for pair in pairs]

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, asked))


def assert_equal(mine: Sequence[Answer], theirs: Sequence[Answer], what: str) -> None:
    """The same tokens; logprobs as near as float32 sums in another order can be."""
    for index, (found, expected) in enumerate(zip(mine, theirs, strict=True)):
        assert found[0] == expected[0], f"{what}: request {index}"
        apart = max(abs(a - b) for a, b in zip(found[1], expected[1], strict=True))
        assert apart < 1e-3, f"{what}: request {index}: log probabilities {apart} apart: {found[1]}, {expected[1]}"


@contextmanager
def decode_engines(
    model: Path, sizes: Sequence[str], peers: Sequence[str], *, fresh: bool = False
) -> Iterator[list[Engine]]:
    """One for each entry of `sizes` (flags, space-separated), starting; they will use prefill engines at `peers`."""
    mode = ("--disagg-mode", "decode", "--disagg-prefill", ",".join(peers))
    with ExitStack() as stack:
        yield [stack.enter_context(Engine(*mode, *FLAGS, *size.split(), model=model, fresh=fresh)) for size in sizes]


def prefill_engine(model: Path, port: int, size: str, *, fresh: bool = False) -> Engine:
    """One at control port `port`, starting."""
    mode = ("--disagg-mode", "prefill", "--disagg-bootstrap-port", str(port))
    return Engine(*mode, *FLAGS, *size.split(), model=model, fresh=fresh)


def replicas_of(size: str) -> int:
    """--dp-size among flags."""
    flags = size.split()
    return int(flags[flags.index("--dp") + 1]) if "--dp" in flags else 1


def rank_bytes(engine: Engine) -> dict[int, float]:
    """Bytes that each rank has sent."""
    name = "fabric_rank_"
    found = {k: v for k, v in engine.metrics().items() if k.startswith(name)}
    return {int(k.removeprefix(name).split("_")[0]): v for k, v in found.items()}


def check_pairs(model: Path, prefill: Sequence[str], decode: Sequence[str], ranks: Sequence[int]) -> None:
    """Every prefill engine with every decode engine: answers equal those of one rank, ranks send equally much.

    `ranks`: of each prefill engine. The engines of a pair are alone with each other while they work.
    """
    ports = [free_range(replicas_of(size)) for size in prefill]
    peers = [f"127.0.0.1:{port}-{port + replicas_of(size) - 1}" for port, size in zip(ports, prefill, strict=True)]
    asked = {seed: prompts(seed) for seed in SEEDS[: len(prefill)]}
    with decode_engines(model, decode, peers) as engines:
        with Engine(*FLAGS, model=model) as unified:
            unified.wait_ready()
            expected = {seed: answers(unified, found) for seed, found in asked.items()}
        for engine in engines:
            engine.wait_ready()
        for seed, size, port, count in zip(asked, prefill, ports, ranks, strict=True):
            with prefill_engine(model, port, size) as source:
                source.wait_ready()
                for engine, name in zip(engines, decode, strict=True):
                    _check_pair(source, engine, asked[seed], expected[seed], count, f"P {size} -> D {name}")


def _check_pair(
    source: Engine, engine: Engine, asked: list[list[int]], expected: list[Answer], ranks: int, what: str
) -> None:
    before, count = rank_bytes(source), source.metrics()["num_transfers_total"]
    assert_equal(answers(engine, asked), expected, what)
    moved = source.reached("num_transfers_total", count + len(asked))
    landed = engine.metrics()
    assert moved["num_transfers_total"] == count + len(asked), what
    assert not moved["num_transfer_failed_reqs_total"] and not landed["fabric_strays_total"], what
    sent = {rank: nbytes - before[rank] for rank, nbytes in rank_bytes(source).items()}
    mean = sum(sent.values()) / ranks
    assert set(sent) == set(range(ranks)), what
    assert all(abs(nbytes - mean) < 0.05 * mean for nbytes in sent.values()), f"{what}: {sent}"
