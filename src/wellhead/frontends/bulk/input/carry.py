"""Columns that are carried from the input to the output, and their types."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wellhead.errors import InputFileError, InvalidConfig

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
class CarryType:
    """A carried column with its type. ``as_json``: values are written as JSON text."""

    name: str
    type: Any
    as_json: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "type": "json" if self.as_json else str(self.type)}

    @staticmethod
    def _asked(carry: Carry) -> CarryType | None:
        return CarryType(carry.name, TYPES[carry.type], carry.type == "json") if carry.type is not None else None

    @staticmethod
    def of_table(carry: Carry, found: Any) -> CarryType:
        """The type that a table's column has; dictionaries are spelt out."""
        if isinstance(found, pa.BaseExtensionType):
            found = found.storage_type
        return CarryType._asked(carry) or CarryType(carry.name, found.value_type if pa.types.is_dictionary(found) else found)

    @staticmethod
    def of_values(carry: Carry, values: list[Any]) -> CarryType:
        """The narrowest type that holds these values of a JSON column; JSON text where they are of no one plain kind."""
        kinds = {type(v) for v in values if v is not None}
        asked = CarryType._asked(carry)
        if asked is not None:
            return asked
        if not kinds or kinds == {str}:
            return CarryType(carry.name, pa.string())
        if kinds == {bool}:
            return CarryType(carry.name, pa.bool_())
        if kinds <= {int, float}:
            return CarryType(carry.name, pa.int64() if kinds == {int} else pa.float64())
        return CarryType(carry.name, pa.string(), as_json=True)

    def conform(self, value: Any) -> Any:
        """The value in this type. Raises ``InputFileError``."""
        if value is None:
            return None
        if self.as_json:
            return json.dumps(value, ensure_ascii=True, default=str)
        if isinstance(value, str) and not pa.types.is_string(self.type):
            value = self._from_text(value)
        try:
            # pyarrow takes 1.5 and True for integers, and makes them 1.
            if pa.types.is_integer(self.type) and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError
            pa.scalar(value, self.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            raise InputFileError(
                f"{self.name!r} is {value!r:.60}, not {self.type}; give its type, as --carry {self.name}:json"
            ) from None
        return value

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
