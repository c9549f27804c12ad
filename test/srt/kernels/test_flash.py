"""Attention with softmax sums: torch's inner operation and the written-out form agree, and parts merge to the whole."""

import pytest
import torch

from sglang.srt.kernels import flash as module
from sglang.srt.kernels.flash import flash, merge, written_out


def some(
    queries: int, keys: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v of two batches and three heads."""
    torch.manual_seed(queries * keys)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=dtype) for n in (queries, keys, keys))
    return q, k, v


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_both_forms_agree(causal: bool, masked: bool) -> None:
    q, k, v = some(17, 17)
    mask = torch.randn(17, 17) if masked and not causal else None
    for found, expected in zip(
        flash(q, k, v, scale=0.3, causal=causal, mask=mask),
        written_out(q, k, v, scale=0.3, causal=causal, mask=mask),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_without_the_inner_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = some(5, 9)
    expected = flash(q, k, v, scale=0.3)
    monkeypatch.setattr(module, "has_flash", lambda: False)
    found = flash(q, k, v, scale=0.3)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)


def test_parts_merge_to_the_whole() -> None:
    q, k, v = some(6, 30)
    whole = written_out(q, k, v, scale=0.3)
    parts = [written_out(q, k[:, :, part], v[:, :, part], scale=0.3) for part in (slice(0, 7), slice(7, 30))]
    out, sums = merge(*parts[0], *parts[1])
    torch.testing.assert_close(out, whole[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums, whole[1], rtol=1e-5, atol=1e-5)
