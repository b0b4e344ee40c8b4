"""What a replica of ``wellhead serve --ray`` is: an engine and its HTTP application, called instead of connected to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from wellhead.errors import EngineClosed
from wellhead.frontends.cluster import own_share
from wellhead.frontends.http.app import build
from wellhead.frontends.http.options import ServerOptions
from wellhead.frontends.http.serve import SWITCH_INTERVAL, check_queue

#: Pieces of an answer that may wait to be taken.
AHEAD = 8

Scope = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of an answer, and whose it is. ``body``: its first piece; small answers are one message that way."""

    replica: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Replica:
    """A deployment. ``generation`` is only there to differ: a deployment of another one replaces all replicas in turn."""

    def __init__(self, engine: dict[str, Any], server: dict[str, Any], cpus: int, generation: int = 0) -> None:
        from ray import serve

        from wellhead.frontends.engine import Engine

        del generation
        sys.setswitchinterval(SWITCH_INTERVAL)
        options = ServerOptions(**server)
        self._name = str(serve.get_replica_context().replica_id.unique_id)
        self._engine = Engine(**own_share(engine, cpus))
        check_queue(self._engine, options)
        self._asgi, application = build(self._engine, options)
        self._life = application.api.router.lifespan_context(application.api)
        self._begun: asyncio.Task[Any] | None = None

    async def name(self, place: int | None = None, to: str | None = None) -> str:
        """The replica's own name. ``place``, ``to``: for the router."""
        del place, to
        return self._name

    async def asgi(
        self, scope: Scope, body: bytes, place: int | None = None, to: str | None = None
    ) -> AsyncIterator[Start | bytes]:
        """The answer to one HTTP request: its start, then more of its body. Whoever stops taking it has gone away."""
        del place, to
        if self._begun is None:  # the service wants the loop that serves, which the constructor does not know
            self._begun = asyncio.ensure_future(self._life.__aenter__())
        await asyncio.shield(self._begun)
        call = _Call(body)
        task = asyncio.create_task(call.run(self._asgi, scope))
        try:
            head = await call.sent.get()
            while head is not None and (message := await call.sent.get()) is not None:
                if head:
                    yield Start(self._name, head["status"], list(head["headers"]), message.get("body", b""))
                    head = {}
                elif message.get("body"):
                    yield message["body"]
            await task
        finally:
            call.gone.set()
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    def check_health(self) -> None:
        """Serve asks; a replica whose engine has died is replaced."""
        if not self._engine.loop.healthy:
            raise self._engine.loop.error or EngineClosed("the engine has died")

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.shutdown()


class _Call:
    """Both ends of one ASGI call."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.sent: asyncio.Queue[Any] = asyncio.Queue(AHEAD)
        self.gone = asyncio.Event()

    async def run(self, app: Any, scope: Scope) -> None:
        """Call; None is the last that is sent, unless nobody is there to take it (then this is cancelled)."""
        try:
            await app(scope, self._receive, self.sent.put)
        except Exception:
            await self.sent.put(None)
            raise
        await self.sent.put(None)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}
