"""Bad input: OpenAI's error shape, the offending field named, nothing sent to the scheduler, the server alive."""

import random

import pytest

from support.live_front import LiveFront

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}
NATIVE = {"text": "hi"}


def sampling(**params: object) -> dict[str, object]:
    return {"text": "hi", "sampling_params": params}


CASES = [
    # (path, body, status, param, part of the message)
    ("/v1/completions", {}, 400, "prompt", "required"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt", "empty"),
    ("/v1/completions", {"prompt": []}, 400, "prompt", "empty"),
    ("/v1/completions", {"prompt": ["a", ""]}, 400, "prompt", "empty"),
    ("/v1/completions", {"prompt": 3}, 400, "prompt", "wrong type"),
    ("/v1/completions", {"prompt": [1, -1]}, 400, "prompt", "token id -1"),
    ("/v1/completions", {"prompt": [1, 49152]}, 400, "prompt", "token id 49152"),
    ("/v1/completions", {"prompt": [7] * 2048}, 400, "prompt", "the prompt has 2048"),
    ("/v1/completions", {"prompt": [7] * 2040, "max_tokens": 9}, 400, "max_tokens", "2049 were asked for"),
    ("/v1/completions", {**TEXT, "max_tokens": -1}, 400, "max_tokens", "greater than or equal to 0"),
    ("/v1/completions", {**TEXT, "max_tokens": 0}, 400, "max_tokens", "at least 1"),
    ("/v1/completions", {**TEXT, "max_tokens": "10"}, 400, "max_tokens", "integer"),
    ("/v1/completions", {**TEXT, "max_tokens": True}, 400, "max_tokens", "integer"),
    ("/v1/completions", {**TEXT, "max_tokens": 1.5}, 400, "max_tokens", "integer"),
    ("/v1/completions", {**TEXT, "temperature": -1}, 400, "temperature", "greater"),
    ("/v1/completions", {**TEXT, "top_p": 0}, 400, "top_p", "greater"),
    ("/v1/completions", {**TEXT, "n": 0}, 400, "n", "greater"),
    ("/v1/completions", {**TEXT, "n": 129}, 400, "n", "less"),
    ("/v1/completions", {"prompt": ["a"] * 100, "n": 128}, 400, "n", "limit of 1024 outputs"),
    ("/v1/completions", {**TEXT, "stop": ["x"] * 17}, 400, "stop", "16"),
    ("/v1/completions", {**TEXT, "stop": "x" * 1025}, 400, "stop", "1024"),
    ("/v1/completions", {**TEXT, "stop_token_ids": [1 << 40]}, 400, "stop_token_ids", "outside the vocabulary"),
    ("/v1/completions", {**TEXT, "logit_bias": {"49152": 1}}, 400, "logit_bias", "49152"),
    ("/v1/completions", {**TEXT, "logit_bias": {"a": 1}}, 400, "logit_bias", "not a token id"),
    ("/v1/completions", {**TEXT, "logit_bias": {"1": 101}}, 400, "logit_bias", "-100..100"),
    ("/v1/completions", {**TEXT, "logprobs": 21}, 400, "logprobs", "20"),
    ("/v1/completions", {**TEXT, "suffix": "x"}, 400, "suffix", "not supported yet"),
    ("/v1/completions", {**TEXT, "best_of": 2}, 400, "best_of", "not supported yet"),
    ("/v1/completions", {**TEXT, "regex": 5}, 400, "regex", "valid string"),
    ("/v1/completions", {**TEXT, "model": "gpt-4"}, 404, "model", "does not exist"),
    ("/v1/completions", {**TEXT, "min_tokens": 20, "max_tokens": 3}, 400, None, "at least 20"),
    ("/v1/chat/completions", {}, 400, "messages", "required"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages", "at least 1"),
    ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "messages", "role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 3}]}, 400, "messages", "content"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages",
        "image_url",
    ),
    ("/v1/chat/completions", {**CHAT, "model": "gpt-4"}, 404, "model", "does not exist"),
    ("/v1/chat/completions", {**CHAT, "max_completion_tokens": -5}, 400, "max_completion_tokens", "greater"),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 4000}, 400, "max_tokens", "were asked for"),
    ("/v1/chat/completions", {**CHAT, "top_logprobs": 3}, 400, "top_logprobs", "needs logprobs"),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, 400, "tools", "required"),
    (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {}}},
        400,
        "response_format",
        "required",
    ),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"messages": []}}, 400, "messages", "template"),
    ("/v1/chat/completions", {**CHAT, "seed": "x"}, 400, "seed", "integer"),
    ("/generate", {}, 400, "text", "either text or input_ids"),
    ("/generate", {"text": "a", "input_ids": [1]}, 400, "text", "either"),
    ("/generate", {"text": ""}, 400, "text", "empty"),
    ("/generate", {"input_ids": []}, 400, "input_ids", "empty"),
    ("/generate", {"input_ids": [1, 1 << 40]}, 400, "input_ids", "outside the vocabulary"),
    ("/generate", {"input_ids": [7] * 2048}, 400, "input_ids", "the prompt has 2048"),
    ("/generate", sampling(max_new_tokens=-1), 400, "sampling_params", "max_new_tokens"),
    ("/generate", sampling(max_tokens=5), 400, "sampling_params", "max_tokens: Extra inputs are not permitted"),
    ("/generate", {**NATIVE, "sampling_params": [{"max_tokens": 5}]}, 400, "sampling_params", "max_tokens: Extra"),
    ("/generate", sampling(custom_params={"a": 1}), 400, "custom_params", "not supported yet"),
    ("/generate", sampling(spaces_between_special_tokens=False), 400, "spaces_between_special_tokens", "not supported"),
    ("/generate", sampling(json_schema="{}", regex="a"), 400, "regex", "one grammar"),
    ("/generate", {**NATIVE, "sampling_params": [{}, {}]}, 400, "sampling_params", "2 for 1"),
    ("/generate", {**NATIVE, "image_data": "x"}, 400, "image_data", "not supported yet"),
    (
        "/generate",
        {**NATIVE, "return_logprob": True, "logprob_start_len": 1},
        400,
        "logprob_start_len",
        "behind the prompt",
    ),
    ("/tokenize", {}, 400, "prompt", "required"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens", "token id -1"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "part"), CASES)
def test_a_bad_request_gets_openais_error_shape(
    live: LiveFront, path: str, body: dict[str, object], status: int, param: str | None, part: str
) -> None:
    with live.client() as client:
        response = client.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert part in error["message"], error
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert live.scheduler.generated() == []


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"prompt": NaN}', b"\xff\xfe", b'"x"', b"[" * 100_000])
def test_malformed_json(live: LiveFront, path: str, raw: bytes) -> None:
    with live.client() as client:
        response = client.post(path, content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_codes(live: LiveFront) -> None:
    with live.client() as client:
        assert client.post("/v1/completions", json={"model": "x", **TEXT}).json()["error"]["code"] == "model_not_found"
        long = client.post("/v1/completions", json={"prompt": [7] * 3000}).json()["error"]
        assert long["code"] == "context_length_exceeded"
        assert client.get("/nowhere").json()["error"]["code"] == "not_found"
        assert client.get("/v1/completions").json()["error"]["code"] == "method_not_allowed"


def test_a_body_over_the_limit_is_refused_announced_or_not(live: LiveFront) -> None:
    big = b" " * (33 << 20)
    with live.client() as client:
        assert client.post("/generate", content=big).status_code == 413
        chunks = (big[: 1 << 20] for _ in range(33))
        assert client.post("/generate", content=chunks).json()["error"]["code"] == "request_too_large"


def test_a_giant_list_of_wrong_elements_stays_cheap(live: LiveFront) -> None:
    with live.client() as client:
        assert client.post("/v1/completions", json={"prompt": [None] * 1_000_000}).status_code == 400


def test_without_content_type_the_body_is_still_json(live: LiveFront) -> None:
    with live.client() as client:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        assert client.post("/generate", content=b'{"text": "hi"}', headers=headers).status_code == 200


def test_a_seeded_fuzz_gives_only_4xx_and_the_next_good_request_works(live: LiveFront) -> None:
    draw = random.Random(7)
    junk = [None, True, -1, 0, 1e300, "x", "", [], {}, [[]], [None], {"a": 1}, 10**30, "\ud7ff", ["a", 1]]
    fields = ["prompt", "messages", "text", "input_ids", "max_tokens", "temperature", "stop", "n", "logit_bias"]
    fields += ["stream_options", "sampling_params", "seed", "logprobs", "tools", "rid", "top_k", "stop_token_ids"]
    with live.client() as client:
        for _ in range(400):
            body = {name: draw.choice(junk) for name in draw.sample(fields, 4)} | {"max_tokens": "no"}
            body["rid"] = 3
            path = draw.choice(["/v1/completions", "/v1/chat/completions", "/generate"])
            response = client.post(path, json=body)
            assert 400 <= response.status_code < 500, (path, body, response.text)
        assert client.post("/generate", json=NATIVE).status_code == 200
