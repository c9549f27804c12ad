"""How many KV pages fit."""

from sglang.srt.errors import ConfigError

GIB = 1 << 30


def pages_that_fit(
    *, page_bytes: int, page_size: int, max_total_tokens: int, mem_fraction: float, available: int, useful_tokens: int
) -> int:
    """Pages of a rank's pool.

    `page_bytes`: one page over all layers. `max_total_tokens` 0: as many as `mem_fraction` of `available` bytes holds,
    but not more than `useful_tokens`, which all rows at full context would take. Raises ConfigError where it cannot be.
    """
    if max_total_tokens:
        pages = -(-max_total_tokens // page_size)
        if pages * page_bytes > available:
            raise ConfigError(
                f"--max-total-tokens {max_total_tokens} needs {pages * page_bytes / GIB:.2f} GiB for KV, "
                f"{available / GIB:.2f} GiB are available; lower it"
            )
        return pages
    budget = int(mem_fraction * available)
    pages = min(budget // page_bytes, -(-useful_tokens // page_size))
    if pages < 1:
        raise ConfigError(
            f"--mem-fraction-static {mem_fraction} of {available / GIB:.2f} GiB available memory holds no KV page of "
            f"{page_bytes} bytes; raise it or lower --page-size"
        )
    return pages
