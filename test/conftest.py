"""Makes test/support importable under importlib mode; engines that several folders share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support.engines import Engine, cluster

NAME = "smol"
FLAGS = ("--max-total-tokens", "16384", "--max-running-requests", "16", "--dtype", "float32", "--enable-cache-report")
FLAGS += ("--tool-call-parser", "hermes")


@pytest.fixture(scope="session")
def unified() -> Iterator[Engine]:
    """A real engine with the demo model."""
    with Engine("--served-model-name", NAME, *FLAGS) as engine:
        yield engine.wait_ready()


@pytest.fixture(scope="session")
def prefill_and_pair() -> Iterator[tuple[Engine, Engine, Engine]]:
    """A prefill engine and two decode engines; every prompt that lacks more than 4 tokens is transferred."""
    flags = ("--served-model-name", NAME, *FLAGS, "--disagg-local-prefill-tokens", "4")
    with cluster(*flags, decodes=2) as (prefill, decodes):
        yield prefill, decodes[0], decodes[1]


@pytest.fixture(scope="session")
def pair(prefill_and_pair: tuple[Engine, Engine, Engine]) -> tuple[Engine, Engine]:
    """The two decode engines."""
    return prefill_and_pair[1:]


@pytest.fixture(scope="session", params=["unified", "disaggregated"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine that faces clients, of either kind."""
    if request.param == "unified":
        return request.getfixturevalue("unified")
    return request.getfixturevalue("pair")[0]
