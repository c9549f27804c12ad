"""Ranks as processes: they compute what one computes; a rank that fails, dies or hangs ends the worker and says why."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec import structs

from sglang.srt.config.model import read_model_spec
from sglang.srt.core.ports import Worker
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen, StepPlan, StepResult, StepRow
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import ConfigError, EngineError
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.shareable import SharedMemory
from sglang.srt.model_executor.build import build_worker, load_rank, make_pool, make_runner
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.model_executor.options import WorkerOptions
from sglang.srt.model_executor.tp.ranks import cores_of
from sglang.srt.model_executor.tp.worker import TPWorker, build_tp_worker
from support.tiny_models import make_checkpoint

GREEDY = SamplingParams(temperature=0.0)
PAGE = 4
OPTIONS = WorkerOptions(dtype="float32", page_size=PAGE, max_total_tokens=256, max_running_requests=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_checkpoint(
        path, "qwen3", hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        intermediate_size=56, vocab_size=96, num_hidden_layers=3, tie_word_embeddings=False,
    )  # fmt: skip
    return path


def result_of(worker: Worker, seconds: float = 30.0) -> StepResult:
    """The next result; fails where the descriptor does not announce it in time."""
    end = time.monotonic() + seconds
    while not (found := worker.poll()):
        left = end - time.monotonic()
        assert left > 0 and select.select([worker.fileno()], [], [], left)[0], "nothing came"
    return found[0]


def first_step(prompt: list[int], slot: int = 0, pages: tuple[int, ...] = (3, 1, 2, 5, 7)) -> StepPlan:
    row = StepRow(slot=slot, start=0, length=len(prompt), tokens=tuple(prompt), new_pages=pages, sample=True)
    return StepPlan(step_id=0, opened=(RowOpen(slot=slot, sampling=GREEDY, seed=1),), rows=(row,))


def generate(worker: Worker, prompt: list[int], count: int) -> list[int]:
    """Every second token travels through us, as the scheduler may plan ahead."""
    worker.submit(first_step(prompt))
    tokens = [result_of(worker).sampled[0].token]
    for index in range(1, count):
        known = (tokens[-1],) if index % 2 else ()
        start = len(prompt) + index - 1
        row = StepRow(slot=0, start=start, length=1, tokens=known, sample=True)
        worker.submit(StepPlan(step_id=index, rows=(row,)))
        tokens.append(result_of(worker).sampled[0].token)
    worker.submit(StepPlan(step_id=count, rows=(), closed=(0,)))
    result_of(worker)
    return tokens


Built = tuple[TPWorker, KVPool, list[SharedMemory]]


@pytest.fixture
def two(folder: Path) -> Iterator[Built]:
    built = build_tp_worker(folder, read_model_spec(folder), OPTIONS, 2, NullHook())
    yield built
    built[0].close()


def pages_of(pool: KVPool, memory: SharedMemory | None = None) -> torch.Tensor:
    """A rank's pages 3 and 1, of all layers, `[layers, 2, heads, 2, page, dim]`."""
    kv = pool.layout.kv
    flat = torch.frombuffer(memory.buffer, dtype=torch.float32) if memory else None
    shape = (kv.layers, pool.layout.num_pages, -1, 2, kv.page_size, kv.head_dim)
    layers = torch.stack([pool.layer(i) for i in range(kv.layers)]) if flat is None else flat.view(shape)
    return layers[:, [3, 1]].clone()


def test_two_ranks_answer_as_one_and_their_pools_are_mapped_here(folder: Path, two: Built) -> None:
    alone, pool = build_worker(folder, read_model_spec(folder), OPTIONS, NullHook())
    prompt = list(range(5, 16))
    try:
        expected = generate(alone, prompt, 8)
    finally:
        alone.close()
    worker, own, mapped = two
    assert generate(worker, prompt, 8) == expected and len(set(expected)) > 2
    heads = torch.cat([pages_of(own), pages_of(own, mapped[0])], dim=2)
    assert torch.allclose(heads, pages_of(pool), atol=1e-5) and float(heads.abs().sum()) > 1


