"""The native kernels of sparse layers, at every level that this machine can run."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.kernels.cpu.ops import CpuKernels, PackedWeight, levels, pack_weight, quantise_weight
from sglang.srt.kernels.cpu.sparse import PackedExperts, compute_experts, narrow, pack_experts, route

every_level = pytest.mark.parametrize("level", levels())


def noise(*shape: int, seed: int) -> torch.Tensor:
    """Normal float32 numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Block:
    """Some experts of a layer, and the same by one call a matrix."""

    def __init__(self, held: int, hidden: int, width: int, *, first: int = 0, int8: bool = False) -> None:
        pack = quantise_weight if int8 else pack_weight
        shapes = {"both": (2 * width, hidden), "down": (hidden, width)}
        made: dict[str, list[PackedWeight]] = {
            name: [pack((noise(*shape, seed=i + 99 * shape[0]) / shape[1] ** 0.5).bfloat16()) for i in range(held)]
            for name, shape in shapes.items()
        }
        self.gate_up, self.down = made["both"], made["down"]
        self.packed: PackedExperts = pack_experts(self.gate_up, self.down, first)

    def expected(
        self, kernels: CpuKernels, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """float64: each expert's rows by themselves, then summed."""
        out = torch.zeros(x.shape, dtype=torch.float64)
        for index, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            rows, places = (chosen == index + self.packed.first).nonzero(as_tuple=True)
            if len(rows):
                answer = kernels.linear(kernels.silu_and_mul(kernels.linear(x[rows], gate_up)), down)
                out.index_add_(0, rows, answer.double() * shares[rows, places].double().unsqueeze(1))
        return out


def choices(rows: int, top_k: int, experts: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different experts in each row, and any shares."""
    order = torch.rand(rows, experts, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    return order[:, :top_k].contiguous(), noise(rows, top_k, seed=seed + 1)


@every_level
@given(
    rows=st.one_of(st.integers(0, 12), st.just(150)),
    experts=st.integers(1, 9),
    hidden=st.one_of(st.integers(1, 90), st.sampled_from([64, 128])),
    width=st.one_of(st.integers(1, 90), st.sampled_from([32, 96])),
    int8=st.booleans(),
    data=st.data(),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=60, deadline=None)
def test_experts_are_each_by_itself(
    level: str, rows: int, experts: int, hidden: int, width: int, int8: bool, data: st.DataObject, seed: int
) -> None:
    """Whatever part of the model's experts is held, also none of those that a row wants."""
    first = data.draw(st.integers(0, experts - 1), label="first")
    held = data.draw(st.integers(1, experts - first), label="held")
    top_k = data.draw(st.integers(1, experts), label="top_k")
    kernels, block = CpuKernels(level), Block(held, hidden, width, first=first, int8=int8)
    # A view into a wider tensor of NaN: nothing beyond it may be read.
    wide = torch.full((rows, hidden + 5), float("nan"), dtype=torch.bfloat16)
    x = wide[:, 3 : 3 + hidden]
    x.copy_(noise(rows, hidden, seed=seed))
    chosen, shares = choices(rows, top_k, experts, seed)
    found = compute_experts(kernels, x, chosen, shares, block.packed)
    torch.testing.assert_close(found.double(), block.expected(kernels, x, chosen, shares), rtol=1e-5, atol=1e-5 * top_k)


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(level: str, threads: int) -> None:
    block, x = Block(8, 160, 96), noise(40, 160, seed=1).bfloat16()
    chosen, shares = choices(40, 3, 8, seed=2)
    kernels, before = CpuKernels(level), torch.get_num_threads()
    torch.set_num_threads(1)
    alone = compute_experts(kernels, x, chosen, shares, block.packed)
    torch.set_num_threads(threads)
    found = [compute_experts(kernels, x, chosen, shares, block.packed) for _ in range(5)]
    torch.set_num_threads(before)
    assert all(torch.equal(alone, one) for one in found)


def test_more_rows_than_are_computed_at_once() -> None:
    """The same rows again and again: each answers as the first of them does."""
    kernels, block = CpuKernels(levels()[-1]), Block(4, 8, 4)
    x, (chosen, shares) = noise(3, 8, seed=1).bfloat16(), choices(3, 4, 4, seed=2)
    count = 5000  # of 4 experts each: more than 2^14
    found = compute_experts(kernels, x.repeat(count, 1), chosen.repeat(count, 1), shares.repeat(count, 1), block.packed)
    expected = block.expected(kernels, x, chosen, shares).repeat(count, 1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_experts_that_nobody_has_are_passed_over() -> None:
    """Numbers may come from another rank."""
    kernels, block = CpuKernels(levels()[-1]), Block(2, 16, 8, first=3)
    x, shares = noise(2, 16, seed=1).bfloat16(), torch.ones(2, 2)
    chosen = torch.tensor([[-(2**62), 2**62], [2, 5]])
    assert torch.equal(compute_experts(kernels, x, chosen, shares, block.packed), torch.zeros(2, 16))


@every_level
@given(
    rows=st.integers(0, 40),
    experts=st.integers(1, 70),
    inputs=st.integers(1, 90),
    half=st.booleans(),
    normalize=st.booleans(),
    scale=st.sampled_from([1.0, 2.5]),
    data=st.data(),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=60, deadline=None)
def test_route_is_softmax_and_top_k(
    level: str, rows: int, experts: int, inputs: int, half: bool, normalize: bool, scale: float, data: st.DataObject,
    seed: int,
) -> None:  # fmt: skip
    top_k = data.draw(st.integers(1, experts), label="top_k")
    x = noise(rows, inputs, seed=seed).to(torch.bfloat16 if half else torch.float32)
    weight = noise(experts, inputs, seed=seed + 1) / inputs**0.5
    chosen, shares = route(CpuKernels(level), x, weight, top_k, normalize=normalize, scale=scale)
    true = (x.double() @ weight.double().T).softmax(dim=-1)
    likeliest = true.topk(top_k, dim=-1).values
    torch.testing.assert_close(true.gather(1, chosen), likeliest, rtol=1e-5, atol=1e-7)
    assert all(len(set(row)) == top_k for row in chosen.tolist()), "an expert twice"
    expected = likeliest / likeliest.sum(dim=-1, keepdim=True) if normalize else likeliest
    torch.testing.assert_close(shares.double(), expected * scale, rtol=1e-5, atol=1e-6)


def test_of_equals_the_first_is_chosen_and_nan_finds_somebody() -> None:
    kernels = CpuKernels(levels()[-1])
    x, weight = torch.ones(2, 4), torch.ones(6, 4)
    chosen, shares = route(kernels, x, weight, 3, normalize=False, scale=1.0)
    assert chosen.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(shares, torch.full((2, 3), 1 / 6))
    chosen, _ = route(kernels, x * float("nan"), weight, 3, normalize=True, scale=1.0)
    assert chosen.tolist() == [[0, 1, 2]] * 2


@every_level
@given(
    rows=st.integers(1, 20), width=st.integers(1, 90), half=st.booleans(), more=st.booleans(), seed=st.integers(0, 99)
)
@settings(max_examples=30, deadline=None)
def test_narrow_rounds_once(level: str, rows: int, width: int, half: bool, more: bool, seed: int) -> None:
    dtype = torch.bfloat16 if half else torch.float32
    x = noise(rows, width, seed=seed)
    added = noise(rows, width, seed=seed + 1).to(dtype) if more else None
    expected = (x if added is None else x + added).to(dtype)
    assert torch.equal(narrow(CpuKernels(level), x, added, dtype), expected)


def test_what_does_not_fit_is_refused() -> None:
    kernels, block = CpuKernels(levels()[-1]), Block(2, 16, 8)
    x, (chosen, shares) = noise(3, 16, seed=1).bfloat16(), choices(3, 2, 2, seed=2)
    for wrong in (x.float(), x[:, :8], x.T.contiguous().T):
        with pytest.raises(ValueError, match="bfloat16 experts of 16 inputs"):
            compute_experts(kernels, wrong, chosen, shares, block.packed)
    for wrong in (chosen.int(), chosen[:2], chosen.T.contiguous().T):
        with pytest.raises(ValueError, match="in place of"):
            compute_experts(kernels, x, wrong, shares, block.packed)
    with pytest.raises(ValueError, match="in place of"):
        compute_experts(kernels, x, chosen, shares.double(), block.packed)
    with pytest.raises(ValueError, match="to 7 of 6 experts"):
        route(kernels, x, torch.ones(6, 16), 7, normalize=False, scale=1.0)
    with pytest.raises(ValueError, match="in place of"):
        route(kernels, x, torch.ones(6, 15), 2, normalize=False, scale=1.0)
    with pytest.raises(ValueError, match="in place of"):
        narrow(kernels, torch.ones(2, 3), torch.ones(2, 3), torch.bfloat16)
    with pytest.raises(ValueError, match="are not"):
        pack_experts(block.gate_up, block.down[:1], 0)
