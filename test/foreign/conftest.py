"""One real engine and one real disaggregated pair, both with the demo model, for clients that others wrote."""

from collections.abc import Iterator

import pytest

from support.engines import Engine, cluster

NAME = "smol"
FLAGS = (
    "--served-model-name",
    NAME,
    "--max-total-tokens",
    "16384",
    "--max-running-requests",
    "16",
    "--dtype",
    "float32",
)


@pytest.fixture(scope="session")
def unified() -> Iterator[Engine]:
    with Engine(*FLAGS, "--enable-cache-report") as engine:
        yield engine.wait_ready()


@pytest.fixture(scope="session")
def pair() -> Iterator[tuple[Engine, Engine]]:
    """Two decode engines behind one prefill engine; every prompt of more than 4 tokens is transferred."""
    with cluster(*FLAGS, "--disagg-local-prefill-tokens", "4", decodes=2) as (_, decodes):
        yield decodes[0], decodes[1]


@pytest.fixture(scope="session", params=["unified", "disaggregated"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine that faces clients, of either kind."""
    if request.param == "unified":
        return request.getfixturevalue("unified")
    return request.getfixturevalue("pair")[0]
