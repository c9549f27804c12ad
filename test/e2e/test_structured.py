"""Structured output from a real model: what is constrained is valid, always, wherever its prompt was computed."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from support.engines import Engine, cluster

# float32, so that a batch's other rows do not round a row to another token.
FLAGS = ("--dtype", "float32", "--max-total-tokens", "6000", "--max-running-requests", "16", "--debug-invariants")
COMPACT = "--constrained-json-disable-any-whitespace"
CHAT = ("--tool-call-parser", "hermes")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
EBNF = 'root ::= "perhaps "? answer\nanswer ::= "yes" | "no"'
PROMPT = "Describe a person of the town in a few words, and say how old they are and what they like most of all. " * 2
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book_table",
            "parameters": {
                "type": "object",
                "properties": {"guests": {"type": "integer"}, "day": {"enum": ["Mon", "Tue"]}},
                "required": ["guests", "day"],
            },
        },
    }
]


@pytest.fixture(scope="module", params=["unified", "disaggregated", pytest.param("llguidance", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ExitStack() as stack:
        if request.param == "disaggregated":
            _, decodes = stack.enter_context(cluster(*FLAGS, *CHAT, COMPACT))
            yield decodes[0]
        else:
            backend = "llguidance" if request.param == "llguidance" else "xgrammar"
            one = stack.enter_context(Engine(*FLAGS, *CHAT, COMPACT, "--grammar-backend", backend))
            yield one.wait_ready()


def generate(engine: Engine, count: int = 200, status: int = 200, **sampling: object) -> dict[str, object]:
    params = {"max_new_tokens": count, "temperature": 1.0, **sampling}
    answer = httpx.post(f"{engine.url}/generate", json={"text": PROMPT, "sampling_params": params}, timeout=200)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def check_person(text: str) -> None:
    person = json.loads(text)
    assert set(person) == {"name", "age", "tags"} and len(person["name"]) <= 12 and 0 <= person["age"] <= 120
    assert isinstance(person["age"], int) and len(person["tags"]) <= 3 and set(person["tags"]) <= {"red", "blue"}


def test_constrained_outputs_are_valid_in_a_mixed_batch_and_free_ones_unchanged(engine: Engine) -> None:
    """Overlapped steps, rows with and without grammars, temperature 1. Reported case A10: one grammar is wrong."""
    before = generate(engine, 16, temperature=0)["text"]
    schema = json.dumps(PERSON)

    def ask(job: int) -> tuple[int, dict[str, object]]:
        seed = {"sampling_seed": job}
        match job % 6:
            case 0 | 1:
                return job, generate(engine, json_schema=schema, **seed)
            case 2:
                return job, generate(engine, regex=r"[A-Z][a-z]{2,6} \d{4}-\d{2}", **seed)
            case 3:
                return job, generate(engine, ebnf=EBNF, **seed)
            case 4:
                return job, generate(engine, 16, temperature=0)
            case _:
                return job, generate(engine, status=400, regex="[a-z")

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    for job, answer in answers:
        text = str(answer.get("text"))
        match job % 6:
            case 0 | 1:
                check_person(text)
            case 2:
                assert re.fullmatch(r"[A-Z][a-z]{2,6} \d{4}-\d{2}", text), text
            case 3:
                assert re.fullmatch(r"(perhaps )?(yes|no)", text), text
            case 4:
                assert text == before
            case _:
                assert str(answer["error"]["message"]).startswith("regex")  # type: ignore[index]
    finishes = [answer["meta_info"]["finish_reason"]["type"] for job, answer in answers if job % 6 < 2]  # type: ignore[index]
    assert set(finishes) == {"stop"}, "the model's end token ends a complete output"


def test_a23_one_token_of_a_schema(engine: Engine) -> None:
    """Reported case A23."""
    answer = generate(engine, 1, json_schema=json.dumps(PERSON))
    assert answer["meta_info"]["completion_tokens"] == 1 and str(answer["text"]).startswith("{")  # type: ignore[index]


def test_seeds_repeat_within_a_grammar_and_choices_are_kept_to(engine: Engine) -> None:
    first, again = ([generate(engine, regex="[a-z]{4}", sampling_seed=seed)["text"] for seed in range(3)] for _ in "ab")
    assert first == again and len(set(first)) > 1
    assert generate(engine, regex="(apple|pear|plum)")["text"] in ("apple", "pear", "plum")


def chat(engine: Engine, **options: object) -> dict[str, object]:
    body = {"model": "default", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 150, **options}
    answer = httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=200)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_response_format_and_forced_tools(engine: Engine) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    answer = chat(engine, response_format=schema, n=2)
    for choice in answer["choices"]:  # type: ignore[attr-defined]
        check_person(choice["message"]["content"])
    answer = chat(engine, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    choice = answer["choices"][0]  # type: ignore[index]
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "book_table" and choice["finish_reason"] == "tool_calls"
    assert isinstance(arguments["guests"], int) and arguments["day"] in ("Mon", "Tue")
    assert choice["message"]["content"] is None


def test_a_large_grammar_is_refused_with_its_limit(engine: Engine) -> None:
    error = generate(engine, status=400, regex="a" * 300_000)["error"]
    assert "limit of 262144 bytes" in error["message"]  # type: ignore[index]


def test_retracted_requests_resume_inside_their_grammar() -> None:
    flags = ("--max-total-tokens", "320", "--max-running-requests", "8", "--schedule-conservativeness", "0.01")
    with Engine(*flags, COMPACT, "--debug-invariants") as engine:
        engine.wait_ready()
        schema = json.dumps({"type": "array", "items": PERSON, "minItems": 2, "maxItems": 2})

        def ask(seed: int) -> str:
            return str(generate(engine, 200, json_schema=schema, sampling_seed=seed)["text"])

        with ThreadPoolExecutor(6) as pool:
            texts = list(pool.map(ask, range(6)))
        assert engine.metrics()["num_retractions_total"] > 0
        for text in texts:
            people = json.loads(text)
            assert len(people) == 2
            for person in people:
                check_person(json.dumps(person))
