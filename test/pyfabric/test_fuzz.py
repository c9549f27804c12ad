"""A short run of native/ under the address and undefined sanitizers; docs/pyfabric.md says how long the longest was."""

import json
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "sanitize.sh"
OPERATIONS = 4000


@pytest.mark.timeout(400)  # the first run compiles
def test_random_operations_lose_and_leak_nothing() -> None:
    command = [str(SCRIPT), "address", "fuzz", str(OPERATIONS), "7"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    runs = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [run["provider"] for run in runs] == ["mapped", "tcp", "shm"]
    for run in runs:
        assert run["operations"] >= OPERATIONS
        for kind in ("register", "write", "write_pages", "cancel"):
            assert run[kind] > 0, f"{run['provider']} did no {kind}: {run}"
        assert run["outcomes"]["done"] > OPERATIONS / 5, f"hardly a program was delivered: {run}"
