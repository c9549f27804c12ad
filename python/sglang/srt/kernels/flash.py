"""Attention that also returns its softmax sums, so that parts of a context can be attended apart and merged."""

import math

import torch

Attended = tuple[torch.Tensor, torch.Tensor]
"""Output `[batch, heads, queries, dim]` and log-sum-exp of the scores `[batch, heads, queries]`, float32."""


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> Attended:
    """q `[batch, heads, queries, dim]`, k and v `[batch, heads, keys, dim]` of the same dim and dtype.

    `causal`: query i sees keys 0..i. `mask`: added to the scores, broadcastable to `[batch, heads, queries, keys]`, of
    q's dtype; every query must see a key. torch's public attention does not return the sums; where its inner operation
    is missing, attention is written out.
    """
    if has_flash():
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
        return out, sums
    return written_out(q, k, v, scale=scale, causal=causal, mask=mask)


def has_flash() -> bool:
    """Whether this torch has the inner operation."""
    return hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")


def written_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> Attended:
    """The same by matrix products; holds all scores at once."""
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    sums = scores.logsumexp(dim=-1)
    return ((scores - sums.unsqueeze(-1)).exp() @ v.float()).to(q.dtype), sums


def merge(first: torch.Tensor, first_sums: torch.Tensor, second: torch.Tensor, second_sums: torch.Tensor) -> Attended:
    """Attention over two disjoint sets of keys from attention over each."""
    weight = torch.sigmoid(second_sums - first_sums).unsqueeze(-1)
    out = torch.lerp(first.float(), second.float(), weight.float()).to(first.dtype)
    return out, torch.logaddexp(first_sums, second_sums)
