"""Channels and control links over real sockets: order, loss of a peer, restarts, hostile frames, flooding."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import zmq

from sglang.srt.core.ports import Waiter
from sglang.srt.errors import ConfigError, WireError
from sglang.srt.ipc.channel import Channel
from sglang.srt.ipc.local_channel import local_pair
from sglang.srt.ipc.waiter import ZmqWaiter
from sglang.srt.ipc.zmq_channel import ZmqChannel
from sglang.srt.ipc.zmq_link import DialLink, ListenLink
from sglang.srt.messages.codec import Codec
from sglang.srt.messages.frontend import Abort, FlushReply, ToFrontend, ToScheduler
from sglang.srt.messages.wire import Cancel, Drained, Heartbeat, ToDecode, ToPrefill

SCHEDULER, FRONTEND = Codec[ToScheduler](ToScheduler), Codec[ToFrontend](ToFrontend)
PREFILL, DECODE = Codec[ToPrefill](ToPrefill), Codec[ToDecode](ToDecode)


def until(found: Callable[[], object], seconds: float = 5.0) -> object:
    end = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.005)
    return result


@pytest.fixture(params=["local", "zmq"])
def channel_pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[object, object]]:
    """(frontend end, scheduler end)."""
    with ExitStack() as stack:
        if request.param == "local":
            ends: tuple[object, object] = local_pair(Abort, FlushReply)
        else:
            address = f"ipc://{tmp_path}/s"
            ends = (
                ZmqChannel(address, incoming=FRONTEND, outgoing=SCHEDULER, bind=True),
                ZmqChannel(address, incoming=SCHEDULER, outgoing=FRONTEND, bind=False),
            )
        for end in ends:
            stack.callback(end.close)  # type: ignore[attr-defined]
        yield ends


def test_check_channel(channel_pair: tuple[Channel[ToFrontend, ToScheduler], Channel[ToScheduler, ToFrontend]]) -> None:
    """Order is kept, both ways, and poll never blocks. The scheduler speaks first (Ready), as the binding end has to
    wait.
    """
    front, scheduler = channel_pair
    assert front.poll() == [] and scheduler.poll() == []
    scheduler.send(FlushReply(call=0, pages=0))
    assert until(front.poll) == [FlushReply(call=0, pages=0)]
    for i in range(100):
        front.send(Abort(rid=str(i)))
    got: list[ToScheduler] = []
    until(lambda: got.extend(scheduler.poll()) or len(got) == 100)
    assert got == [Abort(rid=str(i)) for i in range(100)]
    scheduler.send(FlushReply(call=1, pages=2))
    assert until(front.poll) == [FlushReply(call=1, pages=2)]
    front.close()
    front.close()


def test_a_malformed_frame_is_counted_and_the_next_one_read(tmp_path: Path) -> None:
    channel: ZmqChannel[ToScheduler, ToFrontend] = ZmqChannel(
        f"ipc://{tmp_path}/s", incoming=SCHEDULER, outgoing=FRONTEND, bind=True
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.connect(f"ipc://{tmp_path}/s")
        for frame in (
            b"",
            b"\x01garbage",
            b"\x07" + SCHEDULER.encode(Abort(rid="x"))[1:],
            SCHEDULER.encode(Abort(rid="y")),
        ):
            raw.send(frame)
        assert until(channel.poll) == [Abort(rid="y")] or until(channel.poll) == [Abort(rid="y")]
        assert channel.malformed == 3
    channel.close()


class Links:
    """A listener and diallers on one port."""

    def __init__(self) -> None:
        self.port = 0
        self.listen = self.listener("tcp://127.0.0.1:*")
        self.port = int(self.listen.socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])

    def listener(self, address: str = "") -> ListenLink[ToPrefill, ToDecode]:
        return ListenLink(address or f"tcp://127.0.0.1:{self.port}", incoming=PREFILL, outgoing=DECODE)

    def dial(self, identity: str = "host:1") -> DialLink[ToDecode, ToPrefill]:
        return DialLink({"p": f"tcp://127.0.0.1:{self.port}"}, identity=identity, incoming=DECODE, outgoing=PREFILL)


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links()
    yield made
    made.listen.close()


def test_messages_go_both_ways_under_the_dialler_s_name(links: Links) -> None:
    dial = links.dial("decode-1:30001")
    until(lambda: dial.send("p", Cancel(incarnation=1, greeting=0, transfer=1, generation=2)))
    assert until(links.listen.poll) == [("decode-1:30001", Cancel(incarnation=1, greeting=0, transfer=1, generation=2))]
    assert links.listen.send("decode-1:30001", Drained(transfer=1, generation=2, broken=False))
    assert until(dial.poll) == [("p", Drained(transfer=1, generation=2, broken=False))]
    dial.close()
    dial.close()


def test_nothing_is_queued_for_a_peer_that_is_not_connected(links: Links) -> None:
    """An ask must not wait for an engine's next life."""
    assert not links.listen.send("stranger:1", Drained(transfer=1, generation=0, broken=False))
    dial = links.dial()
    until(lambda: dial.send("p", Heartbeat(incarnation=1, sequence=1)))
    until(links.listen.poll)
    links.listen.close()
    until(lambda: not dial.send("p", Cancel(incarnation=1, greeting=0, transfer=7, generation=0)))
    links.listen = links.listener()
    until(lambda: dial.send("p", Heartbeat(incarnation=1, sequence=2)))
    got = until(links.listen.poll)
    assert all(not isinstance(message, Cancel) or message.transfer != 7 for _, message in got)  # type: ignore[attr-defined]
    dial.close()


