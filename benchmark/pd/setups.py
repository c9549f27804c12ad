"""Ways to use two cores, as recipes of sglang.cluster, and the loads that they are compared under."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

PORT = 31000
Engine = Literal["sglang", "vllm"]
Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
Kind = Callable[[int], "Setup"]
"""Mixed set-ups of a kind, by chunk size."""
KINDS = ("mixed 2c", "1P:1D", "mixed 1c+1c", "1P:3D", "vllm 2c")


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
    engine: Engine = "sglang"
    """Whose server the unified engines are; vLLM's takes what it knows of the recipe (pd/vllm.py)."""

    @property
    def kind(self) -> str:
        """One of KINDS: the name up to the comma."""
        return self.name.split(",")[0]

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


def vllm_two_cores(chunk: int, dtype: Dtype) -> Setup:
    """vLLM's server with both cores. Its steps take at most `chunk` tokens, decoding rows included; 0: its default."""
    flags = {"dtype": dtype} | ({"chunked-prefill-size": chunk} if chunk else {})
    steps = f"{chunk} a step" if chunk else "its own chunks"
    return Setup(f"vllm 2c, {dtype}, {steps}", unified=((0, 1),), flags=flags, engine="vllm")


def _chunk_name(chunk: int) -> str:
    return f"chunk {chunk}" if chunk else "prompt first"


def disaggregated(decodes: int = 1, local: int | None = None) -> Setup:
    """A prefill engine on core 0, decode engines on core 1, which prefill up to `local` missing tokens themselves."""
    extra = {} if local is None else {"disagg-local-prefill-tokens": local, **mixed_flags(64)}
    name = f"1P:{decodes}D" + ("" if local is None else f", local up to {local}")
    return Setup(name, prefill=1, decode=decodes, decode_flags=extra, flags={"chunked-prefill-size": 512})
