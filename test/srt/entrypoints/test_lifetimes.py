"""What ends a request besides its last token: the client, the scheduler, a refusal. And health, keys, ids."""

import asyncio
import socket
import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from sglang.srt.config.server import ServerConfig
from sglang.srt.entrypoints import scheduler_client
from sglang.srt.entrypoints.front import Phase
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.srt.messages.frontend import Generate, Refused
from support.live_front import MODEL, LiveFront, wait_until

LONG = {"prompt": "go on", "max_tokens": 2000}


@pytest.fixture
def own(tokenizer: Tokenizer) -> Iterator[LiveFront]:
    """A front that the test may break."""
    live = LiveFront(tokenizer, ServerConfig(model_path=str(MODEL), served_model_name="smol")).start()
    yield live
    live.stop()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a14_a_client_that_goes_away_is_aborted_at_once(live: LiveFront, stream: bool, n: int) -> None:
    live.scheduler.step_s = 0.01
    body = {**LONG, "stream": stream, "n": n}
    with (
        pytest.raises(httpx.ReadTimeout),
        live.client() as client,
        client.stream("POST", "/v1/completions", json=body, timeout=0.3) as response,
    ):
        for _ in response.iter_bytes():
            raise httpx.ReadTimeout("enough")
    wait_until(lambda: len(live.scheduler.aborted()) == n)  # to the end it would be 20 s
    wait_until(lambda: not live.scheduler.running and not live.front.calls and not live.front.client.open_outputs)


def test_a14_also_while_no_token_has_come_yet(live: LiveFront) -> None:
    def never(request: Generate) -> Iterator[int]:
        while True:
            time.sleep(0.05)
            yield 5

    live.scheduler.answer = never  # type: ignore[assignment]
    with pytest.raises(httpx.ReadTimeout), live.client() as client:
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}, timeout=0.2)
    wait_until(lambda: len(live.scheduler.aborted()) == 1)


def test_many_disconnects_leave_nothing_behind(live: LiveFront) -> None:
    live.scheduler.step_s = 0.001
    address = httpx.URL(live.url)
    body = b'{"prompt": "go on", "max_tokens": 2000, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    for number in range(100):
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(head + body)
            if number % 3:
                connection.recv(10)
    wait_until(lambda: not live.scheduler.running and not live.front.calls and not live.front.client.open_outputs, 10)


def test_a_refusal_becomes_its_status_with_retry_after(live: LiveFront) -> None:
    live.scheduler.refuse = lambda request: Refused(
        rid=request.rid, status=503, kind="server_error", message="the queue is full", retry_after_s=2.5
    )
    with live.client() as client:
        for stream in (False, True):
            answer = client.post("/v1/completions", json={**LONG, "stream": stream})
            assert answer.status_code == 503 and answer.headers["retry-after"] == "3"
            assert answer.json()["error"]["message"] == "the queue is full"
    assert not live.front.calls


def test_one_refused_output_fails_the_request_and_stops_the_others(live: LiveFront) -> None:
    live.scheduler.step_s = 0.005
    live.scheduler.refuse = lambda request: (
        Refused(rid=request.rid, status=503, kind="server_error", message="full")
        if request.rid.endswith("-1")
        else None
    )
    with live.client() as client:
        assert client.post("/v1/completions", json={**LONG, "n": 2}).status_code == 503
    wait_until(lambda: not live.scheduler.running)


def test_a_late_answer_for_an_ended_request_is_dropped(live: LiveFront) -> None:
    live.scheduler.answer = lambda request: live.tokenizer.encode("AB STOP and on and on")
    body = {"text": "x", "rid": "r", "sampling_params": {"stop": " STOP"}}
    with live.client() as client:
        for _ in range(3):  # the same id again and again: an old abort must not end a new request
            answer = client.post("/generate", json=body).json()
            assert answer["text"] == "AB"
            assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": " STOP"}
    assert len({request.rid for request in live.scheduler.generated()}) == 3


def test_an_output_that_a_stop_string_ended_is_stopped_while_the_others_go_on(live: LiveFront) -> None:
    live.scheduler.step_s = 0.01
    texts = iter(["AB STOP and on", "x " * 100])
    script = {}

    def answer(request: Generate) -> list[int]:
        script[request.rid] = live.tokenizer.encode(next(texts)) * 5
        return script[request.rid]

    live.scheduler.answer = answer
    body = {"prompt": "go", "n": 2, "max_tokens": 60, "stop": " STOP", "stream": True}
    with live.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(line for line in lines if '"finish_reason":"stop"' in line)
        wait_until(lambda: len(live.scheduler.running) < 2)  # what is seen is obeyed a moment later
        assert len(live.scheduler.aborted()) == 1
        assert len(live.scheduler.running) == 1, "the other output goes on"
        assert '"finish_reason":"length"' in [line for line in lines if line][-2]


