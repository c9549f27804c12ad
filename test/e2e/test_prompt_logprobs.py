"""Log probabilities of prompt tokens, against transformers and against each other."""

import math

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from support.engines import MODEL, Engine

PROMPT = [7 + 31 * i % 4000 for i in range(33)]


def scores(engine: Engine, prompt: list[int], **change: object) -> dict[str, list[object]]:
    body = {
        "input_ids": prompt,
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        **change,
    }
    answer = httpx.post(engine.url + "/generate", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["meta_info"])


@pytest.fixture(scope="module")
def reference() -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)


def test_they_are_those_of_transformers(engine: Engine, reference: torch.Tensor) -> None:
    meta = scores(engine, PROMPT, top_logprobs_num=2, token_ids_logprob=[5, 99])
    shown = meta["input_token_logprobs"]
    assert shown[0][:2] == [None, PROMPT[0]] and [entry[1] for entry in shown] == PROMPT
    for position, entry in enumerate(shown[1:]):
        assert abs(entry[0] - float(reference[position, PROMPT[position + 1]])) < 1e-3
        best = reference[position].topk(2)
        top = meta["input_top_logprobs"][position + 1]
        assert [item[1] for item in top] == best.indices.tolist()
        ids = meta["input_token_ids_logprobs"][position + 1]
        assert [item[1] for item in ids] == [5, 99] and abs(ids[1][0] - float(reference[position, 99])) < 1e-3
    assert abs(meta["output_token_ids_logprobs"][0][0][0] - float(reference[-1, 5])) < 1e-3


def test_a_prompt_that_is_cached_the_second_time_has_the_same(engine: Engine) -> None:
    """Reported case A12."""
    first, second = scores(engine, PROMPT), scores(engine, PROMPT)
    pairs = zip(first["input_token_logprobs"][1:], second["input_token_logprobs"][1:], strict=True)
    assert max(abs(a[0] - b[0]) for a, b in pairs) < 1e-4


@pytest.mark.parametrize("start", [1, 15, 16, 20, 31, 32])
def test_a_later_start_gives_the_tail(engine: Engine, start: int) -> None:
    whole = scores(engine, PROMPT)["input_token_logprobs"]
    tail = scores(engine, PROMPT, logprob_start_len=start)["input_token_logprobs"]
    assert [entry[1] for entry in tail] == PROMPT[start:] and tail[0][0] is None
    for mine, theirs in zip(tail[1:], whole[start + 1 :], strict=True):
        assert abs(mine[0] - theirs[0]) < 1e-3


def test_long_prompts_are_scored_chunk_by_chunk(unified: Engine) -> None:
    """700 tokens: three steps of at most 256, beside requests that want no scores."""
    prompt = [11 + 17 * i % 5000 for i in range(700)]
    shown = scores(unified, prompt)["input_token_logprobs"]
    again = scores(unified, [*prompt[:650], 9])["input_token_logprobs"]
    assert len(shown) == 700
    assert max(abs(a[0] - b[0]) for a, b in zip(shown[1:650], again[1:650], strict=True)) < 1e-3


def test_completions_echo_them(engine: Engine) -> None:
    """Reported cases A7 and A8."""
    body = {"model": "smol", "prompt": PROMPT, "echo": True, "logprobs": 1}
    none = httpx.post(engine.url + "/v1/completions", json={**body, "max_tokens": 0}, timeout=60).json()
    values = none["choices"][0]["logprobs"]["token_logprobs"]
    assert len(values) == len(PROMPT) and values[0] is None and none["usage"]["completion_tokens"] == 0
    native = scores(engine, PROMPT)["input_token_logprobs"]
    assert max(abs(a - b[0]) for a, b in zip(values[1:], native[1:], strict=True)) < 1e-3
    asked = {**body, "max_tokens": 4, "temperature": 1, "top_k": 1}
    some = httpx.post(engine.url + "/v1/completions", json=asked, timeout=60)
    assert some.status_code == 200
    values = some.json()["choices"][0]["logprobs"]["token_logprobs"]
    assert len(values) == len(PROMPT) + 4 and all(math.isfinite(value) for value in values[1:])
