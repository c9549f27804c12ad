"""A part of an engine dies or hangs: the engine ends soon, its log says why, and its clients get 503."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from sglang.srt.managers.stall import LONGEST_TURN_S, Stall
from support.engines import Engine
from support.ports import free_port
from support.storm import FLAGS, wait_until

LONG = {"input_ids": [5] * 20, "sampling_params": {"temperature": 0, "max_new_tokens": 1900, "ignore_eos": True}}


def test_a_killed_scheduler_process_ends_the_engine_and_its_clients_get_503(tiny: Path) -> None:
    with Engine(*FLAGS, model=tiny) as engine, ThreadPoolExecutor(4) as pool:
        engine.wait_ready()
        asked = [pool.submit(httpx.post, engine.url + "/generate", json=LONG, timeout=30) for _ in range(4)]
        wait_until(lambda: engine.metrics()["num_running_reqs"] == 4)
        (scheduler,) = engine.children()
        os.kill(scheduler, signal.SIGKILL)
        started = time.monotonic()
        answers = [future.result() for future in asked]
        assert {answer.status_code for answer in answers} == {503} and "died" in answers[0].text
        assert engine.process.wait(10) == 128 + signal.SIGKILL
        assert time.monotonic() - started < 5
        assert "the engine died" in engine.log()


def test_an_error_in_a_forward_ends_the_engine_with_its_traceback(tiny: Path, tmp_path: Path) -> None:
    """The fault is put in by a module that Python imports at start, in this engine's processes alone."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        "def _arm():\n"
        "    import time\n"
        "    while True:\n"
        "        import sys\n"
        "        module = sys.modules.get('sglang.srt.model_executor.model_runner')\n"
        "        runner = getattr(module, 'ModelRunner', None)\n"
        "        if runner is not None and hasattr(runner, 'execute'):\n"
        "            break\n"
        "        time.sleep(0.01)\n"
        "    whole = runner.execute\n"
        "    def execute(self, plan):\n"
        "        if plan.step_id > 20:\n"
        "            raise RuntimeError('injected into a forward')\n"
        "        return whole(self, plan)\n"
        "    runner.execute = execute\n"
        "threading.Thread(target=_arm, daemon=True).start()\n"
    )
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{tmp_path}:{before}"
    try:
        engine = Engine(*FLAGS, model=tiny, fresh=True)
    finally:
        os.environ["PYTHONPATH"] = before
    with engine:
        engine.wait_ready()
        answer = httpx.post(engine.url + "/generate", json=LONG, timeout=30)
        assert answer.status_code == 503
        assert engine.process.wait(15) not in (0, None)
        assert "injected into a forward" in engine.log()


def test_a_step_that_never_ends_is_noticed() -> None:
    """The compute thread hangs while the loop still turns; a process that was stopped is no hanging worker."""
    stall = Stall()
    stall.turn(0.0, waiting=False)
    ages = [stall.turn(now, waiting=True) for now in (1.0, 2.0, 3.0)]
    assert ages == [1.0, 2.0, 3.0]
    assert stall.turn(1000.0, waiting=True) == 3.0 + LONGEST_TURN_S, (
        "a process that was stopped is not a hanging worker"
    )
    assert stall.turn(1001.0, waiting=False) == 0.0


def break_code(pid: int, module: str) -> None:
    """Overwrite a native module's code in a running process with instructions that do not exist."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, *_, path = line.split()
        if "x" in rights and f"/{module}." in path:
            start, stop = (int(end, 16) for end in span.split("-"))
            with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(b"\x0f\x0b" * ((stop - start) // 2))
            return
    raise AssertionError(f"process {pid} has not loaded {module}")


def test_a_crash_of_the_fabric_s_native_code_ends_the_engine_with_its_stacks(tiny: Path) -> None:
    control = str(free_port())
    prefill_flags = ("--disagg-mode", "prefill", "--disagg-bootstrap-port", control, *FLAGS)
    decode_flags = ("--disagg-mode", "decode", "--disagg-prefill", f"127.0.0.1:{control}", *FLAGS)
    with Engine(*prefill_flags, model=tiny) as prefill, Engine(*decode_flags, model=tiny) as decode:
        prefill.wait_ready()
        decode.wait_ready()
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(httpx.post, decode.url + "/generate", json=LONG, timeout=30)
            wait_until(lambda: decode.metrics()["num_running_reqs"] == 1)
            (scheduler,) = decode.children()
            break_code(scheduler, "_core")
            started = time.monotonic()
            answer = asked.result()
        assert answer.status_code == 503 and "died" in answer.text
        assert decode.process.wait(10) == 128 + signal.SIGILL
        assert time.monotonic() - started < 5
        assert "Fatal Python error: Illegal instruction" in decode.log() and "the engine died" in decode.log()
        assert httpx.get(prefill.url + "/health", timeout=10).status_code == 200, "the cluster goes on without it"
        wait_until(lambda: prefill.metrics()["num_decode_engines"] == 0)
        wait_until(lambda: prefill.metrics()["num_prefill_inflight_queue_reqs"] == 0)
