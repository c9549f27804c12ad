"""The tables of all state machines as Markdown.

python -m sglang.srt.disaggregation.handoff.states_doc > docs/states.md
"""

import sys
from collections.abc import Collection, Iterable

from sglang.srt.core.states import REQUEST_TABLE, E, RequestEvent, RequestState, S, Table
from sglang.srt.disaggregation.handoff.acquaintance import (
    GUEST_ENDS,
    GUEST_TABLE,
    PEER_TABLE,
    GuestEvent,
    GuestState,
    PeerEvent,
    PeerState,
)
from sglang.srt.disaggregation.handoff.states import (
    DESTINATION_ENDS,
    DESTINATION_TABLE,
    SOURCE_ENDS,
    SOURCE_TABLE,
    DestinationEvent,
    DestinationState,
    SourceEvent,
    SourceState,
)

HEAD = """# States

Written by `python -m sglang.srt.disaggregation.handoff.states_doc`; a test says when it is out of date. Rows are
states, columns events. `=` stays in the state, `-` cannot happen (it raises, as it would be a bug of the caller). Bold
states are ends: they swallow whatever comes late, so each side has exactly one terminal event. What the two machines
promise together over an unreliable channel is explored by `test/model_check`.
"""


def render() -> str:
    """The whole document."""
    request = _section("A request in its scheduler", REQUEST_TABLE, RequestState, RequestEvent, {RequestState.FINISHED})
    inbound = _section(
        "A transfer on its decode engine", DESTINATION_TABLE, DestinationState, DestinationEvent, DESTINATION_ENDS
    )
    outbound = _section("A transfer on its prefill engine", SOURCE_TABLE, SourceState, SourceEvent, SOURCE_ENDS)
    peer = _section("A prefill engine, as its decode engine knows it", PEER_TABLE, PeerState, PeerEvent, ())
    guest = _section("A decode engine, as its prefill engine knows it", GUEST_TABLE, GuestState, GuestEvent, GUEST_ENDS)
    return "\n".join((HEAD, request, inbound, outbound, peer, guest))


def _section(title: str, table: Table[S, E], states: Iterable[S], events: Iterable[E], ends: Collection[S]) -> str:
    states, events = tuple(states), tuple(events)
    lines = [f"## {title}", "", "| | " + " | ".join(event.value for event in events) + " |"]
    lines.append("|---" * (len(events) + 1) + "|")
    for state in states:
        name = f"**{state.value}**" if state in ends else state.value
        cells = [_cell(table, state, event) for event in events]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(table: Table[S, E], state: S, event: E) -> str:
    after = table.moves.get((state, event))
    if after is None:
        return "-"
    return "=" if after is state else after.value


if __name__ == "__main__":
    sys.stdout.write(render())
