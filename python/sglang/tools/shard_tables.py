"""docs/shards.md's tables: which extents a page takes for each pair of shardings, by three schemes.

python -m sglang.tools.shard_tables > docs/shards.md
"""

import sys
from collections import Counter
from typing import NamedTuple

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.disaggregation.shardmap.plan import ShardCopy, plan_copies

PAGES = 256
"""Pages of a request: 4,096 tokens in pages of 16."""


class Case(NamedTuple):
    """Two engines that serve the same model."""

    name: str
    kv: KVLayout
    prefill: int
    decode: int
    replicas: int = 1
    """Decode replicas that a stream of requests goes to in turn."""


def gqa(layers: int, heads: int, dim: int) -> KVLayout:
    return KVLayout(
        kind="gqa", layers=layers, page_size=16, kv_heads=heads, head_dim=dim, dtype="bfloat16", model=""
    )  # fmt: skip


def mla(layers: int) -> KVLayout:
    return KVLayout(
        kind="mla", layers=layers, page_size=16, kv_heads=1, head_dim=576, dtype="bfloat16", model=""
    )  # fmt: skip


CODER, EIGHT, R1 = gqa(62, 8, 128), gqa(64, 8, 128), mla(61)
CASES = (
    Case("equal: 8 KV heads, TP8 -> TP8", EIGHT, 8, 8),
    Case("prefill wider: 8 KV heads, TP8 -> TP4", EIGHT, 8, 4),
    Case("decode wider: 8 KV heads, TP4 -> TP8", EIGHT, 4, 8),
    Case("fewer heads than ranks: 4 KV heads, TP8 -> TP8", gqa(62, 4, 128), 8, 8),
    Case("fewer heads than ranks: 4 KV heads, TP8 -> TP4", gqa(62, 4, 128), 8, 4),
    Case("Qwen3-Coder-480B: TP4 -> TP8", CODER, 4, 8),
    Case("DeepSeek-R1: TP8 -> TP8", R1, 8, 8),
    Case("DeepSeek-R1: TP8 -> DP8 (TP1 each)", R1, 8, 1, 8),
    Case("DeepSeek-R1: TP4 -> TP8", R1, 4, 8),
)


class Row(NamedTuple):
    """Of one page of one layer, over all destination ranks."""

    writes: float
    nbytes: int
    smallest: int
    token_writes: float
    """Where a page is laid out with tokens outside heads: a head range is as many extents as the page has tokens, for K
    and V each, unless source and destination hold the same heads."""
    head_writes: float
    """Where each head's K and V is an extent of its own."""
    worst_load: float
    """Bytes of the busiest source rank over the mean, of requests that go round the decode replicas."""


def measure(case: Case) -> Row:
    """Plans of as many requests as there are replicas and source ranks, with ascending replica keys."""
    source = ShardLayout(kv=case.kv, tp_size=case.prefill, num_pages=PAGES)
    destination = ShardLayout(kv=case.kv, tp_size=case.decode, num_pages=PAGES)
    copies = plan_copies(source, destination, 0)
    pages = [(copy, copy.pages_in(0, PAGES)) for copy in copies]
    load: Counter[int] = Counter()
    for key in range(case.replicas * case.prefill):
        for copy in plan_copies(source, destination, key):
            load[copy.source_rank] += copy.nbytes * copy.pages_in(0, PAGES)
    mean = sum(load.values()) / case.prefill
    return Row(
        writes=sum(count for _, count in pages) / PAGES,
        nbytes=sum(copy.nbytes * count for copy, count in pages) // PAGES,
        smallest=min(copy.nbytes for copy in copies),
        token_writes=sum(count * _by_token(case.kv, source, destination, copy) for copy, count in pages) / PAGES,
        head_writes=sum(count * case.kv.planes * _heads(case.kv, copy) for copy, count in pages) / PAGES,
        worst_load=max(load.values()) / mean,
    )


def _heads(kv: KVLayout, copy: ShardCopy) -> int:
    return copy.nbytes // kv.head_bytes


def _by_token(kv: KVLayout, source: ShardLayout, destination: ShardLayout, copy: ShardCopy) -> int:
    """K and V are two tensors `[pages, page_size, heads, dim]`; MLA has one, without heads."""
    whole = copy.nbytes == source.page_bytes(copy.source_rank) == destination.page_bytes(copy.destination_rank)
    return kv.planes * (1 if whole else kv.page_size)


