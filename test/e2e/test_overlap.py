"""The trace of a real run shows that KV leaves layer by layer while the forward still runs."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.engines import need_model

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmark" / "overlap.py"


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("overlap_benchmark", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("chunk", [2048, 256])
def test_nine_tenths_of_the_kv_are_posted_before_the_forward_ends(chunk: int) -> None:
    module = benchmark()
    steps = asyncio.run(module.run(str(need_model()), "tcp", chunk, 3, 1024))
    assert len(steps) == 3 * (1024 // min(chunk, 1024))
    measured = module.figures(steps)
    assert measured.posted_in_forward_percent >= 90
    assert measured.bytes_total == 3 * 1024 * 30 * 3 * 2 * 64 * 2, "every byte of the prompts' KV, once"
    for step in steps:
        assert [layer.posted for layer in step.layers] == sorted(layer.posted for layer in step.layers)
        for layer, following in zip(step.layers, step.layers[1:], strict=False):
            assert layer.bumped <= layer.seen <= layer.posted, "never before the counter says so"
            assert layer.nbytes == following.nbytes
