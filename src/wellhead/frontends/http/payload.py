"""The body of a request: parsed, checked for what can never be text, and held against the server's limits."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Iterator
from typing import Any

from wellhead.encoding import json
from wellhead.errors import BatchTooLarge, InvalidRequest, RequestTooLarge, TooManyLogprobs
from wellhead.frontends.http.options import ServerOptions
from wellhead.requests.normalize import Batch
from wellhead.types import Request

Payload = dict[str, Any]


def parse(body: bytes) -> Payload:
    """A JSON object, fields that are ``null`` left out: they mean "not given"."""
    try:
        value = _loads(body)
    except InvalidRequest:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {type(value).__name__}")
    return {name: field for name, field in value.items() if field is not None}


def _loads(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        if b"\\u" in body:  # half a surrogate pair, perhaps: then the fault has a name
            refuse_surrogates(stdlib_json.loads(body))
        raise


def refuse_surrogates(value: Any) -> None:
    """Raise ``InvalidRequest``, naming the field, if there is a string that is no text: neither we nor JSON could write it."""
    fields = value.items() if isinstance(value, dict) else [(None, value)]
    for name, field_value in fields:
        for text in _strings([name, field_value]):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                found = f"a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
                known = name if isinstance(name, str) and name.isascii() else None
                raise InvalidRequest(f"{known or 'the body'} holds {found}, which is not a character", param=known) from None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def with_timeout(payload: Payload, most: float | None) -> Payload:
    """The payload with the server's own time limit, where that is the shorter one."""
    given = payload.get("timeout")
    if most is None or (isinstance(given, (int, float)) and not isinstance(given, bool) and given <= most):
        return payload
    return payload if given is not None and not isinstance(given, (int, float)) else {**payload, "timeout": most}


def check_count(payload: Payload, options: ServerOptions) -> None:
    """Refuse a batch that is too long before its texts are tokenised: ``BatchTooLarge``."""
    texts, ids = payload.get("text"), payload.get("input_ids")
    nested = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
    count = len(texts) if isinstance(texts, list) else len(ids) if nested and ids is not None else 1
    if count > options.max_batch_size:
        said = f"{count} prompts in one request; this server takes {options.max_batch_size} (--max-batch-size)"
        raise BatchTooLarge(said, param=_prompts(payload))


def alternatives(request: Request) -> int:
    """How many log-probabilities a reply may have beside those of its tokens. Each costs some 100 bytes on its way to JSON."""
    spec = request.logprobs
    if spec is None:
        return 0
    positions = request.sampling.max_new_tokens + (request.prompt_tokens - spec.start if spec.start is not None else 0)
    return positions * (spec.top + len(spec.token_ids))


def _prompts(payload: Payload) -> str:
    return "input_ids" if "input_ids" in payload else "text"


def check_limits(payload: Payload, batch: Batch, options: ServerOptions) -> None:
    """Hold a request against the server's limits: ``BatchTooLarge``, ``RequestTooLarge``, ``TooManyLogprobs``."""
    count = len(batch.requests)
    if count > options.max_batch_size:
        said = f"{count} sequences in one request; this server takes {options.max_batch_size} (--max-batch-size)"
        raise BatchTooLarge(said, param="sampling_params.n")
    if options.max_request_tokens is not None:
        tokens = sum(r.prompt_tokens + r.sampling.max_new_tokens for r in batch.requests)
        if tokens > options.max_request_tokens:
            raise RequestTooLarge(
                f"{tokens} prompt and new tokens in one request; this server takes {options.max_request_tokens} "
                "(--max-request-tokens)",
                param=_prompts(payload),
            )
    values = sum(map(alternatives, batch.requests))
    if values > options.max_request_logprobs:
        raise TooManyLogprobs(
            f"{values} log-probabilities of alternatives in one request; this server takes {options.max_request_logprobs} "
            "(--max-request-logprobs)",
            param="top_logprobs_num" if any(r.logprobs and r.logprobs.top for r in batch.requests) else "token_ids_logprob",
        )
