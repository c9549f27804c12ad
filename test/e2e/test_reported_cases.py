"""Cases that users of other engines reported, on a unified engine and on a disaggregated pair."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from support.engines import Engine

WORDS = "The committee met again on Tuesday to discuss the harbour, the bridge and the price of salt. " * 2


def complete(engine: Engine, **body: object) -> dict[str, object]:
    answer = httpx.post(engine.url + "/v1/completions", json={"model": "smol", **body}, timeout=120)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def texts(answer: dict[str, object]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def streamed(engine: Engine, **params: object) -> tuple[list[str], dict[str, object]]:
    """The deltas of a streamed /generate, and its finish reason."""
    body = {"text": WORDS, "sampling_params": {"max_new_tokens": 64, **params}, "stream": True}
    shown, deltas, reason = "", [], {}
    with httpx.stream("POST", engine.url + "/generate", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert event["text"].startswith(shown), "what was shown was taken back"
                deltas.append(event["text"][len(shown) :])
                shown, reason = event["text"], event["meta_info"]["finish_reason"] or reason
    return deltas, reason


def test_no_half_character_is_shown(engine: Engine) -> None:
    """Reported case A1: characters of two, three and four bytes, in tokens of one byte each."""
    said = "A 世ab é🚀€."
    deltas, _ = streamed(engine, regex=re.escape(said))
    assert "".join(deltas) == said and not any("\ufffd" in delta for delta in deltas)


def test_a_stop_string_is_never_shown_and_what_is_none_is(engine: Engine) -> None:
    """Reported case A2."""
    deltas, reason = streamed(engine, regex="ABCDEFGHIJKLM", stop="DEFGHIJ")
    assert "".join(deltas) == "ABC" and reason == {"type": "stop", "matched": "DEFGHIJ"}
    deltas, reason = streamed(engine, regex="ABCDEFGHxyz", stop="DEFGHIJ")
    assert "".join(deltas) == "ABCDEFGHxyz" and reason["type"] == "stop" and reason["matched"] != "DEFGHIJ"


def test_the_characters_before_a_stop_token_are_kept(engine: Engine) -> None:
    """Reported case A3: the end token follows what could have become a stop string."""
    deltas, reason = streamed(engine, regex="ABCDEF", stop="DEFGHIJ", stop_token_ids=[2], ignore_eos=True)
    assert "".join(deltas) == "ABCDEF" and reason == {"type": "stop", "matched": 2}


@pytest.mark.parametrize("bias", [{"49152": 5}, {"999999999": 1}, {"-1": 1}, {"1e3": 1}])
def test_a9_a_bias_outside_the_vocabulary_is_a_400(engine: Engine, bias: dict[str, int]) -> None:
    """Reported case A9."""
    body = {"model": "smol", "prompt": "x", "logit_bias": bias, "max_tokens": 2}
    assert httpx.post(engine.url + "/v1/completions", json=body, timeout=60).status_code == 400
    assert complete(engine, prompt="x", logit_bias={"49151": 100}, max_tokens=2, temperature=0)["choices"]


def test_a_bias_decides(engine: Engine) -> None:
    native = {"temperature": 0, "max_new_tokens": 4, "logit_bias": {"260": 100}, "ignore_eos": True}
    answer = httpx.post(engine.url + "/generate", json={"text": WORDS, "sampling_params": native}, timeout=60)
    assert answer.json()["output_ids"] == [260] * 4


def test_a11_seeded_choices_are_distinct_and_repeatable_whatever_the_batch(engine: Engine) -> None:
    """Reported case A11."""
    asked = {"prompt": WORDS, "n": 4, "seed": 42, "temperature": 1.0, "max_tokens": 8}
    alone = texts(complete(engine, **asked))
    assert len(set(alone)) == 4
    with ThreadPoolExecutor(6) as pool:
        noise = [pool.submit(complete, engine, prompt=f"{i} " * 20, max_tokens=24) for i in range(5)]
        assert texts(complete(engine, **asked)) == alone
        assert all(job.result()["choices"] for job in noise)


def test_a15_a_penalty_concerns_its_own_request_only(engine: Engine) -> None:
    """Reported case A15."""
    asked = {"prompt": "one two one two one two", "temperature": 0, "max_tokens": 16}
    alone = texts(complete(engine, **asked))
    with ThreadPoolExecutor(6) as pool:
        penalties = [0, 2, 0, 1, 0, 2]
        jobs = [pool.submit(complete, engine, **asked, frequency_penalty=p, presence_penalty=p) for p in penalties]
        found = [texts(job.result()) for job in jobs]
    assert [text for text, p in zip(found, penalties, strict=True) if not p] == [alone] * 3
    assert found[1] != alone


def test_no_stop_before_min_new_tokens(engine: Engine) -> None:
    first = engine.generate(WORDS, 1)["output_ids"][0]
    stopped = engine.generate(WORDS, 12, stop_token_ids=[first])
    assert len(stopped["output_ids"]) == 1
    held = engine.generate(WORDS, 12, stop_token_ids=[first], min_new_tokens=5)
    assert len(held["output_ids"]) >= 6 and first not in held["output_ids"][:5]


def test_a_stop_regex_ends_the_text(engine: Engine) -> None:
    whole = engine.generate(WORDS, 24)["text"]
    word = next(part for part in whole.split()[2:] if part.isalpha())
    cut = engine.generate(WORDS, 24, stop_regex=rf"\b{word}")
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": rf"\b{word}"}
    assert cut["text"] == whole[: whole.index(cut["text"]) + len(cut["text"])] and cut["text"].endswith(word)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 48, 64, 65])
def test_a24_lengths_about_pages_answer_as_a_unified_engine_does(
    unified: Engine, pair: tuple[Engine, Engine], length: int
) -> None:
    """Reported case A24."""
    rng = random.Random(length)
    prompt = [rng.randrange(10, 40_000) for _ in range(length)]
    assert pair[1].generate(prompt, 6)["output_ids"] == unified.generate(prompt, 6)["output_ids"]


def test_a28_cached_tokens_are_what_was_reused(engine: Engine) -> None:
    """Reported case A28."""
    rng = random.Random(engine.port)
    prompt = [rng.randrange(10, 40_000) for _ in range(70)]

    def cached(prompt: list[int]) -> int:
        usage = complete(engine, prompt=prompt, max_tokens=2)["usage"]
        assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"] == len(prompt)
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(prompt) == 0
    assert cached(prompt) == 64
    assert cached(prompt[:40] + prompt[:30]) == 32
    assert httpx.post(engine.url + "/flush_cache", timeout=30).status_code == 200


def test_metrics_have_the_names_that_sglang_s_dashboard_asks_for(engine: Engine) -> None:
    """Of its public Grafana dashboard, and of the panels for disaggregation."""
    engine.generate("Hello", 4)
    text = httpx.get(engine.url + "/metrics", timeout=30).text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
    histograms = ("e2e_request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds")
    wanted = [f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")]
    wanted += ["num_running_reqs", "num_queue_reqs", "gen_throughput", "cache_hit_rate", "token_usage"]
    wanted += ["num_used_tokens", "prompt_tokens_total", "generation_tokens_total", "num_requests_total"]
    assert {f"sglang:{name}" for name in wanted} <= names
    assert 'model_name="smol"' in text and 'le="+Inf"' in text


def test_metrics_of_disaggregation_have_sglang_s_names(prefill_and_pair: tuple[Engine, Engine, Engine]) -> None:
    prefill, decode, _ = prefill_and_pair
    decode.generate([random.Random(9).randrange(10, 40_000) for _ in range(64)], 2)

    def names(engine: Engine) -> set[str]:
        text = httpx.get(engine.url + "/metrics", timeout=30).text
        return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}

    timed = {f"sglang:kv_transfer_{kind}" for kind in ("speed_gb_s", "total_mb", "latency_ms_bucket")}
    queues = {"sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs"}
    wanted = queues | timed | {"sglang:num_transfer_failed_reqs_total"}
    assert wanted <= names(decode), wanted - names(decode)
    assert "sglang:num_prefill_inflight_queue_reqs" in names(prefill)
