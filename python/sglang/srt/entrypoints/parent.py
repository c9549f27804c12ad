"""A scheduler process lives as long as its parent: its stdin is the parent's hand."""

import os
import sys
import threading
import time
from typing import Generic, TypeVar

from sglang.srt.ipc.channel import Channel
from sglang.srt.messages.frontend import Shutdown, ToScheduler

Out = TypeVar("Out")

GRACE_S = 10.0
"""A loop that has not ended this long after its parent did will not end."""


def exit_within(seconds: float, code: int) -> None:
    """End this process after that time, whatever hangs in it."""

    def end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=end, name="last-resort", daemon=True).start()


class ParentWatch:
    """Notices the end of stdin in a thread; `fileno()` becomes readable then."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self.gone = False
        threading.Thread(target=self._watch, name="parent-watch", daemon=True).start()

    def _watch(self) -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        self.gone = True
        os.write(self._writer, b"x")
        time.sleep(GRACE_S)
        os._exit(3)

    def fileno(self) -> int:
        """For a waiter."""
        return self._reader


class ParentChannel(Generic[Out]):
    """The channel to the parent; the parent's death reads as one Shutdown without draining."""

    def __init__(self, channel: Channel[ToScheduler, Out], parent: ParentWatch) -> None:
        self._channel = channel
        self._parent = parent
        self._told = False

    def send(self, message: Out) -> None:
        self._channel.send(message)

    def poll(self) -> list[ToScheduler]:
        messages = self._channel.poll()
        if self._parent.gone and not self._told:
            self._told = True
            messages.append(Shutdown(drain=False))
        return messages

    def close(self) -> None:
        self._channel.close()
