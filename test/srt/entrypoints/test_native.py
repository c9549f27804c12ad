"""SGLang's native routes."""

import itertools
import json
import threading
import time
from collections.abc import Callable

from support.live_front import LiveFront, wait_until

Say = Callable[..., list[int]]


def events(text: str) -> list[dict[str, object]]:
    lines = [line for line in text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_generate_has_sglangs_shape(live: LiveFront, say: Say) -> None:
    tokens = say("Hello world", end=True)
    live.scheduler.cached_tokens = 1
    body = {
        "text": "one two",
        "rid": "mine",
        "return_logprob": True,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
        "sampling_params": {"max_new_tokens": 9, "temperature": 0},
    }
    with live.client() as client:
        answer = client.post("/generate", json=body).json()
    assert answer["text"] == "Hello world" and answer["output_ids"] == tokens
    meta = answer["meta_info"]
    assert meta["id"] == "mine" and meta["finish_reason"] == {"type": "stop", "matched": 2}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 3, 1)
    assert meta["output_token_logprobs"][0] == [-0.5, tokens[0], "Hello"]
    assert meta["output_top_logprobs"][0][1] == [-1.5, tokens[0] + 1, live.tokenizer.token_text(tokens[0] + 1)]
    assert 0 < meta["e2e_latency"] < 5


def test_a16_nothing_behind_a_stop_string_is_reported(live: LiveFront, say: Say) -> None:
    tokens = say("one two STOP three four")
    live.scheduler.tokens_a_step = 100
    body = {"text": "x", "return_logprob": True, "sampling_params": {"stop": " STOP"}}
    with live.client() as client:
        answer = client.post("/generate", json=body).json()
    count = answer["meta_info"]["completion_tokens"]
    assert answer["text"] == "one two" and answer["output_ids"] == tokens[:count] != tokens
    assert len(answer["meta_info"]["output_token_logprobs"]) == count


def test_batches_and_n_are_lists_and_ids_may_be_given(live: LiveFront) -> None:
    with live.client() as client:
        params = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
        answers = client.post("/generate", json={"input_ids": [[5, 6], [7]], "sampling_params": params}).json()
        assert [answer["output_ids"] for answer in answers] == [[5], [7, 7]]
        assert answers[1]["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
        twice = client.post("/generate", json={"text": "a", "sampling_params": {"n": 2, "max_new_tokens": 1}}).json()
        assert len(twice) == 2


def test_a_stream_carries_the_text_so_far(live: LiveFront, say: Say) -> None:
    say("Hello world again", end=True)
    live.scheduler.step_s = 0.003
    with live.client() as client:
        parts = events(client.post("/generate", json={"text": "x", "stream": True}).text)
    texts = [part["text"] for part in parts]
    assert texts[-1] == "Hello world again" and all(b.startswith(a) for a, b in itertools.pairwise(texts))
    assert [part["meta_info"]["finish_reason"] is None for part in parts] == [True] * (len(parts) - 1) + [False]


def test_max_new_tokens_is_clipped_to_the_context(live: LiveFront) -> None:
    live.scheduler.answer = lambda request: [2]
    with live.client() as client:
        body = {"input_ids": [7] * 2000, "sampling_params": {"max_new_tokens": 5000}}
        assert client.post("/generate", json=body).status_code == 200
    assert live.scheduler.generated()[-1].sampling.max_new_tokens == 48


def test_defaults_are_sglangs(live: LiveFront) -> None:
    with live.client() as client:
        client.post("/generate", json={"text": "x"})
        client.post("/generate", json={"text": "x", "sampling_params": {"ignore_eos": True}})
    first, second = (request.sampling for request in live.scheduler.generated())
    assert (first.max_new_tokens, first.temperature, first.top_p, first.top_k) == (128, 1.0, 1.0, -1)
    assert (first.stop_token_ids, second.stop_token_ids) == ((2,), ())


def test_abort_request_ends_with_reason_abort(live: LiveFront) -> None:
    live.scheduler.step_s = 0.01
    answers: list[dict[str, object]] = []

    def ask() -> None:
        with live.client() as client:
            body = {"text": "go on", "rid": "r1", "sampling_params": {"max_new_tokens": 1000}}
            answers.append(client.post("/generate", json=body).json())

    for body in ({"rid": "r1"}, {"abort_all": True}):
        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: live.scheduler.running)
        with live.client() as client:
            assert client.post("/generate", json={"text": "x", "rid": "r1"}).status_code == 400
            assert client.post("/abort_request", json={"rid": "other"}).status_code == 200
            assert client.post("/abort_request", json=body).status_code == 200
        asking.join(5)
        assert answers.pop()["meta_info"]["finish_reason"]["type"] == "abort"
    wait_until(lambda: not live.front.calls)


def test_tokenize_and_detokenize(live: LiveFront) -> None:
    with live.client() as client:
        answer = client.post("/tokenize", json={"prompt": "Hello 世界"}).json()
        assert answer["count"] == len(answer["tokens"])
        assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"text": "Hello 世界"}
        batch = client.post("/v1/tokenize", json={"prompt": ["a", "b"]}).json()["tokens"]
        assert client.post("/v1/detokenize", json={"tokens": batch}).json() == {"text": ["a", "b"]}


def test_information(live: LiveFront) -> None:
    live.scheduler.gauges = {"token_usage": 0.25, "something_new": 3.0}
    with live.client() as client:
        time.sleep(0.3)  # the snapshot before is shared for a moment
        info = client.get("/server_info").json()
        assert info["max_total_num_tokens"] == 4096 and info["page_size"] == 16 and "api_key" not in info
        assert info["internal_states"][0]["token_usage"] == 0.25
        assert info["internal_states"][0]["samples"]["step_seconds"]["p50"] == 0.001
        assert client.get("/get_server_info").json()["status"] == "ready"
        assert client.get("/model_info").json()["is_generation"] is True
        assert client.get("/get_model_info").json()["vocab_size"] == 49152
        assert client.get("/v1/loads").json()["loads"][0]["token_usage"] == 0.25
        assert "7 pages" in client.post("/flush_cache").text
        assert client.get("/ping").status_code == client.get("/ready").status_code == 200
        metrics = client.get("/metrics").text
    labels = 'instance="test",model_name="smol"'
    assert f"sglang:token_usage{{{labels}}} 0.25" in metrics
    assert f"sglang:something_new{{{labels}}} 3.0" in metrics
    assert f"sglang:kv_transfer_total_mb{{{labels}}} 12.5" in metrics
    for name in ("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_sum", "num_requests_total"):
        assert f"sglang:{name}" in metrics
    assert "sglang:step_seconds_bucket" in metrics


def test_a_prefill_engine_sends_clients_to_decode_engines(live: LiveFront) -> None:
    import msgspec

    plain = live.front.config
    live.front.config = msgspec.structs.replace(plain, disagg_mode="prefill")
    try:
        with live.client() as client:
            answer = client.post("/generate", json={"text": "x"})
            assert answer.status_code == 400 and "decode engine" in answer.json()["error"]["message"]
            assert client.get("/health_generate").status_code == 200
    finally:
        live.front.config = plain
