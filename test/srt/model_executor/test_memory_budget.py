"""How many pages fit."""

import pytest

from sglang.srt.errors import ConfigError
from sglang.srt.model_executor.memory_budget import pages_that_fit


def pages(**fields: object) -> int:
    """With 1,000 bytes a page of 16 tokens and 100,000 bytes available."""
    values = {
        "page_bytes": 1000, "page_size": 16, "max_total_tokens": 0, "mem_fraction": 0.5, "available": 100_000,
        "useful_tokens": 10**6,
    }  # fmt: skip
    return pages_that_fit(**(values | fields))


def test_a_share_of_what_is_available() -> None:
    assert pages() == 50


def test_no_more_than_rows_can_use() -> None:
    assert pages(useful_tokens=33) == 3


def test_a_number_of_tokens_is_rounded_up_to_pages() -> None:
    assert pages(max_total_tokens=33) == 3


def test_too_many_tokens() -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens 2000 needs"):
        pages(max_total_tokens=2000)


def test_nothing_fits() -> None:
    with pytest.raises(ConfigError, match=r"--mem-fraction-static 0\.005 .* holds no KV page"):
        pages(mem_fraction=0.005)
