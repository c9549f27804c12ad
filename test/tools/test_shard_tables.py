"""The shard tables are what the shard maps say now."""

import pytest

from sglang.tools.shard_tables import CASES, main, measure
from support.engines import ROOT


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "shards.md").read_text()


def test_every_case_moves_each_byte_once_and_loads_ranks_alike() -> None:
    for case in CASES:
        row = measure(case)
        heads = case.kv.kv_heads * max(1, case.decode // case.kv.kv_heads)
        assert row.nbytes == heads * case.kv.head_bytes, case.name
        assert row.worst_load < 1.05 and row.writes <= row.head_writes and row.writes <= row.token_writes, case.name
