"""What is sent: prompts from files, from random words or ids, from shared prefixes, from a trace."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sglang.bench.tokenizer import BenchTokenizer
from sglang.bench.words import WordPool
from sglang.srt.errors import ConfigError

DatasetName = Literal["sharegpt", "custom", "random", "random-ids", "generated-shared-prefix", "mooncake"]
MOONCAKE_BLOCK = 512
"""Tokens that one hash id of a Mooncake trace stands for (its published trace format)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to make. Either `token_ids` is set or the text counts."""

    prompt_len: int
    """In tokens, as the server will count them."""
    output_len: int
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    at: float | None = None
    """Seconds after the start at which a trace sends it."""


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """Which prompts to make; names and defaults are bench_serving's flags."""

    name: DatasetName = "random"
    path: str = ""
    num_prompts: int = 1000
    seed: int = 1
    random_input_len: int = 1024
    random_output_len: int = 1024
    random_range_ratio: float = 0.0
    random_output_range_ratio: float | None = None
    """None: random_range_ratio."""
    sharegpt_output_len: int | None = None
    gsp_num_groups: int = 64
    gsp_prompts_per_group: int = 16
    gsp_system_prompt_len: int = 2048
    gsp_question_len: int = 128
    gsp_output_len: int = 256
    mooncake_slowdown_factor: float = 1.0


def load_dataset(options: DatasetOptions, tokenizer: BenchTokenizer) -> list[Prompt]:
    """The prompts that `options` describe. Raises ConfigError where they cannot be made."""
    makers: dict[DatasetName, Callable[[DatasetOptions, BenchTokenizer], list[Prompt]]] = {
        "sharegpt": conversations,
        "custom": conversations,
        "random": random_words,
        "random-ids": random_ids,
        "generated-shared-prefix": shared_prefixes,
        "mooncake": mooncake_trace,
    }
    prompts = makers[options.name](options, tokenizer)
    if not prompts:
        raise ConfigError(f"--dataset-name {options.name}: no usable prompt in {options.path or 'the options'}")
    return prompts


def random_lengths(rng: np.random.Generator, full: int, ratio: float, count: int) -> list[int]:
    """`count` lengths, uniform from full * ratio (at least 1) to full, both included."""
    if full < 1 or not 0.0 <= ratio <= 1.0:
        raise ConfigError("random lengths need --random-*-len >= 1 and --random-range-ratio from 0 to 1")
    return [int(n) for n in rng.integers(max(1, int(full * ratio)), full + 1, size=count)]


def random_words(options: DatasetOptions, tokenizer: BenchTokenizer) -> list[Prompt]:
    """Texts of exactly the drawn token length, of words of the vocabulary or of the file at `path`."""
    rng = np.random.default_rng(options.seed)
    pool = WordPool(tokenizer, _file_words(options.path) if options.path else ())
    floor = tokenizer.count("") + 1  # the tokenizer's own special tokens, and one of ours
    prompts = []
    for size, output in _random_sizes(options, rng):
        tokens = max(size, floor)
        prompts.append(Prompt(tokens, output, text=pool.text(pool.draw(rng, tokens), tokens)))
    return prompts


def random_ids(options: DatasetOptions, tokenizer: BenchTokenizer) -> list[Prompt]:
    """Random token ids, sent as ids: exact whatever the tokenizer does."""
    rng = np.random.default_rng(options.seed)
    ids = np.asarray(tokenizer.ordinary_ids)
    return [
        Prompt(size, output, token_ids=tuple(int(i) for i in rng.choice(ids, size=size)))
        for size, output in _random_sizes(options, rng)
    ]


def _random_sizes(options: DatasetOptions, rng: np.random.Generator) -> list[tuple[int, int]]:
    ratio, output_ratio = options.random_range_ratio, options.random_output_range_ratio
    inputs = random_lengths(rng, options.random_input_len, ratio, options.num_prompts)
    output_ratio = ratio if output_ratio is None else output_ratio
    return list(
        zip(inputs, random_lengths(rng, options.random_output_len, output_ratio, options.num_prompts), strict=True)
    )


def shared_prefixes(options: DatasetOptions, tokenizer: BenchTokenizer) -> list[Prompt]:
    """Groups of prompts that begin with the same system prompt, in random order."""
    rng = np.random.default_rng(options.seed)
    pool = WordPool(tokenizer)
    tokens = options.gsp_system_prompt_len + options.gsp_question_len
    prompts = []
    for _ in range(options.gsp_num_groups):
        system = pool.draw(rng, options.gsp_system_prompt_len)
        for _ in range(options.gsp_prompts_per_group):
            words = system + pool.continue_(rng, options.gsp_question_len)
            prompts.append(Prompt(tokens, options.gsp_output_len, text=pool.text(words, tokens)))
    return [prompts[int(i)] for i in rng.permutation(len(prompts))]


def conversations(options: DatasetOptions, tokenizer: BenchTokenizer) -> list[Prompt]:
    """First question and answer of each conversation of a ShareGPT-format file (a JSON list, or JSON lines)."""
    rng = np.random.default_rng(options.seed)
    pairs = [turns[:2] for turns in _conversations(options.path) if len(turns) >= 2]
    order = [pairs[int(i)] for i in rng.permutation(len(pairs))]
    prompts: list[Prompt] = []
    for question, answer in order:
        if len(prompts) == options.num_prompts:
            break
        size, output = tokenizer.count(question), options.sharegpt_output_len or tokenizer.count(answer)
        if size >= 2 and output >= 2:  # anything shorter has no TPOT to measure
            prompts.append(Prompt(size, output, text=question))
    return prompts


def mooncake_trace(options: DatasetOptions, tokenizer: BenchTokenizer) -> list[Prompt]:
    """A Mooncake trace, JSON lines of timestamp (ms), input_length, output_length, hash_ids: equal ids, equal text."""
    pool = WordPool(tokenizer)
    prompts = []
    for number, row in enumerate(_rows(options.path)):
        if number == options.num_prompts:
            break
        try:
            tokens, output, at = int(row["input_length"]), int(row["output_length"]), float(row["timestamp"]) / 1000
            blocks = [int(block) for block in row["hash_ids"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{options.path}: entry {number + 1} is not a trace row ({error!r})") from error
        words = [word for block in blocks for word in _block(pool, options.seed, block)]
        text = pool.text(words, tokens)
        prompts.append(Prompt(tokens, output, text=text, at=at * options.mooncake_slowdown_factor))
    return prompts


def _block(pool: WordPool, seed: int, block: int) -> list[str]:
    return pool.draw(np.random.default_rng((seed, block)), MOONCAKE_BLOCK)


def _file_words(path: str) -> list[str]:
    return [word for turns in _conversations(path) for turn in turns for word in turn.split()]


def _conversations(path: str) -> Iterator[list[str]]:
    for number, row in enumerate(_rows(path)):
        turns = row.get("conversations", row.get("conversation"))
        if not isinstance(turns, list):
            raise ConfigError(f"{path}: entry {number + 1} has no list `conversations`")
        values = [turn.get("value", turn.get("content")) for turn in turns if isinstance(turn, dict)]
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) != len(turns):
            raise ConfigError(f"{path}: entry {number + 1} has a turn without a text `value` or `content`")
        yield texts


def _rows(path: str) -> list[dict[str, Any]]:
    if not path:
        raise ConfigError("this dataset needs --dataset-path")
    try:
        text = Path(path).read_text(encoding="utf-8")
        rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(x) for x in text.splitlines() if x]
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dataset-path {path}: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"--dataset-path {path}: expected a list of objects")
    return rows