def test_a_restarted_dialler_takes_over_its_name(links: Links) -> None:
    first = links.dial()
    until(lambda: first.send("p", Heartbeat(incarnation=1, sequence=1)))
    until(links.listen.poll)
    first.close()
    second = links.dial()
    until(lambda: second.send("p", Heartbeat(incarnation=2, sequence=1)))
    until(links.listen.poll)
    until(lambda: links.listen.send("host:1", Drained(transfer=9, generation=0, broken=False)))
    assert until(second.poll) == [("p", Drained(transfer=9, generation=0, broken=False))]
    second.close()


def test_a_listener_that_is_gone_has_hung_up_once_and_wakes_the_waiter(links: Links) -> None:
    dial = links.dial()
    until(lambda: dial.send("p", Heartbeat(incarnation=1, sequence=1)))
    until(links.listen.poll)
    waiter = ZmqWaiter(dial.sockets)
    links.listen.close()
    hung_up: list[str] = []
    for _ in range(100):
        waiter.wait(5.0)
        dial.poll()
        hung_up += dial.hung_up()
        if hung_up:
            break
    assert hung_up == ["p"]
    links.listen = links.listener()
    until(lambda: dial.poll() or dial.send("p", Heartbeat(incarnation=1, sequence=2)))
    assert dial.hung_up() == [], "said once"
    until(links.listen.poll)
    dial.close()


def test_a_connection_that_ends_while_its_listener_lives_is_dialled_again_and_nobody_hung_up(links: Links) -> None:
    """A relay cuts it, and takes the next one: as a firewall, or a network that came back."""
    with socket.create_server(("127.0.0.1", 0)) as relay:
        relay.settimeout(10)
        address = f"tcp://127.0.0.1:{relay.getsockname()[1]}"
        dial: DialLink[ToDecode, ToPrefill] = DialLink(
            {"p": address}, identity="d:1", incoming=DECODE, outgoing=PREFILL
        )
        for _ in range(3):
            with relay.accept()[0] as near, socket.create_connection(("127.0.0.1", links.port)) as far:
                join(near, far)
                until(lambda: dial.poll() or dial.send("p", Heartbeat(incarnation=1, sequence=1)))
                until(links.listen.poll)
                near.shutdown(socket.SHUT_RDWR)  # a thread reads from it, so that closing alone would not end it
        near, _ = relay.accept()
        dial.poll()
        assert dial.hung_up() == []
        near.close()  # without a handshake
        until(lambda: dial.poll() or dial.hung_up() == ["p"])
        dial.close()


def join(one: socket.socket, other: socket.socket) -> None:
    """Copy bytes both ways until either end closes."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                target.sendall(data)

    for pair in ((one, other), (other, one)):
        threading.Thread(target=copy, args=pair, daemon=True).start()


def test_hostile_frames_are_counted_and_dropped(links: Links) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.IDENTITY, b"bad name\n")
        raw.connect(f"tcp://127.0.0.1:{links.port}")
        raw.send(PREFILL.encode(Cancel(incarnation=1, greeting=0, transfer=1, generation=0)))
        with context.socket(zmq.DEALER) as named:
            named.setsockopt(zmq.IDENTITY, b"good:1")
            named.connect(f"tcp://127.0.0.1:{links.port}")
            named.send(b"noise")
            named.send_multipart([b"two", b"frames"])
            named.send(PREFILL.encode(Cancel(incarnation=1, greeting=0, transfer=2, generation=0)))
            got: list[object] = []
            until(lambda: got.extend(links.listen.poll()) or (got and links.listen.malformed == 3))
            assert got == [("good:1", Cancel(incarnation=1, greeting=0, transfer=2, generation=0))]


def test_an_address_in_use_is_one_clear_error(links: Links) -> None:
    with pytest.raises(ConfigError, match="--disagg-bootstrap-port"):
        links.listener()
    with pytest.raises(ConfigError, match="--disagg-prefill"):
        DialLink({"x": "tcp://no port"}, identity="a", incoming=DECODE, outgoing=PREFILL)


def test_the_waiter_wakes_for_a_message_and_for_time(links: Links) -> None:
    dial = links.dial()
    waiter: Waiter = ZmqWaiter([links.listen.socket])
    until(lambda: dial.send("p", Heartbeat(incarnation=1, sequence=1)))
    started = time.monotonic()
    waiter.wait(5.0)
    assert time.monotonic() - started < 4
    links.listen.poll()
    started = time.monotonic()
    waiter.wait(0.05)
    assert 0.04 < time.monotonic() - started < 4
    dial.close()


def test_a_frame_that_cannot_be_encoded_raises() -> None:
    with pytest.raises(WireError):
        Codec[ToScheduler](ToScheduler, limit=4).encode(Abort(rid="long"))
