"""``POST /generate``: SGLang's native request and reply."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.errors import WellheadError
from wellhead.frontends.http.errors import native_body, status_of
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import check_names
from wellhead.frontends.http.respond import answer, event_stream, off_loop, owned
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.frontends.http.showing import Show, by_request, is_light, shown_as
from wellhead.frontends.native import Reply
from wellhead.requests.fields import handed_over
from wellhead.types import Output, Request

#: Of the fields that are read here: the engine has them under these names, too.
OWN = ("text", "input_ids", "sampling_params")


@dataclass(frozen=True, slots=True)
class NativeMemo:
    """What the reply must look like."""

    stream: bool
    show: Show


def translate(service: Service, payload: Payload) -> Wish[NativeMemo]:
    """SGLang's fields are the engine's own; only the form of the hidden states is the server's affair."""
    del service
    check_names(payload, "generate")
    native = {**handed_over(payload, "generate"), **{name: payload[name] for name in OWN if name in payload}}
    return Wish(native, NativeMemo(payload.get("stream") is True, shown_as(payload)))


async def generate(service: Service, http: HttpRequest) -> Response:
    """One reply, a list of replies, or a stream of growing ones."""
    return await owned(await service.start(http, translate), _answer)


async def _answer(running: Running[NativeMemo]) -> Response:
    if running.memo.stream:
        return await event_stream(running, _events(running), native_body)
    results = await running.finished()
    first = results[0]
    if isinstance(first, WellheadError) and (len(results) == 1 or all(isinstance(r, WellheadError) for r in results)):
        raise first
    light = all(is_light(r) for r in running.batch.requests) and len(results) <= 16
    shown = await off_loop(running.service, light, lambda: [_show(running, i, r) for i, r in enumerate(results)])
    return await answer(running, shown[0] if running.batch.single else shown)


def _show(running: Running[NativeMemo], index: int, result: Reply | WellheadError) -> dict[str, Any]:
    if isinstance(result, Reply):
        return result.to_dict(running.memo.show)
    return failed(running.batch.requests[index], result)


def failed(request: Request, error: WellheadError) -> dict[str, Any]:
    """The place of one request of a batch that went wrong: its neighbours have their results."""
    finish = {"type": "abort", "message": error.message, "status_code": status_of(error), "err_type": error.code}
    meta = {
        "id": request.rid, "finish_reason": finish, "prompt_tokens": request.prompt_tokens,
        "completion_tokens": 0, "cached_tokens": 0,
    }  # fmt: skip
    return {"text": "", "output_ids": [], "meta_info": meta, **native_body(error)}


async def _events(running: Running[NativeMemo]) -> AsyncIterator[dict[str, Any]]:
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


async def _event(running: Running[NativeMemo], request: Request, reply: Reply, outputs: list[Output]) -> dict[str, Any]:
    for output in outputs:
        if output.error is not None:
            return failed(request, output.error)
        reply.update(output)
    light = is_light(request) or (reply.hidden_states is None and not reply.reads and request.logprobs is None)
    shown: dict[str, Any] = await off_loop(running.service, light, lambda: reply.to_dict(running.memo.show))
    return shown
