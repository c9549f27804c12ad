"""Bad input, bad flags and engines that do not fit: one clear line or a 4xx/503, never a hang, and the engine lives
on.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.engines import ROOT, Engine, need_model
from support.ports import free_port


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("--max-total-tokens", "4096", "--max-running-requests", "4") as made:
        yield made.wait_ready()


def completion(**change: object) -> dict[str, object]:
    return {"model": str(need_model()), "prompt": "Hello", "max_tokens": 2, **change}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", completion(prompt=""), 400),
        ("/v1/completions", completion(prompt=[]), 400),
        ("/v1/completions", completion(prompt=[5] * 9000), 400),
        ("/v1/completions", completion(prompt=[5] * 5000), 400),  # fits the context, not this pool
        ("/v1/completions", completion(prompt=[10**9]), 400),
        ("/v1/completions", completion(model="nobody"), 404),
        ("/v1/completions", completion(max_tokens=-1), 400),
        ("/v1/completions", completion(max_tokens="many"), 400),
        ("/v1/completions", completion(temperature=-2), 400),
        ("/v1/completions", completion(top_p=7), 400),
        ("/v1/chat/completions", {"model": str(need_model()), "messages": "hello"}, 400),
        ("/v1/chat/completions", {"model": str(need_model()), "messages": []}, 400),
        ("/v1/completions", b'{"model": ', 400),
        ("/v1/completions", b"[1, 2]", 400),
        ("/v1/completions", b"", 400),
    ],
)
def test_bad_input_is_a_4xx_in_openai_s_shape(engine: Engine, path: str, body: object, status: int) -> None:
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    headers = {"content-type": "application/json"}
    answer = httpx.post(engine.url + path, headers=headers, timeout=60, **sent)  # type: ignore[arg-type]
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"] and error["type"] and set(error) == {"message", "type", "param", "code"}
    assert engine.generate("Hello", 1)["output_ids"], "the engine lives on"


def launch(*flags: str) -> tuple[int, str]:
    """(exit code, output) of a launch that must end by itself."""
    command = [sys.executable, "-m", "sglang.launch_server", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = launch("--model-path", str(need_model()), "--port", str(taken.getsockname()[1]))
    assert code != 0 and "--port" in said and "Traceback" not in said


def test_a_missing_model_folder_is_named(tmp_path: Path) -> None:
    code, said = launch("--model-path", str(tmp_path / "nothing"), "--port", str(free_port()))
    assert code != 0 and "nothing" in said and "Traceback" not in said


def test_a_control_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = ("--disagg-mode", "prefill", "--disagg-bootstrap-port", port, "--max-total-tokens", "1024")
        code, said = launch("--model-path", str(need_model()), "--port", str(free_port()), *flags)
    assert code != 0 and "--disagg-bootstrap-port" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--disagg-mode", "decode"), "--disagg-prefill"),
        (("--page-size", "1000"), "--page-size"),
        (("--disagg-mode", "prefill", "--disagg-host", "0.0.0.0"), "--disagg-host"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--tp-size", "2"), "--tp-size"),
        (("--disaggregation-transfer-backend", "mooncake"), "--disaggregation-transfer-backend"),
    ],
)
def test_wrong_flags_exit_2_and_are_named(flags: tuple[str, ...], named: str) -> None:
    code, said = launch("--model-path", str(need_model()), *flags)
    assert code == 2 and named in said and "Traceback" not in said


def test_engines_that_do_not_fit_answer_503_with_the_difference() -> None:
    control = free_port()
    small = ("--max-total-tokens", "2048", "--max-running-requests", "4")
    prefill = Engine("--disagg-mode", "prefill", "--disagg-bootstrap-port", str(control), "--page-size", "32", *small)
    decode = Engine("--disagg-mode", "decode", "--disagg-prefill", f"127.0.0.1:{control}", "--dtype", "float32", *small)
    with prefill, decode:
        prefill.wait_ready()
        decode.wait_ready()
        answer = httpx.post(decode.url + "/v1/completions", json=completion(prompt=list(range(100, 200))), timeout=30)
        assert answer.status_code == 503
        message = answer.json()["error"]["message"]
        assert "page_size: 32 here, 16 there" in message and "dtype: 'bfloat16' here, 'float32' there" in message
        short = httpx.post(decode.url + "/v1/completions", json=completion(), timeout=60)
        assert short.status_code == 200, "a prompt short enough for local prefill is served"


def test_a_decode_engine_without_its_prefill_engine_answers_503_in_time() -> None:
    control = free_port()
    peer = ("--disagg-prefill", f"127.0.0.1:{control}", "--disagg-wait-s", "2")
    with Engine("--disagg-mode", "decode", *peer, "--max-total-tokens", "2048") as decode:
        decode.wait_ready()
        answer = httpx.post(decode.url + "/v1/completions", json=completion(prompt=[7] * 100), timeout=10)
        assert answer.status_code == 503 and f"127.0.0.1:{control} does not answer" in answer.json()["error"]["message"]


def test_a_prefill_engine_refuses_clients() -> None:
    flags = ("--disagg-mode", "prefill", "--disagg-bootstrap-port", str(free_port()), "--max-total-tokens", "1024")
    with Engine(*flags) as prefill:
        prefill.wait_ready()
        answer = httpx.post(prefill.url + "/v1/completions", json=completion(), timeout=30)
        assert answer.status_code == 400 and "decode engine" in answer.json()["error"]["message"]
