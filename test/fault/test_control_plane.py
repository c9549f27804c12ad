"""The control plane against strangers, noise and repetition, over real sockets and a real engine."""

import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from sglang import disagg_keys
from sglang.srt.errors import ConfigError
from sglang.srt.ipc.curve import client_keys, make_keys, server_keys
from sglang.srt.ipc.zmq_link import DialLink, ListenLink, control_codec
from sglang.srt.messages.wire import Heartbeat, ToDecode, ToPrefill
from support.ports import free_port


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


class Ends:
    """A guarded listener and whoever dials it."""

    def __init__(self, keys: Path) -> None:
        self.port = free_port()
        self.stack = ExitStack()
        self.listen: ListenLink[ToPrefill, ToDecode] = ListenLink(
            f"tcp://127.0.0.1:{self.port}",
            incoming=control_codec(ToPrefill),
            outgoing=control_codec(ToDecode),
            keys=server_keys(keys),
        )
        self.stack.callback(self.listen.close)
        self.kept: list[tuple[str, ToPrefill]] = []
        """Heard while until() turned the listener."""

    def take(self) -> list[tuple[str, ToPrefill]]:
        """What the listener has heard since the last call."""
        kept, self.kept = self.kept + self.listen.poll(), []
        return kept

    def dial(self, keys: Path | None) -> DialLink[ToDecode, ToPrefill]:
        link: DialLink[ToDecode, ToPrefill] = DialLink(
            {"p": f"tcp://127.0.0.1:{self.port}"},
            identity="d:1",
            incoming=control_codec(ToDecode),
            outgoing=control_codec(ToPrefill),
            keys=None if keys is None else client_keys(keys),
        )
        self.stack.callback(link.close)
        return link

    def until(self, true: Callable[[], object], seconds: float = 8.0) -> None:
        """Turn the listener, which answers authentication questions, until it is true."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "not true in time"
            self.kept += self.listen.poll()
            time.sleep(0.01)


@pytest.fixture
def ends(keys: Path) -> Iterator[Ends]:
    made = Ends(keys)
    with made.stack:
        yield made


def test_the_right_key_is_served(ends: Ends, keys: Path) -> None:
    dial = ends.dial(keys)
    got: list[object] = []
    ends.until(lambda: dial.send("p", Heartbeat(incarnation=7, sequence=1)))
    ends.until(lambda: got.extend(ends.take()) or got)
    assert got == [("d:1", Heartbeat(incarnation=7, sequence=1))]
    assert ends.listen.send("d:1", Heartbeat(incarnation=8, sequence=2))
    ends.until(lambda: got.extend(dial.poll()) or len(got) == 2)
    assert ends.listen.counters()["control_handshakes_refused_total"] == 0


@pytest.mark.parametrize("who", ["no keys", "keys of another cluster", "the right server, but not on its list"])
def test_a_wrong_or_absent_key_is_counted_and_never_served(ends: Ends, keys: Path, tmp_path: Path, who: str) -> None:
    other = tmp_path / "other"
    make_keys(other)
    if who == "the right server, but not on its list":
        (other / "prefill.pub").write_bytes((keys / "prefill.pub").read_bytes())
    stranger = ends.dial(None if who == "no keys" else other)
    heard: list[object] = []

    def refused() -> bool:
        stranger.send("p", Heartbeat(incarnation=1, sequence=1))
        heard.extend(ends.take())
        return ends.listen.counters()["control_handshakes_refused_total"] > 0

    ends.until(refused)
    friend = ends.dial(keys)
    ends.until(lambda: friend.send("p", Heartbeat(incarnation=2, sequence=1)))
    ends.until(lambda: heard.extend(ends.take()) or heard)
    assert heard == [("d:1", Heartbeat(incarnation=2, sequence=1))], "a stranger was heard"


def test_noise_on_the_port_is_no_harm(ends: Ends, keys: Path) -> None:
    with socket.create_connection(("127.0.0.1", ends.port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 50)
        raw.settimeout(8)
        with pytest.raises(ConnectionResetError):
            while raw.recv(4096):
                ends.take()
    friend = ends.dial(keys)
    ends.until(lambda: friend.send("p", Heartbeat(incarnation=2, sequence=1)))


def test_key_files_are_private_and_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert disagg_keys.main(["--out", str(tmp_path / "k")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    for role in ("prefill", "decode"):
        assert stat.S_IMODE((tmp_path / "k" / f"{role}.key").stat().st_mode) == 0o600
    assert disagg_keys.main(["--out", str(tmp_path / "k")]) == 1
    assert "prefill.key" in capsys.readouterr().err
    (tmp_path / "k" / "prefill.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        server_keys(tmp_path / "k")


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 40 + b"\n" + b"y" * 40 + b"\n"])
def test_a_damaged_key_file_is_one_clear_error(keys: Path, content: bytes) -> None:
    (keys / "decode.key").write_bytes(content)
    with pytest.raises(ConfigError, match=r"decode\.key"):
        client_keys(keys)
    (keys / "prefill.pub").write_bytes(content)
    with pytest.raises(ConfigError, match=r"prefill\.pub|decode\.key"):
        client_keys(keys)


def test_plain_zeromq_without_curve_hears_nothing(ends: Ends) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.setsockopt(zmq.RCVTIMEO, 300)
        raw.connect(f"tcp://127.0.0.1:{ends.port}")
        ends.until(lambda: ends.listen.counters()["control_handshakes_refused_total"] > 0)
        with pytest.raises(zmq.Again):
            raw.recv()
