"""What every HTTP request passes first: its id, the key, the bound on how many are served at once, and the meters."""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections.abc import Collection, Iterable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wellhead.encoding import json
from wellhead.errors import Unauthorized, WellheadError
from wellhead.frontends.http.errors import body_of, headers_of, overloaded, status_of
from wellhead.frontends.http.options import ServerOptions
from wellhead.metrics.http import HttpMetrics

#: Needs no key.
OPEN = "/health"
#: Answered however many requests are being served.
ALWAYS = ("/health", "/metrics")
#: The header of a request's id, and what a client may choose for it.
REQUEST_ID = b"x-request-id"
_GOOD_ID = re.compile(rb"[\x21-\x7e]{1,128}")
#: Where the id stands in the ASGI scope.
SCOPE_ID = "wellhead.request_id"


class Gate:
    """ASGI middleware. ``known``: the paths that are served; all others count as one in the metrics."""

    def __init__(self, app: ASGIApp, options: ServerOptions, metrics: HttpMetrics, known: Collection[str]) -> None:
        self._app = app
        self._key = options.api_key.encode() if options.api_key is not None else None
        self._most = options.max_connections
        self._metrics = metrics
        self._known = frozenset(known)
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        number = request_id(scope["headers"])
        scope[SCOPE_ID] = number.decode()
        meter = _Meter(send, number)
        self.in_flight += 1
        self._metrics.in_flight.inc()
        started = time.perf_counter()
        try:
            if not self._allowed(path, scope["headers"]):
                await error_response(Unauthorized("a valid API key is needed: Authorization: Bearer <key>"), path)(
                    scope, receive, meter.send
                )
            elif self.in_flight > self._most and path not in ALWAYS:
                await error_response(overloaded(self._most), path)(scope, receive, meter.send)
            else:
                await self._app(scope, receive, meter.send)
        finally:
            self.in_flight -= 1
            self._metrics.in_flight.dec()
            name = path if path in self._known else "other"
            self._metrics.requests.labels(name, str(meter.status)).inc()
            self._metrics.seconds.labels(name).observe(time.perf_counter() - started)
            self._metrics.sent.labels(name).inc(meter.bytes)

    def _allowed(self, path: str, headers: list[tuple[bytes, bytes]]) -> bool:
        if self._key is None or path == OPEN:
            return True
        given = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's own ``X-Request-ID`` if it is short and plain, else a new one."""
    given = next((value for name, value in headers if name == REQUEST_ID), b"")
    return given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex.encode()


class _Meter:
    """Notes status and bytes on their way out, and adds the id. 499: there was no answer, the client had gone."""

    def __init__(self, send: Send, number: bytes) -> None:
        self._send = send
        self._id = number
        self.status = 499
        self.bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), (REQUEST_ID, self._id)]}
        else:
            self.bytes += len(message.get("body", b""))
        await self._send(message)


def error_response(error: WellheadError, path: str) -> Response:
    """An error as the route's family reports it."""
    return Response(json.dumps(body_of(error, path)), status_of(error), headers_of(error), json.MEDIA_TYPE)
