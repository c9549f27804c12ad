"""The control plane between decode (D) and prefill (P) engines. Bytes of KV never travel here.

Every message about a transfer carries D's transfer number and generation: a retry is a new generation, so an answer to
an earlier try can be told from one to the present try. Receivers check every number against the negotiated layout
before use.
"""

import msgspec

from sglang.srt.core.layout import ShardLayout

WIRE_VERSION = 1


class RegionDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's KV region as a peer may write to it; the key is this peer's own and can be revoked."""

    rank: int
    base: int
    key: int
    nbytes: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """D -> P: who I am, what my KV looks like and where you may write it."""

    version: int
    incarnation: int
    greeting: int
    """Counts D's grants to this P; an answer to an older greeting speaks of a revoked key."""
    layout: ShardLayout
    provider: str
    fabric_address: bytes
    regions: tuple[RegionDescriptor, ...]


class HelloReply(msgspec.Struct, frozen=True, kw_only=True, tag="hello_reply"):
    """P -> D: accepted, or what differs. `peer_incarnation` and `greeting` echo the hello that is answered."""

    version: int
    incarnation: int
    peer_incarnation: int
    greeting: int
    refusal: str
    """Empty where accepted."""
    layout: ShardLayout
    provider: str


class HelloWanted(msgspec.Struct, frozen=True, kw_only=True, tag="hello_wanted"):
    """P -> D: I do not know you (I am new, or I gave you up); say hello."""

    incarnation: int


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Both ways, sent by the scheduler's loop itself, so that it proves that the loop turns."""

    incarnation: int
    sequence: int


class PrefillAsk(msgspec.Struct, frozen=True, kw_only=True, tag="prefill_ask"):
    """D -> P: compute the KV of `token_ids` and write the pages from index `first_page` on into `pages`."""

    incarnation: int
    """P's incarnation that D shook hands with; another one drops the ask."""
    transfer: int
    generation: int
    slot: int
    token_ids: tuple[int, ...]
    """The prompt without its last token."""
    first_page: int
    """Index in the prompt of the first page that D lacks."""
    pages: tuple[int, ...]
    """D's page numbers for page indices first_page, first_page + 1, ..."""
    replica_key: int
    deadline_ms: int
    """Give up when the prefill has not started after this long; D has given up, too."""


class AskQueued(msgspec.Struct, frozen=True, kw_only=True, tag="ask_queued"):
    """P -> D: received and queued."""

    transfer: int
    generation: int
    estimate_ms: int
    """How long P believes the transfer takes, its queue included."""


class AskAdmitted(msgspec.Struct, frozen=True, kw_only=True, tag="ask_admitted"):
    """P -> D: computing; so many tokens were in P's own prefix tree."""

    transfer: int
    generation: int
    cached_tokens: int


class AskRejected(msgspec.Struct, frozen=True, kw_only=True, tag="ask_rejected"):
    """P -> D: not done and nothing written."""

    transfer: int
    generation: int
    reason: str
    retry_after_ms: int
    """0: do not ask this engine again for this request."""


class PrefillFailed(msgspec.Struct, frozen=True, kw_only=True, tag="prefill_failed"):
    """P -> D: cannot be finished; none of its writes is in flight any more."""

    transfer: int
    generation: int
    reason: str


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """D -> P: stop, wait out what is in flight, answer Drained."""

    transfer: int
    generation: int


class Drained(msgspec.Struct, frozen=True, kw_only=True, tag="drained"):
    """P -> D: nothing of this transfer is in flight or will be posted."""

    transfer: int
    generation: int


ToPrefill = Hello | Heartbeat | PrefillAsk | Cancel
ToDecode = HelloReply | HelloWanted | Heartbeat | AskQueued | AskAdmitted | AskRejected | PrefillFailed | Drained
WireMessage = ToPrefill | ToDecode
