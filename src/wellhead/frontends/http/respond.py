"""Answers: small ones at once, large ones piece by piece as the client takes them, and streams of events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wellhead.encoding import json
from wellhead.errors import ClientGone, InternalError, WellheadError
from wellhead.frontends.http.service import Running, Service

log = logging.getLogger("wellhead")

#: Values lighter than this (numbers and strings) are encoded on the event loop: some 0.3 ms at most.
LIGHT = 4096
#: The last event of a stream.
DONE = b"data: [DONE]\n\n"


class Streamed(Response):
    """A body that is made while it is sent. It owns the running request, and closes it at the end, whatever the end is."""

    def __init__(
        self,
        source: AsyncIterator[bytes],
        running: Running[Any],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self.running = running
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; a client that takes nothing for ``stall_timeout`` seconds is left."""
        stall = self.running.service.options.stall_timeout
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in self.source:
                if self.running.gone:
                    return
                async with asyncio.timeout(stall):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGone:
            return
        except TimeoutError:
            log.warning("a client took nothing for %g s; its connection is closed", stall)
            raise
        finally:
            self.running.close()


async def owned(running: Running[Any], make: Callable[[Running[Any]], Awaitable[Response]]) -> Response:
    """The answer that ``make`` gives; the running request is closed unless a streamed answer has taken it over."""
    try:
        response = await make(running)
    except BaseException:
        running.close()
        raise
    if not isinstance(response, Streamed):
        running.close()
    return response


async def answer(running: Running[Any], value: Any) -> Response:
    """A value as JSON: whole if it is small, else in pieces."""
    service = running.service
    if json.weigh(value) <= LIGHT:
        started = time.perf_counter()
        body = json.dumps(value)
        service.metrics.encoding("json", time.perf_counter() - started, len(body))
        return Response(body, media_type=json.MEDIA_TYPE)
    return Streamed(pieces(service, json.chunks(value), "json"), running, json.MEDIA_TYPE)


async def pieces(service: Service, chunks: Iterator[bytes], name: str) -> AsyncIterator[bytes]:
    """Chunks, each made on a worker when the one before it was taken."""
    loop = asyncio.get_running_loop()
    seconds, size = 0.0, 0

    def step() -> tuple[bytes | None, float]:
        started = time.perf_counter()
        part = next(chunks, None)
        return part, time.perf_counter() - started

    while True:
        part, spent = await loop.run_in_executor(service.encoding, step)
        seconds += spent
        if part is None:
            break
        size += len(part)
        yield part
    service.metrics.encoding(name, seconds, size)


def small_event(value: Any) -> bytes:
    """A server-sent event of a light value, whole."""
    return b"data: " + json.dumps(value) + b"\n\n"


async def event(service: Service, value: Any) -> AsyncIterator[bytes]:
    """One server-sent event."""
    if json.weigh(value) <= LIGHT:
        yield small_event(value)
        return
    yield b"data: "
    async for part in pieces(service, json.chunks(value), "json"):
        yield part
    yield b"\n\n"


async def event_stream(
    running: Running[Any], events: AsyncIterator[Any], body: Callable[[WellheadError], dict[str, Any]]
) -> Streamed:
    """An answer of server-sent events that ends with ``[DONE]``.

    What goes wrong before the first event is raised, and gets its status; what goes wrong later becomes an event.
    """
    try:
        first = await anext(events)
    except StopAsyncIteration:
        raise InternalError("a stream without events") from None
    source = _source(running, first, events, body)
    return Streamed(source, running, "text/event-stream", {"Cache-Control": "no-cache"})


async def _source(
    running: Running[Any], first: Any, events: AsyncIterator[Any], body: Callable[[WellheadError], dict[str, Any]]
) -> AsyncIterator[bytes]:
    service = running.service
    try:
        async for part in event(service, first):
            yield part
        async for value in events:
            async for part in event(service, value):
                yield part
    except ClientGone:
        raise
    except Exception as error:
        known = error if isinstance(error, WellheadError) else InternalError(f"the stream broke off: {error!r}")
        if known is not error:
            log.exception("a stream broke off")
        yield small_event(body(known))
    yield DONE


async def off_loop(service: Service, light: bool, function: Callable[[], Any]) -> Any:
    """Call a function here if it is quick, else on a worker."""
    if light:
        return function()
    return await asyncio.get_running_loop().run_in_executor(service.encoding, function)
