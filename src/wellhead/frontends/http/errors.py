"""One table from error codes to HTTP statuses, and the bodies in which the two families of routes report them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from wellhead.errors import Overloaded, WellheadError

#: Every code of the error tree; a test holds it against that.
STATUS: Mapping[str, int] = MappingProxyType(
    {
        "error": 500,
        "invalid_request": 400,
        "unsupported_field": 400,
        "empty_prompt": 400,
        "token_out_of_range": 400,
        "row_out_of_range": 400,
        "prompt_too_long": 400,
        "no_lm_head": 400,
        "task_not_served": 400,
        "batch_too_large": 400,
        "request_too_large": 400,
        "too_many_logprobs": 400,
        "capture_disabled": 400,
        "capture_above_ceiling": 400,
        "invalid_config": 500,
        "model_error": 500,
        "unsupported_model": 500,
        "weights_error": 500,
        "tokenizer_error": 500,
        "invalid_head": 400,
        "input_file_error": 400,
        "output_file_error": 500,
        "overloaded": 503,
        "aborted": 499,
        "timeout": 408,
        "non_finite": 422,
        "engine_closed": 503,
        "rank_died": 503,
        "server_unreachable": 503,
        "build_failed": 500,
        "internal_error": 500,
        "unauthorized": 401,
        "not_found": 404,
        "method_not_allowed": 405,
        "model_not_found": 404,
        "head_not_found": 404,
        "head_upload_disabled": 403,
        "not_acceptable": 406,
        "body_too_large": 413,
        "body_too_slow": 408,
        "cache_busy": 400,
        "client_gone": 499,
    }
)

#: Seconds after which a client may try again, where trying again can help.
RETRY_AFTER: Mapping[str, int] = MappingProxyType({"overloaded": 1, "engine_closed": 5, "rank_died": 5, "server_unreachable": 5})

_OPENAI_TYPE = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


def status_of(error: WellheadError) -> int:
    """The HTTP status of an error; 500 for one that the table lacks."""
    return STATUS.get(error.code, 500)


def headers_of(error: WellheadError) -> dict[str, str]:
    """``Retry-After``, ``WWW-Authenticate``: where they belong."""
    if error.code == "unauthorized":
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": str(RETRY_AFTER[error.code])} if error.code in RETRY_AFTER else {}


def native_body(error: WellheadError) -> dict[str, Any]:
    """SGLang's body, with our code and the field at fault beside the message."""
    return {"error": error.to_dict()}


def openai_body(error: WellheadError) -> dict[str, Any]:
    """OpenAI's body."""
    status = status_of(error)
    kind = _OPENAI_TYPE.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def body_of(error: WellheadError, path: str) -> dict[str, Any]:
    """The body for a route: OpenAI's below ``/v1/``, SGLang's elsewhere."""
    return openai_body(error) if path.startswith("/v1/") else native_body(error)


def overloaded(count: int) -> Overloaded:
    """The answer when the server itself holds too many requests."""
    return Overloaded(f"{count} requests are being served already; try again later")
