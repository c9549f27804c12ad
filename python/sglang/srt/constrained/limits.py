"""What a grammar may cost. Every bound is named in the 400 that it causes."""

import msgspec


class GrammarLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one engine's grammars."""

    text_bytes: int = 256 << 10
    """A catalogue of 80 tools of 3 KB each fits."""
    seconds: float = 10.0
    """CPU time of one compilation. Usual schemas take 5 to 500 ms; a regex of 300 counted alternatives, 77 s."""
    work_bytes: int = 2 << 30
    """Address space that one compilation may add."""
    compiled_bytes: int = 128 << 20
    """One compiled grammar."""
    cache_bytes: int = 512 << 20
    """Compiled grammars that nobody uses, together."""
    cache_entries: int = 1024
    """Grammars that nobody uses, rejected ones included."""
    workers: int = 4
    """Compilations at a time, so that one that runs into its limit holds up no other."""
