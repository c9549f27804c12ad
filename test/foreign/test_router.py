"""sglang-router in front of two decode engines: a plain HTTP balancer is all that disaggregation needs here."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from support.engines import MODEL, Engine
from support.ports import free_port


@pytest.fixture(scope="module")
def router(pair: tuple[Engine, Engine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, folder = free_port(), tmp_path_factory.mktemp("router")
    command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *(engine.url for engine in pair), "--policy", "round_robin"]
    command += ["--prometheus-port", str(free_port())]
    # Its tokenizer comes from a folder: it must never ask a model hub.
    command += ["--model-path", str(MODEL), "--tokenizer-path", str(MODEL)]
    environment = {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    log = (folder / "log").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process, Path(log.name))
        yield url
    finally:
        process.terminate()
        process.wait(15)
        log.close()


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.post(url + "/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 1}}).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.3)
    raise AssertionError(log.read_text()[-3000:])


def served(engine: Engine) -> float:
    return engine.metrics()["num_requests_total"]


def test_requests_through_the_router_reach_both_engines(router: str, pair: tuple[Engine, Engine]) -> None:
    before = [served(engine) for engine in pair]
    with openai.OpenAI(base_url=router + "/v1", api_key="none", max_retries=0) as client, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> int:
            answer = client.chat.completions.create(
                model="smol", messages=[{"role": "user", "content": f"What is {number} plus one?"}], max_tokens=5
            )
            return answer.usage.completion_tokens

        assert list(pool.map(ask, range(12))) == [5] * 12
        with client.completions.create(model="smol", prompt="The sun is", max_tokens=5, stream=True) as stream:
            assert sum(bool(event.choices and event.choices[0].text) for event in stream) >= 1
    gained = [served(engine) - start for engine, start in zip(pair, before, strict=True)]
    assert min(gained) >= 4 and sum(gained) >= 13, gained


def test_native_requests_and_errors_pass_through(router: str) -> None:
    asked = {"text": "One two", "sampling_params": {"max_new_tokens": 3}}
    answer = httpx.post(router + "/generate", json=asked, timeout=60)
    assert len(answer.json()["output_ids"]) == 3
    wrong = httpx.post(router + "/v1/completions", json={"model": "smol", "prompt": "x", "max_tokens": -1}, timeout=60)
    assert 400 <= wrong.status_code < 500, wrong.text
