"""A cluster at work in a minute: `python -m sglang.demo recipes/tiny/smollm2-1p2d.yaml`.

Starts the recipe, streams one chat answer through the balancer, sends a small mixed load and prints its figures.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import httpx
from rich.console import Console

from sglang.bench.client import BenchClient, RequestOutput
from sglang.bench.dataset import DatasetOptions, Prompt
from sglang.bench.dialects import RequestSettings, dialect_of
from sglang.bench.options import BenchOptions
from sglang.bench.report import render_errors, render_kv, render_summary
from sglang.bench.run import BenchResult, run_benchmark
from sglang.cluster.cluster import Cluster
from sglang.cluster.commands import Commands
from sglang.cluster.display import ClusterDisplay
from sglang.cluster.recipe import Recipe, load_recipe
from sglang.cluster.signals import StoppedError, run_stoppable
from sglang.srt.errors import ConfigError, EngineError, SglangError

QUESTION = "What is a key-value cache in a language model? Answer in two sentences."
ANSWER_TOKENS = 96


def main(argv: Sequence[str] | None = None, commands: Commands | None = None) -> int:
    """Run the demo; 0 only where every request was answered."""
    started = time.monotonic()
    args = _parser().parse_args(argv)
    console = Console()
    try:
        recipe = load_recipe(args.recipe)
        _check_models(recipe)
        asyncio.run(_demo(recipe, args, console, commands, started))
    except StoppedError:
        console.print("stopped", style="bold")
        return 130
    except SglangError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="tiny/smollm2-1p2d.yaml")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-concurrency", type=int, default=8)
    parser.add_argument("--log-dir", default="out/demo", help="for the logs of the processes")
    return parser


def _check_models(recipe: Recipe) -> None:
    for engine in recipe.engines:
        if not (Path(engine.config.model_path) / "config.json").is_file():
            raise ConfigError(f"no model in {engine.config.model_path}; `make model` makes the one of the tiny recipes")


async def _demo(
    recipe: Recipe, args: argparse.Namespace, console: Console, commands: Commands | None, started: float
) -> None:
    with _log_files(recipe, Path(args.log_dir)) as files:
        display = ClusterDisplay(recipe, console, files)
        cluster = Cluster(recipe, on_log=display.log, on_ready=display.ready, commands=commands)

        async def work() -> None:
            try:
                with display:
                    await cluster.__aenter__()
                await cluster.supervise(_show(recipe, cluster, args, console, started))
            finally:
                await cluster.stop()

        await run_stoppable(work(), cluster.kill)


async def _show(recipe: Recipe, cluster: Cluster, args: argparse.Namespace, console: Console, started: float) -> None:
    names = f"{len(recipe.prefill)} prefill, {len(recipe.frontends)} {'decode' if recipe.prefill else 'unified'}"
    console.print(
        f"\n[bold]{names} engines behind {cluster.url}; first request after {time.monotonic() - started:.1f} s",
        soft_wrap=True,
    )
    console.print(f"[bold]> {QUESTION}")
    answer = await _chat(cluster.url, recipe, console)
    if answer.error:
        raise EngineError(f"the chat request failed: {answer.error}")
    console.print(
        f"[dim]{answer.output_len} tokens, first after {answer.ttft * 1e3:.0f} ms, all after {answer.latency:.2f} s\n"
    )
    options = _load(recipe, cluster, args)
    console.print(f"[bold]{args.num_prompts} requests, 64-1024 tokens in, 16-64 out, {args.max_concurrency} at a time")
    result = await run_benchmark(options, console)
    console.print(render_summary(result.summary, result.settings), highlight=False, markup=False)
    if recipe.prefill:
        console.print(render_kv(result.kv), highlight=False, markup=False)
    _judge(recipe, result)


async def _chat(url: str, recipe: Recipe, console: Console) -> RequestOutput:
    settings = RequestSettings(model=recipe.frontends[0].config.served_model_name, ignore_eos=False)
    prompt = Prompt(prompt_len=0, output_len=ANSWER_TOKENS, text=QUESTION)
    async with httpx.AsyncClient(timeout=120.0, trust_env=False) as http:
        client = BenchClient(http, url, dialect_of("sglang-oai-chat"), settings)
        output = await client.send(prompt, on_text=_typewriter(console))
    console.print()
    return output


def _typewriter(console: Console) -> Callable[[str], None]:
    """Prints what each call adds to the text of the call before."""
    shown = 0

    def show(text: str) -> None:
        nonlocal shown
        console.print(text[shown:], end="", highlight=False, markup=False, soft_wrap=True)
        shown = len(text)

    return show


def _load(recipe: Recipe, cluster: Cluster, args: argparse.Namespace) -> BenchOptions:
    dataset = DatasetOptions(
        name="random",
        num_prompts=args.num_prompts,
        random_input_len=1024,
        random_output_len=64,
        random_range_ratio=64 / 1024,
        random_output_range_ratio=16 / 64,
    )
    config = recipe.frontends[0].config
    return BenchOptions(
        base_url=cluster.url,
        model=config.served_model_name,
        tokenizer=config.tokenizer_path,
        dataset=dataset,
        max_concurrency=args.max_concurrency,
        engine_urls=tuple(cluster.engine_urls) if recipe.prefill else (),
        request_timeout=300.0,
    )


def _judge(recipe: Recipe, result: BenchResult) -> None:
    if result.summary.failed:
        raise EngineError(f"{result.summary.failed} requests failed:\n{render_errors(result.outputs)}")
    if recipe.prefill and (result.kv is None or not result.kv.bytes_moved):
        raise EngineError("all requests were answered, but the engines report no KV transfer between them")


@contextmanager
def _log_files(recipe: Recipe, folder: Path) -> Iterator[dict[str, TextIO]]:
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        names = [*(engine.name for engine in recipe.engines), "router"]
        yield {name: stack.enter_context((folder / f"{name}.log").open("w", encoding="utf-8")) for name in names}


if __name__ == "__main__":
    sys.exit(main())
