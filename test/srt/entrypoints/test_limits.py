"""What a client may make the front hold: head, body, and nothing without the key."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import psutil
import pytest

from sglang.srt.config.server import ServerConfig
from sglang.srt.entrypoints.http_protocol import HEAD_LIMIT, TOO_LATE, BoundedHttp
from sglang.srt.entrypoints.middleware import OPEN_PATHS
from sglang.srt.managers.tokenizer import Tokenizer
from support.live_front import MODEL, LiveFront


def answer(live: LiveFront, pieces: Iterator[bytes]) -> bytes:
    """What comes back; sending stops where the server closes."""
    with socket.create_connection(("127.0.0.1", int(live.url.rsplit(":", 1)[1])), timeout=20) as link:
        try:
            for piece in pieces:
                link.sendall(piece)
        except OSError:
            pass
        try:
            return link.recv(4096)
        except ConnectionError:
            return b""


def one_header_without_end() -> Iterator[bytes]:
    yield b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: "
    for _ in range(400):
        yield b"a" * 65536


def headers_without_end() -> Iterator[bytes]:
    yield b"GET /health HTTP/1.1\r\nhost: x\r\n"
    for i in range(400):
        yield b"".join(b"x-%d-%d: aaaaaaaaaaaa\r\n" % (i, k) for k in range(3000))


def a_path_without_end() -> Iterator[bytes]:
    yield b"GET /"
    for _ in range(400):
        yield b"a" * 65536


def trailers_without_end() -> Iterator[bytes]:
    yield b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-a: "
    for _ in range(400):
        yield b"a" * 65536


@pytest.mark.parametrize(
    "pieces", [one_header_without_end, headers_without_end, a_path_without_end, trailers_without_end]
)
def test_a_head_without_an_end_is_cut_off_and_costs_no_memory(
    live: LiveFront, pieces: Callable[[], Iterator[bytes]]
) -> None:
    before = psutil.Process(os.getpid()).memory_info().rss
    said = answer(live, pieces())
    assert not said or said.split()[1] in (b"431", b"400"), said[:80]
    assert psutil.Process(os.getpid()).memory_info().rss - before < 16 << 20


def test_heads_within_the_limit_and_long_bodies_pass(live: LiveFront) -> None:
    with live.client() as client:
        for _ in range(3):
            assert client.get("/health", headers={"x-a": "a" * (HEAD_LIMIT // 2)}).status_code == 200
        body = b'{"prompt": "hi", "max_tokens": 1, "user": "' + b"u" * (1 << 20) + b'"}'
        assert client.post("/v1/completions", content=body).status_code == 200
        chunks = (body[i : i + 1000] for i in range(0, len(body), 1000))
        assert client.post("/v1/completions", content=chunks).status_code == 200


def reply(live: LiveFront, sent: bytes, more: bytes = b"", every: float = 0.0) -> tuple[bytes, float]:
    """(everything that comes back until the server closes, seconds until then); `more` is sent again and again."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", int(live.url.rsplit(":", 1)[1]))) as link:
        link.sendall(sent)
        link.settimeout(every or 10)
        said = b""
        while time.monotonic() - began < 10:
            try:
                piece = link.recv(4096)
            except TimeoutError:
                link.sendall(more)
                continue
            except ConnectionError:
                break
            said += piece
            if not piece:
                break
        return said, time.monotonic() - began


POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 40\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", b""),
        (b"GET /hea", b"408"),
        (b"GET /health HTTP/1.1\r\nx-a: b\r\n", b"408"),
        (POST, b""),
        (POST + b'{"prompt": "hi",', b""),
    ],
)
def test_a_request_that_does_not_go_on_is_given_up(
    live: LiveFront, sent: bytes, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttp, "silence_s", 0.3)
    answer, seconds = reply(live, sent)
    assert (answer.split()[1] if answer else b"") == said
    assert 0.3 <= seconds < 8


def test_a_head_that_drips_is_given_up_and_a_body_that_does_is_not(
    live: LiveFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttp, "silence_s", 1.5)
    assert reply(live, b"GET /", b"a", every=0.1)[0].split()[1] == b"408"
    body = b'{"prompt": "hi", "max_tokens": 1, "a":1}'

    def drip() -> Iterator[bytes]:
        for i in range(0, len(body), 4):
            time.sleep(0.2)  # 2 s in all
            yield body[i : i + 4]

    with live.client() as client:
        assert client.post("/v1/completions", content=drip()).status_code == 200


def test_a_long_answer_is_not_cut_off_by_what_its_client_sends_early(
    live: LiveFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttp, "silence_s", 0.1)
    body = b'{"prompt": "hi", "max_tokens": 300, "stream": true, "ignore_eos": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    monkeypatch.setattr(live.scheduler, "step_s", 0.002)
    said, seconds = reply(live, head + body + b"GET /he")
    assert seconds > 0.3 and b"data: [DONE]" in said and said.endswith(TOO_LATE)


def test_a_first_request_on_the_wire_is_answered_by_a_server_that_ends(tokenizer: Tokenizer) -> None:
    live = LiveFront(tokenizer, ServerConfig(model_path=str(MODEL), served_model_name="smol")).start()
    with socket.create_connection(("127.0.0.1", int(live.url.rsplit(":", 1)[1])), timeout=20) as link:
        time.sleep(0.1)  # the server has the connection, and no request
        ending = threading.Thread(target=live.stop)
        ending.start()
        time.sleep(0.3)
        link.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        assert link.recv(4096).split()[0] == b"HTTP/1.1"
        ending.join(timeout=20)
    assert not ending.is_alive()


def test_every_route_and_method_but_probes_wants_the_key(tokenizer: Tokenizer) -> None:
    config = msgspec.structs.replace(ServerConfig(model_path=str(MODEL), served_model_name="smol"), api_key="secret")
    live = LiveFront(tokenizer, config).start()
    key = {"authorization": "Bearer secret"}
    try:
        with live.client() as client:
            routes = client.get("/openapi.json", headers=key).json()["paths"]
            paths = {*routes, "/", "/docs", "/openapi.json", "//health", "/health/", "/HEALTH", "/metrics/../v1/models"}
            assert len(paths) > 20
            for path in sorted(paths - OPEN_PATHS):
                for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"):
                    given = client.request(method, path.replace("{", "").replace("}", ""))
                    assert given.status_code == 401, (method, path, given.status_code)
            assert client.get("/v1/models", headers=key).status_code == 200
            assert client.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
    finally:
        live.stop()


def test_a_key_is_no_prefix_and_no_second_header(tokenizer: Tokenizer) -> None:
    config = msgspec.structs.replace(ServerConfig(model_path=str(MODEL), served_model_name="smol"), api_key="secret")
    live = LiveFront(tokenizer, config).start()
    wrong = ("Bearer secre", "Bearer secrett", "bearer", "secret", "Basic secret", "Bearer secret,x")
    try:
        with live.client() as client:
            for value in wrong:
                assert client.get("/v1/models", headers={"authorization": value}).status_code == 401, value
            for value in ("", "secre", "Bearer secret"):
                assert client.get("/v1/models", headers={"x-api-key": value}).status_code == 401, value
    finally:
        live.stop()
