"""Which experts a rank holds, and which columns of each."""

from typing import NamedTuple

from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import ConfigError


class ExpertShare(NamedTuple):
    """Whole experts are divided among `ep_size` parts of the group, the columns of each among the ranks of a part."""

    experts: range
    columns: range


def expert_share(group: ParallelGroup, ep_size: int, experts: int, columns: int) -> ExpertShare:
    """Rank r of a group of n is column share r % (n / ep_size) of part r // (n / ep_size).

    Raises ConfigError where something cannot be divided evenly.
    """
    if group.size % ep_size:
        raise ConfigError(f"--ep-size {ep_size} does not divide --tp-size {group.size}")
    if experts % ep_size:
        raise ConfigError(f"--ep-size {ep_size} does not divide the model's {experts} experts")
    ranks = group.size // ep_size
    if columns % ranks:
        raise ConfigError(
            f"--tp-size {group.size} with --ep-size {ep_size} does not divide the model's {columns} expert columns"
        )
    part, rank = divmod(group.rank, ranks)
    width, count = columns // ranks, experts // ep_size
    return ExpertShare(range(part * count, (part + 1) * count), range(rank * width, (rank + 1) * width))
