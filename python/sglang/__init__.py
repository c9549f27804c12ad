"""An LLM serving engine built around disaggregated prefill and decode."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.entrypoints.engine import Engine

__version__ = "0.1.0"
__all__ = ["Engine", "__version__"]


def __getattr__(name: str) -> object:
    """`sglang.Engine`, imported when it is asked for: the thin commands must start at once."""
    if name == "Engine":
        from sglang.srt.entrypoints.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
