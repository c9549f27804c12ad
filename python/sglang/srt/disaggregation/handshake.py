"""What two engines check of each other before bytes move. Pure functions on messages and layouts."""

from sglang.srt.core.layout import ShardLayout
from sglang.srt.messages.wire import WIRE_VERSION, Hello, HelloReply, PrefillAsk

MAX_TP = 1024
MAX_PAGES = 1 << 31


def refusal(hello: Hello, *, layout: ShardLayout, provider: str) -> str:
    """Why a decode engine's hello cannot be accepted, field by field; empty where it can."""
    if hello.version != WIRE_VERSION:
        return f"wire version: {WIRE_VERSION} here, {hello.version} there"
    problems = layout.kv.differences(hello.layout.kv)
    if hello.provider != provider:
        problems.append(f"fabric provider: {provider!r} here, {hello.provider!r} there")
    if not problems:
        problems += _region_problems(hello)
    return "; ".join(problems)


def reply_problem(reply: HelloReply, *, layout: ShardLayout, provider: str) -> str:
    """Why an accepting reply cannot be trusted: a decode engine plans its transfers on the layout in it."""
    if reply.version != WIRE_VERSION:
        return f"wire version: {WIRE_VERSION} here, {reply.version} there"
    problems = layout.kv.differences(reply.layout.kv)
    if reply.provider != provider:
        problems.append(f"fabric provider: {provider!r} here, {reply.provider!r} there")
    return "; ".join(problems or _layout_problems(reply.layout))


def _layout_problems(layout: ShardLayout) -> list[str]:
    if not (1 <= layout.tp_size <= MAX_TP and 1 <= layout.num_pages < MAX_PAGES):
        return [f"tp_size {layout.tp_size} or num_pages {layout.num_pages} out of range"]
    try:
        layout.heads_of(0)
    except ValueError as error:
        return [str(error)]
    return []


def _region_problems(hello: Hello) -> list[str]:
    layout = hello.layout
    problems = _layout_problems(layout)
    if problems:
        return problems
    ranks = [region.rank for region in hello.regions]
    if ranks != list(range(layout.tp_size)):
        return [f"regions of ranks {ranks}, not one for each of {layout.tp_size} ranks"]
    sizes = [layout.region_bytes(rank) for rank in ranks]
    return [
        f"region of rank {region.rank}: {region.nbytes} bytes, its layout needs {size}"
        for region, size in zip(hello.regions, sizes, strict=True)
        if region.nbytes != size or region.base < 0 or region.key < 0
    ]


def ask_problem(ask: PrefillAsk, *, destination: ShardLayout, slots: int, context: int, vocabulary: int) -> str:
    """What is wrong with the numbers of an ask, checked against the layout that its sender shook hands with."""
    tokens, page_size = len(ask.token_ids), destination.kv.page_size
    if not 1 <= tokens < context:
        return f"{tokens} tokens; 1..{context - 1} can be computed here"
    if min(ask.token_ids) < 0 or max(ask.token_ids) >= vocabulary:
        return f"a token id outside 0..{vocabulary - 1}"
    if not 0 <= ask.slot < slots:
        return f"slot {ask.slot} outside 0..{slots - 1}"
    wanted = -(-tokens // page_size) - ask.first_page
    if ask.first_page < 0 or wanted < 1 or len(ask.pages) != wanted:
        return f"{len(ask.pages)} pages from page index {ask.first_page} on for {tokens} tokens of {page_size} a page"
    if min(ask.pages) < 0 or max(ask.pages) >= destination.num_pages:
        return f"a page outside 0..{destination.num_pages - 1}"
    if len(set(ask.pages)) != len(ask.pages):
        return "a page is named twice"
    if ask.replica_key < 0 or ask.generation < 0 or ask.transfer < 0:
        return "a negative number"
    return ""
