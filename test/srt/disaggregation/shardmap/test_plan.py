"""Every destination byte exactly once, the expected weight exact, the load even, for all shapes of source and
destination.
"""

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.disaggregation.shardmap.plan import expected_weight, plan_copies

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])


def shard(kind: str, heads: int, tp: int, page_size: int = 2) -> ShardLayout:
    kv = KVLayout(
        kind=kind,  # type: ignore[arg-type]
        layers=2,
        page_size=page_size,
        kv_heads=1 if kind == "mla" else heads,
        head_dim=2,
        dtype="bfloat16",
        model="m",
    )
    return ShardLayout(kv=kv, tp_size=tp, num_pages=64)


def fits(heads: int, tp: int) -> bool:
    return tp >= heads or heads % tp == 0


@given(
    kind=st.sampled_from(["gqa", "mla"]),
    heads=st.integers(1, 16),
    source_tp=SIZES,
    destination_tp=SIZES,
    page_size=st.sampled_from([1, 2, 16]),
    key=st.integers(0, 40),
    start=st.integers(0, 10),
    count=st.integers(1, 33),
)
def test_each_destination_byte_is_written_once_with_the_right_bytes(
    kind: str, heads: int, source_tp: int, destination_tp: int, page_size: int, key: int, start: int, count: int
) -> None:
    assume(kind == "mla" or (fits(heads, source_tp) and fits(heads, destination_tp)))
    source, destination = shard(kind, heads, source_tp, page_size), shard(kind, heads, destination_tp, page_size)
    copies = plan_copies(source, destination, key)
    size = source.kv.head_bytes
    written: Counter[tuple[int, int, int]] = Counter()
    sent: Counter[int] = Counter()
    weight = 0
    for page in range(start, start + count):
        for copy in (c for c in copies if c.takes(page)):
            weight += 1
            sent[copy.source_rank] += copy.nbytes
            assert copy.source_offset + copy.nbytes <= source.page_bytes(copy.source_rank)
            for offset in range(0, copy.nbytes, size):
                head_there = destination.heads_of(copy.destination_rank)[(copy.destination_offset + offset) // size]
                head_here = source.heads_of(copy.source_rank)[(copy.source_offset + offset) // size]
                assert head_there == head_here
                written[copy.destination_rank, page, head_there] += 1
    wanted = {
        (rank, page, head)
        for rank in range(destination_tp)
        for page in range(start, start + count)
        for head in destination.heads_of(rank)
    }
    assert set(written) == wanted and set(written.values()) == {1}
    assert expected_weight(copies, start, start + count, source.kv.layers) == weight * source.kv.layers


@given(source_tp=SIZES, destination_tp=SIZES, key=st.integers(0, 40), count=st.integers(1, 64))
def test_mla_pages_of_one_destination_are_spread_within_one_page_of_even(
    source_tp: int, destination_tp: int, key: int, count: int
) -> None:
    assume(source_tp != destination_tp)
    copies = plan_copies(shard("mla", 1, source_tp), shard("mla", 1, destination_tp), key)
    for rank in range(destination_tp):
        loads = [c.pages_in(0, count) for c in copies if c.destination_rank == rank]
        assert len(loads) == source_tp and max(loads) - min(loads) <= 1


def test_replicated_heads_share_the_load() -> None:
    copies = plan_copies(shard("gqa", 2, 8), shard("gqa", 2, 2), 3)
    loads = Counter({c.source_rank: c.pages_in(0, 40) for c in copies})
    assert set(loads) == set(range(8)) and set(loads.values()) == {10}


def test_equal_shards_go_one_to_one() -> None:
    copies = plan_copies(shard("mla", 1, 8), shard("mla", 1, 8), 5)
    assert [(c.source_rank, c.destination_rank, c.stride) for c in copies] == [(i, i, 1) for i in range(8)]


def test_different_layouts_are_refused_by_field() -> None:
    with pytest.raises(ValueError, match="page_size: 2 here, 4 there"):
        plan_copies(shard("gqa", 4, 1, 2), shard("gqa", 4, 1, 4), 0)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="evenly"):
        shard("gqa", 6, 4).heads_of(0)
