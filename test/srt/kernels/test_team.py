"""Helpers of the native kernels: who they are, when they sleep, and that no answer hangs on them."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from sglang.srt.kernels.cpu.ops import best_kernels, pack_weight

ROWS, INPUTS, OUTPUTS = 3, 512, 1000


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """Two helpers for the thread of the test."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def product(seed: int) -> Callable[[], bool]:
    """A product that helpers take part in; says whether it is right."""
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(OUTPUTS, INPUTS, generator=random).bfloat16()
    x = torch.randn(ROWS, INPUTS, generator=random).bfloat16()
    packed, expected = pack_weight(weight), x.float() @ weight.float().T
    return lambda: torch.allclose(best_kernels().linear(x, packed).float(), expected, rtol=2**-7, atol=1e-3)


def helpers() -> list[Path]:
    """Of all threads of this process. One that ends while it is looked at is none."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == "kernels":
                found.append(task)
    return found


def on_a_thread(work: Callable[[], object]) -> None:
    """Runs `work` on a new thread with two helpers of its own, to its end."""

    def run() -> None:
        torch.set_num_threads(3)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_a_thread_that_ends_takes_its_helpers_along() -> None:
    right, before, during = product(0), set(helpers()), []
    on_a_thread(lambda: during.append((right(), set(helpers()) - before)))
    assert during[0][0]
    assert len(during[0][1]) == 2
    until = time.monotonic() + 10
    while during[0][1] & set(helpers()):  # they go after Python has said that the thread is over
        assert time.monotonic() < until
        time.sleep(0.01)


def test_threads_that_compute_at_once_do_not_mix() -> None:
    found: list[bool] = []

    def multiply(seed: int) -> None:
        right = product(seed)
        found.extend(right() for _ in range(200))

    threads = [threading.Thread(target=on_a_thread, args=(lambda seed=seed: multiply(seed),)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 600
    assert all(found)


def test_helpers_without_work_sleep() -> None:
    right = product(1)
    assert right()

    def ticks() -> dict[Path, int]:
        found = {}
        for task in helpers():
            with suppress(FileNotFoundError, ProcessLookupError):  # one of a thread of the test before
                # utime and stime (proc_pid_stat(5)): a helper that waits awake yields, which is the system's time.
                found[task] = sum(map(int, (task / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        return found

    time.sleep(0.1)
    before = ticks()
    time.sleep(1)
    spent = {task: used - before[task] for task, used in ticks().items() if task in before}
    assert len(spent) >= 2
    assert sum(spent.values()) <= 5  # of 100 a second and helper
    assert right()


def test_a_forked_process_hires_anew() -> None:
    """The helpers of its parent are not there: it computes, gets its own, and ends."""
    right = product(2)
    assert right()
    child = os.fork()
    if not child:
        ok = right() and len(helpers()) == 2
        os._exit(0 if ok else 1)
    for _ in range(600):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the forked process hangs")
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_process_ends_with_its_helpers_asleep_or_awake() -> None:
    script = (
        "import sys, time, torch; torch.set_num_threads(2)\n"
        "from sglang.srt.kernels.cpu.ops import best_kernels, pack_weight\n"
        "packed, x = pack_weight(torch.zeros(1000, 512).bfloat16()), torch.zeros(1, 512).bfloat16()\n"
        "for _ in range(20): best_kernels().linear(x, packed)\n"
        "time.sleep(float(sys.argv[1]))"
    )
    for rest in ("0", "0.1"):
        subprocess.run([sys.executable, "-c", script, rest], check=True, timeout=60)
