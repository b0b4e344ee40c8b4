"""Products of 8-bit integers: native and plain ones are the same bits, and stand for the right numbers."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DTYPES, distance, numbers, same_bits

from wellhead.errors import InvalidConfig
from wellhead.kernels.int8 import STEPS, product, rounded, widened
from wellhead.kernels.native import LARGEST_INT8, NativeOps
from wellhead.kernels.plain import PlainOps

SIZES = ((4, 1), (16, 31), (64, 32), (68, 33), (128, 100), (576, 1536))  # in, out


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps(request.param)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8, 12, 13, 25, 32, 33, 70])
@pytest.mark.parametrize("biased", [False, True])
def test_native_is_plain(ops: NativeOps, size: tuple[int, int], rows: int, biased: bool) -> None:
    inner, outer = size
    x, w = numbers(rows, inner, seed=1, dtype=ops.dtype) * 3, numbers(outer, inner, seed=2, dtype=ops.dtype)
    bias = numbers(outer, seed=3) if biased else None
    plain, packed = PlainOps(ops.dtype), ops.pack(w, int8=True)
    got = ops.linear(x, packed, bias)
    assert same_bits(got, plain.linear(x, plain.pack(w, int8=True), bias))
    residual = numbers(rows, outer, seed=4)
    summed = residual.clone()
    ops.linear_add_(summed, x, packed, bias)
    assert same_bits(summed, residual + got)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_glu_is_that_of_its_two_products(ops: NativeOps, size: tuple[int, int]) -> None:
    inner, outer = size
    x = numbers(37, inner, seed=1, dtype=ops.dtype)
    gate, up = numbers(outer, inner, seed=2, dtype=ops.dtype), numbers(outer, inner, seed=3, dtype=ops.dtype)
    got = ops.glu(x, ops.pack_glu(gate, up, int8=True), "silu")
    g, u = (product(x, *rounded(w)).double() for w in (gate, up))
    eps = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[ops.dtype]
    assert got.dtype == ops.dtype
    assert distance(got, torch.nn.functional.silu(g) * u) <= eps * 1.05


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_what_is_unpacked_is_what_was_rounded(ops: NativeOps, size: tuple[int, int]) -> None:
    inner, outer = size
    gate, up = numbers(outer, inner, seed=2, dtype=ops.dtype), numbers(outer, inner, seed=3, dtype=ops.dtype)
    for packed, weight in (
        (ops.pack(gate, int8=True), gate),
        (ops.pack(gate, up, int8=True), torch.cat((gate, up))),
        (ops.pack_glu(gate, up, int8=True), torch.cat((gate, up))),
    ):
        assert same_bits(ops.unpack(packed), widened(*rounded(weight)).to(ops.dtype))


def test_rounding_errs_by_half_a_step() -> None:
    x = numbers(50, 300, seed=1) * torch.logspace(-20, 20, 50)[:, None]
    steps, scales = rounded(x)
    assert steps.abs().amax(dim=1).eq(STEPS).all()
    error = (widened(steps, scales).double() - x.double()).abs() / (x.double().abs().amax(dim=1, keepdim=True) / STEPS)
    assert error.max() <= 0.5 + 1e-4
    assert error.max() > 0.45


def test_zero_stays_zero_and_what_is_not_finite_stays_in_its_row(ops: NativeOps) -> None:
    x, w = numbers(6, 64, seed=1, dtype=ops.dtype), numbers(48, 64, seed=2, dtype=ops.dtype)
    linear, gated = ops.pack(w, int8=True), ops.pack_glu(w, w, int8=True)
    clean = ops.linear(x, linear), ops.glu(x, gated, "silu")
    x[0], x[3, 7], x[5, 63] = 0.0, torch.nan, -torch.inf
    for before, after in zip(clean, (ops.linear(x, linear), ops.glu(x, gated, "silu")), strict=True):
        assert after[0].eq(0).all()
        assert after[[3, 5]].isnan().all()
        assert same_bits(before[[1, 2, 4]], after[[1, 2, 4]])
    plain = PlainOps(ops.dtype)
    assert same_bits(ops.linear(x, linear)[:3], plain.linear(x, plain.pack(w, int8=True))[:3])


def test_the_largest_sum_fits() -> None:
    ops, ones = NativeOps(torch.float32), torch.ones(2, LARGEST_INT8)
    for x in (ones, -ones):
        assert same_bits(ops.linear(x, ops.pack(ones, int8=True)), product(x, *rounded(ones)))
    with pytest.raises(InvalidConfig, match="65536 at most"):
        ops.pack(torch.ones(2, LARGEST_INT8 + 4), int8=True)


def test_shapes_that_do_not_go(ops: NativeOps) -> None:
    with pytest.raises(InvalidConfig, match="must divide by 4"):
        ops.pack(numbers(32, 66, seed=1, dtype=ops.dtype), int8=True)
    packed = ops.pack(numbers(32, 64, seed=1, dtype=ops.dtype), int8=True)
    with pytest.raises(ValueError, match="an int8 weight has scales, and no other"):
        torch.ops.wellhead.linear(numbers(1, 64, seed=1, dtype=ops.dtype), packed.data, None, 32, None)
    with pytest.raises(ValueError, match="not kept as int8"):
        ops.embed(torch.tensor([0]), packed, 1.0)


def test_nothing_to_do(ops: NativeOps) -> None:
    assert ops.linear(
        torch.empty(0, 64, dtype=ops.dtype), ops.pack(numbers(40, 64, seed=1, dtype=ops.dtype), int8=True)
    ).shape == (0, 40)
