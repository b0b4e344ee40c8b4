"""``config.json`` -> ``RopeSpec``: the old style (``rope_theta``, ``rope_scaling``) and that of transformers 5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from wellhead.models.fields import Fields
from wellhead.models.spec import RopeKind, RopeSpec

_KINDS: tuple[RopeKind, ...] = get_args(RopeKind)


def flat_rope(fields: Fields, head_dim: int, context: int, default_theta: float = 10_000.0) -> RopeSpec:
    """The one rotary table of a model whose layers all rotate alike.

    Parameters come from ``rope_scaling`` if there is one, else from ``rope_parameters``; ``rope_theta`` from there,
    else from the config itself, else the family's default: the order of transformers.
    """
    params = dict(_mapping(fields, "rope_scaling") or _mapping(fields, "rope_parameters") or {})
    for key, value in params.items():
        if isinstance(value, dict):  # transformers rotates such a model as if nothing were said
            raise fields.refuse(f"rope parameters by layer type ({key}) are not supported for this family; give them unnested")
    params.setdefault("rope_theta", fields.config.get("rope_theta"))
    return rope_spec(fields, params, head_dim, context, default_theta)


def layered_ropes(fields: Fields, head_dim: int, context: int, theta: float, local_theta: float) -> dict[str, RopeSpec]:
    """Gemma 3's two tables, by layer type: scaling from an old ``rope_scaling`` concerns full attention alone."""
    params = _mapping(fields, "rope_parameters") or {}
    full, local = dict(params.get("full_attention") or {}), dict(params.get("sliding_attention") or {})
    if params and not full and not local:
        raise fields.refuse("rope_parameters must be given by layer type (full_attention, sliding_attention)")
    full.update(_mapping(fields, "rope_scaling") or {})
    full.setdefault("rope_theta", fields.config.get("rope_theta"))
    local.setdefault("rope_theta", fields.config.get("rope_local_base_freq"))
    return {
        "full_attention": rope_spec(fields, full, head_dim, context, theta),
        "sliding_attention": rope_spec(fields, local, head_dim, context, local_theta),
    }


def rope_spec(fields: Fields, params: Mapping[str, Any], head_dim: int, context: int, default_theta: float) -> RopeSpec:
    """One table from one dict of parameters. Errors: UnsupportedModel for other kinds and for partial rotation."""
    read = Fields(params, fields.architecture)
    kind = _kind(fields, params)
    partial = params.get("partial_rotary_factor") or fields.config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise fields.refuse(f"partial rotary embedding (partial_rotary_factor={partial}) is not supported")
    if params.get("mrope_section"):
        raise fields.refuse("rope with mrope_section is not supported")
    theta = read.number("rope_theta", default_theta)
    if kind == "default":
        return RopeSpec(theta=theta, dim=head_dim)
    if kind in ("linear", "dynamic"):
        return RopeSpec(theta=theta, dim=head_dim, kind=kind, factor=read.number("factor"))
    key = "original_max_position_embeddings"  # in the config itself it wins over the one among the parameters
    original = fields.integer(key) if fields.config.get(key) is not None else read.integer(key, context)
    if kind == "llama3":
        return _llama3(read, theta, head_dim, original)
    return _yarn(read, theta, head_dim, original, context)


def _kind(fields: Fields, params: Mapping[str, Any]) -> RopeKind:
    named = params.get("rope_type") or params.get("type") or "default"
    for kind in _KINDS:
        if kind == named:
            return kind
    raise fields.refuse(f"rope type {named!r} is not supported; supported: {', '.join(_KINDS)}")


def rope_context(spec: RopeSpec, context: int) -> int:
    """How many positions a model with this table is for: yarn configs often keep the unstretched number."""
    if spec.kind == "yarn":
        return max(context, int(spec.factor * spec.original_context))
    return context


def _llama3(read: Fields, theta: float, head_dim: int, original: int) -> RopeSpec:
    low, high = read.number("low_freq_factor"), read.number("high_freq_factor")
    if high <= low:
        raise read.refuse(f"rope high_freq_factor {high} must be above low_freq_factor {low}")
    return RopeSpec(
        theta=theta,
        dim=head_dim,
        kind="llama3",
        factor=read.number("factor"),
        original_context=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(read: Fields, theta: float, head_dim: int, original: int, context: int) -> RopeSpec:
    factor = read.number("factor", context / original)
    attention = read.optional_number("attention_factor")
    if attention is None:
        attention = _mscale(factor, 1.0)
        if read.config.get("mscale") and read.config.get("mscale_all_dim"):
            attention = _mscale(factor, read.number("mscale")) / _mscale(factor, read.number("mscale_all_dim"))
    return RopeSpec(
        theta=theta,
        dim=head_dim,
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=read.number("beta_fast", 32.0),
        beta_slow=read.number("beta_slow", 1.0),
        truncate=read.flag("truncate", True),
        attention_factor=attention,
    )


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _mapping(fields: Fields, key: str) -> Mapping[str, Any] | None:
    value = fields.config.get(key)
    if value is not None and not isinstance(value, dict):
        raise fields.refuse(f"{key} must be an object")
    return value
