"""The control plane between decode (D) and prefill (P) engines. Bytes of KV never travel here.

Every message about a transfer carries D's transfer number and generation: a retry is a new generation, so an answer to
an earlier try can be told from one to the present try. Receivers check every number against the negotiated layout
before use.
"""

from typing import Annotated

import msgspec

from sglang.srt.core.layout import ShardLayout

WIRE_VERSION = 3

MAX_TOKENS = 1 << 20
"""Tokens an ask: 5 MB of ids at most, which fits a control frame with its pages."""

Natural = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Tokens = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)], ...], msgspec.Meta(max_length=MAX_TOKENS)]
Pages = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)], ...], msgspec.Meta(max_length=MAX_TOKENS)]


class RegionDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's KV region as a peer may write to it; the key is this peer's own and can be revoked."""

    rank: Natural
    base: Natural
    key: Natural
    nbytes: Natural


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """D -> P: who I am, what my KV looks like and where you may write it."""

    version: Natural
    incarnation: Natural
    greeting: Natural
    """Counts D's grants to this P, from a start that no other life of D shares. An answer to an older greeting speaks
    of a revoked key.
    """
    layout: ShardLayout
    provider: Text
    fabric_address: Annotated[bytes, msgspec.Meta(max_length=1024)]
    regions: Annotated[tuple[RegionDescriptor, ...], msgspec.Meta(max_length=1024)]


class HelloReply(msgspec.Struct, frozen=True, kw_only=True, tag="hello_reply"):
    """P -> D: accepted, or what differs. `peer_incarnation` and `greeting` echo the hello that is answered."""

    version: Natural
    incarnation: Natural
    peer_incarnation: Natural
    greeting: Natural
    refusal: Text
    """Empty where accepted."""
    layout: ShardLayout
    provider: Text
    fabric_address: Annotated[bytes, msgspec.Meta(max_length=1024)]
    """Where P's writes come from, so that D can cut off P alone."""


class HelloWanted(msgspec.Struct, frozen=True, kw_only=True, tag="hello_wanted"):
    """P -> D: I do not know you (I am new, or I gave you up); say hello."""

    incarnation: Natural
    greeting: Natural
    """Of the message that this answers; D obeys where it still is its own."""


class Leaving(msgspec.Struct, frozen=True, kw_only=True, tag="leaving"):
    """P -> D, again and again: I finish what I have and take no more asks. Say farewell and I can go."""

    incarnation: Natural


class Farewell(msgspec.Struct, frozen=True, kw_only=True, tag="farewell"):
    """D -> P: nothing that I asked of you is open, and I ask nothing more under this grant. The answer to Leaving, and
    the last word of a D that ends itself.
    """

    incarnation: Natural
    """P's."""
    greeting: Natural


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Both ways, sent by the scheduler's loop itself, so that it proves that the loop turns."""

    incarnation: Natural
    greeting: Natural = 0
    """D's grant to this P; P has none."""
    sequence: Natural


class PrefillAsk(msgspec.Struct, frozen=True, kw_only=True, tag="prefill_ask"):
    """D -> P: compute the KV of `token_ids` and write the pages from index `first_page` on into `pages`."""

    incarnation: Natural
    """P's incarnation that D shook hands with; another one drops the ask."""
    greeting: Natural
    """The grant under which P may write; an ask made under an earlier one names pages that D has reused since."""
    transfer: Natural
    generation: Natural
    slot: Natural
    token_ids: Tokens
    """The prompt without its last token."""
    first_page: Natural
    """Index in the prompt of the first page that D lacks."""
    pages: Pages
    """D's page numbers for page indices first_page, first_page + 1, ..."""
    replica_key: Natural
    trace: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """W3C traceparent of the client's request; empty where D does not trace."""
    deadline_ms: Milliseconds
    """Give up when the prefill has not started after this long; D has given up, too."""


class AskQueued(msgspec.Struct, frozen=True, kw_only=True, tag="ask_queued"):
    """P -> D: received and queued."""

    transfer: Natural
    generation: Natural
    estimate_ms: Milliseconds
    """How long P believes the transfer takes, its queue included."""


class AskAdmitted(msgspec.Struct, frozen=True, kw_only=True, tag="ask_admitted"):
    """P -> D: computing; so many tokens were in P's own prefix tree."""

    transfer: Natural
    generation: Natural
    cached_tokens: Natural


class AskRejected(msgspec.Struct, frozen=True, kw_only=True, tag="ask_rejected"):
    """P -> D: not done and nothing written."""

    transfer: Natural
    generation: Natural
    reason: Text
    retry_after_ms: Milliseconds
    """0: do not ask this engine again for this request."""


class PrefillFailed(msgspec.Struct, frozen=True, kw_only=True, tag="prefill_failed"):
    """P -> D: cannot be finished; P waits for none of its writes any more."""

    transfer: Natural
    generation: Natural
    reason: Text
    broken: bool
    """A write ended in an error: its bytes may still land, so D revokes P's key before it reuses the pages."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """D -> P: stop, wait out what is in flight, answer Drained."""

    incarnation: Natural
    """P's incarnation that was asked; another one cannot speak for the writes of the first and answers HelloWanted."""
    greeting: Natural
    transfer: Natural
    generation: Natural


class Drained(msgspec.Struct, frozen=True, kw_only=True, tag="drained"):
    """P -> D: nothing of this transfer will be posted, and P waits for none of its writes any more."""

    transfer: Natural
    generation: Natural
    broken: bool
    """As in PrefillFailed."""


ToPrefill = Hello | Heartbeat | PrefillAsk | Cancel | Farewell
ToDecode = (
    HelloReply | HelloWanted | Leaving | Heartbeat | AskQueued | AskAdmitted | AskRejected | PrefillFailed | Drained
)
WireMessage = ToPrefill | ToDecode
