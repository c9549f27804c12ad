"""A short run of fuzz.py; docs/pyfabric.md says how long the longest was."""

import pytest
from fuzz import run


@pytest.mark.parametrize("provider", ["tcp", "mapped"])
def test_random_operations_lose_and_leak_nothing(provider: str) -> None:
    done = run(provider, operations=3000, seed=7, seconds=12)
    assert int(done["operations"]) >= 200 and int(done["ProgramDone"]) > 0
