"""Storing into pages and gathering from them."""

import torch

from sglang.srt.kernels.gather_kv import gather_kv, gather_rows
from sglang.srt.kernels.store_kv import kv_rows, store_kv


def test_each_token_lands_in_its_page_and_nowhere_else() -> None:
    layer = torch.full((5, 3, 2, 4, 6), -1.0)
    pages, offsets = torch.tensor([4, 0, 4]), torch.tensor([3, 0, 1])
    kv = torch.rand(3, 2, 3, 6)
    store_kv(layer, kv_rows(pages, offsets, kv_heads=3, page_size=4), kv)
    for token, (page, offset) in enumerate(zip(pages.tolist(), offsets.tolist(), strict=True)):
        assert torch.equal(layer[page, :, 0, offset], kv[token, 0])
        assert torch.equal(layer[page, :, 1, offset], kv[token, 1])
        layer[page, :, :, offset] = -1.0
    assert bool((layer == -1.0).all())


def test_store_rounds_to_the_pages_dtype() -> None:
    layer = torch.zeros(1, 1, 2, 1, 2, dtype=torch.bfloat16)
    store_kv(
        layer, kv_rows(torch.tensor([0]), torch.tensor([0]), kv_heads=1, page_size=1), torch.full((1, 2, 1, 2), 1.001)
    )
    assert bool((layer == 1.0).all())


def test_gather_puts_the_tokens_of_a_head_in_a_row() -> None:
    layer = torch.rand(6, 2, 2, 4, 3)
    table = torch.tensor([[5, 0, 2], [1, 1, 3]], dtype=torch.int32)
    blocks = gather_rows(table, 4)
    out = torch.empty(len(blocks), 12)
    gather_kv(layer, blocks, out)
    found = out.view(2, 2, 2, 12, 3)
    for row in range(2):
        expected = torch.cat([layer[page] for page in table[row].tolist()], dim=2)
        assert torch.equal(found[row], expected)
