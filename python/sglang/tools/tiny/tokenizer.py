"""A tokenizer for a tiny model: byte-level BPE trained on the spot, or a real model's files."""

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from sglang.srt.errors import CheckpointError
from sglang.tools.tiny.shapes import TinyModel

VOCABULARY = 512
REAL_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_TEXT = """
A prefill engine reads the prompt once and leaves its keys and values behind; a decode engine picks them up and writes
the answer word by word. Between the two there is a network, and on the network there are pages: sixteen tokens each,
layer by layer, while the next layer is still being computed. What the reader of the answer sees is only that the first
word comes early and the others do not hesitate. def main(argv): return 0 if argv else 1; for i in range(10): print(i).
The quick brown fox jumps over the lazy dog, 3.14159 times a day. "Why?" asked the child; because, said the engine, it
was told to stop at the end of the sentence. {"name": "weather", "arguments": {"city": "Paris", "unit": "celsius"}}
"""


class TinyTokenizer:
    """What config.json needs to know about the tokenizer that was written."""

    def __init__(self, tokenizer: Tokenizer, bos: str, eos: str) -> None:
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
        self.bos = tokenizer.token_to_id(bos) if bos else None
        self.eos = tokenizer.token_to_id(eos)


def train(model: TinyModel, folder: Path) -> TinyTokenizer:
    """Train on a page of text and write tokenizer.json and tokenizer_config.json. The same each time."""
    special = [token for token in (model.bos, model.eos, *model.special) if token]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": model.eos,
        "chat_template": model.template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.config["max_position_embeddings"],
        **({"bos_token": model.bos} if model.bos else {}),
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return TinyTokenizer(tokenizer, model.bos, model.eos)


def copy_real(source: Path, folder: Path) -> TinyTokenizer:
    """Copy a real model's tokenizer files. Raises CheckpointError where they are missing or name no end token."""
    for name in REAL_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    try:
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
        bos, eos = _content(settings.get("bos_token")), _content(settings["eos_token"])
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise CheckpointError(f"{source}: no usable tokenizer.json and tokenizer_config.json: {error}") from error
    return TinyTokenizer(tokenizer, bos, eos)


def _content(token: Any) -> str:  # noqa: ANN401 - JSON
    return str(token["content"] if isinstance(token, dict) else token or "")
