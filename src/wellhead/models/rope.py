"""Rotary tables: cosines and sines by absolute position, computed once."""

from __future__ import annotations

import math

import torch

from wellhead.models.spec import RopeSpec


def rope_table(spec: RopeSpec, positions: int) -> torch.Tensor:
    """float32 ``[positions, dim]``: row ``p`` holds ``cos(p * f)`` in its first half and ``sin(p * f)`` in its second.

    ``f`` are the ``dim / 2`` frequencies, in the rotate-half order of Hugging Face: channel ``i`` turns with channel
    ``i + dim / 2``. Yarn's attention factor is folded in.
    """
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse_frequencies(spec)[None, :]
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * spec.attention_factor


def inverse_frequencies(spec: RopeSpec) -> torch.Tensor:
    """float32 ``[dim / 2]``, as transformers computes them.

    ``dynamic`` is the same as ``default``: NTK by length changes every frequency once a text is longer than the
    model's ``max_position_embeddings``, rows already computed included, so a row would depend on later tokens.
    Within that length it changes nothing, and a longer text is refused (``ModelSpec.context_length``).
    """
    plain = 1.0 / (spec.theta ** (torch.arange(0, spec.dim, 2, dtype=torch.float32) / spec.dim))
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "llama3":
        return _llama3(spec, plain)
    if spec.kind == "yarn":
        return _yarn(spec)
    return plain


def _llama3(spec: RopeSpec, plain: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    wavelength = 2 * math.pi / plain
    longest, shortest = spec.original_context / spec.low_freq_factor, spec.original_context / spec.high_freq_factor
    keep = (spec.original_context / wavelength - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blended = (1 - keep) * plain / spec.factor + keep * plain
    stretched = torch.where(wavelength > longest, plain / spec.factor, plain)
    between = (wavelength >= shortest) & (wavelength <= longest)
    return torch.where(between, blended, stretched)


def _yarn(spec: RopeSpec) -> torch.Tensor:
    """Channels that turn often within the original context are kept, those that hardly turn stretched, a ramp between."""
    powers = spec.theta ** (torch.arange(0, spec.dim, 2, dtype=torch.float32) / spec.dim)
    low, high = (_channel_turning(spec, turns) for turns in (spec.beta_fast, spec.beta_slow))
    if spec.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, spec.dim - 1.0)
    if low == high:
        high += 0.001  # a step, not a division by zero
    ramp = ((torch.arange(spec.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return (1.0 / (spec.factor * powers)) * (1 - kept) + (1.0 / powers) * kept


def _channel_turning(spec: RopeSpec, turns: float) -> float:
    """The (fractional) channel that makes this many turns within the original context."""
    return spec.dim * math.log(spec.original_context / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))
