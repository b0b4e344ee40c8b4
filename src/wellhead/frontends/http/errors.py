"""One table from error codes to HTTP statuses, and the bodies in which each family of routes reports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wellhead.errors import WellheadError

#: Every code of the error tree; a test holds this against ``wellhead.errors``.
STATUS: Mapping[str, int] = {
    "error": 500,
    "invalid_request": 400,
    "unsupported_field": 400,
    "empty_prompt": 400,
    "token_out_of_range": 400,
    "prompt_too_long": 400,
    "capture_disabled": 400,
    "capture_above_ceiling": 400,
    "invalid_config": 500,
    "model_error": 500,
    "unsupported_model": 500,
    "weights_error": 500,
    "tokenizer_error": 500,
    "input_file_error": 400,
    "overloaded": 503,
    "aborted": 499,
    "timeout": 504,
    "non_finite": 500,
    "engine_closed": 503,
    "internal_error": 500,
}

#: Seconds after which a client may try again, where trying again can help.
RETRY_AFTER: Mapping[str, int] = {"overloaded": 1, "engine_closed": 5}


def status_of(error: WellheadError) -> int:
    return STATUS[error.code]


def headers_of(error: WellheadError) -> dict[str, str]:
    return {"Retry-After": str(RETRY_AFTER[error.code])} if error.code in RETRY_AFTER else {}


def native_body(error: WellheadError) -> dict[str, Any]:
    """SGLang's body, with our code and the field at fault beside the message."""
    return {"error": {"message": error.message, "code": error.code, "param": error.param}}


def openai_body(error: WellheadError) -> dict[str, Any]:
    """OpenAI's body."""
    status = status_of(error)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
