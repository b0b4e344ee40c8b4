"""The OpenAPI description of every endpoint, made from the table of fields: request bodies with an example, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from wellhead.frontends.http.errors import STATUS
from wellhead.requests.fields import EXAMPLES, Field, Place, at, required

Schema = dict[str, Any]

#: path -> the place in the table whose fields its body has
PLACES: Mapping[str, Place] = MappingProxyType(
    {
        "/generate": "generate",
        "/v1/completions": "completions",
        "/v1/chat/completions": "chat",
        "/v1/embeddings": "embeddings",
        "/v1/hidden_states": "hidden_states",
        "/embed": "embed",
        **dict.fromkeys(("/classify", "/v1/classify"), "classify"),
        **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), "rerank"),
        **dict.fromkeys(("/score", "/v1/score"), "score"),
        "/tokenize": "tokenize",
        "/detokenize": "detokenize",
        "/abort_request": "abort_request",
    }
)


def schema_of(place: Place) -> Schema:
    """A body of this place; fields that are not named are refused. (One that is ``null`` counts as not given.)"""
    fields = at(place)
    schema: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {f.name: described(f) for f in fields.values()},
    }
    needed = required(fields.values())
    return {**schema, "required": needed} if needed else schema


def described(f: Field) -> Schema:
    """A field's schema with its words, its default and its example."""
    more = {"default": f.default} if f.default is not None else {}
    return {**_whole(f.schema), "description": f.doc, **more}


def _whole(schema: Mapping[str, Any]) -> Schema:
    """The schema with what it refers to put in its place: the object of sampling parameters."""
    if "$ref" in schema:
        inner = schema_of("sampling_params")
        if schema["$ref"] == "sampling_params of hidden_states":
            inner["properties"] = {k: v for k, v in inner["properties"].items() if k not in ("n", "max_new_tokens")}
        return inner
    whole = dict(schema)
    if "anyOf" in whole:
        whole["anyOf"] = [_whole(one) for one in whole["anyOf"]]
    if isinstance(whole.get("items"), Mapping):
        whole["items"] = _whole(whole["items"])
    return whole


def _body(place: Place) -> Schema:
    content = {"schema": schema_of(place), "example": dict(EXAMPLES[place])}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


#: path -> what is added to its operation
BODIES: Mapping[str, Schema] = MappingProxyType({path: _body(place) for path, place in PLACES.items()})

ERROR: Schema = {
    "description": "refused or failed; the body says why",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "code", "param"],
                        "properties": {
                            "message": {"type": "string"},
                            "code": {"type": "string"},
                            "param": {"type": ["string", "null"]},
                        },
                    }
                },
            }
        }
    },
}
_STATUSES = sorted({str(status) for status in STATUS.values()})
#: What an endpoint answers with, besides ``application/json``.
_OTHER_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/generate": ("text/event-stream",),
        "/v1/completions": ("text/event-stream",),
        "/v1/chat/completions": ("text/event-stream",),
        "/v1/hidden_states": (
            "application/vnd.safetensors", "application/x-npy", "application/vnd.apache.arrow.stream",
        ),
    }
)  # fmt: skip


#: ``POST /v1/heads`` takes a file as it is.
_FILE: Schema = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


def operation(path: str, method: str = "POST") -> Schema:
    """Body and answers of a path, for ``openapi_extra``."""
    types = ("text/plain",) if path == "/metrics" else ("application/json", *_OTHER_TYPES.get(path, ()))
    good = {"description": "the answer", "content": {media_type: {} for media_type in types}}
    body = _FILE if (path, method) == ("/v1/heads", "POST") else BODIES.get(path, {})
    return {**body, "responses": {"200": good, **dict.fromkeys(_STATUSES, ERROR)}}
