"""Malformed requests from a seed: wrong types, wrong values, broken JSON, unknown routes. None of them is right."""

import json
import random
from collections.abc import Callable

Request = tuple[str, str, bytes]
"""(method, path, body)."""

GOOD: dict[str, dict[str, object]] = {
    "/generate": {"text": "Hello", "sampling_params": {"max_new_tokens": 2, "temperature": 0}},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2, "temperature": 0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [5, 6]},
}
REQUIRED = {
    "/generate": "text",
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    "/v1/messages": "messages",
    "/tokenize": "prompt",
    "/detokenize": "tokens",
}
WRONG: dict[str, tuple[object, ...]] = {
    "temperature": (-1, "hot", [], {}, 1e9, True),
    "top_p": (0, 1.5, "x", -0.1, []),
    "max_tokens": (-1, 1.5, "10", [], {}, True, 10**30),
    "max_output_tokens": (0, -1, "x", [], 2.5),
    "n": (0, -1, 129, "2", 1.5, []),
    "stop": (3, [1], {}, ["x"] * 17, ["x" * 2000]),
    "stop_sequences": (3, [1], {}, ["x"] * 17),
    "logit_bias": ({"a": 1}, {"-1": 1}, {"99999999": 1}, {"1": 1000}, [], "x"),
    "seed": ("x", 1.5, [], {}),
    "stream": ("yes", 3, [], {}),
    "model": (3, [], {}, "gpt-4"),
    "frequency_penalty": (5, "x", -3, []),
    "stop_token_ids": ("x", [1 << 40], [-5], [1.5], {}),
    "logprobs": ("x", -1, 500, [], {}),
    "priority": ("x", 1 << 60, 1.5),
    "sampling_params": (3, "x", [[]], {"top_p": 7}, {"max_new_tokens": -3}, {"stop": 5}, {"min_new_tokens": 999}),
    "logprob_start_len": ("x", 1.5, -9),
    "skip_special_tokens": (3, "x", []),
    "stream_options": (3, "x", {"include_usage": "x"}),
}
FIELDS = {
    "/generate": ("sampling_params", "stream", "priority"),
    "/v1/completions": (
        "temperature", "top_p", "max_tokens", "n", "stop", "logit_bias", "seed", "stream", "model", "frequency_penalty",
        "stop_token_ids", "logprobs", "priority", "stream_options",
    ),
    "/v1/chat/completions": (
        "temperature", "top_p", "max_tokens", "n", "stop", "logit_bias", "seed", "stream", "model", "stop_token_ids",
        "priority",
    ),
    "/v1/responses": ("temperature", "top_p", "max_output_tokens", "stream", "model"),
    "/v1/messages": ("temperature", "top_p", "stop_sequences", "stream", "model"),
    "/detokenize": ("skip_special_tokens",),
}  # fmt: skip
JUNK: tuple[object, ...] = (None, 3, -1.5, True, [], {}, [[]], [None], {"a": {}}, "", [1, "a"], [-1], [1 << 70], [{}])


def malformed(rng: random.Random) -> Request:
    """One request that cannot be served."""
    kinds: tuple[Callable[[random.Random, str], Request], ...] = (_wrong_value, _junk, _broken, _missing, _route)
    return rng.choices(kinds, (5, 3, 2, 1, 1))[0](rng, rng.choice(list(GOOD)))


def _sent(path: str, body: object) -> Request:
    return "POST", path, json.dumps(body).encode()


def _wrong_value(rng: random.Random, path: str) -> Request:
    if path not in FIELDS:
        return _junk(rng, path)
    field = rng.choice(FIELDS[path])
    return _sent(path, {**GOOD[path], field: rng.choice(WRONG[field])})


def _junk(rng: random.Random, path: str) -> Request:
    """Something else where the prompt belongs. An empty list of tokens has a text: the empty one."""
    junk = [item for item in JUNK if not (path == "/detokenize" and item in ([], [[]]))]
    junk = [item for item in junk if not (path == "/tokenize" and item in ([], ""))]
    junk = [item for item in junk if not (path == "/v1/responses" and item == "")]  # an empty message is one
    return _sent(path, {**GOOD[path], REQUIRED[path]: rng.choice(junk)})


def _broken(rng: random.Random, path: str) -> Request:
    """Bytes that are not this JSON any more."""
    body = bytearray(json.dumps(GOOD[path]).encode())
    match rng.randrange(4):
        case 0:
            body = body[: rng.randrange(len(body))]
        case 1:
            body[0] = rng.choice(b'x[")\x00\xff')
        case 2:
            body += rng.choice((b"}", b"x", b"\xff", b"{}"))
        case _:
            body = bytearray(b"[" * rng.randrange(1, 5000))
    return "POST", path, bytes(body)


def _missing(rng: random.Random, path: str) -> Request:
    return _sent(path, {key: value for key, value in GOOD[path].items() if key != REQUIRED[path]})


def _route(rng: random.Random, path: str) -> Request:
    if rng.random() < 0.5:
        return "POST", "/" + "".join(rng.choices("abc/%.~\u00e9", k=rng.randrange(3, 30))).lstrip("/"), b"{}"
    return rng.choice(("PUT", "DELETE", "PATCH")), path, b"{}"
