"""The native kernels against float64, at every level that this machine can run."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.kernels.cpu.arena import Arena, returnable
from sglang.srt.kernels.cpu.ops import CpuKernels, best_kernels, levels, pack_weight, quantise_weight

BOTH = [torch.float32, torch.bfloat16]
PRECISION = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
every_level = pytest.mark.parametrize("level", levels())


def close(found: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    """Within one rounding to found's type, plus float32's errors in sums of terms of size `scale`."""
    torch.testing.assert_close(found.double(), expected, rtol=PRECISION[found.dtype], atol=2e-6 * scale)


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_levels_end_with_the_best() -> None:
    assert levels()[0] == "generic"
    assert best_kernels().level == levels()[-1]
    with pytest.raises(ValueError, match="no kernels of level mmx"):
        CpuKernels("mmx")


@every_level
@given(
    rows=st.one_of(st.integers(1, 70), st.sampled_from([255, 257, 512])),
    outputs=st.one_of(st.integers(1, 200), st.sampled_from([64, 128, 576])),
    inputs=st.one_of(st.integers(1, 200), st.sampled_from([32, 64, 576])),
    bias=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=60, deadline=None)
def test_linear(level: str, rows: int, outputs: int, inputs: int, bias: bool, seed: int) -> None:
    weight = noise(outputs, inputs, seed=seed)
    # A view into a wider tensor of NaN, as a slice of a fused projection is: nothing beyond it may be read.
    wide = torch.full((rows, inputs + 9), float("nan"), dtype=torch.bfloat16)
    x = wide[:, 4 : 4 + inputs]
    x.copy_(noise(rows, inputs, seed=seed + 1))
    shift = noise(outputs, seed=seed + 2) if bias else None
    found = CpuKernels(level).linear(x, pack_weight(weight), shift)
    expected = x.double() @ weight.double().T + (shift.double() if shift is not None else 0.0)
    close(found, expected, scale=inputs)


@every_level
@given(
    rows=st.one_of(st.integers(1, 40), st.just(300)),
    outputs=st.integers(1, 200),
    inputs=st.integers(1, 200),
    bias=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=40, deadline=None)
def test_linear_of_int8_weights(level: str, rows: int, outputs: int, inputs: int, bias: bool, seed: int) -> None:
    weight, x = noise(outputs, inputs, seed=seed), noise(rows, inputs, seed=seed + 1)
    weight[seed % outputs] = 0
    shift = noise(outputs, seed=seed + 2) if bias else None
    scales = weight.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-30) / 127
    rounded = (weight.float() / scales).round().double() * scales.double()
    found = CpuKernels(level).linear(x, quantise_weight(weight), shift)
    expected = x.double() @ rounded.T + (shift.double() if shift is not None else 0.0)
    close(found, expected, scale=inputs)


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_linear_over_threads(level: str, threads: int) -> None:
    weight, x = noise(1000, 256), noise(40, 256, seed=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = CpuKernels(level).linear(x, pack_weight(weight))
    torch.set_num_threads(before)
    close(found, x.double() @ weight.double().T, scale=256)


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("strips", [1, 2, 3, 16])
def test_every_strip_is_computed_and_nothing_else(level: str, threads: int, rows: int, strips: int) -> None:
    """Threads share the strips; each output row has a neighbour that no thread may touch."""
    outputs, inputs = strips * 64 - 5, 1024
    weight, x = noise(outputs, inputs), noise(rows, inputs, seed=1)
    packed, kernels = pack_weight(weight), CpuKernels(level)
    out = torch.full((rows, outputs + 3), float("nan"), dtype=torch.bfloat16)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    kernels.native.linear(
        x.data_ptr(), inputs, rows, inputs, packed.data.data_ptr(), outputs, 0, out.data_ptr(), outputs + 3, 0
    )
    torch.set_num_threads(before)
    close(out[:, :outputs], x.double() @ weight.double().T, scale=inputs)
    assert bool(out[:, outputs:].isnan().all())


def test_linear_refuses_what_does_not_fit() -> None:
    weight = pack_weight(noise(8, 16))
    for x in (noise(2, 15), noise(2, 16, dtype=torch.float32)):
        with pytest.raises(ValueError, match="for a bfloat16 weight of 16 inputs"):
            best_kernels().linear(x, weight)
    with pytest.raises(ValueError, match="for 8 outputs"):
        best_kernels().linear(noise(2, 16), weight, noise(9))
    with pytest.raises(ValueError, match="does not fit"):
        pack_weight(noise(8, 16, dtype=torch.float32))


@every_level
@pytest.mark.parametrize("dtype", BOTH)
@given(rows=st.integers(1, 9), heads=st.integers(1, 5), size=st.integers(1, 150), seed=st.integers(0, 1 << 20))
@settings(max_examples=40, deadline=None)
def test_norm(level: str, dtype: torch.dtype, rows: int, heads: int, size: int, seed: int) -> None:
    wide = noise(rows, heads + 2, size, dtype=dtype, seed=seed)
    kept = wide.clone()
    x, weight = wide[:, 1 : 1 + heads], noise(size, dtype=dtype, seed=seed + 1)
    exact = x.double()
    expected = exact * (exact.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    kernels = CpuKernels(level)
    close(kernels.rms_norm(x, weight, 1e-5), expected)
    close(kernels.rms_norm(x[:, 0], weight, 1e-5), expected[:, 0])
    kernels.rms_norm(x, weight, 1e-5, out=x)
    close(x, expected)
    assert torch.equal(wide[:, 0], kept[:, 0])
    assert torch.equal(wide[:, -1], kept[:, -1])


@every_level
@pytest.mark.parametrize("dtype", BOTH)
@given(rows=st.integers(1, 9), width=st.integers(1, 150), spread=st.sampled_from([1.0, 60.0]))
@settings(max_examples=40, deadline=None)
def test_silu_and_mul(level: str, dtype: torch.dtype, rows: int, width: int, spread: float) -> None:
    gate_up = (noise(rows, 2 * width, seed=width) * spread).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    close(CpuKernels(level).silu_and_mul(gate_up), torch.nn.functional.silu(gate) * up, scale=spread)


@every_level
@pytest.mark.parametrize("dtype", BOTH)
@given(rows=st.integers(1, 9), heads=st.integers(1, 5), half=st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_rotate(level: str, dtype: torch.dtype, rows: int, heads: int, half: int) -> None:
    wide = noise(rows, heads + 1, 2 * half + 3, dtype=dtype, seed=half)
    x = wide[:, 1:, 3:]
    angles = torch.rand(rows, half) * 6
    cosine = torch.cat([angles.cos(), angles.cos()], -1).to(dtype)
    sine = torch.cat([-angles.sin(), angles.sin()], -1).to(dtype)
    exact = x.double()
    turned = exact * cosine.double().unsqueeze(1) + exact.roll(half, -1) * sine.double().unsqueeze(1)
    kept = wide.clone()
    CpuKernels(level).rotate(x, cosine, sine)
    close(x, turned)
    assert torch.equal(wide[:, 0], kept[:, 0])
    assert torch.equal(wide[..., :3], kept[..., :3])


@every_level
@pytest.mark.parametrize("dtype", BOTH)
@given(rows=st.integers(1, 5), size=st.integers(1, 200), kinds=st.integers(1, 50), seed=st.integers(0, 1 << 20))
@settings(max_examples=40, deadline=None)
def test_argmax_is_the_first_of_the_largest(
    level: str, dtype: torch.dtype, rows: int, size: int, kinds: int, seed: int
) -> None:
    # Few kinds of numbers, so that most rows have ties; some lanes see nothing but -inf.
    values = torch.randint(-kinds, kinds, (rows, size + 3), generator=torch.Generator().manual_seed(seed)).to(dtype)
    values[values == -kinds] = float("-inf")
    x = values[:, 2 : 2 + size]
    found = CpuKernels(level).argmax(x)
    assert found.tolist() == [row.index(max(row)) for row in x.tolist()]


@every_level
@pytest.mark.parametrize("dtype", BOTH)
@given(rows=st.one_of(st.integers(1, 9), st.just(300)), width=st.integers(1, 200), seed=st.integers(0, 1 << 20))
@settings(max_examples=40, deadline=None)
def test_add_is_torch_s(level: str, dtype: torch.dtype, rows: int, width: int, seed: int) -> None:
    x, y = noise(rows, width, dtype=dtype, seed=seed), noise(rows, width, dtype=dtype, seed=seed + 1)
    expected = x + y
    assert CpuKernels(level).add(x, y) is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize("packed", [False, True])
@given(entries=st.integers(1, 200), width=st.integers(1, 200), rows=st.integers(0, 400), seed=st.integers(0, 1 << 20))
@settings(max_examples=60, deadline=None)
def test_lookup_is_indexing(packed: bool, entries: int, width: int, rows: int, seed: int) -> None:
    table = noise(entries, width, seed=seed)
    numbers = torch.randint(0, entries, (rows,), generator=torch.Generator().manual_seed(seed))
    given_table = pack_weight(table) if packed else table
    assert torch.equal(best_kernels().lookup(numbers, given_table), table[numbers])
    for wrong in (-1, entries):
        with pytest.raises(IndexError, match=f"number {wrong} of a table of {entries}"):
            best_kernels().lookup(torch.tensor([0, wrong]), given_table)


@every_level
@pytest.mark.parametrize("dtype", BOTH)
@given(
    positions=st.lists(st.integers(0, 200_000), min_size=1, max_size=40),
    pairs=st.integers(1, 70),
    magnitude=st.sampled_from([1.0, 1.3]),
)
@settings(max_examples=40, deadline=None)
def test_turns(level: str, dtype: torch.dtype, positions: list[int], pairs: int, magnitude: float) -> None:
    inverse = 10_000.0 ** -(torch.arange(pairs) / pairs)
    cosine, sine = CpuKernels(level).turns(torch.tensor(positions), inverse, magnitude, dtype)
    angles = (torch.tensor(positions, dtype=torch.float32).unsqueeze(1) * inverse).double()
    close(cosine, torch.cat([angles.cos(), angles.cos()], -1) * magnitude, scale=1e-1)
    close(sine, torch.cat([-angles.sin(), angles.sin()], -1) * magnitude, scale=1e-1)


def test_what_does_not_fit_is_refused() -> None:
    kernels, x = best_kernels(), noise(2, 8)
    for y in (noise(2, 7), noise(2, 8, dtype=torch.float32), noise(2, 16)[:, ::2]):
        with pytest.raises(ValueError, match="does not fit"):
            kernels.add(x, y)
    with pytest.raises(ValueError, match="does not fit"):
        kernels.lookup(torch.tensor([0]), noise(8, 2).T)
    with pytest.raises(ValueError, match="numbers"):
        kernels.lookup(torch.tensor([0], dtype=torch.int32), x)
    with pytest.raises(ValueError, match="in place of"):
        kernels.turns(torch.tensor([0]), x[0], 1.0, torch.bfloat16)


def test_infinity_and_nan_survive_rounding() -> None:
    odd = torch.tensor([[float("inf"), float("-inf"), float("nan"), 3.3895e38, -0.0]] * 2, dtype=torch.float32)
    for level in levels():
        kernels = CpuKernels(level)
        both = torch.cat([torch.full_like(odd, 100.0), odd], dim=-1).bfloat16()
        out = kernels.silu_and_mul(both)
        torch.testing.assert_close(out, (odd * 100.0).bfloat16(), equal_nan=True, rtol=2**-7, atol=0)


def test_what_is_returnable_is_returned() -> None:
    def mapped(address: int) -> bool:
        ranges = (line.split(" ", 1)[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
        return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)

    torch.empty(31 << 20, dtype=torch.uint8)  # once freed, glibc takes what is smaller from its heap, and keeps it
    tensor = returnable(3000, 5000, torch.bfloat16)
    assert tensor.shape == (3000, 5000)
    assert not tensor.any()
    middle = tensor.data_ptr() + tensor.nbytes // 2
    part = tensor[100:]
    del tensor
    assert mapped(middle), "a view holds it"
    del part
    assert not mapped(middle)
    assert returnable(0, 7, torch.float32).shape == (0, 7)


def test_arena_never_hands_out_the_same_memory() -> None:
    arena = Arena(block_bytes=1000)
    parts = [arena.take(size, torch.bfloat16) for size in (3, 100, 400, 5, 2000, 1)]
    for number, part in enumerate(parts):
        assert part.data_ptr() % 64 == 0
        assert not part.any()
        part.fill_(number + 1)
    assert [set(part.tolist()) for part in parts] == [{1.0}, {2.0}, {3.0}, {4.0}, {5.0}, {6.0}]
