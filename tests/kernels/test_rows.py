"""Norms, rope and the writing of pages against the plain operators."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DTYPES, Heads, distance, numbers, same_bits

from wellhead.errors import InvalidConfig
from wellhead.kernels.native import NativeOps
from wellhead.kernels.ops import Packing
from wellhead.kernels.plain import PlainOps

ULP = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps(request.param)


@pytest.mark.parametrize("size", [1, 15, 16, 63, 64, 65, 576, 1024, 1152])
def test_norm(ops: NativeOps, size: int) -> None:
    x, w, residual = 3 * numbers(5, size, seed=1), numbers(size, seed=2), numbers(5, size, seed=3)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * w
    got = ops.norm(x, w, 1e-5)
    assert got.dtype == ops.dtype
    assert distance(got, exact) <= ULP[ops.dtype]
    summed = residual.clone()
    ops.norm_add_(summed, x, w, 1e-5)
    assert distance(summed, residual.double() + exact) <= 1e-6


@pytest.mark.parametrize("size", [1, 7, 16, 33, 1000, 49_152])
def test_peak(size: int) -> None:
    native, plain = NativeOps(torch.float32), PlainOps(torch.float32)
    rows = numbers(7, size, seed=5)
    rows[1] = -3.0
    rows[2, [0, -1]] = rows[2].max() + 1  # the first of equals counts
    assert native.peak(rows) == plain.peak(rows)
    assert native.peak(rows).at[1:3] == [0, 0] and all(native.peak(rows).finite)
    rows[4, size // 2], rows[5, -1], rows[6, 0] = torch.nan, torch.inf, -torch.inf
    assert native.peak(rows).finite == plain.peak(rows).finite == [True] * 4 + [False] * 3


@pytest.mark.parametrize("dim", [2, 16, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_rope_store_returns_the_same_q(ops: NativeOps, dim: int, rope: bool, qk_norm: bool) -> None:
    case = Heads((9,), heads=6, kv_heads=2, dim=dim, page_size=16, rope=rope, qk_norm=qk_norm)
    outs = []
    for one in (ops, PlainOps(ops.dtype)):
        kv, table = case.new_kv(one)
        packing = case.packing(table, [(0, 0, 9)])
        options = {"cos_sin": case.cos_sin, "q_norm": case.q_norm, "k_norm": case.k_norm}
        outs.append(one.rope_store(case.qkv[0], kv, 1, packing, heads=6, eps=1e-6, **options))
    assert outs[0].shape == (9, 6, dim) and outs[0].dtype == ops.dtype
    assert distance(outs[0], outs[1]) <= ULP[ops.dtype]
    if not rope and not qk_norm:
        assert same_bits(outs[0], outs[1])


def test_rope_store_writes_its_slots_only(ops: NativeOps) -> None:
    case = Heads((19,), heads=4, kv_heads=2, dim=32, page_size=16)
    kv, table = case.new_kv(ops)
    packing = case.packing(table, [(0, 0, 19)])
    ops.rope_store(case.qkv[0], kv, 1, packing, heads=4, cos_sin=case.cos_sin, q_norm=None, k_norm=None, eps=1e-6)
    numbers_written = 19 * 2 * 2 * 32
    assert int((~kv.data.isnan()).sum()) == numbers_written
    assert kv.data[:, 0].isnan().all()


def test_copy_page_copies_all_layers(ops: NativeOps) -> None:
    kv = ops.new_kv(pages=3, page_size=16, layers=2, kv_heads=2, head_dim=16)
    kv.data.copy_(numbers(*kv.data.shape, seed=1, dtype=ops.dtype))
    before = kv.data.clone()
    ops.copy_page(kv, 2, 0)
    assert same_bits(kv.data[0], before[2]) and same_bits(kv.data[1:], before[1:])
    assert kv.bytes_per_page == 2 * 2 * 2 * 16 * 16 * kv.data.element_size()


@pytest.mark.parametrize("page_size", [1, 8, 24, 256])
def test_page_sizes_are_few(ops: NativeOps, page_size: int) -> None:
    with pytest.raises(InvalidConfig, match=str(page_size)):
        ops.new_kv(pages=1, page_size=page_size, layers=1, kv_heads=1, head_dim=16)


def test_slots_and_positions_outside_are_refused(ops: NativeOps) -> None:
    case = Heads((4,), heads=2, kv_heads=1, dim=16, page_size=16)
    kv, table = case.new_kv(ops)
    good = case.packing(table, [(0, 0, 4)])
    for slots, positions in ((-1000, 0), (1000, 0), (0, 4), (0, -1)):
        bad = Packing(good.positions + positions, good.starts, good.kv_lens, good.page_table, good.slots + slots)
        with pytest.raises(IndexError):
            ops.rope_store(case.qkv[0], kv, 1, bad, heads=2, cos_sin=case.cos_sin, q_norm=None, k_norm=None, eps=1e-6)
    with pytest.raises(IndexError, match="layer"):
        ops.rope_store(case.qkv[0], kv, 2, good, heads=2, cos_sin=case.cos_sin, q_norm=None, k_norm=None, eps=1e-6)
