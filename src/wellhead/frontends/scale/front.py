"""The one address in front of the replicas: each request goes to the replica that has its prefix, and to another if that dies.

A request can be sent again as long as none of its answer has left: nothing that the API does is spoilt by being done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wellhead.encoding import json
from wellhead.errors import BodyTooSlow, EngineClosed, Overloaded
from wellhead.frontends.http.cors import shared
from wellhead.frontends.http.errors import body_of
from wellhead.frontends.http.gate import REQUEST_ID, error_response
from wellhead.frontends.http.respond import DONE, small_event
from wellhead.frontends.scale import totals
from wellhead.frontends.scale.prefixes import Blocks, Fleet, blocks_of
from wellhead.frontends.scale.replica import Start
from wellhead.metrics.http import CONTENT_TYPE

log = logging.getLogger("wellhead")

#: Times that a request is sent before its replicas' deaths become its error.
ATTEMPTS = 4
#: Seconds between two looks at who is there, and for which a replica may take to say that it is.
REFRESH = 1.0
PATIENCE = 10.0
#: Questions to all replicas.
EVERYWHERE = ("/health", "/metrics", "/metrics/replicas", "/flush_cache", "/abort_request")
_KEPT = ("type", "asgi", "http_version", "method", "path", "raw_path", "query_string", "headers", "scheme", "root_path")


class Gone(Exception):
    """The replica died while it answered."""


class Front:
    """A deployment without an engine. Limits and origins are those of ``ServerOptions``; ``policy``: as in ``Fleet``."""

    def __init__(
        self, engines: DeploymentHandle, max_body_bytes: int, stall_timeout: float, policy: str, origins: tuple[str, ...] = ()
    ) -> None:
        self._engines, self._streams = engines, engines.options(stream=True)
        self._most, self._stall = max_body_bytes, stall_timeout
        self._fleet = Fleet(policy)
        self._origins = origins
        self._watch: asyncio.Task[None] | None = None

    async def __call__(self, http: Request) -> Response:
        """Any request of the API. CORS is decided here, not by the replicas: some answers are made here."""
        asked = "origin" in http.headers and "access-control-request-method" in http.headers
        if self._origins and http.method == "OPTIONS" and asked:
            return Shared(Response(), self._origins)  # a preflight, which the middleware answers alone
        answer = await self._answer(http)
        # Serve's proxy adds the id itself, the client's own or a new one; a replica's would be a second one.
        answer.raw_headers = [(name, value) for name, value in answer.raw_headers if name != REQUEST_ID]
        return Shared(answer, self._origins) if self._origins else answer

    async def _answer(self, http: Request) -> Response:
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._watching())
        scope = {name: http.scope[name] for name in _KEPT if name in http.scope}
        try:
            async with asyncio.timeout(self._stall):
                body = await self._body(http)
        except TimeoutError:
            return error_response(BodyTooSlow("the body did not arrive in time"), scope["path"])
        if scope["path"] in EVERYWHERE:
            return await self._everywhere(scope, body)
        return await self._one(scope, body, blocks_of(body) if scope["method"] not in ("GET", "HEAD") else ())

    async def _body(self, http: Request) -> bytes:
        """The body; of one that is too large, enough for the replica to see that."""
        declared = http.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._most:
            return b""
        parts, size = [], 0
        async for part in http.stream():
            parts.append(part)
            size += len(part)
            if size > self._most:
                break
        return b"".join(parts)

    # --- one replica --------------------------------------------------------------------------------------------------

    async def _one(self, scope: dict[str, Any], body: bytes, blocks: Blocks) -> Response:
        for _ in range(ATTEMPTS):
            to = self._fleet.choose(blocks)
            answer = Answer(self._fleet, _call(self._streams.asgi, scope=scope, body=body, to=to), to, blocks)
            try:
                await answer.begin()
            except Gone as gone:
                log.warning("a request goes to another replica: %s", gone)
                self._fleet.gone(to)
                await self._look()
                continue
            except BackPressureError:
                return error_response(Overloaded("the replicas have as much to do as they take; try again later"), scope["path"])
            return Relayed(answer, scope["path"], self._stall)
        return error_response(EngineClosed(f"{ATTEMPTS} replicas died with this request"), scope["path"])

    # --- all replicas -------------------------------------------------------------------------------------------------

    async def _everywhere(self, scope: dict[str, Any], body: bytes) -> Response:
        path = scope["path"]
        await self._look()
        # HEAD asks for the headers of what GET gives; the sum needs the bodies.
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else dict(scope)
        if path == "/metrics/replicas":
            asked["path"] = "/metrics"
        answers = await self._ask_all(asked, body)
        if path == "/health":
            return _plain(*totals.health(answers))
        if not answers:
            return error_response(EngineClosed("no replica answers"), path)
        if path.startswith("/metrics") and all(status == 200 for status, _ in answers.values()):
            texts = {name: text for name, (_, text) in answers.items()}
            return Response(
                totals.summed(texts) if path == "/metrics" else totals.labelled(texts), 200, {"content-type": CONTENT_TYPE}
            )
        return _plain(*totals.added(answers))

    async def _ask_all(self, scope: dict[str, Any], body: bytes) -> dict[str, tuple[int, bytes]]:
        """Status and body by replica, of those that answer."""

        async def ask(name: str) -> tuple[int, bytes]:
            answer = Answer(self._fleet, _call(self._streams.asgi, scope=scope, body=body, to=name), name, ())
            try:
                async with asyncio.timeout(PATIENCE):
                    await answer.begin()
                    return answer.start.status, b"".join([part async for part in answer.parts()])
            finally:
                answer.end()

        names = list(self._fleet.loads)
        found = await asyncio.gather(*map(ask, names), return_exceptions=True)
        return {name: a for name, a in zip(names, found, strict=True) if not isinstance(a, BaseException)}

    async def _watching(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(REFRESH)

    async def _look(self) -> None:
        """Who is there: replicas are counted off until the first comes again."""
        names: list[str] = []
        with contextlib.suppress(TimeoutError, RayActorError):
            async with asyncio.timeout(PATIENCE):
                while (name := await _call(self._engines.name, place=len(names))) not in names:
                    names.append(name)
        self._fleet.update(names)


class Answer:
    """A replica's answer, as it comes. ``end`` it, whatever happens."""

    start: Start

    def __init__(self, fleet: Fleet, stream: Any, to: str | None, blocks: Blocks) -> None:
        self._fleet, self._stream = fleet, stream
        self._name, self._open = to or "", True
        fleet.begin(self._name, blocks)

    async def begin(self) -> None:
        """Until the first piece is there. Raises ``Gone``, ``BackPressureError``."""
        try:
            self.start = await self._next()
        except StopAsyncIteration:
            self.end()
            raise Gone("an answer without a start") from None
        except BaseException:
            self.end()
            raise

    async def parts(self) -> AsyncIterator[bytes]:
        """The body. Raises ``Gone``, unless all of it has come by then."""
        came = len(self.start.body)
        if self.start.body:
            yield self.start.body
        while True:
            try:
                part: bytes = await self._next()
            except StopAsyncIteration:
                break
            except Gone:
                if came == self._length():
                    break
                raise
            came += len(part)
            yield part
        self._open = False

    def _length(self) -> int | None:
        """Bytes of the body, if its headers say how many."""
        return next((int(value) for name, value in self.start.headers if name == b"content-length"), None)

    async def _next(self) -> Any:
        try:
            return await anext(self._stream)
        except RayActorError as error:
            raise Gone(str(error).strip().splitlines()[0]) from None

    def end(self) -> None:
        """The replica has no more to do for it. May be repeated."""
        if self._name:
            self._fleet.end(self._name)
            self._name = ""
        if self._open:
            self._open = False
            self._stream.cancel()