def test_a_rank_that_fails_ends_the_worker_with_its_traceback(two: Built) -> None:
    worker = two[0]
    worker.submit(StepPlan(step_id=0, rows=(), closed=(2,)))
    with pytest.raises(EngineError, match=r"(?s)died:.*Traceback.*closes slot 2, which is not open"):
        result_of(worker)
        result_of(worker)


def test_a_killed_rank_ends_the_worker_at_once(two: Built) -> None:
    worker = two[0]
    pid = rank_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    worker.submit(first_step([1, 2, 3]))
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(EngineError, match=f"rank 1 .process {pid}. was ended by SIGKILL"):
        result_of(worker)
    worker.close()
    assert time.monotonic() - started < 3
    assert not rank_pids()


def test_a_rank_that_hangs_does_not_hang_the_end(two: Built, caplog: pytest.LogCaptureFixture) -> None:
    worker = two[0]
    pid = rank_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    worker.submit(first_step([1, 2, 3]))
    time.sleep(0.3)
    started = time.monotonic()
    worker.close()
    assert time.monotonic() - started < 5 and not rank_pids()
    assert "rank 1 (T (stopped)) entered 0 barriers" in caplog.text and "does not answer signals" in caplog.text


def test_where_a_rank_is_can_be_read(two: Built) -> None:
    def asleep(text: str) -> bool:
        return "rank 1 (S (sleeping))" in text and "next_plan" in text and "rank_process.py" in text

    end = time.monotonic() + 20
    while not asleep(text := two[0]._ranks.stacks()):  # it has sent its pool, and is on its way there
        assert time.monotonic() < end, text


LEAD = """
import os, signal, sys
from pathlib import Path
from sglang.srt.model_executor.options import WorkerOptions
from sglang.srt.model_executor.tp.ranks import Ranks
ranks = Ranks(Path(sys.argv[1]), WorkerOptions(), 3)
print(*ranks.pids(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_die_with_their_lead(folder: Path) -> None:
    """A lead that is killed closes nothing; its ranks are still starting."""
    lead = subprocess.run([sys.executable, "-c", LEAD, str(folder)], stdout=subprocess.PIPE, check=False)
    pids = [int(pid) for pid in lead.stdout.split()]
    assert lead.returncode == -signal.SIGKILL and len(pids) == 2
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() and b"rank_process" in cmdline(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)


def cmdline(pid: int) -> bytes:
    """Empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_model_that_cannot_be_split_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--tp-size 8 does not divide the model's 4 attention heads"):
        build_tp_worker(folder, read_model_spec(folder), OPTIONS, 8, NullHook())
    assert not rank_pids()


def test_cores_are_divided_where_there_are_enough() -> None:
    assert [cores_of(rank, 2, (0, 1, 2, 3, 4)) for rank in range(2)] == [(0, 1), (2, 3)]
    assert cores_of(1, 4, (0, 1)) == (0, 1) and cores_of(1, 2, ()) == ()


def rank_pids() -> list[int]:
    """Processes of ranks that this one started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                mine = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(os.getpid())
                if mine and b"rank_process" in cmdline(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


class Told:
    """One rank's collectives and hook at once: remembers what was called, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def after_attention(self, layer: int) -> None:
        self.calls.append(f"layer {layer}")

    def barrier(self) -> None:
        self.calls.append("barrier")

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append("sum")
        return tensor

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append("gather")
        return torch.cat([tensor, tensor], dim=-1)

    def broadcast(self, tensor: torch.Tensor) -> None:
        self.calls.append("broadcast")


@pytest.mark.parametrize("sample", [False, True])
def test_the_hook_speaks_for_every_rank(folder: Path, sample: bool) -> None:
    """Before a layer is reported, all ranks have met since they stored its KV; also the last one of a prefill step."""
    told = Told()
    loaded = load_rank(folder, read_model_spec(folder), OPTIONS, ParallelGroup(0, 2), told)
    runner = make_runner(loaded, make_pool(loaded, 16, PrivateMemory), told)
    plan = first_step([1, 2, 3, 4, 5])
    runner.execute(StepPlan(step_id=0, opened=plan.opened, rows=(structs.replace(plan.rows[0], sample=sample),)))
    last = ["sum", "layer 2", "sum", "gather", "broadcast"] if sample else ["barrier", "layer 2"]
    assert told.calls == ["sum", "sum", "layer 0", "sum", "sum", "layer 1", "sum", *last]
