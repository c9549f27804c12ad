"""Prompts: exact lengths above all (benchmarks that say 1024 tokens must send 1024 tokens)."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from sglang.bench.dataset import DatasetOptions, load_dataset
from sglang.bench.tokenizer import BenchTokenizer, load_tokenizer
from sglang.bench.words import WordPool
from sglang.srt.errors import ConfigError
from support.engines import need_model

WORDS = [a + b + c for a in ("ka", "to", "mi", "re", "su") for b in ("no", "la", "vi", "po") for c in ("", "n", "s")]


@cache
def tokenizer(kind: str) -> BenchTokenizer:
    """One tokenizer of each family in use: byte-level BPE, SentencePiece-like unigram with BOS, WordPiece."""
    if kind == "bytes":
        raw, special = Tokenizer(models.BPE()), "<s>"
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer: object = trainers.BpeTrainer(vocab_size=500, special_tokens=[special], show_progress=False)
    elif kind == "unigram":
        raw, special = Tokenizer(models.Unigram()), "<s>"
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=[special], unk_token="<unk>", show_progress=False
        )
    else:
        raw, special = Tokenizer(models.WordPiece(unk_token="[UNK]")), "[CLS]"
        raw.normalizer, raw.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", special], show_progress=False)
    raw.train_from_iterator([" ".join(WORDS), *WORDS] * 5, trainer)
    if kind != "bytes":
        raw.post_processor = processors.TemplateProcessing(
            single=f"{special} $A", special_tokens=[(special, raw.token_to_id(special))]
        )
    return BenchTokenizer(raw)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["bytes", "unigram", "wordpiece"]),
    seed=st.integers(0, 2**32),
    length=st.integers(1, 600),
    ratio=st.floats(0.0, 1.0),
)
def test_random_prompts_have_the_requested_token_length(kind: str, seed: int, length: int, ratio: float) -> None:
    """Reported case A20: the tokenizer counts what was asked for, special tokens included."""
    options = DatasetOptions(
        name="random", num_prompts=3, seed=seed, random_input_len=length, random_range_ratio=ratio, random_output_len=9
    )
    floor = tokenizer(kind).count("") + 1
    for prompt in load_dataset(options, tokenizer(kind)):
        assert tokenizer(kind).count(prompt.text) == prompt.prompt_len
        assert max(floor, int(length * ratio)) <= prompt.prompt_len <= max(floor, length)
        assert max(1, int(9 * ratio)) <= prompt.output_len <= 9


def test_a_ratio_of_one_gives_one_length_and_a_seed_gives_one_dataset() -> None:
    options = DatasetOptions(name="random", num_prompts=5, random_input_len=77, random_range_ratio=1.0, seed=3)
    first, again = (load_dataset(options, tokenizer("bytes")) for _ in range(2))
    other = load_dataset(replace(options, seed=4), tokenizer("bytes"))
    assert first == again != other
    assert {prompt.prompt_len for prompt in first} == {77}


def test_random_ids_are_ordinary_ids_of_the_exact_number() -> None:
    options = DatasetOptions(name="random-ids", num_prompts=4, random_input_len=33, random_range_ratio=1.0)
    for prompt in load_dataset(options, tokenizer("wordpiece")):
        assert prompt.token_ids is not None
        assert len(prompt.token_ids) == prompt.prompt_len == 33
        assert set(prompt.token_ids) <= set(tokenizer("wordpiece").ordinary_ids)


def test_the_real_models_prompts_are_exact() -> None:
    real = load_tokenizer(str(need_model()))
    options = DatasetOptions(name="random", num_prompts=20, random_input_len=1024)
    for prompt in load_dataset(options, real):
        assert real.count(prompt.text) == prompt.prompt_len


def test_groups_share_their_system_prompt() -> None:
    options = DatasetOptions(
        name="generated-shared-prefix",
        gsp_num_groups=3,
        gsp_prompts_per_group=4,
        gsp_system_prompt_len=50,
        gsp_question_len=10,
        gsp_output_len=7,
    )
    prompts = load_dataset(options, tokenizer("bytes"))
    assert len(prompts) == 12
    assert all(tokenizer("bytes").count(prompt.text) == prompt.prompt_len == 60 for prompt in prompts)
    assert len({" ".join(prompt.text.split()[:50]) for prompt in prompts}) == 3
    assert len({prompt.text for prompt in prompts}) == 12


def test_conversations_give_first_question_and_length_of_first_answer(tmp_path: Path) -> None:
    rows = [
        {"conversations": [{"from": "human", "value": "kano tola"}, {"from": "gpt", "value": "mivi repo sula"}]},
        {"conversations": [{"from": "human", "value": "alone"}]},
        {
            "conversation": [
                {"role": "user", "content": "kano tola mivi"},
                {"role": "assistant", "content": "kano tola"},
            ]
        },
    ]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    for name, file in (("sharegpt", "list.json"), ("custom", "lines.jsonl")):
        options = DatasetOptions(name=name, path=str(tmp_path / file))  # type: ignore[arg-type]
        prompts = {prompt.text: prompt for prompt in load_dataset(options, tokenizer("bytes"))}
        assert set(prompts) == {"kano tola", "kano tola mivi"}
        assert prompts["kano tola"].output_len == tokenizer("bytes").count("mivi repo sula")
        fixed = load_dataset(replace(options, sharegpt_output_len=5, num_prompts=1), tokenizer("bytes"))
        assert [prompt.output_len for prompt in fixed] == [5]


def test_random_words_can_come_from_a_file(tmp_path: Path) -> None:
    turns = [{"value": "kano tola kano"}, {"value": "kano"}]
    (tmp_path / "words.json").write_text(json.dumps([{"conversations": turns}]))
    options = DatasetOptions(name="random", path=str(tmp_path / "words.json"), num_prompts=2, random_input_len=20)
    for prompt in load_dataset(options, tokenizer("wordpiece")):
        assert set(prompt.text.split()) <= {"kano", "tola"}


def test_equal_trace_blocks_give_equal_text_and_times_are_kept(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]},
        {"timestamp": 3500, "input_length": 900, "output_length": 4, "hash_ids": [1, 3]},
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    options = DatasetOptions(name="mooncake", path=str(tmp_path / "trace.jsonl"), mooncake_slowdown_factor=2.0)
    first, second = load_dataset(options, tokenizer("bytes"))
    assert [first.prompt_len, second.prompt_len] == [600, 900]
    assert [first.at, second.at] == [2.0, 7.0]
    assert first.text.split()[:512] == second.text.split()[:512]
    assert first.text.split()[512] != second.text.split()[512]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("not json", "Expecting value"),
        ('[{"text": "x"}]', "entry 1 has no list `conversations`"),
        ('[{"conversations": [{"from": "human"}]}]', "entry 1 has a turn without a text"),
        ("[1]", "expected a list of objects"),
        ("[]", "no usable prompt"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(ConfigError, match=r"bad\.json") as caught:
        load_dataset(DatasetOptions(name="sharegpt", path=str(tmp_path / "bad.json")), tokenizer("bytes"))
    assert complaint in str(caught.value)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="--dataset-path"):
        load_dataset(DatasetOptions(name="sharegpt"), tokenizer("bytes"))
    with pytest.raises(ConfigError, match="random-range-ratio"):
        load_dataset(DatasetOptions(random_range_ratio=1.5), tokenizer("bytes"))
    with pytest.raises(ConfigError, match="no words of one token"):
        WordPool(tokenizer("bytes"), ["zzzzzzqqqqq"])
