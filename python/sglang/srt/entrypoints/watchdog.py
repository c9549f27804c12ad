"""Ends an engine whose loop does not turn any more, and says where every thread was."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from sglang.srt.ipc.channel import Channel
from sglang.srt.messages.frontend import Done, Profile, ToFrontend, ToScheduler

LONGEST_TICK_S = 1.0
"""More than this between two looks means that the whole process was stopped; that time is not the loop's fault."""
EXIT_CODE = 4


def dump_and_exit(silent_s: float) -> None:
    """Write the stack of every thread to stderr and leave; a hanging thread cannot be ended otherwise."""
    sys.stderr.write(f"watchdog: the scheduler's loop has not turned for {silent_s:.1f} s; stacks of all threads:\n")
    sys.stderr.flush()
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    os._exit(EXIT_CODE)


class Watchdog:
    """Counts the time since the last `beat`. It begins to count with the first."""

    def __init__(self, timeout_s: float, bark: Callable[[float], None] = dump_and_exit) -> None:
        self._timeout = timeout_s
        self._bark = bark
        self._silent = 0.0
        self._beats = 0
        self._stopping = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self) -> None:
        """The loop turned."""
        self._beats += 1

    def stop(self) -> None:
        """Watch no more; idempotent."""
        self._stopping.set()

    def _watch(self) -> None:
        tick = min(LONGEST_TICK_S, self._timeout / 4)
        seen, looked = 0, time.monotonic()
        while not self._stopping.wait(tick):
            now = time.monotonic()
            gone, looked = min(now - looked, LONGEST_TICK_S), now
            self._silent = self._silent + gone if self._beats == seen and seen else 0.0
            seen = self._beats
            if self._silent > self._timeout:
                self._bark(self._silent)
                return


class Profiler(Protocol):
    """Obeys Profile messages off the loop."""

    def obey(self, message: Profile) -> None:
        """Begin or end a profile; never blocks."""
        ...

    def poll(self) -> list[Done]:
        """Answers that are due."""
        ...


class WatchedChannel:
    """The scheduler's channel to its frontend: every poll is a heartbeat, and profiles are begun and ended here."""

    def __init__(
        self, channel: Channel[ToScheduler, ToFrontend], watchdog: Watchdog, profiler: Profiler | None
    ) -> None:
        self._channel = channel
        self._watchdog = watchdog
        self._profiler = profiler

    def send(self, message: ToFrontend) -> None:
        self._channel.send(message)

    def poll(self) -> list[ToScheduler]:
        self._watchdog.beat()
        messages = self._channel.poll()
        if self._profiler is None:
            return messages
        for answer in self._profiler.poll():
            self._channel.send(answer)
        for message in messages:
            if isinstance(message, Profile):
                self._profiler.obey(message)
        return [message for message in messages if not isinstance(message, Profile)]

    def close(self) -> None:
        self._watchdog.stop()
        self._channel.close()
