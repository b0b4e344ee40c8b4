"""Bodies of short requests, one for each field of the table in each place that takes it."""

from __future__ import annotations

from typing import Any

from wellhead.frontends.http.schemas import PLACES
from wellhead.requests.fields import EXAMPLES, TABLE, Field, at

PLACE_PATHS = {place: path for path, place in PLACES.items()}


def body_with(place: str, given: dict[str, Any], beside: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path and body of a short request to a place that holds some fields, and what must stand beside them."""
    if place == "sampling_params":
        base = {"max_new_tokens": 2, "temperature": 0}
        return "/generate", {"text": "one text", "sampling_params": {**base, **beside, **given}}
    body = {**EXAMPLES[place], **({"max_tokens": 2} if "max_tokens" in at(place) else {})}  # type: ignore[call-overload, arg-type]
    if place == "generate":
        body = {"text": "one text", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
    body.pop("return_hidden_states", None)
    return PLACE_PATHS[place], {**body, **beside, **given}  # type: ignore[index]


EACH = [(place, f) for f in TABLE for place in f.on]


def label(value: Any) -> str:
    return value.name if isinstance(value, Field) else str(value)
