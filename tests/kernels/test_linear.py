"""Products with packed weights against plain ones, and against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import DTYPES, distance, numbers, same_bits

from wellhead.errors import InvalidConfig
from wellhead.kernels.native import NativeOps
from wellhead.kernels.plain import PlainOps
from wellhead.types import Activation

SIZES = ((2, 1), (16, 31), (64, 32), (66, 33), (128, 100), (576, 1536), (1024, 64))  # in, out
EPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # one rounding, relative


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps(request.param)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 32, 33, 70])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_rounded_once(ops: NativeOps, size: tuple[int, int], rows: int, biased: bool) -> None:
    inner, outer = size
    x, w = numbers(rows, inner, seed=1, dtype=ops.dtype), numbers(outer, inner, seed=2, dtype=ops.dtype)
    bias = numbers(outer, seed=3) if biased else None
    packed = ops.pack(w)
    got = ops.linear(x, packed, bias)
    exact = x.double() @ w.double().t() + (0 if bias is None else bias)
    # Products of 16-bit numbers are exact in float32; what is left is a float32 sum of `inner` terms.
    bound = (x.double().abs() @ w.double().abs().t()).max() * inner**0.5 * 2.0**-23 + 1e-6
    assert got.dtype == torch.float32 and got.shape == exact.shape
    assert (got.double() - exact).abs().max() <= bound
    residual = numbers(rows, outer, seed=4)
    summed = residual.clone()
    ops.linear_add_(summed, x, packed, bias)
    assert same_bits(summed, residual + got)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_worse_than_torch(ops: NativeOps, size: tuple[int, int]) -> None:
    inner, outer = size
    x, w = numbers(40, inner, seed=1, dtype=ops.dtype), numbers(outer, inner, seed=2, dtype=ops.dtype)
    exact = x.double() @ w.double().t()
    torchs = distance(F.linear(x, w), exact)
    # In float32 both differ from the truth by the order of the sum alone, so neither is always the closer one.
    assert distance(ops.linear(x, ops.pack(w)), exact) <= max(torchs * 2, 1e-6 * inner**0.5)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_glu(ops: NativeOps, size: tuple[int, int], activation: Activation) -> None:
    inner, outer = size
    x = numbers(37, inner, seed=1, dtype=ops.dtype)
    gate, up = numbers(outer, inner, seed=2, dtype=ops.dtype), numbers(outer, inner, seed=3, dtype=ops.dtype)
    packed = ops.pack_glu(gate, up)
    got = ops.glu(x, packed, activation)
    g, u = x.double() @ gate.double().t(), x.double() @ up.double().t()
    exact = (F.silu(g) if activation == "silu" else F.gelu(g, approximate="tanh")) * u
    assert got.dtype == ops.dtype and got.shape == exact.shape
    assert distance(got, exact) <= EPS[ops.dtype] * 1.05 + 3e-6 * (ops.dtype == torch.float32)


def test_glu_far_from_zero(ops: NativeOps) -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=ops.dtype)
    gate = torch.tensor([[-200.0, 200.0], [-20.0, 20.0]], dtype=ops.dtype)
    for activation in ("silu", "gelu_tanh"):
        got = ops.glu(x, ops.pack_glu(gate, torch.ones_like(gate)), activation).float()
        torch.testing.assert_close(got, torch.tensor([[0.0, 0.0], [200.0, 20.0]]), atol=1e-6, rtol=EPS[ops.dtype])


def test_nan_stays_in_its_row(ops: NativeOps) -> None:
    x, w = numbers(5, 64, seed=1, dtype=ops.dtype), numbers(48, 64, seed=2, dtype=ops.dtype)
    linear, gated = ops.pack(w), ops.pack_glu(w, w)
    clean = ops.linear(x, linear), ops.glu(x, gated, "silu")
    x[3, 7] = torch.nan
    for before, after in zip(clean, (ops.linear(x, linear), ops.glu(x, gated, "silu")), strict=True):
        assert after[3].isnan().all()
        assert same_bits(before[[0, 1, 2, 4]], after[[0, 1, 2, 4]])


@pytest.mark.parametrize("outs", [(1,), (32,), (33,), (40, 8, 8), (64, 32, 32), (31, 1)], ids=str)
def test_unpack_returns_every_bit(ops: NativeOps, outs: tuple[int, ...]) -> None:
    parts = [numbers(n, 66, seed=n, dtype=ops.dtype) for n in outs]
    packed = ops.pack(*parts)
    assert packed.outs == outs and packed.in_features == 66
    assert same_bits(ops.unpack(packed), torch.cat(parts))
    assert same_bits(ops.unpack(ops.pack_glu(parts[0], parts[0] * 2)), torch.cat([parts[0], parts[0] * 2]))


def test_views_are_packed_too(ops: NativeOps) -> None:
    w = numbers(66, 100, seed=1, dtype=ops.dtype).t()
    assert same_bits(ops.unpack(ops.pack(w)), w.contiguous())
    shifted = numbers(40 * 66 + 1, seed=1, dtype=ops.dtype)[1:].view(40, 66)
    assert same_bits(ops.unpack(ops.pack(shifted)), shifted)
    column = numbers(40, 132, seed=1, dtype=ops.dtype)[:, :66]
    assert same_bits(ops.unpack(ops.pack(column)), column.contiguous())


def test_embed_equals_plain(ops: NativeOps) -> None:
    w = numbers(77, 66, seed=1, dtype=ops.dtype)
    ids = torch.tensor([0, 31, 32, 63, 64, 76, 76, 5])
    plain = PlainOps(ops.dtype)
    for scale in (1.0, 8.124, 0.3):
        assert same_bits(ops.embed(ids, ops.pack(w), scale), plain.embed(ids, plain.pack(w), scale))
    for bad in (-1, 77):
        with pytest.raises(IndexError, match="token id"):
            ops.embed(torch.tensor([3, bad]), ops.pack(w), 1.0)


def test_nothing_to_do(ops: NativeOps) -> None:
    w = ops.pack(numbers(40, 64, seed=1, dtype=ops.dtype))
    x = torch.empty(0, 64, dtype=ops.dtype)
    assert ops.linear(x, w).shape == (0, 40)
    assert ops.embed(torch.empty(0, dtype=torch.int64), w, 1.0).shape == (0, 64)
    assert ops.norm(torch.empty(0, 64), torch.ones(64), 1e-6).shape == (0, 64)


@pytest.mark.parametrize("kind", [NativeOps, PlainOps])
def test_weights_that_do_not_fit_are_refused_by_shape(kind: type[NativeOps] | type[PlainOps]) -> None:
    ops = kind(torch.float32)
    with pytest.raises(InvalidConfig, match=r"\(4, 6\).*\(4, 8\)"):
        ops.pack(torch.ones(4, 6), torch.ones(4, 8))
    with pytest.raises(InvalidConfig, match=r"\(4, 6\).*\(5, 6\)"):
        ops.pack_glu(torch.ones(4, 6), torch.ones(5, 6))
    with pytest.raises(InvalidConfig, match="float64"):
        ops.pack(torch.ones(4, 6, dtype=torch.float64))
    with pytest.raises(InvalidConfig, match=r"\(6,\)"):
        ops.pack(torch.ones(6))


def test_odd_inner_size_is_refused_in_pairs() -> None:
    ops = NativeOps(torch.bfloat16)
    if ops.describe()["products"] == "bfloat16":
        with pytest.raises(InvalidConfig, match=r"\(4, 7\)"):
            ops.pack(torch.ones(4, 7, dtype=torch.bfloat16))


def test_wrong_arguments_are_refused(ops: NativeOps) -> None:
    w = numbers(40, 64, seed=1, dtype=ops.dtype)
    packed = ops.pack(w)
    with pytest.raises(ValueError, match="columns"):
        ops.linear(numbers(3, 62, seed=1, dtype=ops.dtype), packed)
    with pytest.raises(ValueError, match="x must be"):
        ops.linear(numbers(3, 64, seed=1, dtype=torch.float64), packed)
    with pytest.raises(ValueError, match="gated"):
        ops.glu(numbers(3, 64, seed=1, dtype=ops.dtype), packed, "silu")
    with pytest.raises(ValueError, match="bias"):
        ops.linear(numbers(3, 64, seed=1, dtype=ops.dtype), packed, torch.ones(41))
