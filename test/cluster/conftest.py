"""What the tests of clusters share."""

import socket
from contextlib import ExitStack

import pytest


@pytest.fixture
def free_ports() -> list[int]:
    """Six ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(6)]
        return [s.getsockname()[1] for s in sockets]
