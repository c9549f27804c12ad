"""Ways to use two cores, as recipes of sglang.cluster, and the loads that they are compared under."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PORT = 31000


@dataclass(frozen=True, slots=True)
class Shape:
    """Prompt and answer lengths of a load, all requests alike, and the rates at which it is offered."""

    read: int
    written: int
    rates: tuple[float, ...]
    """Requests a second, rising from light to overload."""
    chunks: tuple[int, ...] = (0,)
    """What the sweep of chunk sizes tries on mixed engines; see mixed_flags."""

    @property
    def name(self) -> str:
        """As in file names."""
        return f"{self.read}-{self.written}"

    @property
    def middle(self) -> float:
        """The rate of the chunk sweep."""
        return self.rates[len(self.rates) // 2]


SHAPES: dict[str, tuple[Shape, ...]] = {
    # SmolLM2-135M on two cores of an EPYC Genoa.
    "smollm2": (
        Shape(512, 256, (0.6, 0.9, 1.2), (0, 64)),
        Shape(2048, 64, (0.15, 0.25, 0.35), (0, 64, 256)),
        Shape(128, 512, (0.3, 0.5), (0, 64)),
    ),
    "qwen3-0.6b-shape": (Shape(512, 64, (0.06, 0.12, 0.2), (0, 64)),),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """Engines on two cores."""

    name: str
    prefill: int = 0
    decode: int = 0
    unified: tuple[tuple[int, ...], ...] = ()
    """Cores of each unified engine."""
    flags: dict[str, Any] = field(default_factory=dict)
    """Of its prefill engines, or of its unified ones."""
    decode_flags: dict[str, Any] = field(default_factory=dict)

    def recipe(self, model: str, tokens: int, rows: int) -> dict[str, Any]:
        """For sglang.cluster. `tokens` of KV and `rows` of a batch in all, divided among the engines that decode."""
        fronts = self.decode or len(self.unified)
        each = {"max-total-tokens": tokens // fronts, "max-running-requests": max(2, rows // fronts)}
        defaults = {
            "model-path": model,
            "log-level": "warning",
            "disable-radix-cache": True,
            "grammar-backend": "none",
            **each,
        }
        content: dict[str, Any] = {"defaults": defaults}
        if self.unified:
            content["unified"] = [
                {"port": PORT + 100 + i, "cores": list(cores), "threads": len(cores), **self.flags}
                for i, cores in enumerate(self.unified)
            ]
        else:
            prefill = {"port": PORT + 1, "disagg-bootstrap-port": PORT + 900, "count": self.prefill, "cores": [0]}
            content["prefill"] = [{**prefill, "threads": 1, "max-total-tokens": tokens, **self.flags}]
            decode = {"port": PORT + 100, "count": self.decode, "cores": [1], "threads": 1, **self.decode_flags}
            content["decode"] = [decode]
        if fronts > 1:
            content["router"] = {"port": PORT, "policy": "power_of_two", "prometheus-port": PORT + 950}
        return content


def mixed_flags(chunk: int) -> dict[str, Any]:
    """A unified engine's chunk size; chunks share steps with decoding rows. 0: whole prompts, decoding waits."""
    if not chunk:
        return {"chunked-prefill-size": 2048, "enable-mixed-chunk": False}
    return {"chunked-prefill-size": chunk, "enable-mixed-chunk": True}


def one_engine(chunk: int) -> Setup:
    """One engine with both cores."""
    return Setup(f"mixed 2c, {_chunk_name(chunk)}", unified=((0, 1),), flags=mixed_flags(chunk))


def two_engines(chunk: int) -> Setup:
    """Two engines with a core each behind the balancer."""
    return Setup(f"mixed 1c+1c, {_chunk_name(chunk)}", unified=((0,), (1,)), flags=mixed_flags(chunk))


def _chunk_name(chunk: int) -> str:
    return f"chunk {chunk}" if chunk else "prompt first"


def disaggregated(decodes: int = 1, local: int | None = None) -> Setup:
    """A prefill engine on core 0, decode engines on core 1, which prefill up to `local` missing tokens themselves."""
    extra = {} if local is None else {"disagg-local-prefill-tokens": local, **mixed_flags(64)}
    name = f"1P:{decodes}D" + ("" if local is None else f", local up to {local}")
    return Setup(name, prefill=1, decode=decodes, decode_flags=extra, flags={"chunked-prefill-size": 512})


def kinds(setups: Sequence[Setup]) -> dict[str, list[Setup]]:
    """Set-ups by what they have in common, which is their name up to the comma."""
    found: dict[str, list[Setup]] = {}
    for setup in setups:
        found.setdefault(setup.name.split(",")[0], []).append(setup)
    return found
