"""Columns that are carried from the input to the output: their types, and their values, which are Arrow's all the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types as is_a

from wellhead.errors import InputFileError, InvalidConfig
from wellhead.frontends.bulk.input import values
from wellhead.frontends.bulk.input.unify import plain, union

TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(), "json": pa.string()}
_TRUE, _FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True, slots=True)
class Carry:
    """A column as it was asked for: ``NAME`` or ``NAME:TYPE``."""

    name: str
    type: str | None = None

    @staticmethod
    def parse(text: str) -> Carry:
        """Raises ``InvalidConfig``."""
        name, colon, kind = text.rpartition(":")
        if not colon:
            return Carry(text)
        if kind not in TYPES:
            raise InvalidConfig(f"--carry {text}: the type must be {', '.join(TYPES)}", param="carry")
        return Carry(name, kind)


@dataclass(frozen=True, slots=True)
class Carried:
    """A row's carried values: those at place ``at`` of ``columns``, which other rows share. ``size``: about their bytes."""

    columns: tuple[Any, ...] = ()
    at: int = 0
    size: int = 0

    def to_python(self) -> tuple[Any, ...]:
        """The values as Python objects, where it has any for them."""
        return tuple(column[self.at].as_py() for column in self.columns)


def gathered(rows: Sequence[Carried], column: int, kind: Any) -> Any:
    """One column of some rows as an array of its own; rows that lie together are copied together."""
    pieces, begin = [], 0
    for end in range(1, len(rows) + 1):
        first = rows[begin]
        if end == len(rows) or rows[end].columns is not first.columns or rows[end].at != first.at + end - begin:
            pieces.append(first.columns[column].slice(first.at, end - begin))
            begin = end
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)


@dataclass(frozen=True, slots=True)
class Found:
    """What a file says of a column. ``type``: None where its values are of no one plain kind, and JSON text holds them."""

    path: Any
    type: Any

    @staticmethod
    def of_values(path: Any, found: list[Any]) -> Found:
        """The narrowest type that holds these values of a JSON column."""
        kinds = {type(v) for v in found if v is not None}
        if not kinds:
            return Found(path, pa.null())
        if kinds == {str}:
            return Found(path, pa.string())
        if kinds == {bool}:
            return Found(path, pa.bool_())
        if kinds <= {int, float}:
            return Found(path, pa.int64() if kinds == {int} else pa.float64())
        return Found(path, None)

    @property
    def told(self) -> str:
        return "values of several kinds" if self.type is None else str(self.type)


@dataclass(frozen=True, slots=True)
class CarryType:
    """A carried column with its type. ``as_json``: values are written as JSON text. ``asked``: the command line named it."""

    name: str
    type: Any
    as_json: bool = False
    asked: bool = False

    @staticmethod
    def settled(carry: Carry, tables: list[Found], lines: list[Found], fits: Callable[[Found, Any], bool]) -> CarryType:
        """The type that holds the column in all files: what ``tables`` have and what ``lines`` (of JSON) seem to have.

        ``fits``: looks whether a table's values are values of another type, where the types alone do not say so. Raises
        ``InputFileError`` if there is none.
        """
        if carry.type is not None:
            return CarryType(carry.name, TYPES[carry.type], carry.type == "json", asked=True)
        if lines and not tables and (json := _of_lines(carry, lines)) is not None:
            return json
        both = [*tables, *lines]
        kind, certain, last = pa.null(), True, None
        for found in both:
            joined = None if found.type is None else union(kind, found.type)
            if joined is None:
                raise _unlike(carry, last or both[0], kind, found)
            if joined.type != kind:
                last = found
            kind, certain = joined.type, certain and joined.certain
        if not certain:
            wrong = next((found for found in tables if found.type != kind and not fits(found, kind)), None)
            if wrong is not None:
                other = next(found for found in both if found.type != wrong.type)
                raise _unlike(carry, wrong, wrong.type, other)
        if is_a.is_null(kind) and not tables:
            kind = pa.string()
        return CarryType(carry.name, kind)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "type": "json" if self.as_json else str(self.type)}

    def column(self, array: Any) -> tuple[Any, dict[int, InputFileError]]:
        """A table's column in this type, and the errors of values that it cannot have, by place."""
        found = plain(array.type)
        numbers = all(is_a.is_integer(kind) or is_a.is_floating(kind) for kind in (found, self.type))
        if self.as_json or (self.asked and found != self.type and not numbers and union(found, self.type) is None):
            return self._by_value(array)
        return values.converted(array, self.type, self._fault)

    def _by_value(self, array: Any) -> tuple[Any, dict[int, InputFileError]]:
        """Through Python: texts are parsed, and JSON is written."""
        made, faults = [], dict[int, InputFileError]()
        for at, value in enumerate(values.read(array, self.name)):
            try:
                made.append(self.conform(value))
            except InputFileError as error:
                made.append(None)
                faults[at] = error
        return pa.array(made, self.type), faults

    def _fault(self, one: Any) -> InputFileError:
        value = values.read(one, self.name)[0]
        if isinstance(value, InputFileError):
            return value
        try:
            one.validate(full=True)
        except values.UNREADABLE:  # a string inside a list
            return values.not_text(self.name)
        return self._other(value)

    def _other(self, value: Any) -> InputFileError:
        told = repr(value) if not isinstance(value, pa.Scalar) else f"a {value.type}"
        return InputFileError(
            f"{self.name!r} is {told:.60}, not {self.type}; give its type, as --carry {self.name}:json", param=self.name
        )

    def conform(self, value: Any) -> Any:
        """The value in this type. Raises ``InputFileError``."""
        if value is None:
            return None
        if isinstance(value, InputFileError):
            raise value
        if self.as_json:
            try:
                return json.dumps(value, ensure_ascii=True, default=self._text)
            except InputFileError:
                raise
            except (ValueError, RecursionError) as error:
                raise InputFileError(f"{self.name!r} cannot be written as JSON ({error})", param=self.name) from None
        if isinstance(value, str) and not (is_a.is_string(self.type) or is_a.is_large_string(self.type)):
            value = self._from_text(value)
            if value is None:
                return None
        try:
            # pyarrow takes 1.5 and True for integers, and makes them 1.
            if pa.types.is_integer(self.type) and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError
            pa.scalar(value, self.type)
        except values.UNREADABLE:
            raise self._other(value) from None
        return value

    def _text(self, value: Any) -> str:
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise values.not_text(self.name) from None
        return values.text_of(value, self.name) if isinstance(value, pa.Scalar) else str(value)

    def _from_text(self, text: str) -> Any:
        """What a text says in this type; empty says nothing."""
        if not text:
            return None
        try:
            if pa.types.is_integer(self.type):
                return int(text)
            if pa.types.is_floating(self.type):
                return float(text)
        except ValueError:
            return text
        if pa.types.is_boolean(self.type) and text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        return text


def _of_lines(carry: Carry, lines: list[Found]) -> CarryType | None:
    """JSON lines alone: JSON text holds what no other type does. None if there is no need."""
    kinds = {str(found.type) for found in lines} - {"null"}
    plain_ones = len(kinds) <= 1 or kinds <= {"int64", "double"}
    return None if plain_ones and "None" not in kinds else CarryType(carry.name, pa.string(), as_json=True)


def _unlike(carry: Carry, one: Found, kind: Any, other: Found) -> InputFileError:
    return InputFileError(
        f"{carry.name!r} is {kind} in {one.path} and {other.told} in {other.path}, and no type holds both; give one, as "
        f"--carry {carry.name}:json",
        param="carry",
    )
