"""Shapes and dtypes of the native operators' results, for tracers that run them without data (``torch.compile``)."""

from __future__ import annotations

import functools

import torch


@functools.cache
def register() -> None:
    """Tell torch, once per process; the operators must be loaded."""
    for fake in (linear, linear_add_, glu, embed, norm, norm_add_, rope_store, attend):
        torch.library.register_fake(f"wellhead::{fake.__name__}", fake)


def linear(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor | None, out: int, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((x.shape[0], out), dtype=torch.float32)


def linear_add_(
    residual: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None
) -> None:
    return None


def glu(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor | None, out: int, silu: bool) -> torch.Tensor:
    return x.new_empty((x.shape[0], out))


def embed(ids: torch.Tensor, w: torch.Tensor, out: int, scale: float) -> torch.Tensor:
    inner = w.shape[1] * (2 if w.shape[-1] == 2 else 1)
    return ids.new_empty((ids.shape[0], inner), dtype=torch.float32)


def norm(x: torch.Tensor, w: torch.Tensor, eps: float, type: torch.dtype) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=type)


def norm_add_(residual: torch.Tensor, x: torch.Tensor, w: torch.Tensor, eps: float) -> None:
    return None


def rope_store(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    pairs: bool,
    layer: int,
    page_size: int,
    heads: int,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor | None,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    return kv.new_empty((qkv.shape[0], heads, kv.shape[4] // page_size))


def attend(
    q: torch.Tensor,
    kv: torch.Tensor,
    pairs: bool,
    layer: int,
    page_size: int,
    starts: torch.Tensor,
    kv_lens: torch.Tensor,
    page_table: torch.Tensor,
    scale: float,
    window: int,
) -> torch.Tensor:
    return q.new_empty((q.shape[0], q.shape[1] * q.shape[2]))
