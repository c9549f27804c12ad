"""Ctrl-C and SIGTERM for programs that have processes to end first."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedError(Exception):
    """A signal asked the program to stop, and it has."""


async def run_stoppable(work: Coroutine[Any, Any, T], force: Callable[[], None]) -> T:
    """Run `work`; the first signal cancels it, further ones call `force` while it cleans up.

    Raises StoppedError where `work` ended because of the signal.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            force()
        asked = True
        if not task.cancelling():
            task.cancel()

    for number in STOPPING:
        loop.add_signal_handler(number, on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        if asked:
            raise StoppedError from None
        raise
    finally:
        for number in STOPPING:
            loop.remove_signal_handler(number)
