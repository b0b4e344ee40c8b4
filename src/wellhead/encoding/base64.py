"""Arrays as base64 text: little-endian, float32 unless asked otherwise. ``[1, -0.5, 0.25]`` is ``AACAPwAAAL8AAIA+``."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest
from wellhead.types import DTYPES, STORAGE, DType, HiddenStates, widen


def encode_array(rows: NDArray[Any]) -> str:
    """The raw bytes of an array, little-endian, in C order."""
    return base64.b64encode(np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")).data).decode("ascii")


def decode_array(text: str, dtype: DType = "float32") -> NDArray[Any]:
    """The other way; bfloat16 comes as its 16 bits. One-dimensional."""
    return np.frombuffer(base64.b64decode(text, validate=True), STORAGE[dtype].newbyteorder("<"))


def encode(states: HiddenStates, dtype: DType = "float32") -> Any:
    """One request's rows: ``{"dtype", "shape", "prompt_rows", "data"}``, or a dict of those by layer.

    ``shape`` is ``[H]`` for one row or a reduction, else ``[rows, H]``; ``prompt_rows`` is there where these are all rows and
    are shown as SGLang does: the first so many are the prompt's.
    """
    if states.asked is None:
        return _one(states, None, dtype)
    return {str(layer): _one(states, layer, dtype) for layer in states.asked}


def _one(states: HiddenStates, layer: int | str | None, dtype: DType) -> dict[str, Any]:
    rows = states.stored(layer, dtype)
    shown: dict[str, Any] = {"dtype": dtype, "shape": list(rows.shape)}
    if rows.ndim == 2 and states.sglang:
        shown["prompt_rows"] = max(0, min(states.prompt_rows - states.first_row, len(rows)))
    return {**shown, "data": encode_array(rows)}


def decode(value: Mapping[str, Any]) -> NDArray[Any]:
    """An object that ``encode`` made -> array in the storage of its dtype. ``InvalidRequest`` if it is none."""
    dtype, shape = value.get("dtype"), value.get("shape")
    if dtype not in DTYPES or not isinstance(shape, list):
        raise InvalidRequest("not an object with dtype, shape and data")
    try:
        return decode_array(value["data"], dtype).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"hidden states cannot be decoded: {error}") from error


def entries(value: Mapping[str, Any]) -> Any:
    """An object that ``encode`` made -> SGLang's entries in float32: ``[H]``, or a list of ``[P, H]``, ``[H]``, ..."""
    if "data" not in value:
        return {int(layer) if layer.lstrip("-").isdigit() else layer: entries(one) for layer, one in value.items()}
    rows = widen(decode(value), value["dtype"])
    if rows.ndim == 1 or "prompt_rows" not in value:
        return rows
    cut = int(value["prompt_rows"])
    return [rows[:cut], *rows[cut:]] if cut else list(rows)
