"""What the kernel tests share: packings of sequences into pages, a small attention model of them, and a plain reference."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from wellhead.kernels.ops import KVPages, Ops, Packing

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAN = float("nan")


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers, the same for the same seed and shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shapes, dtypes and bits (so NaN equals itself, and 0 is not -0)."""
    integer = torch.int32 if a.element_size() == 4 else torch.int16
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


def distance(a: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest error over the largest true value."""
    return float((a.double() - truth.double()).abs().max() / truth.double().abs().max())


def rms_distance(a: torch.Tensor, truth: torch.Tensor) -> float:
    """Root of the mean squared error over that of the truth."""
    return float((a.double() - truth.double()).norm() / truth.double().norm())


def parts(rows: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """``rows`` cut into runs of these sizes."""
    return list(torch.tensor_split(rows, list(itertools.accumulate(sizes))[:-1]))


@dataclass
class Heads:
    """Some sequences' raw qkv rows, and the options of one attention layer."""

    lens: tuple[int, ...]
    heads: int
    kv_heads: int
    dim: int
    page_size: int = 64
    window: int | None = None
    rope: bool = True
    qk_norm: bool = True
    layers: int = 2
    seed: int = 0
    qkv: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        width = (self.heads + 2 * self.kv_heads) * self.dim
        self.qkv = [numbers(n, width, seed=self.seed + 100 * i + n) for i, n in enumerate(self.lens)]
        longest = max(self.lens)
        angle = torch.arange(longest)[:, None] / 10000 ** (torch.arange(self.dim // 2) / (self.dim // 2))
        self.cos_sin = torch.cat([angle.cos(), angle.sin()], 1).float() if self.rope else None
        self.q_norm = 1 + 0.1 * numbers(self.dim, seed=self.seed + 1) if self.qk_norm else None
        self.k_norm = 1 + 0.1 * numbers(self.dim, seed=self.seed + 2) if self.qk_norm else None
        self.scale = self.dim**-0.5

    def new_kv(self, ops: Ops, poison: float = NAN) -> tuple[KVPages, torch.Tensor]:
        """Poisoned pages and a page table that scatters the sequences over them."""
        each = [-(-n // self.page_size) for n in self.lens]
        kv = ops.new_kv(
            pages=sum(each) + 1, page_size=self.page_size, layers=self.layers, kv_heads=self.kv_heads, head_dim=self.dim
        )
        kv.data.fill_(poison)
        order = torch.randperm(sum(each), generator=torch.Generator().manual_seed(self.seed + 3)).int()
        table = torch.full((len(self.lens), max(each)), -1, dtype=torch.int32)
        for row, ids in zip(table, parts(order, each), strict=True):
            row[: len(ids)] = ids
        return kv, table

    def packing(self, table: torch.Tensor, step: Sequence[tuple[int, int, int]]) -> Packing:
        """``step``: (sequence, first position, tokens), in the order of the packed rows."""
        positions = torch.cat([torch.arange(first, first + n) for _, first, n in step])
        pages = torch.cat([table[s, torch.arange(first, first + n) // self.page_size] for s, first, n in step]).long()
        return Packing(
            positions=positions,
            starts=torch.tensor([0, *itertools.accumulate(n for _, _, n in step)], dtype=torch.int32),
            kv_lens=torch.tensor([first + n for _, first, n in step], dtype=torch.int32),
            page_table=table[[s for s, _, _ in step]].contiguous(),
            slots=pages * self.page_size + positions % self.page_size,
        )

    def run(self, ops: Ops, steps: Sequence[Sequence[tuple[int, int, int]]], poison: float = NAN) -> list[torch.Tensor]:
        """Run the steps over fresh pages -> for each sequence the rows of attention computed, in order of position."""
        kv, table = self.new_kv(ops, poison)
        rows: list[list[torch.Tensor]] = [[] for _ in self.lens]
        for step in steps:
            packing = self.packing(table, step)
            qkv = torch.cat([self.qkv[s][first : first + n] for s, first, n in step])
            q = ops.rope_store(
                qkv, kv, 1, packing, heads=self.heads, cos_sin=self.cos_sin, q_norm=self.q_norm, k_norm=self.k_norm, eps=1e-6
            )
            out = ops.attend(q, kv, 1, packing, scale=self.scale, window=self.window)
            for (s, _, _), own in zip(step, parts(out, [n for _, _, n in step]), strict=True):
                rows[s].append(own)
        return [torch.cat(own) for own in rows]

    def whole(self) -> list[list[tuple[int, int, int]]]:
        """All sequences in one step."""
        return [[(s, 0, n) for s, n in enumerate(self.lens)]]

    def chunked(self, size: int) -> list[list[tuple[int, int, int]]]:
        """All sequences side by side, ``size`` tokens a step."""
        steps = []
        for first in range(0, max(self.lens), size):
            steps.append([(s, first, min(size, n - first)) for s, n in enumerate(self.lens) if first < n])
        return steps

    def truth(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Float64 attention over q, k, v rounded to ``dtype`` after norm and rope, as any implementation must round them."""
        return [self._truth(qkv.double(), dtype) for qkv in self.qkv]

    def _truth(self, qkv: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        n = qkv.shape[0]
        q, k, v = torch.tensor_split(qkv.view(n, -1, self.dim), (self.heads, self.heads + self.kv_heads), dim=1)
        q, k = self._turn(q, self.q_norm), self._turn(k, self.k_norm)
        q, k, v = (x.to(dtype).double().transpose(0, 1) for x in (q, k, v))
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        query, key = torch.arange(n)[:, None], torch.arange(n)
        seen = (key <= query) & (key > query - (self.window or n))
        weights = torch.softmax((q @ k.transpose(1, 2) * self.scale).masked_fill(~seen, -torch.inf), -1)
        return torch.flatten((weights @ v).transpose(0, 1), 1)

    def _turn(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        if weight is not None:
            x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
        if self.cos_sin is None:
            return x
        cos, sin = self.cos_sin[: x.shape[0], None].double().chunk(2, -1)
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
