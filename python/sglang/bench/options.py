"""The command line of bench_serving: SGLang's flags."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from sglang.bench.dataset import DatasetName, DatasetOptions
from sglang.bench.dialects import Backend
from sglang.srt.errors import ConfigError

OBJECTIVES = ("ttft", "tpot", "e2el")
DEFAULT_PORTS = {"sglang": 30000, "vllm": 8000}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One benchmark run."""

    backend: Backend = "sglang"
    base_url: str = "http://127.0.0.1:30000"
    model: str = ""
    """Empty: the first that the server names."""
    tokenizer: str = ""
    """Empty: the model."""
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    request_rate: float = float("inf")
    max_concurrency: int | None = None
    warmup_requests: int = 1
    stream: bool = True
    ignore_eos: bool = True
    return_logprob: bool = False
    extra_request_body: dict[str, Any] = field(default_factory=dict)
    apply_chat_template: bool = False
    flush_cache: bool = False
    goodput: dict[str, float] = field(default_factory=dict)
    engine_urls: tuple[str, ...] = ()
    """Engines whose KV counters are read before and after."""
    request_timeout: float = 6 * 3600.0
    output_file: str = ""
    output_details: bool = False
    progress: bool = True


def build_parser() -> argparse.ArgumentParser:
    """The parser of `python -m sglang.bench_serving`."""
    parser = argparse.ArgumentParser(
        prog="bench_serving",
        description="Send load to a serving engine and print throughput and latency.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_target(parser)
    _add_dataset(parser)
    _add_load(parser)
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--backend", choices=get_args(Backend), default="sglang")
    add("--base-url", help="of the server; takes the place of --host and --port")
    add("--host", default="127.0.0.1")
    add("--port", type=int, help="default: 30000, for vllm 8000")
    add("--model", default="", help="default: the first that the server names")
    add("--tokenizer", default="", help="model folder with a tokenizer; default: the model")
    add("--disable-stream", action="store_true")
    add("--disable-ignore-eos", action="store_true", help="let answers end before their wanted length")
    add("--return-logprob", action="store_true")
    add("--extra-request-body", default="{}", metavar="JSON", help="merged into each request's body")
    add("--apply-chat-template", action="store_true", help="put prompts into the model's chat template")
    add("--request-timeout", type=float, default=6 * 3600.0, help="seconds without a byte after which one fails")


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    add, default = parser.add_argument, DatasetOptions()
    add("--dataset-name", choices=get_args(DatasetName), default="sharegpt")
    add("--dataset-path", default="", help="of sharegpt, custom and mooncake; for random: take its words")
    add("--num-prompts", type=int, default=default.num_prompts)
    add("--random-input-len", type=int, default=default.random_input_len)
    add("--random-output-len", type=int, default=default.random_output_len)
    add("--random-range-ratio", type=float, default=default.random_range_ratio, help="shortest length / longest")
    add("--random-output-range-ratio", type=float, help="the same for outputs alone; default: --random-range-ratio")
    add("--sharegpt-output-len", type=int, help="default: the length of the recorded answer")
    add("--gsp-num-groups", type=int, default=default.gsp_num_groups)
    add("--gsp-prompts-per-group", type=int, default=default.gsp_prompts_per_group)
    add("--gsp-system-prompt-len", type=int, default=default.gsp_system_prompt_len)
    add("--gsp-question-len", type=int, default=default.gsp_question_len)
    add("--gsp-output-len", type=int, default=default.gsp_output_len)
    add("--mooncake-slowdown-factor", type=float, default=default.mooncake_slowdown_factor)
    add("--seed", type=int, default=default.seed)


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--request-rate", type=float, default=float("inf"), help="a second, Poisson; inf sends all at once")
    add("--max-concurrency", type=int, help="most requests in flight")
    add("--warmup-requests", type=int, default=1)
    add("--flush-cache", action="store_true", help="drop the server's prefix cache after the warm-up")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help=f"objectives, of {', '.join(OBJECTIVES)}")
    add("--pd-separated", action="store_true", help="also report KV transfers, from /metrics of the engines")
    text = "all engines, prefill ones too, for --pd-separated; default: the server"
    add("--engine-urls", nargs="+", default=[], help=text)
    add("--output-file", default="", help="append the result to this file of JSON lines")
    add("--output-details", action="store_true", help="with the figures of each request")
    add("--disable-tqdm", action="store_true", help="no progress bar")


def parse_options(argv: Sequence[str] | None = None) -> BenchOptions:
    """Options out of a command line. Raises ConfigError, which names the flag."""
    args = build_parser().parse_args(argv)
    port = args.port or DEFAULT_PORTS["vllm" if args.backend.startswith("vllm") else "sglang"]
    base_url = args.base_url or f"http://{args.host}:{port}"
    _check_counts(args)
    engines = tuple(args.engine_urls) or (base_url,)
    return BenchOptions(
        backend=args.backend,
        base_url=base_url,
        model=args.model,
        tokenizer=args.tokenizer,
        dataset=_dataset(args),
        request_rate=args.request_rate,
        max_concurrency=args.max_concurrency,
        warmup_requests=args.warmup_requests,
        stream=not args.disable_stream,
        ignore_eos=not args.disable_ignore_eos,
        return_logprob=args.return_logprob,
        extra_request_body=_json_object(args.extra_request_body),
        apply_chat_template=args.apply_chat_template,
        flush_cache=args.flush_cache,
        goodput=parse_goodput(args.goodput),
        engine_urls=engines if args.pd_separated else (),
        request_timeout=args.request_timeout,
        output_file=args.output_file,
        output_details=args.output_details,
        progress=not args.disable_tqdm,
    )


def _dataset(args: argparse.Namespace) -> DatasetOptions:
    return DatasetOptions(
        name=args.dataset_name,
        path=args.dataset_path,
        num_prompts=args.num_prompts,
        seed=args.seed,
        random_input_len=args.random_input_len,
        random_output_len=args.random_output_len,
        random_range_ratio=args.random_range_ratio,
        random_output_range_ratio=args.random_output_range_ratio,
        sharegpt_output_len=args.sharegpt_output_len,
        gsp_num_groups=args.gsp_num_groups,
        gsp_prompts_per_group=args.gsp_prompts_per_group,
        gsp_system_prompt_len=args.gsp_system_prompt_len,
        gsp_question_len=args.gsp_question_len,
        gsp_output_len=args.gsp_output_len,
        mooncake_slowdown_factor=args.mooncake_slowdown_factor,
    )


def _check_counts(args: argparse.Namespace) -> None:
    for name, least in {"num_prompts": 1, "warmup_requests": 0, "max_concurrency": 1}.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra-request-body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("--extra-request-body must be a JSON object")
    return value


def parse_goodput(items: Sequence[str]) -> dict[str, float]:
    """`ttft:500 tpot:50` as bounds in milliseconds. Raises ConfigError for anything else."""
    bounds: dict[str, float] = {}
    for item in items:
        name, _, text = item.partition(":")
        try:
            bounds[name] = float(text)
        except ValueError:
            bounds[name] = -1.0
        if name not in OBJECTIVES or bounds[name] < 0:
            raise ConfigError(f"--goodput {item}: expected NAME:MS with NAME one of {', '.join(OBJECTIVES)}")
    return bounds
