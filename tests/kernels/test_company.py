"""A row's bits do not depend on its company: row counts, chunks, neighbours, threads, instruction sets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, Heads, numbers, same_bits

from wellhead.kernels.native import NativeOps

INNER = "WELLHEAD_TEST_INNER"  # set in the processes that this file starts
COUNTS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 34, 48, 63, 64, 65, 69, 70)


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps(request.param)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [(64, 48), (576, 100), (1024, 96), (3072, 64)], ids=str)
def test_products(ops: NativeOps, size: tuple[int, int], threads: int) -> None:
    inner, outer = size
    x, w = numbers(70, inner, seed=1, dtype=ops.dtype), numbers(outer, inner, seed=2, dtype=ops.dtype)
    bias, residual = numbers(outer, seed=3), numbers(70, outer, seed=4)
    linear, gated = ops.pack(w), ops.pack_glu(w, -w)

    def rows(first: int, last: int) -> list[torch.Tensor]:
        part, summed = x[first:last].contiguous(), residual[first:last].clone()
        ops.linear_add_(summed, part, linear, bias)
        return [ops.linear(part, linear, bias), summed, ops.glu(part, gated, "silu"), ops.glu(part, gated, "gelu_tanh")]

    torch.set_num_threads(1)
    alone = [torch.cat(outs) for outs in zip(*(rows(i, i + 1) for i in range(70)), strict=True)]
    torch.set_num_threads(threads)
    for count in COUNTS:
        for first in {0, 70 - count}:
            for got, one in zip(rows(first, first + count), alone, strict=True):
                assert same_bits(got, one[first : first + count]), f"rows {first} to {first + count} differ from themselves alone"


def test_rows(ops: NativeOps, threads: int) -> None:
    x, w, residual = numbers(70, 200, seed=1), numbers(200, seed=2), numbers(70, 200, seed=3)
    whole, summed = ops.norm(x, w, 1e-6), residual.clone()
    ops.norm_add_(summed, x, w, 1e-6)
    for i in range(70):
        one = residual[i : i + 1].clone()
        ops.norm_add_(one, x[i : i + 1], w, 1e-6)
        assert same_bits(ops.norm(x[i : i + 1], w, 1e-6)[0], whole[i]) and same_bits(one[0], summed[i])


@pytest.mark.parametrize("group", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("window", [None, 17, 64])
def test_chunks_and_neighbours(ops: NativeOps, group: int, window: int | None, threads: int) -> None:
    case = Heads((130, 7, 64), heads=2 * group, kv_heads=2, dim=64, window=window)
    whole = case.run(ops, case.whole())
    for size in (1, 7, 32, 50, 64):
        assert all(same_bits(a, b) for a, b in zip(case.run(ops, case.chunked(size)), whole, strict=True)), f"chunks of {size}"
    alone = case.run(ops, [[(s, 0, n)] for s, n in enumerate(case.lens)])
    assert all(same_bits(a, b) for a, b in zip(alone, whole, strict=True))


@pytest.mark.parametrize(("page_size", "dim"), [(16, 80), (32, 96), (64, 128), (128, 256)])
def test_page_sizes_and_dims(ops: NativeOps, page_size: int, dim: int) -> None:
    case = Heads((150, 20), heads=4, kv_heads=2, dim=dim, page_size=page_size)
    whole = case.run(ops, case.whole())
    for size in (1, 33):
        assert all(same_bits(a, b) for a, b in zip(case.run(ops, case.chunked(size)), whole, strict=True)), f"chunks of {size}"


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Heads, list[list[tuple[int, int, int]]]]:
    """Some sequences, and steps that compute them in chunks of any size, in any company and order."""
    lens = tuple(draw(st.lists(st.integers(1, 90), min_size=1, max_size=4)))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    window = draw(st.none() | st.integers(1, 100))
    page_size = draw(st.sampled_from([16, 32, 64]))
    case = Heads(lens, heads=kv_heads * group, kv_heads=kv_heads, dim=16, page_size=page_size, window=window, qk_norm=False)
    done, steps = [0] * len(lens), []
    while any(d < n for d, n in zip(done, lens, strict=True)):
        members = draw(st.permutations([s for s, n in enumerate(lens) if done[s] < n]))
        step = []
        for s in members[: draw(st.integers(1, len(members)))]:
            count = draw(st.integers(1, lens[s] - done[s]))
            step.append((s, done[s], count))
            done[s] += count
        steps.append(step)
    return case, steps


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_any_schedule(ops: NativeOps, drawn: tuple[Heads, list[list[tuple[int, int, int]]]]) -> None:
    case, steps = drawn
    assert all(same_bits(a, b) for a, b in zip(case.run(ops, steps), case.run(ops, case.whole()), strict=True))


@pytest.mark.slow
@pytest.mark.skipif(INNER in os.environ, reason="this is the inner run")
@pytest.mark.parametrize(
    "limits",
    [{"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}],
    ids=["avx512", "avx2"],
)
def test_other_instruction_sets(limits: dict[str, str]) -> None:
    """The same properties where oneDNN (and with it our vectors) is held to older instructions, as on an older processor."""
    names = [f"{__file__}::{name}" for name in ("test_products", "test_page_sizes_and_dims", "test_any_schedule")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names],
        env={**os.environ, **limits, INNER: "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