def table() -> list[str]:
    """Markdown."""
    lines = [
        "| prefill -> decode | bytes a page and layer | writes a page: ours | per token | per head | smallest write "
        "| per token's | busiest source rank / mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        row = measure(case)
        token = min(row.smallest, row.smallest * row.writes / row.token_writes)
        lines.append(
            f"| {case.name} | {row.nbytes:,} | {row.writes:g} | {row.token_writes:g} | {row.head_writes:g} "
            f"| {row.smallest:,} B | {token:,.0f} B | {row.worst_load:.3f} |"
        )
    return lines


TEXT = """# Shards: who sends what to whom

Made by `python -m sglang.tools.shard_tables > docs/shards.md`; the arithmetic is `disaggregation/shardmap/`, pure
functions of two layouts and a replica key, tested for all of TP 1..16 on both sides.

A page of grouped-query attention is `[KV heads of the rank, K and V, {page} tokens, head dim]`: heads outside
tokens, K and V of a head side by side. So any range of heads of a page is one extent with K and V in it, and a page
takes one write for each pair of ranks that share heads, whether the two engines are sharded alike or not. A page of
latents is on every rank.

- **Equal**: rank i writes to rank i.
- **Prefill wider**: each source rank writes its heads into its part of the destination's page.
- **Decode wider**: each source rank's page is cut by heads; the parts go to several ranks.
- **Fewer KV heads than ranks**: several ranks hold the same head. A destination rank takes its pages from all of
  those in turn, starting at the request's replica key.
- **Latents, equal ranks**: rank i to rank i. **Latents, unequal**: each destination rank's pages are striped over
  all source ranks, starting at the replica key, so that one request uses every rank's NIC.

One process of the prefill engine has all ranks' pools mapped and posts for all of them; one process of the decode
engine counts for all of its ranks. The expected weight is the number of extents: exact, and known before the
prefill is asked.

## Data-parallel attention, experts by ranks
`--tp-size N --dp-size N --enable-dp-attention --ep-size N`, on either side. Each of the N replicas is a scheduler
process of one rank: its own requests, KV pool, messenger and peers, the whole of attention, dense layers, shared
experts and head, and 1/N of the routed experts. To other engines each replica is a peer of its own (engine id
`HOST:PORT/dpN`), so a transfer names engine and replica, and latents lie once in the node in place of N times.

- **In step without a plan in common.** A *round* is one forward pass of all replicas. A scheduler plans as if it were
  alone; submitting a step calls a round (`distributed/_shm/rounds.cpp`, a word in shared memory), and every replica's
  compute thread joins it: with its own next step, or with an empty one. No scheduler hears of another's requests, no
  message is exchanged to agree, and an engine without work sleeps.
- **An empty step** runs the layers' feed-forward parts on no tokens (`CausalLM.idle`): it serves the others' tokens
  with its experts. It touches no KV, bumps no layer counter and is no step of its scheduler, so that a prefill
  replica's thresholds stay what its scheduler computed.
- **Lengths differ in every round**, also within one: a chunk that wants no logits ends after the last attention, beside
  a decode step that goes on. So each sparse layer first gathers how many tokens go from whom to whom (8 N bytes a
  rank); then each token's hidden state travels once to each rank that holds some of its experts, and that rank's
  weighted sum comes back (`layers/moe/exchange.py`). Sums are added in rank order: answers do not depend on timing.
- **The end.** A replica that was told to stop goes on joining until all have finished their requests. One that fails
  logs its traceback and gives the rounds up; one that is killed is noticed by the HTTP process, which gives them up.
- On CPU the exchange is a native all-to-all over shared memory. `Collectives.all_to_all` has NCCL's form (counts known
  to both sides): that is the seam for GPUs, unwritten. Refused by name: attention over several ranks within a replica
  (`--dp-size` less than `--tp-size`), and models without experts.

## Writes a page, of one layer, over all destination ranks
Pages of {page} tokens, bfloat16. *Per token*: pages with tokens outside heads, K and V in tensors of their own, as
many engines keep them; where the shardings differ, each token's part of K and of V is an extent. *Per head*: each
head's K and each head's V is an extent.

"""

CLOSE = """
The last column counts a stream of requests whose replica keys ascend, each of {pages} pages. `/metrics` has what an
engine really sent: `sglang:fabric_rank_N_bytes_total`. Neighbouring pages that are consecutive on both sides are
merged into one write on top of this (its weight is the number of pages in it).
"""


def main() -> int:
    """Print the page."""
    sys.stdout.write(TEXT.format(page=R1.page_size) + "\n".join(table()) + "\n" + CLOSE.format(pages=PAGES))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
