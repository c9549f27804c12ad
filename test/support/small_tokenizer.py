"""A byte-level BPE trained in a second: 256 bytes and a few merges, so that characters outside ASCII span tokens."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = ["the quick brown fox jumps over the lazy dog", "hello world, hello there", "STOP the stopping stops"]


def byte_level(path: Path | None = None) -> Tokenizer:
    """The tokenizer; also written to `path` when given."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    if path is not None:
        tokenizer.save(str(path))
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A SentencePiece-like tokenizer: `▁` for spaces, `<0xE4>` for bytes of unknown characters, first space dropped."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "a", "b", "▁the", "he", "世"]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer
