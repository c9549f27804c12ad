"""Which grammar backend an engine has, from its configuration. Libraries are imported when it opens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sglang.srt.config.server import ServerConfig
from sglang.srt.constrained.base import GrammarBackend
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.service import GrammarService
from sglang.srt.constrained.vocabulary import Vocabulary, load_vocabulary
from sglang.srt.errors import EngineError


class _Make(Protocol):
    def __call__(self, vocabulary: Vocabulary, limits: GrammarLimits, *, whitespace: bool) -> GrammarBackend: ...


def open_grammars(config: ServerConfig, vocab_size: int, end: Sequence[int]) -> GrammarService | None:
    """`end`: the model's end tokens. None where the engine samples nothing or has --grammar-backend none."""
    if config.grammar_backend == "none" or config.disagg_mode == "prefill" or config.is_embedding:
        return None
    limits = GrammarLimits(seconds=config.grammar_compile_timeout)

    def open_backend() -> GrammarBackend:
        vocabulary = load_vocabulary(Path(config.tokenizer_path), vocab_size, end)
        whitespace = not config.constrained_json_disable_any_whitespace
        try:
            return _backend(config.grammar_backend)(vocabulary, limits, whitespace=whitespace)
        except ImportError as error:
            raise EngineError(
                f"--grammar-backend {config.grammar_backend}: {error}; pip install sglang[grammar]"
            ) from error

    return GrammarService(open_backend, limits)


def _backend(name: str) -> _Make:
    if name == "llguidance":
        from sglang.srt.constrained.llguidance_backend import LLGuidanceBackend

        return LLGuidanceBackend
    from sglang.srt.constrained.xgrammar_backend import XGrammarBackend

    return XGrammarBackend
