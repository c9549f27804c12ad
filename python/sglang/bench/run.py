"""One benchmark run, from options to figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sglang.bench.client import BenchClient, RequestOutput
from sglang.bench.dataset import Prompt, load_dataset
from sglang.bench.dialects import RequestSettings, dialect_of
from sglang.bench.kv import KVReport, kv_report, read_metrics
from sglang.bench.load import OnDone, arrival_times, run_load
from sglang.bench.metrics import Summary, summarise
from sglang.bench.options import BenchOptions
from sglang.bench.tokenizer import apply_chat_template, load_tokenizer
from sglang.srt.errors import ConfigError, EngineError

WARMUP_OUTPUT = 32
"""Most output tokens of a warm-up request: it should not take as long as the run."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a run gave."""

    summary: Summary
    outputs: tuple[RequestOutput, ...]
    settings: dict[str, str | float | int]
    kv: KVReport | None = None


async def run_benchmark(options: BenchOptions, console: Console) -> BenchResult:
    """Make the prompts, warm up, send them, and sum up.

    Progress goes to `console`. Raises ConfigError, and EngineError where the server or its warm-up fails.
    """
    timeout = httpx.Timeout(options.request_timeout, connect=30.0)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    # trust_env False: a proxy between client and server would be measured along with it
    async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False) as http:
        model = options.model or await served_model(http, options.base_url)
        prompts = make_prompts(replace(options, model=model))
        dialect, settings = dialect_of(options.backend), _settings(options, model)
        dialect.payload(prompts[0], settings)  # a dataset that the backend cannot take fails here, not amid the run
        client = BenchClient(http, options.base_url, dialect, settings)
        await _warm_up(client, prompts, options)
        if options.flush_cache:
            await _flush(http, options.base_url)
        before = await read_metrics(http, options.engine_urls)
        times = arrival_times(prompts, options.request_rate, options.dataset.seed)
        with _progress(console, len(prompts), options.progress) as on_done:
            outputs, duration = await run_load(client, prompts, times, options.max_concurrency, on_done)
        after = await read_metrics(http, options.engine_urls)
    summary = summarise(outputs, duration, options.goodput)
    kv = kv_report(before, after) if options.engine_urls else None
    return BenchResult(summary, tuple(outputs), _shown(options), kv)


def make_prompts(options: BenchOptions) -> list[Prompt]:
    """The prompts of a run. Raises ConfigError where they cannot be made."""
    path = options.tokenizer or options.model
    tokenizer = load_tokenizer(path)
    prompts = load_dataset(options.dataset, tokenizer)
    if not options.apply_chat_template:
        return prompts
    if any(prompt.token_ids is not None for prompt in prompts):
        raise ConfigError("--apply-chat-template needs text: use --dataset-name random instead of random-ids")
    texts = apply_chat_template(path, [prompt.text for prompt in prompts])
    sizes = tokenizer.count_all(texts)
    return [replace(p, text=t, prompt_len=n) for p, t, n in zip(prompts, texts, sizes, strict=True)]


async def served_model(http: httpx.AsyncClient, base_url: str) -> str:
    """The first model that the server names. Raises EngineError where it names none."""
    try:
        response = await http.get(base_url.rstrip("/") + "/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise EngineError(f"{base_url} names no model ({error}); is a server there? Else give --model") from error


def _settings(options: BenchOptions, model: str) -> RequestSettings:
    return RequestSettings(
        model=model,
        stream=options.stream,
        ignore_eos=options.ignore_eos,
        return_logprob=options.return_logprob,
        extra_body=options.extra_request_body,
    )


async def _warm_up(client: BenchClient, prompts: list[Prompt], options: BenchOptions) -> None:
    if not options.warmup_requests:
        return
    prompt = replace(prompts[0], output_len=min(prompts[0].output_len, WARMUP_OUTPUT), at=None)
    warm = [prompt] * options.warmup_requests
    outputs, _ = await run_load(client, warm, [0.0] * len(warm), options.max_concurrency)
    if failed := [output.error for output in outputs if output.error]:
        raise EngineError(f"the warm-up failed: {failed[0]}")


async def _flush(http: httpx.AsyncClient, base_url: str) -> None:
    try:
        response = await http.post(base_url.rstrip("/") + "/flush_cache")
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise EngineError(f"--flush-cache: {error}") from error


@contextmanager
def _progress(console: Console, total: int, shown: bool) -> Iterator[OnDone]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown) as progress:
        task = progress.add_task("requests", total=total)
        yield lambda output: progress.update(task, advance=1)


def _shown(options: BenchOptions) -> dict[str, str | float | int]:
    return {
        "Backend": options.backend,
        "Dataset": options.dataset.name,
        "Traffic request rate": options.request_rate,
        "Max request concurrency": options.max_concurrency or "not set",
    }
