"""A man in the middle of the control plane who passes everything on, and asks twice."""

import threading
from types import TracebackType
from typing import Self

import zmq

from sglang.srt.errors import WireError
from sglang.srt.ipc.zmq_link import control_codec
from sglang.srt.messages.wire import PrefillAsk, WireMessage
from support.ports import free_port


class Repeater:
    """Between decode engines and one prefill engine: every ask is sent twice at once, and again with the next frame."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.repeated = 0
        self._target = target
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._codec = control_codec(WireMessage)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._thread.join(5)

    def _run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as front:
            front.setsockopt(zmq.LINGER, 0)
            front.setsockopt(zmq.ROUTER_HANDOVER, 1)
            front.bind(f"tcp://127.0.0.1:{self.port}")
            backs: dict[bytes, zmq.Socket[bytes]] = {}
            while not self._over:
                front.poll(5)
                while front.poll(0):
                    name, frame = front.recv_multipart()[:2]
                    if name not in backs:
                        backs[name] = self._dial(context, name)
                    for copy in self._copies(frame):
                        backs[name].send(copy)
                for name, back in backs.items():
                    while back.poll(0):
                        front.send_multipart([name, back.recv()])
            for back in backs.values():
                back.close()

    def _dial(self, context: "zmq.Context[zmq.Socket[bytes]]", name: bytes) -> "zmq.Socket[bytes]":
        back = context.socket(zmq.DEALER)
        back.setsockopt(zmq.LINGER, 0)
        back.setsockopt(zmq.IDENTITY, name)
        back.connect(f"tcp://127.0.0.1:{self._target}")
        self._kept: list[bytes] = []
        return back

    def _copies(self, frame: bytes) -> list[bytes]:
        try:
            ask = isinstance(self._codec.decode(frame), PrefillAsk)
        except WireError:
            ask = False
        again, self._kept = self._kept, [frame] if ask else []
        self.repeated += len(again) + ask
        return [frame, frame, *again] if ask else [frame, *again]
