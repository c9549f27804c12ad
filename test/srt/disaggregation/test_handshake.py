"""Hellos and asks with any number wrong are refused, and the refusal names it."""

import msgspec
import pytest

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.disaggregation.handshake import ask_problem, refusal
from sglang.srt.messages.wire import WIRE_VERSION, Hello, PrefillAsk, RegionDescriptor

KV = KVLayout(kind="gqa", layers=2, page_size=4, kv_heads=2, head_dim=8, dtype="float32", model="m")
LAYOUT = ShardLayout(kv=KV, tp_size=2, num_pages=10)
HELLO = Hello(
    version=WIRE_VERSION,
    incarnation=1,
    greeting=1,
    layout=LAYOUT,
    provider="tcp",
    fabric_address=b"x",
    regions=tuple(RegionDescriptor(rank=r, base=0, key=r, nbytes=LAYOUT.region_bytes(r)) for r in range(2)),
)
ASK = PrefillAsk(
    incarnation=1,
    greeting=1,
    transfer=1,
    generation=0,
    slot=3,
    token_ids=tuple(range(10)),
    first_page=1,
    pages=(4, 5),
    replica_key=0,
    deadline_ms=1000,
)


def test_a_fitting_hello_is_accepted() -> None:
    assert refusal(HELLO, layout=LAYOUT, provider="tcp") == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [("page_size", 8), ("dtype", "bfloat16"), ("layers", 3), ("kv_heads", 4), ("head_dim", 16), ("model", "other")],
)
def test_a_layout_that_differs_is_named_by_field(field: str, value: object) -> None:
    theirs = msgspec.structs.replace(LAYOUT, kv=msgspec.structs.replace(KV, **{field: value}))
    said = refusal(msgspec.structs.replace(HELLO, layout=theirs), layout=LAYOUT, provider="tcp")
    assert said == f"{field}: {getattr(KV, field)!r} here, {value!r} there"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"version": 99}, "wire version"),
        ({"provider": "shm"}, "fabric provider"),
        ({"regions": HELLO.regions[:1]}, "regions of ranks"),
        ({"regions": (HELLO.regions[1], HELLO.regions[0])}, "regions of ranks"),
        ({"regions": (HELLO.regions[0], msgspec.structs.replace(HELLO.regions[1], nbytes=5))}, "region of rank 1"),
        ({"regions": (msgspec.structs.replace(HELLO.regions[0], key=-1), HELLO.regions[1])}, "region of rank 0"),
        ({"layout": msgspec.structs.replace(LAYOUT, tp_size=0)}, "out of range"),
        ({"layout": msgspec.structs.replace(LAYOUT, num_pages=0)}, "out of range"),
    ],
)
def test_a_hello_with_a_bad_number_is_refused(change: dict[str, object], word: str) -> None:
    assert word in refusal(msgspec.structs.replace(HELLO, **change), layout=LAYOUT, provider="tcp")


def problem(**change: object) -> str:
    ask = msgspec.structs.replace(ASK, **change)
    return ask_problem(ask, destination=LAYOUT, slots=16, context=100, vocabulary=1000)


def test_a_right_ask_has_no_problem() -> None:
    assert problem() == ""


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"token_ids": ()}, "tokens"),
        ({"token_ids": (1,) * 100}, "tokens"),
        ({"token_ids": (1000,) * 10}, "token id"),
        ({"token_ids": (-1,) * 10}, "token id"),
        ({"slot": 16}, "slot"),
        ({"slot": -1}, "slot"),
        ({"pages": (4,)}, "pages"),
        ({"pages": (4, 5, 6)}, "pages"),
        ({"pages": (4, 10)}, "outside"),
        ({"pages": (-1, 5)}, "outside"),
        ({"pages": (4, 4)}, "twice"),
        ({"first_page": -1}, "pages"),
        ({"first_page": 3, "pages": ()}, "pages"),
        ({"replica_key": -1}, "negative"),
        ({"generation": -1}, "negative"),
    ],
)
def test_an_ask_with_a_bad_number_is_refused(change: dict[str, object], word: str) -> None:
    assert word in problem(**change)
