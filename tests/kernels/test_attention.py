"""Attention over pages against float64 and against torch's own, with poison in everything that was never written."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DTYPES, NAN, Heads, rms_distance, same_bits

from wellhead.kernels.native import NativeOps
from wellhead.kernels.ops import Packing
from wellhead.kernels.plain import PlainOps

LENS = (70, 1, 33, 129, 64)


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps(request.param)


def assert_true(ops: NativeOps, case: Heads, steps: list[list[tuple[int, int, int]]] | None = None) -> None:
    """As close to float64 as torch's attention in the same dtype is, within a tenth.

    In float32 within a half: there the order of the sums is all that differs, and it is worth as much either way.
    """
    exact = torch.cat(case.truth(ops.dtype))
    got = torch.cat(case.run(ops, steps or case.whole()))
    torchs = torch.cat(case.run(PlainOps(ops.dtype), case.whole()))
    # Where torch is exact by luck (rows of one key), the last bit of the dtype is still ours to lose.
    floor = {torch.float32: 3e-7, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}[ops.dtype]
    slack = 1.5 if ops.dtype == torch.float32 else 1.1
    assert rms_distance(got, exact) <= max(slack * rms_distance(torchs, exact), floor)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("page_size", [16, 32, 64, 128])
def test_groups_and_pages(ops: NativeOps, group: int, page_size: int) -> None:
    assert_true(ops, Heads(LENS, heads=2 * group, kv_heads=2, dim=32, page_size=page_size))


@pytest.mark.parametrize("dim", [2, 16, 32, 64, 72, 80, 96, 128, 256])
def test_head_dims(ops: NativeOps, dim: int) -> None:
    assert_true(ops, Heads(LENS, heads=4, kv_heads=2, dim=dim))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize("page_size", [16, 64])
def test_windows(ops: NativeOps, window: int, page_size: int) -> None:
    lens = (window - 1 or 3, window, window + 1, 2 * window + 5, 70)
    case = Heads(lens, heads=4, kv_heads=2, dim=32, page_size=page_size, window=window)
    if window < 1000:
        assert_true(ops, case)
        assert_true(ops, case, case.chunked(7))
    else:
        wide, none = (Heads((70, 33), heads=4, kv_heads=2, dim=32, window=w) for w in (window, None))
        assert all(same_bits(a, b) for a, b in zip(wide.run(ops, wide.whole()), none.run(ops, none.whole()), strict=True))


@pytest.mark.parametrize("poison", [NAN, float("inf"), 6e4])
@pytest.mark.parametrize("window", [None, 20])
def test_slots_never_written_do_not_show(ops: NativeOps, poison: float, window: int | None) -> None:
    case = Heads(LENS, heads=4, kv_heads=2, dim=32, page_size=32, window=window)
    clean, poisoned = case.run(ops, case.chunked(9), poison=0.0), case.run(ops, case.chunked(9), poison=poison)
    assert all(same_bits(a, b) and bool(b.isfinite().all()) for a, b in zip(clean, poisoned, strict=True))


def test_large_scores_do_not_overflow(ops: NativeOps) -> None:
    case = Heads((70,), heads=2, kv_heads=1, dim=64, qk_norm=False)
    case.qkv[0][:, : 3 * 64] *= 30
    assert_true(ops, case)


def test_nan_shows_in_its_sequence_and_no_other(ops: NativeOps) -> None:
    """A NaN reaches every row after it, may reach rows of its own page before it (0 * NaN is NaN), and nothing else."""
    case = Heads((90, 40), heads=4, kv_heads=2, dim=32)
    clean = case.run(ops, case.whole())
    case.qkv[0][70] = NAN
    rows = case.run(ops, case.whole())
    assert rows[0][70:].isnan().all()
    assert same_bits(rows[0][:64], clean[0][:64]) and same_bits(rows[1], clean[1])


def test_a_sequence_without_tokens_in_the_step(ops: NativeOps) -> None:
    case = Heads((70, 40), heads=4, kv_heads=2, dim=32)
    rows = case.run(ops, [[(0, 0, 70), (1, 0, 0)], [(1, 0, 40), (0, 70, 0)]])
    assert all(same_bits(a, b) for a, b in zip(rows, case.run(ops, case.whole()), strict=True))


def test_pages_outside_are_refused(ops: NativeOps) -> None:
    case = Heads((40,), heads=2, kv_heads=1, dim=16, page_size=16)
    kv, table = case.new_kv(ops)
    good = case.packing(table, [(0, 0, 40)])
    q = torch.zeros(40, 2, 16, dtype=ops.dtype)
    tables = (torch.full_like(table, -1), torch.full_like(table, 99), table[:, :2].contiguous())
    for bad in tables:
        with pytest.raises(IndexError, match="sequence 0"):
            ops.attend(q, kv, 0, Packing(good.positions, good.starts, good.kv_lens, bad, good.slots), scale=1.0, window=None)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_single_tokens_all_at_once_by_masks(dtype: torch.dtype, window: int | None) -> None:
    """The form that stands in CUDA graphs, on the CPU: as one sequence after the other, with poison in unwritten slots."""
    plain, case = PlainOps(dtype), Heads(LENS, heads=4, kv_heads=2, dim=32, window=window)
    kv, table = case.new_kv(plain)
    steps = [*case.whole(), [(s, n - 1, 1) for s, n in enumerate(LENS)]]
    for step in steps:
        packing = case.packing(table, step)
        qkv = torch.cat([case.qkv[s][first : first + n] for s, first, n in step])
        q = plain.rope_store(qkv, kv, 1, packing, heads=4, cos_sin=case.cos_sin, q_norm=case.q_norm, k_norm=case.k_norm, eps=1e-6)
    options = {"scale": case.scale, "window": window}
    got, want = (attend(q, kv, 1, packing, **options) for attend in (plain.attend_ones, plain.attend))
    assert got.isfinite().all()
    unit = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}[dtype]
    torch.testing.assert_close(got, want, rtol=2 * unit, atol=unit)
