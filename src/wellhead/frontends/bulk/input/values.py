"""Arrow columns -> what Python reads of them, and columns of one type -> columns of another, value by value where it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types as is_a

from wellhead.errors import InputFileError
from wellhead.frontends.bulk.input.unify import plain

#: What pyarrow says of a value that Python has no object for, or that no other type holds.
UNREADABLE = (pa.ArrowException, ValueError, TypeError, OverflowError)


def not_text(column: str) -> InputFileError:
    return InputFileError(f"{column!r} is not valid Unicode: it is not UTF-8", param=column)


def spelt_out(array: Any) -> Any:
    """An array without extensions and dictionaries."""
    while isinstance(array, (pa.ExtensionArray, pa.DictionaryArray)):
        array = array.storage if isinstance(array, pa.ExtensionArray) else array.dictionary_decode()
    kind = plain(array.type)
    return array if kind == array.type else array.cast(kind)


def read(array: Any, column: str) -> list[Any]:
    """What Python reads of a column. Bytes are read as UTF-8; a value that is not is its error.

    What Python cannot hold (a date of the year 12000, nanoseconds) stays the Arrow scalar that it is.
    """
    if isinstance(array, pa.ExtensionArray) and array.type.extension_name == "arrow.uuid":
        return list(array.to_pylist())
    array = spelt_out(array)
    if is_a.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    if _counts_nanoseconds(array.type):
        return [_value(scalar, column) for scalar in array]
    try:
        if is_a.is_binary(array.type) or is_a.is_large_binary(array.type):
            return [None if v is None else v.decode() for v in array.to_pylist()]
        found: list[Any] = array.to_pylist()
        return found
    except UNREADABLE:
        return [_value(scalar, column) for scalar in array]


def _counts_nanoseconds(kind: Any) -> bool:
    return bool((is_a.is_timestamp(kind) or is_a.is_time64(kind) or is_a.is_duration(kind)) and kind.unit == "ns")


def _value(scalar: Any, column: str) -> Any:
    if not scalar.is_valid:
        return None
    try:
        if isinstance(scalar, pa.BinaryScalar):  # strings are among these
            return scalar.as_buffer().to_pybytes().decode()
        if is_a.is_nested(scalar.type) or not _counts_nanoseconds(scalar.type):
            return scalar.as_py()
    except UnicodeDecodeError:
        return not_text(column)
    except UNREADABLE:
        return scalar
    coarser = {"timestamp": lambda: pa.timestamp("us", scalar.type.tz), "time64": lambda: pa.time64("us")}
    try:
        return scalar.cast(coarser.get(str(scalar.type).partition("[")[0], lambda: pa.duration("us"))()).as_py()
    except UNREADABLE:
        return scalar


def text_of(scalar: Any, column: str) -> str:
    """How an Arrow scalar that Python has no object for is written. Raises ``InputFileError``."""
    try:
        text = str(scalar.cast(pa.string()).as_py())
    except UNREADABLE:
        raise InputFileError(f"{column!r} is a {scalar.type} that cannot be written as text", param=column) from None
    return f"{text} {scalar.type.unit}" if is_a.is_duration(scalar.type) else text


def converted(array: Any, kind: Any, fault: Callable[[Any], InputFileError]) -> tuple[Any, dict[int, InputFileError]]:
    """The array in another type or its own, and the places of values that it cannot have, where it is null.

    ``fault`` makes the error of such a value, an array of one. Nothing passes through Python objects; strings are UTF-8 after it.
    """
    try:
        return _cast(array, kind), {}
    except UNREADABLE:
        pass
    pieces, faults = [], {}
    for at in range(len(array)):
        one = array.take(pa.array([at]))  # a slice of a list would be judged by all that the list's array holds
        try:
            pieces.append(_cast(one, kind))
        except UNREADABLE:
            pieces.append(pa.nulls(1, kind))
            faults[at] = fault(one)
    return pa.concat_arrays(pieces), faults


def _cast(array: Any, kind: Any) -> Any:
    array = spelt_out(array)
    if array.type != kind:
        array = array.cast(kind)
    array.validate(full=True)  # reading and casting do not look at every string
    return array


def sizes(array: Any) -> NDArray[np.int64]:
    """``[n]``: about how much room each value takes, by the value alone: groups and parts of rows end by it."""
    kind = array.type
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        return _numbers(pc.utf8_length(array), 8)
    if is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_fixed_size_binary(kind):
        return _numbers(pc.binary_length(array), 8)
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        ends = np.cumsum(np.append(0, _numbers(pc.list_value_length(array), 0)))
        items = np.cumsum(np.append(0, sizes(array.flatten())))
        found: NDArray[np.int64] = 8 + items[ends[1:]] - items[ends[:-1]]
        return found
    if is_a.is_struct(kind):
        return sum((sizes(field) for field in array.flatten()), np.zeros(len(array), np.int64))
    return np.full(len(array), 8, np.int64)


def _numbers(lengths: Any, null: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = lengths.fill_null(null).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
