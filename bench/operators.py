"""Speed of the kernels beside torch's own operators, in one run: medians of alternating calls.

One row is bound by reading the weights (GB/s), more rows by arithmetic (GFLOP/s). Weights are used in turn from a pool larger
than the caches, as a model of many layers does.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import common
import torch
import torch.nn.functional as F

from wellhead.kernels import select_ops
from wellhead.kernels.ops import KVPages, Ops, Packing

SHAPES = ((1024, 1024), (1024, 3072), (3072, 1024), (576, 1536))
ROWS = (1, 8, 32, 128, 512)
CACHED = 256 << 20


def medians(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Seconds per call of each, measured turn by turn for about ``seconds`` in all."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken) for taken in times]


def in_turn(call: Callable[..., object], x: torch.Tensor, pool: Sequence[object]) -> Callable[[], object]:
    """``call`` with the next weight of the pool each time."""
    weights = itertools.cycle(pool)
    return lambda: call(x, next(weights))


def linear_table(ops: Ops, shapes: Sequence[tuple[int, int]], rows: Sequence[int], seconds: float) -> None:
    """One line per shape and row count: this engine's linear and glu, and torch's linear."""
    print(f"{'in x out':>14} {'rows':>5} {'unit':>8} {'linear':>8} {'glu':>8} {'F.linear':>9}")
    for inner, outer in shapes:
        size = inner * outer * torch.finfo(ops.dtype).bits // 8
        count = max(1, min(32, CACHED // size))
        plain = [torch.randn(outer, inner).to(ops.dtype) for _ in range(count)]
        packed = [ops.pack(w) for w in plain]
        gated = [ops.pack_glu(*w.chunk(2)) for w in plain] if outer < 10000 else []
        for n in rows if outer < 10000 else rows[:3]:
            x = torch.randn(n, inner).to(ops.dtype)
            calls = [in_turn(ops.linear, x, packed), in_turn(F.linear, x, plain)]
            if gated:
                calls.append(in_turn(partial(ops.glu, activation="silu"), x, gated))
            taken = medians(calls, seconds)
            work, unit = (size, "GB/s") if n == 1 else (2 * n * inner * outer, "GFLOP/s")
            own, torchs, glu = [work / t / 1e9 for t in [*taken, float("inf")][:3]]
            print(f"{inner:>7}x{outer:<6} {n:>5} {unit:>8} {own:8.1f} {glu:8.1f} {torchs:9.1f}", flush=True)


def attention_case(
    ops: Ops, lens: Sequence[int], computed: Sequence[int], shape: tuple[int, int, int]
) -> tuple[KVPages, Packing, torch.Tensor]:
    """Pages filled with numbers, and queries for the last ``computed`` tokens of each sequence."""
    heads, kv_heads, dim = shape
    page = 64
    each = [-(-n // page) for n in lens]
    kv = ops.new_kv(pages=sum(each), page_size=page, layers=1, kv_heads=kv_heads, head_dim=dim)
    kv.data.normal_()
    table = torch.full((len(lens), max(each)), -1, dtype=torch.int32)
    shuffled = torch.tensor_split(torch.randperm(sum(each)).int(), list(itertools.accumulate(each))[:-1])
    for row, ids in zip(table, shuffled, strict=True):
        row[: len(ids)] = ids
    positions = torch.cat([torch.arange(n - c, n) for n, c in zip(lens, computed, strict=True)])
    starts = torch.tensor([0, *itertools.accumulate(computed)], dtype=torch.int32)
    packing = Packing(positions, starts, torch.tensor(lens, dtype=torch.int32), table, torch.zeros_like(positions))
    return kv, packing, torch.randn(sum(computed), heads, dim).to(ops.dtype)


def attention_table(ops: Ops, shape: tuple[int, int, int], seconds: float) -> None:
    """Prefill, chunk and decode: this engine's paged attention, and torch's over contiguous keys, one sequence at a time."""
    heads, kv_heads, dim = shape
    cases = {
        "prefill 512": ([512], [512]),
        "prefill 2048": ([2048], [2048]),
        "prefill 8 x 128": ([128] * 8, [128] * 8),
        "chunk 128 at 1024": ([1152], [128]),
        "decode 16 x 1024": ([1024] * 16, [1] * 16),
    }
    print(f"{'attention':>18} {'GFLOP/s':>8} {'SDPA':>8} {'GB/s':>7}")
    for name, (lens, computed) in cases.items():
        kv, packing, q = attention_case(ops, lens, computed, shape)
        dense = [
            (torch.randn(1, heads, c, dim).to(ops.dtype), *torch.randn(2, 1, kv_heads, n, dim).to(ops.dtype))
            for n, c in zip(lens, computed, strict=True)
        ]
        ours = partial(ops.attend, q, kv, 0, packing, scale=dim**-0.5, window=None)
        own, torchs = medians([ours, partial(_sdpa_each, dense)], seconds)
        pairs = sum(c * (n - c) + c * (c + 1) // 2 for n, c in zip(lens, computed, strict=True))
        work = 4 * pairs * heads * dim / 1e9
        read = sum(lens) * 2 * kv_heads * dim * q.element_size() / 1e9
        print(f"{name:>18} {work / own:8.1f} {work / torchs:8.1f} {read / own:7.1f}", flush=True)


def _sdpa_each(dense: list[tuple[torch.Tensor, ...]]) -> None:
    for one in dense:
        _sdpa(*one)


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    tokens, total = q.shape[2], k.shape[2]
    causal = tokens == total
    mask = None if causal or tokens == 1 else torch.arange(total) <= torch.arange(total - tokens, total)[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)


def rows_table(ops: Ops, shape: tuple[int, int, int], seconds: float) -> None:
    """Microseconds of the small operators, Python's share included, at one row and at 512."""
    heads, kv_heads, dim = shape
    hidden, weight = 1024, torch.ones(1024)
    print(f"{'microseconds':>18} {'1 row':>8} {'512 rows':>9}")
    lines: dict[str, list[float]] = {"norm": [], "embed": [], "rope_store": []}
    embedding = ops.pack(torch.randn(32000, hidden).to(ops.dtype))
    table, norm = torch.randn(4096, dim), torch.ones(dim)
    for n in (1, 512):
        kv, packing, _ = attention_case(ops, [512], [n], shape)
        packing = Packing(packing.positions, packing.starts, packing.kv_lens, packing.page_table, torch.arange(n))
        x, ids, qkv = torch.randn(n, hidden), torch.randint(32000, (n,)), torch.randn(n, (heads + 2 * kv_heads) * dim)
        calls = [
            partial(ops.norm, x, weight, 1e-6),
            partial(ops.embed, ids, embedding, 1.0),
            partial(ops.rope_store, qkv, kv, 0, packing, heads=heads, cos_sin=table, q_norm=norm, k_norm=norm, eps=1e-6),
        ]
        for line, taken in zip(lines.values(), medians(calls, seconds), strict=True):
            line.append(taken * 1e6)
    for name, (one, many) in lines.items():
        print(f"{name:>18} {one:8.1f} {many:9.1f}")


def main() -> int:
    """Print the tables for one dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default=common.fast_dtype(), choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--seconds", type=float, default=1.0, help="per line")
    parser.add_argument("--only", default="linear,attention,rows", help="tables, separated by commas")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--plain", action="store_true", help="measure the plain operators instead")
    args = parser.parse_args()
    ops = select_ops(getattr(torch, args.dtype), torch.device("cpu"), native=not args.plain)
    print(ops.describe(), f"threads {torch.get_num_threads()}", f"load {os.getloadavg()[0]:.2f}")
    only = args.only.split(",")
    heads = (16, 8, 128)
    with torch.inference_mode():
        if "linear" in only:
            linear_table(ops, (*SHAPES, (1024, 151936)), [int(n) for n in args.rows.split(",")], args.seconds)
        if "attention" in only:
            attention_table(ops, heads, args.seconds)
        if "rows" in only:
            rows_table(ops, heads, args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