class Shared(Response):
    """An answer with the headers of CORS; ``origins``: who may read it."""

    def __init__(self, answer: Response, origins: tuple[str, ...]) -> None:
        self.status_code, self.background, self.raw_headers = answer.status_code, None, answer.raw_headers
        self._app = shared(answer, origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await self._app(scope, receive, send)


class Relayed(Response):
    """An answer on its way to the client. A stream of events that breaks off says so in a last event.

    ``stall``: seconds that the client may take for a piece.
    """

    def __init__(self, answer: Answer, path: str, stall: float) -> None:
        self._answer, self._path, self._stall = answer, path, stall
        self.status_code = answer.start.status
        self.background = None
        self.raw_headers = [*answer.start.headers, (b"x-wellhead-replica", answer.start.replica.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        del scope, receive
        events = any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in self.raw_headers)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for part in self._answer.parts():
                    async with asyncio.timeout(self._stall):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
            except Gone as gone:
                if not events:
                    raise
                told = small_event(body_of(EngineClosed(f"the replica died: {gone}"), self._path))
                # The blank line ends an event of which the replica sent only a part.
                await send({"type": "http.response.body", "body": b"\n\n" + told + DONE, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._answer.end()


def _call(method: Any, **arguments: Any) -> Any:
    """A call to the replicas, outside the context of the request: all calls from that context would have one id, and of calls
    that are under way together with one id, Serve's router forgets all but one."""
    return contextvars.Context().run(method.remote, **arguments)


def _plain(status: int, body: bytes) -> Response:
    return Response(body, status, media_type=json.MEDIA_TYPE)
