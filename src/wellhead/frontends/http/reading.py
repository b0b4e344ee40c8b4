"""What all endpoints need to read their fields: names against the table, flags, numbers, prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from wellhead.errors import EmptyPrompt, InvalidRequest, UnsupportedField, WellheadError
from wellhead.frontends.http.payload import Payload
from wellhead.requests.fields import Field, Place, Way, asks_for_nothing, at


def check_names(payload: Payload, place: Place) -> None:
    """Hold a body against the table: fields that are not known, not served, or hints of a wrong type are refused by name."""
    known = at(place)
    for name, value in payload.items():
        field = known.get(name)
        if field is None:
            raise InvalidRequest(f"unknown field {name!r}", param=name)
        if field.way is Way.IDLE and not asks_for_nothing(field, value):
            raise UnsupportedField(f"{name} is not served by this engine ({field.doc})", param=name)
        if field.way is Way.HINT:
            _check_hint(field, value)
    for name, field in known.items():
        if field.required and name not in payload:
            raise InvalidRequest(f"{name} is missing", param=name)


_TYPES: Mapping[str, tuple[type, str]] = {
    "string": (str, "a string"),
    "boolean": (bool, "true or false"),
    "object": (dict, "an object"),
}


def _check_hint(field: Field, value: Any) -> None:
    kind, called = _TYPES[field.schema["type"]]
    if not isinstance(value, kind):
        raise InvalidRequest(f"{field.name} must be {called}", param=field.name)
    inner = field.schema.get("additionalProperties")
    if isinstance(value, dict) and inner is not None:
        kind, called = _TYPES[inner["type"]]
        if not all(isinstance(v, kind) for v in value.values()):
            raise InvalidRequest(f"each value of {field.name} must be {called}", param=field.name)


def flag(payload: Payload, name: str, default: bool = False) -> bool:
    """A field that is true or false."""
    value = payload.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r:.80}", param=name)
    return value


def whole(payload: Payload, name: str, low: int, high: int | None, default: int | None = None) -> int | None:
    """A whole number between bounds."""
    value = payload.get(name)
    if value is None:
        return default
    if type(value) is not int or value < low or (high is not None and value > high):
        bound = f"of at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequest(f"{name} must be a whole number {bound}, not {value!r:.80}", param=name)
    return value


def prompt_fields(value: Any, name: str) -> Payload:
    """The four shapes of OpenAI's input: a text, texts, token ids, lists of token ids."""
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a string, a list of strings, token ids, or lists of token ids", param=name)
    if not value:
        raise EmptyPrompt(f"{name} is empty", param=name)
    return {"text": value} if isinstance(value[0], str) else {"input_ids": value}


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors inside are about the field ``name``."""
    try:
        yield
    except WellheadError as error:
        raise type(error)(error.message, param=name) from None
