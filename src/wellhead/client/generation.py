"""``/generate`` through a server: payloads out, SGLang's dicts in, with numpy arrays where the engine has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from wellhead.client.events import EventStream
from wellhead.client.exchange import Call, Payload, Response, error_of
from wellhead.encoding import base64
from wellhead.errors import InternalError, ServerUnreachable, WellheadError
from wellhead.reads import as_json

DONE = "[DONE]"
_OF_ROWS = ("hidden_states_rows", "reads")
_LABELS: Mapping[str, type[np.integer[Any]]] = {"hidden_states_positions": np.int64, "hidden_states_token_ids": np.int32}


def generate_call(
    prompt: Any, sampling_params: Any, input_ids: Any, return_hidden_states: Any, stream: bool, fields: Mapping[str, Any]
) -> Call:
    """The request. Hidden states travel as base64, which ``result`` turns into arrays."""
    payload: Payload = {
        "text": prompt, "input_ids": input_ids, "sampling_params": sampling_params,
        **{name: as_json(value) if name in _OF_ROWS else value for name, value in fields.items()},
        "return_hidden_states": as_json(return_hidden_states), "stream": stream,
    }  # fmt: skip
    wishes = (return_hidden_states, *(fields.get(name) for name in ("hidden_states_rows", "hidden_states_reduce", "reads")))
    wanted = any(wish is not None and wish is not False for wish in wishes)  # position 0 equals False
    given = {k: v for k, v in payload.items() if v is not None}
    light = {"hidden_states_format": "base64"} if wanted else {}
    return Call("POST", "/generate", {**light, **given}, idempotent=False, stream=stream)


def results(reply: Response) -> Any:
    """One dict, or a list of them."""
    value = read_json(bytes(reply.body))
    return [result(one) for one in value] if isinstance(value, list) else result(value)


def result(value: Any) -> Any:
    """One dict, its hidden states as ``Engine.generate`` gives them: float32 arrays, which are read-only; with their
    positions int64 and, if asked for, token ids int32."""
    meta = value.get("meta_info") if isinstance(value, dict) else None
    if not isinstance(meta, dict):
        return value
    try:
        for shown in (meta, *meta.get("reads", {}).values()):
            if isinstance(shown.get("hidden_states"), dict):
                shown["hidden_states"] = base64.entries(shown["hidden_states"])
            for name, kind in _LABELS.items():
                if name in shown:
                    shown[name] = np.array(shown[name], kind)
    except (WellheadError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InternalError(f"the server's hidden states cannot be read: {error}") from error
    return value


def read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise InternalError(f"the server's answer is not JSON: {error}") from error


class Events:
    """Bytes of an event stream -> dicts. ``done`` once the server has said that it is."""

    def __init__(self) -> None:
        self.done = False
        self._stream = EventStream()

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """The events that end in a piece of the body. Raises the error that an event carries."""
        for text in self._stream.feed(piece):
            if self.done:
                return
            if text.strip() == DONE:
                self.done = True
                return
            value = read_json(text.encode())
            if isinstance(value, dict) and "error" in value and "meta_info" not in value:
                raise error_of(500, text.encode())
            yield result(value)

    def end(self) -> None:
        """The stream has ended; ``ServerUnreachable`` if the server had not said so."""
        if not self.done:
            raise ServerUnreachable("/generate: the stream broke off")
