"""The watchdog: barks at a loop that stands still, at nothing else; and its dump names the place."""

import subprocess
import sys
import time

from sglang.srt.entrypoints.watchdog import EXIT_CODE, Watchdog
from support.live_front import wait_until

HANGING = """
import time
from sglang.srt.entrypoints.watchdog import Watchdog

def the_loop_that_hangs():
    time.sleep(60)

dog = Watchdog(0.4)
dog.beat()
the_loop_that_hangs()
"""


def test_it_barks_once_the_beats_end() -> None:
    barks: list[float] = []
    dog = Watchdog(1.0, barks.append)  # a busy machine may not let us beat for half a second
    time.sleep(1.5)
    assert not barks, "nothing has begun to beat"
    for _ in range(30):
        dog.beat()
        time.sleep(0.05)
    assert not barks
    wait_until(lambda: barks, 20.0)
    time.sleep(1.5)
    assert len(barks) == 1 and barks[0] > 1.0


def test_a_hanging_process_ends_with_the_stacks_of_its_threads() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=30)
    assert done.returncode == EXIT_CODE
    assert "the_loop_that_hangs" in done.stderr and "has not turned for" in done.stderr
