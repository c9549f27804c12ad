"""Recorded decode steps: the same bits as call by call, for the models that have them; a reason for the others."""

import logging
from pathlib import Path

import pytest
import torch

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.model_executor.forward_batch import ForwardBatch
from sglang.srt.model_executor.step_graph import StepGraph
from sglang.tools.tiny.shapes import TINY
from sglang.tools.tiny.write import write_tiny
from support.driver import GREEDY, Driver, RecordingHook, Request

RECORDED = ("llama3", "mistral", "qwen2.5", "qwen3", "qwen3-coder")


def requests() -> list[Request]:
    """They begin and end at different steps, so the number of rows changes; some draw, one is longer than a page."""
    drawn = SamplingParams(temperature=1.0, logprobs=True)
    shapes = [(3, 9, GREEDY), (40, 4, drawn), (1, 14, GREEDY), (17, 7, drawn), (16, 1, GREEDY), (5, 12, GREEDY)]
    return [
        Request([10 + (7 * i + j) % 90 for j in range(length)], count, sampling, seed=i)
        for i, (length, count, sampling) in enumerate(shapes)
    ]


def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with the rows of each step that a graph computes."""
    counts: list[int] = []
    true = StepGraph.forward

    def forward(self: StepGraph, batch: ForwardBatch) -> torch.Tensor:
        counts.append(len(batch.attention.rows))
        return true(self, batch)

    monkeypatch.setattr(StepGraph, "forward", forward)
    return counts


def answers(driver: Driver) -> list[tuple[list[int], list[float]]]:
    """Tokens and log probabilities."""
    asked = requests()
    driver.run(asked, chunk=16)
    return [(request.tokens, request.logprobs) for request in asked]


@pytest.mark.parametrize("kind", RECORDED)
@pytest.mark.parametrize("quantization", ["none", "w8a16"])
def test_recorded_steps_are_the_eager_ones(
    kind: str, quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(TINY[kind], tmp_path, seed=0)
    plain = Driver(tmp_path, page_size=16, dtype="bfloat16", graph_rows=0, quantization=quantization)
    counts = played(monkeypatch)
    expected = answers(plain)
    assert not counts
    recorded = Driver(tmp_path, page_size=16, dtype="bfloat16", quantization=quantization)
    assert answers(recorded) == expected
    assert {1, 2, 3, 4} <= set(counts), "steps of several sizes were played"
    for layer in range(plain.pool.layout.kv.layers):
        assert torch.equal(*(d.pool.layer(layer).view(torch.int16) for d in (plain, recorded)))


def test_steps_of_more_rows_are_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(TINY["llama3"], tmp_path, seed=0)
    driver = Driver(tmp_path, page_size=16, dtype="bfloat16", graph_rows=2)
    counts = played(monkeypatch)
    answers(driver)
    assert set(counts) == {1, 2}


@pytest.mark.parametrize(
    ("kind", "dtype", "reason"),
    [
        ("llama3", "float32", "torch computes linear"),
        ("gemma3", "bfloat16", "torch computes"),
        ("deepseek-r1", "bfloat16", "torch computes"),
    ],
)
def test_who_has_none_says_why(
    kind: str, dtype: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny(TINY[kind], tmp_path, seed=0)
    with caplog.at_level(logging.INFO):
        driver = Driver(tmp_path, page_size=16, dtype=dtype)
    assert f"decode steps are computed call by call: {reason}" in caplog.text
    assert answers(driver)


def test_an_engine_that_sends_its_layers_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook hears of every layer of every step."""
    write_tiny(TINY["llama3"], tmp_path, seed=0)
    hook = RecordingHook()
    driver = Driver(tmp_path, page_size=16, dtype="bfloat16", hook=hook)
    counts = played(monkeypatch)
    answers(driver)
    assert not counts
    assert len(hook.layers) % driver.pool.layout.kv.layers == 0


def test_recording_writes_no_page(tmp_path: Path) -> None:
    write_tiny(TINY["llama3"], tmp_path, seed=0)
    driver = Driver(tmp_path, page_size=16, dtype="bfloat16", graph_rows=0)
    before = [driver.pool.layer(i).view(torch.int16).clone() for i in range(driver.pool.layout.kv.layers)]
    StepGraph(driver.runner._model, driver.runner._backend, 8)
    assert all(torch.equal(driver.pool.layer(i).view(torch.int16), kept) for i, kept in enumerate(before))
