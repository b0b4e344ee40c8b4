"""What all routes share: the engine behind the event loop, and how a batch of requests is run from a coroutine.

The event loop never waits for the model, for tokenisation or for a large encoding: these are on other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request as HttpRequest

from wellhead.errors import InvalidRequest, RequestAborted
from wellhead.frontends.native import Reply
from wellhead.requests.normalize import Batch
from wellhead.types import Output

if TYPE_CHECKING:
    from wellhead.frontends.engine import Engine

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server accepts at most. ``request_timeout``: seconds that a request may take, ``None`` for no limit."""

    max_body_bytes: int = 64 << 20
    max_batch: int = 1024
    max_request_tokens: int | None = None
    request_timeout: float | None = None
    drain_seconds: float = 30.0


class Server:
    """An engine, limits, and the way from a payload to its outputs."""

    def __init__(self, engine: Engine, limits: ServerLimits, api_key: str | None = None) -> None:
        self.engine = engine
        self.limits = limits
        self.api_key = api_key
        self.draining = False

    @staticmethod
    async def off_loop(function: Callable[..., T], *args: Any) -> T:
        """Run something that takes long on a worker thread."""
        return await asyncio.to_thread(function, *args)

    async def normalize(self, payload: dict[str, Any]) -> Batch:
        """A payload of ``/generate`` (JSON nulls mean "not given") -> requests within this server's limits."""
        given = {k: v for k, v in payload.items() if v is not None}
        if self.limits.request_timeout is not None:
            given["timeout"] = min(given.get("timeout", self.limits.request_timeout), self.limits.request_timeout)
        batch = await self.off_loop(self.engine.normalize, given)
        if len(batch.requests) > self.limits.max_batch:
            raise InvalidRequest(f"{len(batch.requests)} sequences in one request; this server takes {self.limits.max_batch}")
        most = self.limits.max_request_tokens
        for request in batch.requests if most is not None else ():
            if most is not None and request.prompt_tokens + request.sampling.max_new_tokens > most:
                raise InvalidRequest(f"prompt and new tokens exceed the {most} that this server takes per request")
        return batch

    async def outputs(self, batch: Batch) -> AsyncGenerator[Output]:
        """The outputs of a batch as they come. Leaving the iterator early aborts what still runs."""
        here = asyncio.get_running_loop()
        pieces: asyncio.Queue[Output] = asyncio.Queue()

        def reply(output: Output) -> None:
            here.call_soon_threadsafe(pieces.put_nowait, output)

        await asyncio.wrap_future(self.engine.loop.submit(batch.requests, reply))
        running = {request.key for request in batch.requests}
        try:
            while running:
                output = await pieces.get()
                if output.terminal:
                    running.discard(output.key)
                yield output
        finally:
            for key in running:
                self.engine.loop.abort(key)

    async def gather(self, batch: Batch, http: HttpRequest | None = None) -> list[Reply]:
        """All replies of a batch, in order. The first error ends the others and is raised; so does a client that goes away."""
        work = asyncio.ensure_future(self._gather(batch))
        if http is None:
            return await work
        gone = asyncio.ensure_future(_disconnected(http))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise RequestAborted("the client went away")
            return work.result()
        finally:
            for task in (work, gone):
                task.cancel()

    async def _gather(self, batch: Batch) -> list[Reply]:
        replies = self.replies(batch)
        outputs = self.outputs(batch)
        try:
            async for output in outputs:
                replies[output.key].update(output)
        finally:
            await outputs.aclose()
        return list(replies.values())

    def replies(self, batch: Batch) -> dict[str, Reply]:
        """An empty reply per request, by key, in order."""
        tokenizer = self.engine.assembled.tokenizer
        return {r.key: Reply(r, tokenizer.token_text if tokenizer else None) for r in batch.requests}

    async def call(self, function: Callable[[Any], T]) -> T:
        """Run a function on the engine's core, between two steps."""
        result: T = await asyncio.wrap_future(self.engine.loop.call(function))
        return result


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