def test_the_schedulers_death_ends_open_requests_with_503_and_an_error_event(own: LiveFront) -> None:
    own.scheduler.step_s = 0.01
    with own.client() as client, client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        own.call(lambda: own.front.client.died("the engine died"))
        rest = [line for line in lines if line]
        assert '"error":{"message":"the engine died"' in rest[-2] and rest[-1] == "data: [DONE]"
    with own.client() as client:
        for path in ("/health", "/health_generate", "/ready", "/server_info"):
            assert client.get(path).status_code == 503
        assert client.post("/generate", json={"text": "x"}).status_code == 503
        assert client.get("/metrics").status_code == 200


def test_a27_health_fails_within_its_deadline_when_the_loop_hangs(
    own: LiveFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own.client() as client:
        assert client.get("/health").status_code == 200
        own.scheduler.hang = True
        time.sleep(scheduler_client.STATE_CACHE_S * 1.5)
        began = time.monotonic()
        answer = client.get("/health")
        assert answer.status_code == 503 and "did not answer" in answer.json()["error"]["message"]
        assert time.monotonic() - began < scheduler_client.STATE_DEADLINE_S + 1
        own.scheduler.hang = False
        wait_until(lambda: client.get("/health").status_code == 200)


def test_a27_probes_share_one_question(own: LiveFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "STATE_CACHE_S", 60.0)  # however long 30 probes take

    async def probe() -> list[int]:
        async with httpx.AsyncClient(base_url=own.url, trust_env=False) as client:
            answers = await asyncio.gather(*(client.get("/health") for _ in range(30)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(probe()) == [200] * 30
    from sglang.srt.messages.frontend import GetState

    assert sum(isinstance(message, GetState) for message in own.scheduler.seen) == 1


def test_a_draining_server_finishes_what_runs_and_refuses_more(own: LiveFront) -> None:
    own.scheduler.step_s = 0.01
    body = {"prompt": "go", "max_tokens": 30, "stream": True}
    with own.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        own.front.phase = Phase.DRAINING
        with own.client() as other:
            assert other.get("/ready").status_code == 503 and other.get("/health").status_code == 200
            refusal = other.post("/generate", json={"text": "x"})
            assert refusal.status_code == 503 and "retry-after" in refusal.headers
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_health_fails_when_the_loop_turns_beside_a_hanging_step(own: LiveFront) -> None:
    with own.client() as client:
        assert client.get("/health").status_code == 200
        own.scheduler.gauges = {"step_age_seconds": 61.0}
        wait_until(lambda: client.get("/health").status_code == 503, 2.0)
        assert "a step has been running for 61 s" in client.get("/health").text
        own.scheduler.gauges = {"step_age_seconds": 5.0}
        wait_until(lambda: client.get("/health").status_code == 200, 2.0)


def test_the_api_key_guards_all_but_health_and_metrics(tokenizer: Tokenizer) -> None:
    config = msgspec.structs.replace(
        ServerConfig(model_path=str(MODEL), served_model_name="smol"), api_key="se\u00e9cret"
    )
    live = LiveFront(tokenizer, config).start()
    try:
        with live.client() as client:
            for path in ("/health", "/ready", "/ping", "/metrics", "/health_generate"):
                assert client.get(path).status_code == 200
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "se\u00e9cret".encode()}):
                answer = client.get("/v1/models", headers=headers)
                assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
            key = {"authorization": "Bearer se\u00e9cret".encode()}
            assert client.get("/v1/models", headers=key).status_code == 200
            assert client.get("/nowhere").status_code == 401
            options = {"origin": "http://a", "access-control-request-method": "POST"}
            assert client.options("/v1/completions", headers=options).status_code == 200
            assert client.get("/health", headers={"origin": "http://a"}).headers["access-control-allow-origin"] == "*"
    finally:
        live.stop()


def test_the_stream_interval_groups_tokens(tokenizer: Tokenizer) -> None:
    config = ServerConfig(model_path=str(MODEL), served_model_name="smol", stream_interval=4)
    live = LiveFront(tokenizer, config).start()

    def one_by_one(request: Generate) -> Iterator[int]:
        """Each when the front has taken the one before: those that come together are one chunk."""
        wait_until(lambda: live.front.calls)  # a call is listed after it was submitted
        (generation,) = live.front.calls.values()
        for sent, token in enumerate(live.tokenizer.encode(" and" * 20)):
            wait_until(lambda sent=sent: generation.outputs[0].completion_tokens == sent)
            yield token

    live.scheduler.answer = one_by_one  # type: ignore[assignment]
    try:
        with live.client() as client:
            body = {"prompt": "one two three four", "max_tokens": 11, "stream": True}
            text = client.post("/v1/completions", json=body).text
            assert text.count("data: {") == 4  # the first token at once, then 4, 4 and the last 2
    finally:
        live.stop()


def test_the_openapi_document_describes_bodies(live: LiveFront) -> None:
    with live.client() as client:
        document = client.get("/openapi.json").json()
    reference = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert reference["$ref"].rsplit("/", 1)[1] in document["components"]["schemas"]
    assert "ChatMessage" in document["components"]["schemas"]
