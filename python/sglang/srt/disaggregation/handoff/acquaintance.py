"""What the two kinds of engines are to each other, as tables: a prefill engine for a decode engine, and the reverse.

Leaving is agreed upon: a prefill engine that says Leaving ends when each of its guests has said Farewell. A decode
engine says it when nothing that it asked of that engine is open, and asks nothing more under that grant. So no ask is
on the wire, and no write uncounted, when the prefill engine ends.
"""

from enum import Enum

from sglang.srt.core.states import Table


class PeerState(Enum):
    """Where a decode engine stands with one prefill engine."""

    GREETING = "greeting"
    """Hellos are sent until one is answered."""
    USABLE = "usable"
    LEAVING = "leaving"
    """It finishes what it was asked for and takes no more; Farewell is said once nothing is open."""
    REFUSED = "refused"
    """It answered that the two do not fit; greeted again at a slow pace, as it may be restarted rightly."""


class PeerEvent(Enum):
    ACCEPTED = "accepted"
    """It answered the newest hello, and the two fit."""
    REFUSED = "refused"
    LEAVING = "leaving"
    """The incarnation that shook hands last says that it leaves."""
    LOST = "lost"
    """Its memory key has been revoked."""


ACQUAINTED = frozenset({PeerState.USABLE, PeerState.LEAVING})
"""It holds a key and is expected to be heard."""

_D, _DE = PeerState, PeerEvent
PEER_TABLE: Table[PeerState, PeerEvent] = Table(
    "peer",
    {
        (_D.GREETING, _DE.ACCEPTED): _D.USABLE,
        (_D.GREETING, _DE.REFUSED): _D.REFUSED,
        # Said by one that was given up meanwhile: its next answer comes with the news again.
        (_D.GREETING, _DE.LEAVING): _D.GREETING,
        (_D.GREETING, _DE.LOST): _D.GREETING,
        (_D.USABLE, _DE.LEAVING): _D.LEAVING,
        (_D.USABLE, _DE.LOST): _D.GREETING,
        # Only a new incarnation takes asks again, and only a new greeting makes its acquaintance.
        (_D.LEAVING, _DE.LEAVING): _D.LEAVING,
        (_D.LEAVING, _DE.LOST): _D.GREETING,
        (_D.REFUSED, _DE.ACCEPTED): _D.USABLE,
        (_D.REFUSED, _DE.REFUSED): _D.REFUSED,
        (_D.REFUSED, _DE.LEAVING): _D.REFUSED,
        (_D.REFUSED, _DE.LOST): _D.GREETING,
    },
)


class GuestState(Enum):
    """Where a prefill engine stands with one decode engine that has shaken hands."""

    WELCOME = "welcome"
    PARTED = "parted"
    """It has said that it asks nothing more; this engine may end."""
    GONE = "gone"
    """Silent, or greeted anew."""


class GuestEvent(Enum):
    FAREWELL = "farewell"
    """Under its newest greeting; of an earlier one it says nothing."""
    LOST = "lost"


GUEST_ENDS = frozenset({GuestState.GONE})

_P, _PE = GuestState, GuestEvent
GUEST_TABLE: Table[GuestState, GuestEvent] = Table(
    "guest",
    {
        (_P.WELCOME, _PE.FAREWELL): _P.PARTED,
        (_P.WELCOME, _PE.LOST): _P.GONE,
        (_P.PARTED, _PE.FAREWELL): _P.PARTED,
        (_P.PARTED, _PE.LOST): _P.GONE,
        (_P.GONE, _PE.FAREWELL): _P.GONE,
        (_P.GONE, _PE.LOST): _P.GONE,
    },
)
