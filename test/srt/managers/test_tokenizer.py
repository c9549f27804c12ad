"""The model folder's tokenizer: chat template, lengths, ids, and clear errors for incomplete folders."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang.srt.errors import CheckpointError, RequestError
from sglang.srt.managers.chat_template import ChatTemplate
from sglang.srt.managers.model_folder import read_model_folder
from sglang.srt.managers.tokenizer import ContextLengthError, Tokenizer, fit
from sglang.srt.managers.tokenizer_files import load_tokenizer_files
from support.tiny_folder import make_tiny_folder

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python")}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    if not (MODEL / "tokenizer.json").exists():
        pytest.fail(f"no model at {MODEL}: run make model")
    return Tokenizer.load(str(MODEL), str(MODEL))


def test_texts_round_trip(tokenizer: Tokenizer) -> None:
    text = "Hello, 世界! 🌍"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_long_texts_are_encoded_in_a_thread_to_the_same_tokens(tokenizer: Tokenizer) -> None:
    text = "word " * 4000
    assert asyncio.run(tokenizer.encode_off_loop(text)) == tokenizer.encode(text)


def test_the_chat_template_renders_as_transformers_does(tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "user", "content": "Hi <there> & you"}]
    reference = AutoTokenizer.from_pretrained(MODEL, local_files_only=True)
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.render_chat(messages, {}, continue_final=False) == expected
    assert tokenizer.end_token_ids == (2,)


def test_loading_directly_equals_transformers(tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(MODEL, local_files_only=True)
    for text in ("Hello  world\n", "世界🌍 a<|im_end|>b", "", " x", "def f(x):\n    return x"):
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text)
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_loading_directly_needs_neither_transformers_nor_torch() -> None:
    code = (
        "import sys; from sglang.srt.managers.tokenizer import Tokenizer; "
        f"Tokenizer.load({str(MODEL)!r}, {str(MODEL)!r}); import sglang.srt.entrypoints.launch; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, timeout=60).returncode == 0


def test_other_tokenizers_load_through_transformers(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((MODEL / "tokenizer.json").read_bytes())
    settings = json.loads((MODEL / "tokenizer_config.json").read_text())
    settings["add_prefix_space"] = True
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    files = load_tokenizer_files(tmp_path, trust_remote_code=False)
    assert files.byte_level and files.end_token_ids == (2,) and files.special_tokens["bos_token"] == "<|im_start|>"


def test_token_bytes_are_exact_inside_a_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🌍世")
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "🌍世"


def test_ids_outside_the_vocabulary_are_named(tokenizer: Tokenizer) -> None:
    tokenizer.check_ids([0, tokenizer.vocab_size - 1], "prompt")
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(RequestError, match=f"prompt: token id {wrong} is outside"):
            tokenizer.check_ids([1, wrong], "prompt")


def test_a25_lengths_are_checked_with_counts() -> None:
    assert fit(10, None, 32, param="prompt", asked_param="max_tokens") == 22
    assert fit(10, 30, 32, param="prompt", asked_param="max_tokens", clip=True) == 22
    with pytest.raises(RequestError, match="empty"):
        fit(0, 1, 32, param="prompt", asked_param="max_tokens")
    with pytest.raises(ContextLengthError, match="32 tokens, but the prompt has 32"):
        fit(32, None, 32, param="prompt", asked_param="max_tokens")
    with pytest.raises(ContextLengthError, match="33 were asked for") as error:
        fit(10, 23, 32, param="prompt", asked_param="max_tokens")
    assert error.value.param == "max_tokens"


def test_templates_are_sandboxed_and_may_refuse() -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(RequestError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}).render(messages)
    with pytest.raises(RequestError, match="unsafe"):
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {}).render(messages)
    with pytest.raises(RequestError, match="Range too big"):
        ChatTemplate("{% for i in range(10**9) %}x{% endfor %}", {}).render(messages)
    with pytest.raises(CheckpointError, match="chat template"):
        ChatTemplate("{% if %}", {})


def test_a_final_message_can_be_continued() -> None:
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}", {})
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "So "}]
    assert template.render(messages, continue_final=True) == "<user>q</><assistant>So"


def test_generation_defaults_and_end_tokens_are_read(tmp_path: Path) -> None:
    make_tiny_folder(tmp_path)
    assert read_model_folder(tmp_path, {}).end_token_ids == (0,)
    assert read_model_folder(tmp_path, {"vocab_size": 7}).vocab_size == 7, "--json-model-override-args reach the front"
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [1, 2], "temperature": 0.6, "top_k": 0})
    )
    folder = read_model_folder(tmp_path, {})
    assert folder.end_token_ids == (0, 1, 2)
    assert (folder.defaults.temperature, folder.defaults.top_k, folder.defaults.top_p) == (0.6, -1, 1.0)


def test_incomplete_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing does not exist"):
        read_model_folder(tmp_path / "missing", {})
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        read_model_folder(tmp_path, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read as JSON"):
        read_model_folder(tmp_path, {})
    (make_tiny_folder(tmp_path) / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer"):
        Tokenizer.load(str(tmp_path), str(tmp_path))
