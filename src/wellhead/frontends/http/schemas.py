"""The OpenAPI description of every endpoint: request bodies, with an example that works when pasted, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Schema = dict[str, Any]

MODEL: Schema = {"type": "string", "description": "name of the served model, or default"}
STRING: Schema = {"type": "string"}
BOOL: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
IDS: Schema = {"type": "array", "items": COUNT, "minItems": 1}
TEXTS: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
INPUT: Schema = {
    "description": "a text, texts, token ids, or lists of token ids",
    "anyOf": [{"type": "string", "minLength": 1}, TEXTS, IDS, {"type": "array", "items": IDS, "minItems": 1}],
}
MODE: Schema = {"description": 'false, "last" or true', "anyOf": [BOOL, {"type": "string", "enum": ["last"]}]}
FORMAT: Schema = {"type": "string", "enum": ["float", "list", "base64"]}
DTYPE: Schema = {"type": "string", "enum": ["float32", "bfloat16", "float16"]}
LAYERS: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}
POOLING: Schema = {"type": "string", "enum": ["none", "mean"]}
TIMEOUT: Schema = {"type": "number", "exclusiveMinimum": 0, "description": "seconds"}
STOPS: Schema = {"anyOf": [STRING, {"type": "array", "items": STRING, "maxItems": 64}]}


def between(low: float, high: float | None = None, *, above: bool = False) -> Schema:
    """A number within bounds; ``above``: not the lowest itself."""
    top = {} if high is None else {"maximum": high}
    return {"type": "number", "exclusiveMinimum" if above else "minimum": low, **top}


SAMPLING: Mapping[str, Schema] = MappingProxyType(
    {
        "temperature": between(0),
        "top_p": between(0, 1, above=True),
        "top_k": {"type": "integer", "minimum": -1, "description": "-1: all"},
        "min_p": between(0, 1),
        "frequency_penalty": between(-2, 2),
        "presence_penalty": between(-2, 2),
        "repetition_penalty": between(0, 2, above=True),
        "n": {"type": "integer", "minimum": 1, "maximum": 128},
        "stop": STOPS,
        "stop_token_ids": {"type": "array", "items": COUNT},
        "stop_regex": STOPS,
        "ignore_eos": BOOL,
        "skip_special_tokens": BOOL,
        "spaces_between_special_tokens": BOOL,
        "no_stop_trim": BOOL,
        "logit_bias": {"type": "object", "additionalProperties": between(-100, 100)},
    }
)
NATIVE_SAMPLING: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**SAMPLING, "max_new_tokens": COUNT, "min_new_tokens": COUNT, "sampling_seed": COUNT},
}
HIDDEN: Mapping[str, Schema] = MappingProxyType(
    {
        "return_hidden_states": MODE,
        "hidden_states_layers": LAYERS,
        "hidden_states_pooling": POOLING,
        "hidden_states_format": FORMAT,
        "hidden_states_dtype": DTYPE,
    }
)
OPENAI: Mapping[str, Schema] = MappingProxyType(
    {
        "model": MODEL,
        **SAMPLING,
        "seed": COUNT,
        "min_tokens": COUNT,
        "stream": BOOL,
        "stream_options": {"type": "object", "additionalProperties": False, "properties": {"include_usage": BOOL}},
        "user": STRING,
        "rid": STRING,
        "timeout": TIMEOUT,
        **HIDDEN,
    }
)


def one_or_many(schema: Schema) -> Schema:
    """A value, or one per prompt."""
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


GENERATE: Mapping[str, Schema] = MappingProxyType(
    {
        "text": {"anyOf": [STRING, TEXTS]},
        "input_ids": {"anyOf": [IDS, {"type": "array", "items": IDS, "minItems": 1}]},
        "sampling_params": one_or_many(NATIVE_SAMPLING),
        **HIDDEN,
        "return_hidden_states": one_or_many(MODE),
        "incremental_hidden_states": BOOL,
        "return_logprob": one_or_many(BOOL),
        "logprob_start_len": one_or_many({"type": "integer", "minimum": -1}),
        "top_logprobs_num": one_or_many(COUNT),
        "token_ids_logprob": {"type": "array", "items": COUNT},
        "return_text_in_logprobs": BOOL,
        "stream": BOOL,
        "rid": one_or_many(STRING),
        "timeout": TIMEOUT,
    }
)
MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"type": "string", "enum": ["system", "user", "assistant"]}, "content": STRING, "name": STRING},
}
MESSAGES: Schema = {"type": "array", "items": MESSAGE, "minItems": 1}


def body(properties: Mapping[str, Schema], example: Schema, required: tuple[str, ...] = ()) -> Schema:
    """A JSON body; fields that are not named are refused."""
    schema = {"type": "object", "additionalProperties": False, "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


#: path -> what is added to its operation
BODIES: Mapping[str, Schema] = MappingProxyType(
    {
        "/generate": body(
            GENERATE,
            {
                "text": "The capital of France is",
                "sampling_params": {"max_new_tokens": 8, "temperature": 0},
                "return_hidden_states": "last",
            },
        ),
        "/v1/completions": body(
            {
                **OPENAI,
                "prompt": INPUT,
                "max_tokens": COUNT,
                "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
                "echo": BOOL,
                "best_of": {"type": "integer", "minimum": 1},
                "suffix": {"type": "string", "enum": [""]},
            },
            {
                "model": "default",
                "prompt": "The capital of France is",
                "max_tokens": 8,
                "temperature": 0,
                "return_hidden_states": "last",
            },
            ("prompt",),
        ),
        "/v1/chat/completions": body(
            {
                **OPENAI,
                "messages": MESSAGES,
                "max_tokens": COUNT,
                "max_completion_tokens": COUNT,
                "logprobs": BOOL,
                "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
                "chat_template_kwargs": {"type": "object"},
                "add_generation_prompt": BOOL,
                "continue_final_message": BOOL,
            },
            {
                "model": "default",
                "messages": [{"role": "user", "content": "Name a city."}],
                "max_tokens": 8,
                "temperature": 0,
                "return_hidden_states": "last",
            },
            ("messages",),
        ),
        "/v1/embeddings": body(
            {
                "model": MODEL,
                "input": INPUT,
                "encoding_format": {"type": "string", "enum": ["float", "base64"]},
                "dimensions": {"type": "integer", "minimum": 1},
                "pooling": {"type": "string", "enum": ["last", "mean"]},
                "normalize": BOOL,
                "user": STRING,
                "rid": STRING,
                "timeout": TIMEOUT,
            },
            {"model": "default", "input": ["one text", "another"], "encoding_format": "float"},
            ("input",),
        ),
        "/v1/hidden_states": body(
            {
                "model": MODEL,
                "input": INPUT,
                "mode": {"type": "string", "enum": ["last", "full", "mean"]},
                "layers": LAYERS,
                "pooling": POOLING,
                "dtype": {"type": "string", "enum": ["auto", "float32", "bfloat16", "float16"]},
                "max_new_tokens": COUNT,
                "sampling_params": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {k: v for k, v in SAMPLING.items() if k != "n"} | {"sampling_seed": COUNT},
                },
                "hidden_states_format": FORMAT,
                "return_input_ids": BOOL,
                "rid": STRING,
                "timeout": TIMEOUT,
            },
            {"input": ["one text", "another"], "mode": "last"},
            ("input",),
        ),
        "/tokenize": body(
            {
                "model": MODEL,
                "prompt": {"anyOf": [STRING, {"type": "array", "items": STRING}]},
                "text": {"anyOf": [STRING, {"type": "array", "items": STRING}]},
                "messages": MESSAGES,
                "add_special_tokens": BOOL,
                "add_generation_prompt": BOOL,
            },
            {"prompt": "one text"},
        ),
        "/detokenize": body(
            {
                "model": MODEL,
                "tokens": {"anyOf": [{"type": "array", "items": COUNT}, {"type": "array", "items": IDS}]},
                "skip_special_tokens": BOOL,
            },
            {"tokens": [5, 6, 7]},
            ("tokens",),
        ),
        "/abort_request": body({"rid": {"type": "string", "minLength": 1}, "abort_all": BOOL}, {"rid": "some-request"}),
    }
)

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
                        "properties": {"message": STRING, "code": STRING, "param": {"type": ["string", "null"]}},
                    }
                },
            }
        }
    },
}
_STATUSES = ("400", "401", "404", "406", "408", "413", "422", "499", "503")
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


def operation(path: str) -> Schema:
    """Body and answers of a path, for ``openapi_extra``."""
    types = ("text/plain",) if path == "/metrics" else ("application/json", *_OTHER_TYPES.get(path, ()))
    good = {"description": "the answer", "content": {media_type: {} for media_type in types}}
    return {**BODIES.get(path, {}), "responses": {"200": good, **dict.fromkeys(_STATUSES, ERROR)}}
