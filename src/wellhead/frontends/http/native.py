"""``POST /generate``: SGLang's native request and reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.encoding import base64
from wellhead.errors import InvalidRequest, WellheadError
from wellhead.frontends.http.errors import native_body, status_of
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.respond import answer, event_stream, off_loop, owned
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.frontends.native import Reply
from wellhead.types import DTYPES, DType, HiddenStates, Output, Request

Show = Callable[[HiddenStates], Any]


@dataclass(frozen=True, slots=True)
class NativeJob:
    """What the reply must look like."""

    stream: bool
    show: Show


def take_format(payload: Payload) -> tuple[Payload, Show]:
    """Split off ``hidden_states_format`` and ``hidden_states_dtype``: the rest, and how hidden states are shown."""
    rest = {k: v for k, v in payload.items() if k not in ("hidden_states_format", "hidden_states_dtype")}
    form, dtype = payload.get("hidden_states_format", "float"), payload.get("hidden_states_dtype")
    if form not in ("float", "list", "base64"):
        message = f'hidden_states_format must be "float" (also called "list") or "base64", not {form!r:.80}'
        raise InvalidRequest(message, param="hidden_states_format")
    if dtype is not None and (form != "base64" or dtype not in DTYPES):
        raise InvalidRequest(
            f'hidden_states_dtype must be one of {", ".join(DTYPES)}, with hidden_states_format "base64"',
            param="hidden_states_dtype",
        )
    wishes = ("return_hidden_states", "hidden_states_rows", "hidden_states_reduce", "reads")
    if len(rest) < len(payload) and all(rest.get(name) in (None, False) for name in wishes):
        raise InvalidRequest(
            "hidden_states_format is given, but return_hidden_states asks for none", param="hidden_states_format"
        )
    return rest, show_base64(dtype or "float32") if form == "base64" else show_float


def show_float(states: HiddenStates) -> Any:
    """SGLang's shape, as arrays that the encoder writes as lists; layers by number under text keys, as JSON has them."""
    entries = states.entries()
    return {str(k): v for k, v in entries.items()} if isinstance(entries, dict) else entries


def show_base64(dtype: DType) -> Show:
    """The light alternative."""
    return lambda states: base64.encode(states, dtype)


def is_light(request: Request) -> bool:
    """Is the reply of this request small enough to be put together on the event loop?"""
    spec = request.logprobs
    tokens = request.sampling.max_new_tokens + (request.prompt_tokens if spec is not None and spec.start is not None else 0)
    values = tokens * (1 + (spec.top + len(spec.token_ids) if spec is not None else 0))
    return values <= 2048 and all(read.vector for read in request.reads) and sum(len(r.layers) for r in request.reads) <= 4


def translate(service: Service, payload: Payload) -> Wish[NativeJob]:
    """SGLang's fields are the engine's own; only the form of the hidden states is the server's affair."""
    del service
    rest, show = take_format(payload)
    return Wish(rest, NativeJob(rest.get("stream") is True, show))


async def generate(service: Service, http: HttpRequest) -> Response:
    """One reply, a list of replies, or a stream of growing ones."""
    return await owned(await service.start(http, translate), _answer)


async def _answer(running: Running[NativeJob]) -> Response:
    if running.job.stream:
        return await event_stream(running, _events(running), native_body)
    results = await running.finished()
    first = results[0]
    if isinstance(first, WellheadError) and (len(results) == 1 or all(isinstance(r, WellheadError) for r in results)):
        raise first
    light = all(is_light(r) for r in running.batch.requests) and len(results) <= 16
    shown = await off_loop(running.service, light, lambda: [_show(running, i, r) for i, r in enumerate(results)])
    return await answer(running, shown[0] if running.batch.single else shown)


def _show(running: Running[NativeJob], index: int, result: Reply | WellheadError) -> dict[str, Any]:
    if isinstance(result, Reply):
        return result.to_dict(running.job.show)
    return failed(running.batch.requests[index], result)


def failed(request: Request, error: WellheadError) -> dict[str, Any]:
    """The place of one request of a batch that went wrong: its neighbours have their results."""
    finish = {"type": "abort", "message": error.message, "status_code": status_of(error), "err_type": error.code}
    meta = {
        "id": request.rid, "finish_reason": finish, "prompt_tokens": request.prompt_tokens,
        "completion_tokens": 0, "cached_tokens": 0,
    }  # fmt: skip
    return {"text": "", "output_ids": [], "meta_info": meta, **native_body(error)}


async def _events(running: Running[NativeJob]) -> AsyncIterator[dict[str, Any]]:
    replies = running.replies()
    index = {request.key: i for i, request in enumerate(running.batch.requests)}
    while running.open:
        for key, outputs in by_request(await running.take()).items():
            request = running.batch.requests[index[key]]
            incremental = any(read.each for read in request.reads)
            for part in [[o] for o in outputs] if incremental else [outputs]:
                if part[-1].error is not None and running.batch.single:
                    raise part[-1].error
                shown = await _event(running, request, replies[key], part)
                yield shown if running.batch.single else {**shown, "index": index[key]}


async def _event(running: Running[NativeJob], request: Request, reply: Reply, outputs: list[Output]) -> dict[str, Any]:
    for output in outputs:
        if output.error is not None:
            return failed(request, output.error)
        reply.update(output)
    light = is_light(request) or (reply.hidden_states is None and not reply.reads and request.logprobs is None)
    shown: dict[str, Any] = await off_loop(running.service, light, lambda: reply.to_dict(running.job.show))
    return shown


def by_request(outputs: list[Output]) -> dict[str, list[Output]]:
    """Outputs by request, in order of arrival."""
    found: dict[str, list[Output]] = {}
    for output in outputs:
        found.setdefault(output.key, []).append(output)
    return found
