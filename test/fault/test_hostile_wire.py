"""The control plane between real engines: asks that come twice, keys that are right, wrong or absent."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from sglang import disagg_keys
from support.engines import Engine
from support.ports import free_port
from support.repeater import Repeater
from support.storm import FLAGS, prompts, wait_until

LOAD = prompts(12, 5, 100, 600)


def decode_flags(port: int, *more: str) -> tuple[str, ...]:
    return ("--disagg-mode", "decode", "--disagg-prefill", f"127.0.0.1:{port}", *FLAGS, *more)


def prefill_flags(port: int, *more: str) -> tuple[str, ...]:
    return ("--disagg-mode", "prefill", "--disagg-bootstrap-port", str(port), *FLAGS, *more)


def asked(engine: Engine, prompt: list[int]) -> httpx.Response:
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}}
    return httpx.post(f"{engine.url}/generate", json=body, timeout=60)


def test_asks_that_come_twice_are_errors_and_both_engines_live_on(tiny: Path) -> None:
    """Reported case A19, between real processes: a copy while the first is served, and one when it may be over."""
    port = free_port()
    with Repeater(port) as repeater, ExitStack() as stack:
        prefill = stack.enter_context(Engine(*prefill_flags(port), model=tiny))
        honest = stack.enter_context(Engine(*decode_flags(port), model=tiny))
        doubled = stack.enter_context(Engine(*decode_flags(repeater.port), model=tiny))
        for engine in (prefill, honest, doubled):
            engine.wait_ready()
        for engine in (honest, doubled):
            wait_until(lambda engine=engine: engine.metrics()["num_usable_prefill_engines"] == 1)
        for prompt in LOAD:
            right, twice = asked(honest, prompt), asked(doubled, prompt)
            assert (right.status_code, twice.status_code) == (200, 200), twice.text
            assert twice.json()["output_ids"] == right.json()["output_ids"]
        assert repeater.repeated >= 2 * len(LOAD) - 1  # the last waits for a next frame
        wait_until(lambda: prefill.metrics()["control_frames_stale_total"] >= repeater.repeated)
        counted = prefill.reached("num_transfers_total", 2 * len(LOAD))
        assert counted["num_transfers_total"] == 2 * len(LOAD), "a copy was obeyed"
        assert doubled.metrics()["num_transfer_failed_reqs_total"] == 0
        for engine in (prefill, honest, doubled):
            assert httpx.get(engine.url + "/health", timeout=10).status_code == 200


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """(this cluster's, another's), as the command makes them."""
    for name in ("ours", "theirs"):
        assert disagg_keys.main(["--out", str(tmp_path / name)]) == 0
    yield tmp_path / "ours", tmp_path / "theirs"


def test_engines_with_the_cluster_s_keys_are_served_and_others_are_refused_and_counted(
    tiny: Path, keys: tuple[Path, Path]
) -> None:
    ours, theirs = keys
    port = free_port()
    with ExitStack() as stack:
        prefill = stack.enter_context(Engine(*prefill_flags(port, "--disagg-keys", str(ours)), model=tiny))
        flags = {"friend": ("--disagg-keys", str(ours)), "stranger": ("--disagg-keys", str(theirs)), "bare": ()}
        wait = ("--disagg-wait-s", "1")
        engines = {
            name: stack.enter_context(Engine(*decode_flags(port, *wait, *more), model=tiny))
            for name, more in flags.items()
        }
        for engine in (prefill, *engines.values()):
            engine.wait_ready()
        wait_until(lambda: engines["friend"].metrics()["num_usable_prefill_engines"] == 1)
        wait_until(lambda: prefill.metrics()["control_handshakes_refused_total"] >= 4)
        answers = {name: asked(engine, LOAD[0]) for name, engine in engines.items()}
        assert {name: answer.status_code for name, answer in answers.items()} == {
            "friend": 200,
            "stranger": 503,
            "bare": 503,
        }
        assert f"127.0.0.1:{port} does not answer" in answers["stranger"].text
        assert prefill.metrics()["num_decode_engines"] == 1
        secrets = [line for path in ours.glob("*.key") for line in path.read_text().split()[-1:]]
        assert all(secret not in engine.log() for engine in (prefill, *engines.values()) for secret in secrets)
