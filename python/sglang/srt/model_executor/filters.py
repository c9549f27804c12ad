"""top-k, top-p and min-p as one threshold a row.

A threshold keeps tokens that tie with the last one kept, so the outcome does not depend on the order in which a sort
leaves equal logits; bfloat16 logits tie often.
"""

import torch

CANDIDATES = 256
"""Most likely tokens looked at first for top-p. A full sort of 49,152 logits costs milliseconds a row, and nearly every
distribution worth sampling has its top-p mass in far fewer tokens; where it has not, eight times as many are tried."""


def keep_likely(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Logits with what the filters drop set to -inf. Temperature is applied already.

    `logits` float32 `[rows, vocab]`; `top_k` int64 `[rows]` (vocab keeps all), `top_p` in (0, 1] and `min_p` in [0, 1]
    float32 `[rows]`. top-p counts the mass that top-k left; a row always keeps its most likely token.
    """
    vocab = logits.shape[1]
    floor = torch.full_like(top_p, float("-inf"))
    if bool((min_p > 0).any()):
        floor = logits.amax(dim=-1) + min_p.log()
    if bool((top_k < vocab).any()) or bool((top_p < 1).any()):
        floor = torch.maximum(floor, _top_floor(logits, top_k, top_p))
    elif not bool((min_p > 0).any()):
        return logits
    return logits.masked_fill(logits < floor.unsqueeze(1), float("-inf"))


def _top_floor(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest logit that top-k and top-p keep, `[rows]`."""
    vocab = logits.shape[1]
    cut = top_k < vocab
    total = logits.logsumexp(dim=-1, keepdim=True)
    width = min(vocab, max(CANDIDATES, int(top_k.masked_fill(~cut, 0).max())))
    while True:
        values = logits.topk(width, dim=-1).values
        mass = (values - total).exp().masked_fill(torch.arange(width) >= top_k.unsqueeze(1), 0.0)
        before = mass.cumsum(dim=-1) - mass
        budget = top_p * torch.where(cut, mass.sum(dim=-1), 1.0)
        inside = torch.arange(width) < top_k.unsqueeze(1)
        kept = inside & ((before < budget.unsqueeze(1)) | (top_p >= 1).unsqueeze(1))
        kept[:, 0] = True
        last = kept.sum(dim=-1) - 1
        complete = (last < width - 1) | (cut & (top_k <= width)) | (top_p >= 1)
        if width == vocab or bool(complete.all()):
            break
        width = min(vocab, width * 8)
    unbounded = ~cut & (top_p >= 1)
    return values.gather(1, last.unsqueeze(1)).squeeze(1).masked_fill(unbounded, float("-inf"))
