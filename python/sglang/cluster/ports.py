"""Whether the addresses that a cluster wants are free."""

import socket

from sglang.cluster.recipe import Recipe, named_ports
from sglang.srt.errors import ConfigError


def check_ports(recipe: Recipe) -> None:
    """Raises ConfigError that names the first address which cannot be listened on, and its owner-to-be."""
    for owner, host, port in named_ports(recipe):
        try:
            family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
                probe.bind(address)
                probe.listen(1)  # two SO_REUSEADDR sockets may bind together, but only one may listen
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                f"{owner} cannot listen on {host}:{port} ({reason}): stop what uses it, or change {recipe.source}"
            ) from error
