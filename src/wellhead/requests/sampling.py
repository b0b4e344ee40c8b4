"""Sampling parameters of a payload -> ``SamplingParams``, with SGLang's names, ranges and defaults."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from wellhead.errors import InvalidRequest, TokenOutOfRange, UnsupportedField
from wellhead.requests.fields import BOOL, STOP, STOPS, Schema, Way, at
from wellhead.requests.limits import Limits
from wellhead.requests.words import word
from wellhead.types import SamplingParams

#: Not served yet; refused by name unless they ask for nothing.
NOT_SERVED = at("sampling_params", Way.IDLE)
KNOWN = at("sampling_params", Way.SAMPLING)

MAX_STOPS: int = STOPS["anyOf"][1]["maxItems"]
MAX_STOP_CHARS: int = STOP["maxLength"]
MAX_DIGITS = 20  # of a token id as text: Python refuses to read thousands


def _range(schema: Schema) -> tuple[float, float, bool]:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    return float(low), float(schema.get("maximum", math.inf)), "minimum" in schema


#: name -> (lowest, highest, may it equal the lowest). From SGLang's checks.
RANGES = {name: _range(f.schema) for name, f in KNOWN.items() if f.schema.get("type") == "number"}
#: name -> (lowest, highest or ``None``)
COUNTS: dict[str, tuple[int, int | None]] = {
    name: (KNOWN[name].schema["minimum"], KNOWN[name].schema.get("maximum")) for name in ("max_new_tokens", "min_new_tokens", "n")
}
FLAGS = tuple(name for name, f in KNOWN.items() if f.schema is BOOL)


def normalize_sampling(value: Any, limits: Limits) -> SamplingParams:
    """A mapping (or ``SamplingParams``, checked all the same) -> validated parameters. ``None`` means the default.

    Raises ``InvalidRequest`` naming ``sampling_params.<field>``.
    """
    if isinstance(value, SamplingParams):
        value = {name: getattr(value, name) for name in SamplingParams.__slots__}
        value["logit_bias"] = dict(value["logit_bias"])
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{word('sampling_params')} must be an object, not {type(value).__name__}", param="sampling_params")
    given = {k: v for k, v in value.items() if v is not None}
    for name in given:
        param = f"sampling_params.{name}"
        if name in NOT_SERVED:
            raise UnsupportedField(f"{word(param)} is not served by this engine", param=param)
        if name not in KNOWN:
            raise InvalidRequest(f"unknown field {word(param)}", param=param)
    fields: dict[str, Any] = {}
    for name, v in given.items():
        fields[name] = _one(name, v, limits)
    params = SamplingParams(**fields)
    _check_together(params, limits)
    return params


def _one(name: str, v: Any, limits: Limits) -> Any:
    if name in RANGES:
        return _number(name, v)
    if name in COUNTS:
        return _count(name, v, *COUNTS[name])
    if name in FLAGS:
        if not isinstance(v, bool):
            raise _bad(name, "true or false", v)
        return v
    if name == "top_k":
        if not _is_int(v) or (v < 1 and v != -1):
            raise _bad(name, "-1 (all) or at least 1", v)
        return v
    if name in ("stop", "stop_regex"):
        return _strings(name, v)
    if name == "stop_token_ids":
        return _token_ids(name, v, limits)
    if name == "logit_bias":
        return _logit_bias(v, limits)
    if not _is_int(v) or not 0 <= v < 2**63:
        raise _bad(name, "a whole number of at least 0 and below 2**63", v)
    return v


def _number(name: str, v: Any) -> float:
    low, high, closed = RANGES[name]
    if not is_finite_number(v):
        raise _bad(name, "a finite number", v)
    if not (low <= v if closed else low < v) or v > high:
        raise _bad(
            name, f"{'at least' if closed else 'above'} {low:g}" + (f" and at most {high:g}" if high < math.inf else ""), v
        )
    return float(v)


def _count(name: str, v: Any, low: int, high: int | None) -> int:
    if not _is_int(v) or v < low:
        raise _bad(name, f"a whole number of at least {low}", v)
    if high is not None and v > high:
        raise _bad(name, f"at most {high}", v)
    return int(v)


def _strings(name: str, v: Any) -> tuple[str, ...]:
    stops = (v,) if isinstance(v, str) else v
    if not isinstance(stops, (list, tuple)) or any(not isinstance(s, str) for s in stops):
        raise _bad(name, "a string or a list of strings", v)
    if len(stops) > MAX_STOPS or any(len(s) > MAX_STOP_CHARS for s in stops):
        raise InvalidRequest(
            f"{word(f'sampling_params.{name}')}: at most {MAX_STOPS} entries of at most {MAX_STOP_CHARS} characters",
            param=f"sampling_params.{name}",
        )
    if any(not s for s in stops):
        raise _bad(name, "made of non-empty strings", v)
    return tuple(stops)


def _token_ids(name: str, v: Any, limits: Limits) -> tuple[int, ...]:
    if not isinstance(v, (list, tuple)) or any(not _is_int(t) for t in v):
        raise _bad(name, "a list of token ids", v)
    for t in v:
        if not 0 <= t < limits.vocab_size:
            raise _outside(name, t, limits)
    return tuple(v)


def _logit_bias(v: Any, limits: Limits) -> tuple[tuple[int, float], ...]:
    if not isinstance(v, Mapping):
        raise _bad("logit_bias", "an object from token ids to numbers", v)
    pairs = []
    for key, bias in v.items():
        if not (_is_int(key) or (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < MAX_DIGITS)):
            raise _bad("logit_bias", "an object from token ids to numbers", v)
        token = int(key)
        if not 0 <= token < limits.vocab_size:
            raise _outside("logit_bias", token, limits)
        if not is_finite_number(bias):
            raise _bad("logit_bias", "made of finite numbers", v)
        pairs.append((token, float(bias)))
    return tuple(pairs)


def _check_together(params: SamplingParams, limits: Limits) -> None:
    if params.min_new_tokens > params.max_new_tokens:
        raise InvalidRequest(
            f"{word('min_new_tokens')} {params.min_new_tokens} exceeds {word('max_new_tokens')} {params.max_new_tokens}",
            param="sampling_params.min_new_tokens",
        )
    if params.max_new_tokens == 0 and params.n > 1:
        raise InvalidRequest(f"n > 1 samples need {word('max_new_tokens')} of at least 1", param="sampling_params.n")
    if (params.stop or params.stop_regex) and not limits.has_tokenizer:
        raise InvalidRequest("stop strings need a tokenizer; this engine has none", param="sampling_params.stop")


def is_finite_number(v: Any) -> bool:
    """An int or a float that a float can hold. (``math.isfinite`` raises ``OverflowError`` for larger ints.)"""
    return isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) <= sys.float_info.max


def _is_int(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool)


def _bad(name: str, wanted: str, v: Any) -> InvalidRequest:
    param = f"sampling_params.{name}"
    return InvalidRequest(f"{word(param)} must be {wanted}, not {v!r:.80}", param=param)


def _outside(name: str, token: int, limits: Limits) -> TokenOutOfRange:
    param = f"sampling_params.{name}"
    return TokenOutOfRange(f"{word(param)}: {token} is outside [0, {limits.vocab_size})", param=param)
