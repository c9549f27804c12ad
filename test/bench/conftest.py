"""A tokenizer and a server to measure against."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FAKE_SERVER = Path(__file__).parents[1] / "support" / "fake_openai_server.py"


def corpus() -> list[str]:
    """Enough different words for a vocabulary."""
    syllables = ["ka", "to", "mi", "re", "su", "no", "la", "vi", "po", "en"]
    words = [a + b + c for a in syllables for b in syllables for c in ("", "n", "s")]
    return [" ".join(words[i : i + 7]) for i in range(0, len(words), 3)] + [" ".join(words)] * 3


def byte_level(bos: bool) -> Tokenizer:
    """A byte-level BPE tokenizer, as GPT-2, Llama 3 and Qwen have, optionally with a BOS token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    byte_level(bos=True).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def server(model_dir: Path) -> Iterator[str]:
    """The address of a running fake server."""
    command = [sys.executable, str(FAKE_SERVER), "--model", str(model_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[-1])
        yield f"http://127.0.0.1:{port}"
        process.terminate()
