"""What the tests of clusters share."""

import pytest

from support.ports import free_port


@pytest.fixture
def free_ports() -> list[int]:
    """Six ports that nobody listens on."""
    return [free_port() for _ in range(6)]
