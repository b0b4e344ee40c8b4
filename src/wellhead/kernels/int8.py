"""Products of 8-bit integers: each output channel of a weight and each row of its input is rounded to 255 steps.

A step is a 127th of the largest magnitude of the channel or row, and zero stays zero (symmetric, "W8A8", dynamic per row).
Sums of the integers are exact, so a result depends neither on the order of the sum nor on the company of the row.
"""

from __future__ import annotations

import torch

STEPS = 127


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``[n, in]`` -> int8 ``[n, in]`` and float32 scales ``[n]``: ``x`` is about ``int8 * scale``.

    The scale of a row that is not finite is NaN, so that its products are too; that of one below 1e-36 or so is zero.
    """
    x = x.float()
    most = x.abs().amax(dim=1)
    scales = most / STEPS
    inverse = scales.reciprocal()
    usable = inverse.isfinite() & most.isfinite()
    steps = (x * inverse.where(usable, 0.0)[:, None]).where(usable[:, None], 0.0).round()
    return steps.to(torch.int8), scales.where(usable, torch.where(most.isfinite(), 0.0, torch.nan))


def widened(steps: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Float32 ``[n, in]``: what ``rounded`` stands for."""
    return steps.float() * scales[:, None]


def product(x: torch.Tensor, steps: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``x [T, in]`` times a rounded weight ``[out, in]`` -> float32 ``[T, out]``.

    Exact sums, by way of float64, which is slow: this is the reference of the native kernel, which gives the same bits.
    """
    rows, row_scales = rounded(x)
    return (rows.double() @ steps.double().t()).float() * (row_scales[:, None] * scales)
