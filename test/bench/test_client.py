"""The client and the whole command against a real server that misbehaves on request."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.bench.client import Answer, BenchClient, RequestOutput
from sglang.bench.dataset import Prompt
from sglang.bench.dialects import Backend, Delta, RequestSettings, dialect_of
from sglang.bench.load import arrival_times, run_load
from sglang.bench.options import parse_options
from sglang.bench.sse import EventParser
from sglang.bench_serving import main
from sglang.srt.errors import ConfigError

BACKENDS: tuple[Backend, ...] = ("sglang", "sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat")
PROMPT = Prompt(prompt_len=3, output_len=6, text="a b c")


def ask(server: str, backend: Backend, prompt: Prompt = PROMPT, stream: bool = True, **fake: float) -> RequestOutput:
    """One request, with the trouble that `fake` asks for."""

    async def send() -> RequestOutput:
        settings = RequestSettings(model="m", stream=stream, extra_body={"fake": fake})
        async with httpx.AsyncClient() as http:
            return await BenchClient(http, server, dialect_of(backend), settings).send(prompt)

    return asyncio.run(send())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_streamed_answer_is_counted_and_timed(server: str, backend: Backend) -> None:
    output = ask(server, backend, delay=0.02)
    assert output.ok
    assert (output.prompt_len, output.output_len, output.counted_by_server) == (3, 6, True)
    assert output.text.split() == ["tok"] * 6
    assert len(output.itl) == 5
    assert 0.02 <= output.ttft < output.latency
    assert output.ttft + sum(output.itl) == pytest.approx(output.latency, abs=0.1)
    assert all(gap > 0.005 for gap in output.itl)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("split", [1, 7])
def test_a_stream_cut_anywhere_reads_the_same(server: str, backend: Backend, split: int) -> None:
    output = ask(server, backend, split=split)
    assert (output.output_len, output.text.split()) == (6, ["tok"] * 6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_streaming_there_is_no_gap(server: str, backend: Backend) -> None:
    output = ask(server, backend, stream=False)
    assert (output.output_len, output.itl) == (6, ())
    assert output.ttft <= output.latency


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_are_counted_where_the_server_does_not_count(server: str, backend: Backend) -> None:
    output = ask(server, backend, no_usage=True)
    assert (output.output_len, output.counted_by_server, output.prompt_len) == (6, False, 3)


@pytest.mark.parametrize("backend", ["sglang", "vllm"])
def test_a_chunk_of_several_tokens_counts_as_several_gaps(server: str, backend: Backend) -> None:
    output = ask(server, backend, per_chunk=2, delay=0.02)
    assert output.output_len == 6
    assert len(output.itl) == 4  # the second token came with the first one
    assert output.itl[0] == output.itl[1]


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat"])
@pytest.mark.parametrize(
    ("fake", "error"),
    [
        ({"status": 503}, "HTTP 503: .*refuses"),
        ({"error_after": 2}, "the fake engine broke"),
        ({"cut_after": 2}, r"ended without \[DONE\]"),
    ],
)
def test_failures_are_told(server: str, backend: Backend, fake: dict[str, int], error: str) -> None:
    output = ask(server, backend, **fake)
    assert not output.ok
    assert httpx.URL(server).port
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(output.error)


def test_an_unreachable_server_is_an_error_of_the_request() -> None:
    assert ask("http://127.0.0.1:9", "sglang").error


def test_a_token_without_text_is_timed_where_events_are_counted() -> None:
    answer = Answer(0.0)
    for number, text in enumerate(["", "\u00e9", "", "x"], start=1):
        answer.add(Delta(text=text, completion_tokens=number), float(number))
    answer.add(Delta(completion_tokens=4), 9.0)
    assert (answer.ttft, answer.itl, answer.output_len) == (1.0, [1.0, 1.0, 1.0], 4)


def test_a_count_at_the_end_alone_is_no_token() -> None:
    answer = Answer(0.0)
    for time in (1.0, 3.0):
        answer.add(Delta(text="x"), time)
    answer.add(Delta(completion_tokens=5), 9.0)
    assert (answer.ttft, answer.itl, answer.output_len) == (1.0, [2.0], 5)


def test_ids_go_out_as_ids_and_never_to_a_chat(server: str) -> None:
    prompt = Prompt(prompt_len=4, output_len=2, token_ids=(5, 6, 7, 8))
    assert ask(server, "sglang", prompt).prompt_len == 4
    assert ask(server, "vllm", prompt).prompt_len == 4
    with pytest.raises(ConfigError, match="chat backend"):
        ask(server, "vllm-chat", prompt)


def test_an_aborted_request_is_a_failure() -> None:
    answer = Answer(0.0)
    answer.add(Delta(text="x", cumulative=True, completion_tokens=1, finish_reason="abort"), 1.0)
    assert answer.finish_reason == "abort"


@given(
    st.lists(st.text(alphabet="aé\U0001f600 ", min_size=1), max_size=6),
    st.integers(1, 9),
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_survive_any_cut(texts: list[str], size: int, newline: str) -> None:
    data = "".join(f": comment{newline}data: {text}{newline}id: 1{newline}{newline}" for text in texts).encode()
    parser = EventParser()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [event for piece in pieces for event in parser.feed(piece)] == texts


def test_poisson_arrivals_have_the_asked_rate_and_start_at_once() -> None:
    prompts = [PROMPT] * 20_000
    times = arrival_times(prompts, request_rate=50.0, seed=1)
    assert times[0] == 0.0
    assert len(times) / times[-1] == pytest.approx(50.0, rel=0.03)
    assert times == arrival_times(prompts, 50.0, seed=1) != arrival_times(prompts, 50.0, seed=2)
    assert set(arrival_times(prompts, float("inf"), 1)) == {0.0}
    trace = [Prompt(1, 1, text="x", at=2.0), Prompt(1, 1, text="x", at=3.0)]
    assert arrival_times(trace, 1.0, 1) == [0.0, 1.0]


def test_no_more_than_max_concurrency_are_in_flight(server: str) -> None:
    async def load() -> list[RequestOutput]:
        settings = RequestSettings(extra_body={"fake": {"delay": 0.01}})
        async with httpx.AsyncClient() as http:
            client = BenchClient(http, server, dialect_of("sglang"), settings)
            return (await run_load(client, [PROMPT] * 12, [0.0] * 12, max_concurrency=3))[0]

    outputs = asyncio.run(load())
    starts = sorted((output.sent_at, 1) for output in outputs)
    ends = sorted((output.sent_at + output.latency, -1) for output in outputs)
    level = peak = 0
    for _, change in sorted(starts + ends):
        level += change
        peak = max(peak, level)
    assert peak == 3


def run_main(server: str, *flags: str) -> int:
    """bench_serving with a small random load."""
    sizes = ["--random-input-len", "40", "--random-output-len", "5", "--num-prompts", "8", "--disable-tqdm"]
    return main(["--base-url", server, "--dataset-name", "random", *sizes, *flags])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_command_prints_a_table_and_writes_json(
    server: str, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out" / "result.jsonl"
    flags = ["--backend", backend, "--output-file", str(file), "--output-details", "--request-rate", "200"]
    assert run_main(server, *flags, "--flush-cache", "--pd-separated", "--goodput", "ttft:60000") == 0
    printed = capsys.readouterr().out
    assert "Successful requests:                      8" in printed
    assert "KV posted before its forward ended (%):   95.0" in printed
    result = json.loads(file.read_text())
    assert (result["completed"], result["failed"], len(result["ttfts"])) == (8, 0, 8)
    assert result["goodput"] == result["request_throughput"]
    assert result["kv"]["bytes_moved"] == pytest.approx(8e6)


def test_some_failures_are_reported_and_all_failures_are_an_exit_code(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ["--warmup-requests", "0", "--extra-request-body", '{"fake": {"error_after": 0}}']
    assert run_main(server, *broken) == 1
    assert "8 requests failed:\n8 x error in the answer" in capsys.readouterr().err
    assert run_main(server, "--extra-request-body", '{"fake": {"status": 500}}') == 1
    assert "the warm-up failed: HTTP 500" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--goodput", "tfft:5"], "--goodput tfft:5"),
        (["--goodput", "ttft:x"], "--goodput ttft:x"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--max-concurrency", "0"], "--max-concurrency"),
        (["--extra-request-body", "[1]"], "--extra-request-body"),
        (["--request-rate", "0"], "--request-rate"),
        (["--dataset-name", "random-ids", "--backend", "vllm-chat", "--warmup-requests", "0"], "random-ids"),
        (["--tokenizer", "/nowhere"], "--tokenizer /nowhere"),
    ],
)
def test_wrong_flags_exit_2_and_are_named(
    server: str, flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(server, *flags) == 2
    assert complaint in capsys.readouterr().err


def test_no_server_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("http://127.0.0.1:9") == 1
    assert "names no model" in capsys.readouterr().err


def test_vllm_has_its_own_default_port() -> None:
    assert parse_options(["--backend", "vllm"]).base_url == "http://127.0.0.1:8000"
    assert parse_options([]).base_url == "http://127.0.0.1:30000"
