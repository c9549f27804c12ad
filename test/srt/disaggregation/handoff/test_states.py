"""All (state, event) pairs of both transfer machines: defined on purpose, ends final, and every state can end."""

from enum import Enum

import pytest

from sglang.srt.core.states import REQUEST_TABLE, RequestEvent, RequestState, Table
from sglang.srt.disaggregation.handoff.acquaintance import (
    ACQUAINTED,
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
from sglang.srt.errors import EngineError

SOURCE_IMPOSSIBLE = {
    # A queued ask has no step and no write yet.
    (SourceState.QUEUED, SourceEvent.COMPUTED),
    (SourceState.QUEUED, SourceEvent.QUIET),
    (SourceState.QUEUED, SourceEvent.WRITE_FAILED),
    # Admission happens once, from the queue.
    (SourceState.PREFILLING, SourceEvent.ADMIT),
    (SourceState.SENDING, SourceEvent.ADMIT),
    (SourceState.CANCELLING, SourceEvent.ADMIT),
    (SourceState.FAILING, SourceEvent.ADMIT),
    (SourceState.ABANDONING, SourceEvent.ADMIT),
    # Everything was computed when sending began.
    (SourceState.SENDING, SourceEvent.COMPUTED),
}


def reachable_ends(table: Table[Enum, Enum], start: Enum, ends: frozenset[Enum]) -> set[Enum]:
    seen, stack = set(), [start]
    while stack:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        stack += [after for (before, _), after in table.moves.items() if before is state]
    return seen & ends


@pytest.mark.parametrize("state", DestinationState)
@pytest.mark.parametrize("event", DestinationEvent)
def test_every_destination_pair_is_defined_and_ends_are_final(state: DestinationState, event: DestinationEvent) -> None:
    after = DESTINATION_TABLE.next(state, event)
    assert after is state if state in DESTINATION_ENDS else True


@pytest.mark.parametrize("state", SourceState)
@pytest.mark.parametrize("event", SourceEvent)
def test_every_source_pair_is_defined_or_impossible(state: SourceState, event: SourceEvent) -> None:
    if (state, event) in SOURCE_IMPOSSIBLE:
        with pytest.raises(EngineError, match=f"{event.name} cannot happen in {state.name}"):
            SOURCE_TABLE.next(state, event)
    else:
        after = SOURCE_TABLE.next(state, event)
        assert after is state if state in SOURCE_ENDS else True


@pytest.mark.parametrize("state", PeerState)
@pytest.mark.parametrize("event", PeerEvent)
def test_every_peer_pair_is_defined_or_impossible(state: PeerState, event: PeerEvent) -> None:
    """An answer to a hello changes nothing once the two are acquainted: nobody looks at it then."""
    if state in ACQUAINTED and event in (PeerEvent.ACCEPTED, PeerEvent.REFUSED):
        with pytest.raises(EngineError, match=f"{event.name} cannot happen in {state.name}"):
            PEER_TABLE.next(state, event)
    else:
        assert PEER_TABLE.next(state, event) in PeerState


def test_an_engine_that_leaves_is_asked_again_only_after_it_was_greeted_anew() -> None:
    after = {PEER_TABLE.moves[PeerState.LEAVING, event] for event in (PeerEvent.LEAVING, PeerEvent.LOST)}
    assert after == {PeerState.LEAVING, PeerState.GREETING}


@pytest.mark.parametrize("state", GuestState)
@pytest.mark.parametrize("event", GuestEvent)
def test_every_guest_pair_is_defined_and_a_farewell_is_final(state: GuestState, event: GuestEvent) -> None:
    after = GUEST_TABLE.next(state, event)
    assert after is not GuestState.WELCOME
    assert after is state if state in GUEST_ENDS else True


def test_every_live_state_can_still_end() -> None:
    for state in DestinationState:
        assert reachable_ends(DESTINATION_TABLE, state, DESTINATION_ENDS)  # type: ignore[arg-type]
    for source in SourceState:
        assert reachable_ends(SOURCE_TABLE, source, SOURCE_ENDS)  # type: ignore[arg-type]


def test_a_cancelled_transfer_frees_its_pages_only_when_nothing_can_land() -> None:
    """From CANCELLING, only proof of quiescence ends it: drained, a failure report (sent when quiet), the full count,
    a fence.
    """
    ends = {e for e in DestinationEvent if DESTINATION_TABLE.next(DestinationState.CANCELLING, e) in DESTINATION_ENDS}
    assert ends == {
        DestinationEvent.DRAINED,
        DestinationEvent.FAIL,
        DestinationEvent.REJECT,
        DestinationEvent.COMPLETE,
        DestinationEvent.PEER_LOST,
    }


def test_a_source_says_drained_only_when_quiet() -> None:
    before = {s for (s, e), after in SOURCE_TABLE.moves.items() if after is SourceState.DRAINED and s is not after}
    events = {e for (s, e), after in SOURCE_TABLE.moves.items() if after is SourceState.DRAINED and s is not after}
    assert before == {SourceState.QUEUED, SourceState.CANCELLING}
    assert events == {SourceEvent.CANCEL, SourceEvent.QUIET}


def test_a_request_that_holds_pages_never_jumps_to_finished() -> None:
    before = {s for (s, _), after in REQUEST_TABLE.moves.items() if after is RequestState.FINISHED}
    assert before == {RequestState.WAITING, RequestState.DRAINING}
    with pytest.raises(EngineError, match="request: PREFILLED cannot happen in WAITING"):
        REQUEST_TABLE.next(RequestState.WAITING, RequestEvent.PREFILLED)
