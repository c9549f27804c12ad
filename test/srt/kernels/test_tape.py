"""Recorded kernel calls: what is on the tape, what may not be, and whose memory it uses."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.kernels.cpu.ops import CpuKernels, best_kernels, levels, pack_weight
from sglang.srt.kernels.cpu.paged import PagedRows
from sglang.srt.kernels.cpu.tape import Buffers, NotRecordable, Tape

ROWS, WIDTH = 5, 48


def some_rows(count: int) -> PagedRows:
    """Of one token each."""
    return PagedRows(torch.zeros(count, 1, dtype=torch.int32), [1] * count)


class Small:
    """Two layers and a half: what a tape plays, and what the same calls give by themselves."""

    def __init__(self, level: str) -> None:
        random = torch.Generator().manual_seed(3)
        self.kernels = CpuKernels(level)
        self.weights = [
            pack_weight(torch.randn(2 * WIDTH, WIDTH, generator=random).bfloat16() / WIDTH**0.5) for _ in range(3)
        ]
        self.norm = torch.rand(WIDTH, generator=random).bfloat16()
        self.x = torch.randn(ROWS, WIDTH, generator=random).bfloat16()

    def walk(self, x: torch.Tensor) -> torch.Tensor:
        """The calls."""
        for weight in self.weights:
            both = self.kernels.linear(self.kernels.rms_norm(x, self.norm, 1e-5), weight)
            x = self.kernels.add(self.kernels.silu_and_mul(both), x)
        return x


@pytest.mark.parametrize("level", levels())
def test_played_calls_give_what_calls_give(level: str) -> None:
    small = Small(level)
    tape = Tape(small.kernels, ROWS)
    with tape.recording():
        out = small.walk(small.x)
    assert len(tape) == 10, "two sums and the norms of them are one call each"
    for seed in range(4):
        small.x.copy_(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).bfloat16())
        for count in (ROWS, 2, 1):
            tape.play(some_rows(count))
            assert torch.equal(out[:count], small.walk(small.x[:count])), f"{count} rows"


def test_recording_computes_nothing_and_ends() -> None:
    small = Small(levels()[-1])
    tape, before = Tape(small.kernels, ROWS), small.x.clone()
    with tape.recording():
        small.kernels.add(small.x, small.x)
        small.kernels.rms_norm(small.x, small.norm, 1e-5, out=small.x)
    assert torch.equal(small.x, before)
    small.kernels.add(small.x, small.x)
    assert torch.equal(small.x, before + before)
    assert len(tape) == 2


def test_buffers_serve_again() -> None:
    """What died is used again, what lives is not: at a time, a stream, its norm, and two pairs of gate and up."""
    small = Small(levels()[-1])
    tape = Tape(small.kernels, ROWS)
    with tape.recording():
        small.walk(small.x)
    assert tape.nbytes == ROWS * WIDTH * 2 * (1 + 1 + 2 + 2)


@pytest.mark.parametrize(
    ("compute", "named"),
    [
        (lambda x: x + x, "torch computes"),
        (lambda x: x[torch.tensor([0, 1])], "torch computes"),
        (lambda x: x.float(), "torch computes float"),
        (lambda x: torch.nn.functional.linear(x, x), "torch computes linear"),
        (lambda x: torch.empty(3), "torch computes empty"),
        (lambda x: x.sum().item(), "torch computes sum"),
        (lambda x: best_kernels().add(x[:2], x[2:4]), "call of 2 rows in a step of 5"),
        (lambda x: best_kernels().argmax(x), "torch computes empty|no part of a recorded step"),
    ],
)
def test_everything_else_is_refused(compute: object, named: str) -> None:
    x = torch.randn(ROWS, WIDTH).bfloat16()
    tape = Tape(best_kernels(), ROWS)
    with pytest.raises(NotRecordable, match=named), tape.recording():
        compute(x)  # type: ignore[operator]
    expected = x + x
    assert torch.equal(best_kernels().add(x, x), expected), "calls are performed again"


def test_a_tape_hears_its_own_thread_alone() -> None:
    tape, x = Tape(best_kernels(), ROWS), torch.ones(ROWS, WIDTH)
    with tape.recording():
        other = threading.Thread(target=best_kernels().add, args=(x, x))
        other.start()
        other.join()
    assert len(tape) == 0
    assert bool((x == 2).all())


def test_one_recording_at_a_time() -> None:
    first, second, x = Tape(best_kernels(), ROWS), Tape(best_kernels(), ROWS), torch.ones(ROWS, WIDTH)
    with first.recording():
        with pytest.raises(RuntimeError, match="recording already"), second.recording():
            pass
        best_kernels().add(x, x)
    assert (len(first), len(second)) == (1, 0)


@pytest.mark.parametrize("count", [0, ROWS + 1])
def test_rows_that_were_not_recorded_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} rows for a recorded step of {ROWS}"):
        Tape(best_kernels(), ROWS).play(some_rows(count))
    with pytest.raises(ValueError, match="several queries"):
        Tape(best_kernels(), ROWS).play(PagedRows(torch.zeros(1, 1, dtype=torch.int32), [2], first=[0], queries=[2]))


@given(st.lists(st.one_of(st.sampled_from([3, 8, 100]), st.integers(-20, -1)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_no_two_living_tensors_share_memory(steps: list[int]) -> None:
    """Positive: take a tensor of so many; negative: one of the living dies."""
    buffers = Buffers()
    living: list[tuple[int, torch.Tensor]] = []
    sizes: list[int] = []
    most: dict[int, int] = {}
    for number, step in enumerate(steps):
        if step < 0 and living:
            del living[step % len(living)]
        elif step > 0:
            made = buffers.take((2, step), torch.float32).fill_(number)
            assert made.data_ptr() % 64 == 0
            living.append((number, made[:, : step // 2] if step > 100 else made.view(-1)))  # a view keeps it alive
            del made
            sizes = [tensor.numel() for _, tensor in living]
            most = {size: max(most.get(size, 0), sizes.count(size)) for size in {*most, *sizes}}
    assert all(bool((tensor == number).all()) for number, tensor in living)
    assert buffers.nbytes == sum(4 * size * count for size, count in most.items())
