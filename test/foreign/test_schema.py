"""schemathesis over our OpenAPI document: whatever it makes up, no 5xx, and the engine lives on."""

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation

from support.engines import Engine

EXAMPLES = 8
"""Requests an operation and mode; derandomised, so that a red run can be repeated."""
OUT_OF_BOUNDS = {"/health_generate", "/start_profile", "/stop_profile", "/pause_generation"}
"""What would stop the engine for the others, or takes seconds."""


@pytest.fixture(scope="module")
def document(unified: Engine) -> dict[str, object]:
    return dict(httpx.get(unified.url + "/openapi.json", timeout=30).json())


def operations(document: dict[str, object]) -> list[APIOperation]:
    found = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    return [operation for operation in found if operation.path not in OUT_OF_BOUNDS]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_made_up_requests_get_no_5xx(unified: Engine, document: dict[str, object], mode: GenerationMode) -> None:
    expected = unified.generate("Hello", 3)["output_ids"]
    codes: list[int] = []
    with requests.Session() as session:
        session.trust_env = False
        for operation in operations(document):
            if mode is GenerationMode.NEGATIVE and not len(operation.body):
                continue
            codes += attempt(operation, mode, unified.url, session)
    assert len(codes) >= 40 and max(codes) < 500, sorted(set(codes))
    if mode is GenerationMode.NEGATIVE:
        assert sum(400 <= code < 500 for code in codes) > len(codes) // 2
    assert unified.generate("Hello", 3)["output_ids"] == expected


def attempt(operation: APIOperation, mode: GenerationMode, url: str, session: requests.Session) -> list[int]:
    codes: list[int] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        body = case.body
        if isinstance(body, dict):  # a made-up 10^6 tokens would take minutes
            for key in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n"):
                if isinstance(body.get(key), int) and body[key] > 4:
                    body[key] = 4
            if "max_tokens" not in body and operation.path.startswith("/v1"):
                body["max_tokens"] = 2
            if operation.path == "/v1/responses":
                body.setdefault("max_output_tokens", 2)
        answer = case.call(base_url=url, session=session, timeout=60)
        assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.text}"
        codes.append(answer.status_code)

    send()
    return codes
