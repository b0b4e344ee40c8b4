"""What ``/docs`` says of each route: the body's fields, and an example that works when pasted.

Bodies are checked by the routes themselves, which name the field at fault; these schemas only describe them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_IDS: Schema = {"type": "array", "items": _COUNT, "minItems": 1}
_TEXTS: Schema = {"anyOf": [_STRING, {"type": "array", "items": _STRING, "minItems": 1}]}
_INPUT: Schema = {"anyOf": [*_TEXTS["anyOf"], _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}
_MODE: Schema = {"enum": [True, False, "last"], "description": '`"last"`: one vector; `true`: every row'}
_LAYERS: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "description": "0: embeddings, -1: final"}
_POOLING: Schema = {"enum": ["none", "mean"]}
_DTYPE: Schema = {"enum": ["float32", "bfloat16", "float16"]}


def _one_or_many(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


_SAMPLING: dict[str, Schema] = {
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "description": "-1: all"},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 2},
    "n": {"type": "integer", "minimum": 1, "maximum": 128},
    "stop": _TEXTS,
    "stop_token_ids": {"type": "array", "items": _COUNT},
    "stop_regex": _TEXTS,
    "ignore_eos": _FLAG,
    "skip_special_tokens": _FLAG,
    "spaces_between_special_tokens": _FLAG,
    "no_stop_trim": _FLAG,
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number"}},
}
_NATIVE_SAMPLING: dict[str, Schema] = {
    **_SAMPLING, "max_new_tokens": _COUNT, "min_new_tokens": _COUNT, "sampling_seed": _COUNT,
}  # fmt: skip
_ROWS: dict[str, Schema] = {
    "hidden_states_layers": _LAYERS,
    "hidden_states_pooling": _POOLING,
    "hidden_states_format": {"enum": ["float", "list", "base64"]},
    "hidden_states_dtype": _DTYPE,
    "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "seconds"},
    "stream": _FLAG,
}
_OPENAI: dict[str, Schema] = {
    "model": _STRING,
    **_SAMPLING,
    "seed": {"type": "integer"},
    "min_tokens": _COUNT,
    "max_tokens": _COUNT,
    "user": _STRING,
    "rid": _STRING,
    "return_hidden_states": _MODE,
    "stream_options": {"type": "object", "properties": {"include_usage": _FLAG}},
    **_ROWS,
}
_GENERATE: dict[str, Schema] = {
    "text": _TEXTS,
    "input_ids": {"anyOf": [_IDS, {"type": "array", "items": _IDS, "minItems": 1}]},
    "sampling_params": _one_or_many({"type": "object", "properties": _NATIVE_SAMPLING, "additionalProperties": False}),
    "return_hidden_states": _one_or_many(_MODE),
    "return_logprob": _one_or_many(_FLAG),
    "logprob_start_len": _one_or_many({"type": "integer", "minimum": -1}),
    "top_logprobs_num": _one_or_many(_COUNT),
    "token_ids_logprob": {"type": "array", "items": _COUNT},
    "return_text_in_logprobs": _FLAG,
    "incremental_hidden_states": _FLAG,
    "rid": _one_or_many(_STRING),
    **_ROWS,
}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": _STRING,
        "content": {
            "anyOf": [
                _STRING,
                {"type": "array", "items": {"type": "object", "properties": {"type": {"const": "text"}, "text": _STRING}}},
            ]
        },
    },
}
_MESSAGES: Schema = {"type": "array", "items": _MESSAGE, "minItems": 1}
_HELLO: list[dict[str, str]] = [{"role": "user", "content": "Name a colour."}]


def _body(fields: Mapping[str, Schema], required: list[str], *examples: dict[str, Any], open_: bool = False) -> Schema:
    schema = {"type": "object", "properties": dict(fields), "required": required, "additionalProperties": open_}
    named = {f"example {i}": {"value": value} for i, value in enumerate(examples, 1)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "examples": named}}}}


#: path -> what FastAPI adds to the operation
_BODIES: Mapping[str, Schema] = MappingProxyType(
    {
        "/generate": _body(
            _GENERATE, [],
            {"text": "The well is", "sampling_params": {"max_new_tokens": 4, "temperature": 0}, "return_hidden_states": "last"},
            {"input_ids": [[1, 2, 3], [4, 5]], "sampling_params": {"max_new_tokens": 0}, "return_hidden_states": ["last", False]},
        ),
        "/v1/completions": _body(
            {"prompt": _INPUT, "logprobs": {"type": "integer", "minimum": 0, "maximum": 20}, "echo": _FLAG, "best_of": _COUNT, **_OPENAI},
            ["prompt"],
            {"model": "default", "prompt": "The well is", "max_tokens": 4, "return_hidden_states": "last"},
        ),
        "/v1/chat/completions": _body(
            {
                "messages": _MESSAGES, "logprobs": _FLAG, "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
                "max_completion_tokens": _COUNT, "chat_template_kwargs": {"type": "object"}, "add_generation_prompt": _FLAG,
                "continue_final_message": _FLAG, **_OPENAI,
            },
            ["messages"],
            {"model": "default", "messages": _HELLO, "max_tokens": 8},
        ),
        "/v1/embeddings": _body(
            {
                "model": _STRING, "input": _INPUT, "encoding_format": {"enum": ["float", "base64", None]},
                "dimensions": {"type": "integer", "minimum": 1}, "pooling": {"enum": ["last", "mean"]}, "normalize": _FLAG,
                "user": _STRING, "rid": _STRING, "timeout": _ROWS["timeout"],
            },
            ["input"],
            {"model": "default", "input": ["a text", "another"], "dimensions": 16},
        ),
        "/v1/hidden_states": _body(
            {
                "model": _STRING, "input": _INPUT, "mode": {"enum": ["last", "full", "mean"]}, "layers": _LAYERS, "pooling": _POOLING,
                "dtype": {"enum": ["auto", *_DTYPE["enum"]]}, "max_new_tokens": _COUNT,
                "sampling_params": {"type": "object", "properties": _NATIVE_SAMPLING},
                "hidden_states_format": {"enum": ["float", "base64"]}, "return_input_ids": _FLAG, "rid": _STRING,
                "timeout": _ROWS["timeout"],
            },
            ["input"],
            {"input": ["a text", "another"], "mode": "last"},
        ),
        "/tokenize": _body(
            {
                "model": _STRING, "prompt": _TEXTS, "text": _TEXTS, "messages": _MESSAGES, "add_special_tokens": _FLAG,
                "add_generation_prompt": _FLAG,
            },
            [],
            {"prompt": "The well is"},
        ),
        "/detokenize": _body(
            {
                "model": _STRING, "tokens": {"anyOf": [_IDS, {"type": "array", "items": _IDS}]}, "skip_special_tokens": _FLAG,
            },
            ["tokens"],
            {"tokens": [1, 2, 3]},
        ),
        "/abort_request": _body({"rid": _STRING, "abort_all": _FLAG}, [], {"rid": "mine"}),
    }
)  # fmt: skip

_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "object", "required": ["message", "code"], "properties": {"message": _STRING, "code": _STRING}}
    },
}
_STATUSES = {
    400: "The request cannot be served as it stands; `param` names the field",
    401: "No key, or a wrong one",
    404: "Another model, or nothing here",
    405: "Another method",
    406: "No such format",
    408: "The request ran out of its time",
    413: "The body is too large",
    422: "The model produced NaN or infinity for this request",
    503: "The queue is full, or the engine does not run; `Retry-After` says when to ask again",
}


def described(path: str, handler: Callable[..., Any]) -> dict[str, Any]:
    """Keyword arguments of ``add_api_route`` for a path."""
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": _ERROR}}} for status, text in _STATUSES.items()
    }
    summary, _, rest = (handler.__doc__ or "").partition("\n")
    family = "OpenAI" if path.startswith("/v1/") else "native"
    return {
        "openapi_extra": _BODIES.get(path),
        "responses": errors,
        "summary": summary.rstrip("."),
        "description": rest.strip(),
        "tags": [family],
    }
