"""Runs the tests as two pytest processes side by side, one for each core: what computes, and what starts engines.

    python test/support/halves.py [pytest's flags]

The first half is shown while it runs, the second when it has ended. Exit code 1 where either is red. Both write a
summary; the last line adds them up.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

TEST = Path(__file__).resolve().parents[1]
ENGINES = ("cluster", "e2e", "foreign")
"""Folders whose tests mostly wait for processes; the engines that they share live as long as a pytest process.

All that start engines, with fault, took 11 minutes beside 7 of the others (two cores of an EPYC Milan, 2026-11-30).
"""
NONE_CHOSEN = 5
"""pytest's exit code where flags leave no test: nothing is wrong if the other half has some."""
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected)")


def halves() -> tuple[list[str], list[str]]:
    """Every folder of tests, in one half or the other."""
    folders = sorted(path.name for path in TEST.iterdir() if path.is_dir() and any(path.rglob("test_*.py")))
    return (
        [str(TEST / name) for name in ENGINES],
        [str(TEST / name) for name in folders if name not in ENGINES],
    )


def tally(outputs: list[str]) -> dict[str, int]:
    """What the summaries' last lines say, added up. Raises ValueError where one has none."""
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for output in outputs:
        last = output.strip().rsplit("\n", 1)[-1]
        counts = COUNT.findall(last)
        if not counts and "no tests ran" not in last:
            raise ValueError("a half ended without a summary")
        for number, what in counts:
            what = "failed" if what.startswith("error") else what
            total[what] = total.get(what, 0) + int(number)
    return total


def main(flags: list[str]) -> int:
    """Exit code 1 where a test is red."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags]
    waiting, computing = halves()
    with (
        tempfile.TemporaryFile("w+") as apart,
        subprocess.Popen([*command, *waiting], stdout=apart, stderr=subprocess.STDOUT) as second,
    ):
        try:
            code, shown = watched([*command, *computing])
        except BaseException:
            second.terminate()
            raise
        codes = (code, second.wait())
        apart.seek(0)
        other = apart.read()
    print(other)
    if not set(codes) <= {0, 1, NONE_CHOSEN}:
        print(f"the halves ended with exit codes {codes[0]} and {codes[1]}; one below 0 is the signal that ended it")
    total = tally([shown, other])
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return int(not set(codes) <= {0, NONE_CHOSEN} or set(codes) == {NONE_CHOSEN})


def watched(command: list[str]) -> tuple[int, str]:
    """(exit code, output), shown line by line."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        shown = []
        for line in process.stdout:
            print(line, end="", flush=True)
            shown.append(line)
    return process.returncode, "".join(shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
