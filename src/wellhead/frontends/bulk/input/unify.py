"""One type for a column whose files do not agree, if there is one that holds the values of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types as is_a

#: Bits of an integer that every float of this width holds.
_EXACT = {16: 11, 32: 24, 64: 53}
_UNITS = ("s", "ms", "us", "ns")
_DECIMAL128, _DECIMAL256 = 38, 76


@dataclass(frozen=True, slots=True)
class Union:
    """``certain``: every value of both types is a value of this one. Else that hangs on the values, which must be looked at."""

    type: Any
    certain: bool = True


def plain(found: Any) -> Any:
    """A column's type as it is written: extensions by what they store, dictionaries spelt out, no views."""
    while isinstance(found, pa.BaseExtensionType) or is_a.is_dictionary(found):
        found = found.storage_type if isinstance(found, pa.BaseExtensionType) else found.value_type
    if is_a.is_string_view(found):
        return pa.string()
    return pa.binary() if is_a.is_binary_view(found) else found


def union(a: Any, b: Any) -> Union | None:
    """Of two plain types; None if no type holds both, or only one that reads otherwise (a number as a text)."""
    if a == b or is_a.is_null(b):
        return Union(a)
    if is_a.is_null(a):
        return Union(b)
    for rule in (_texts, _numbers, _times, _nested):
        found = rule(a, b) or rule(b, a)
        if found is not None:
            return found
    return None


def _texts(a: Any, b: Any) -> Union | None:
    """Bytes beside texts are texts, as Impala and Spark write them; what is not UTF-8 fails its own row."""
    if not (_is_text(a) or _is_binary(a)) or not (_is_text(b) or _is_binary(b)):
        return None
    large = any(map(is_a.is_large_string, (a, b))) or any(map(is_a.is_large_binary, (a, b)))
    if _is_text(a) or _is_text(b):
        return Union(pa.large_string() if large else pa.string())
    return Union(pa.large_binary() if large else pa.binary())


def _is_text(kind: Any) -> bool:
    return bool(is_a.is_string(kind) or is_a.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    return bool(is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_fixed_size_binary(kind))


def _numbers(a: Any, b: Any) -> Union | None:
    if is_a.is_decimal(a) and is_a.is_decimal(b):
        scale = max(a.scale, b.scale)
        digits = max(a.precision - a.scale, b.precision - b.scale) + scale
        kind = pa.decimal128 if digits <= _DECIMAL128 and not {a.bit_width, b.bit_width} - {32, 64, 128} else pa.decimal256
        return Union(kind(digits, scale)) if digits <= _DECIMAL256 else None
    if is_a.is_floating(a) and is_a.is_floating(b):
        return Union(max(a, b, key=lambda kind: kind.bit_width))
    if is_a.is_integer(a) and is_a.is_floating(b):
        bits = a.bit_width - is_a.is_signed_integer(a)
        if bits <= _EXACT[b.bit_width]:
            return Union(b)
        return Union(pa.float64(), certain=bits <= _EXACT[64])
    if is_a.is_integer(a) and is_a.is_integer(b):
        if is_a.is_signed_integer(a) == is_a.is_signed_integer(b):
            return Union(max(a, b, key=lambda kind: kind.bit_width))
        if is_a.is_signed_integer(a):
            width = max(a.bit_width, 2 * b.bit_width)
            return Union({16: pa.int16(), 32: pa.int32()}.get(width, pa.int64()), certain=width <= 64)
    return None


def _times(a: Any, b: Any) -> Union | None:
    """The finer unit. Of seconds, that may leave 64 bits: then it hangs on the values."""
    if is_a.is_timestamp(a) and is_a.is_timestamp(b) and (a.tz is None) == (b.tz is None):
        unit = _finer(a.unit, b.unit)
        return Union(pa.timestamp(unit, a.tz if a.tz == b.tz else "UTC"), certain=unit == a.unit == b.unit)
    if is_a.is_date(a) and is_a.is_timestamp(b) and b.tz is None:
        return Union(b, certain=False)
    if is_a.is_date(a) and is_a.is_date(b):
        return Union(pa.date64())
    if is_a.is_time(a) and is_a.is_time(b):
        unit = _finer(a.unit, b.unit)
        return Union(pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit))
    if is_a.is_duration(a) and is_a.is_duration(b):
        return Union(pa.duration(_finer(a.unit, b.unit)), certain=False)
    return None


def _finer(a: str, b: str) -> str:
    return max(a, b, key=_UNITS.index)


def _nested(a: Any, b: Any) -> Union | None:
    """Lists whose items, and structs whose fields, have unions."""
    if _is_list(a) and _is_list(b):
        item = union(plain(a.value_type), plain(b.value_type))
        large = is_a.is_large_list(a) or is_a.is_large_list(b)
        return None if item is None else Union(pa.large_list(item.type) if large else pa.list_(item.type), item.certain)
    if is_a.is_struct(a) and is_a.is_struct(b):
        if [f.name for f in a] != [f.name for f in b]:
            return None
        fields = [(x.name, union(plain(x.type), plain(y.type))) for x, y in zip(a, b, strict=True)]
        if any(found is None for _, found in fields):
            return None
        return Union(
            pa.struct([(name, found.type) for name, found in fields if found is not None]),
            all(found is not None and found.certain for _, found in fields),
        )
    return None


def _is_list(kind: Any) -> bool:
    return bool(is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind))
