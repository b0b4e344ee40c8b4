"""The engine behind the event loop, and one HTTP request on its way through it.

The event loop never waits for the model, for tokenisation or for a large encoding: these are on other threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.requests import Request as HttpRequest

from wellhead.core.courier import Courier
from wellhead.core.engine import Core
from wellhead.core.job import Job
from wellhead.errors import BodyTooLarge, BodyTooSlow, EngineClosed, InvalidRequest, ModelNotFound, WellheadError
from wellhead.frontends.http.options import ServerOptions
from wellhead.frontends.http.payload import Payload, check_count, check_limits, parse, with_timeout
from wellhead.frontends.native import Reply
from wellhead.metrics.http import HttpMetrics
from wellhead.requests.normalize import Batch
from wellhead.requests.tokenizer import Tokenizer
from wellhead.requests.words import renamed, speaking
from wellhead.types import Output

if TYPE_CHECKING:
    from wellhead.frontends.engine import Engine

T = TypeVar("T")
M = TypeVar("M")

WORKERS = 4
#: Names that mean "the model that is served" whatever it is called.
ANY_MODEL = ("default",)


@dataclass(frozen=True, slots=True)
class Wish(Generic[M]):
    """A request in the engine's words (``payload``), and what its route must remember (``memo``).

    ``called``: the engine's names of fields -> the caller's, for errors.
    """

    payload: Payload
    memo: M
    called: Mapping[str, str] = field(default_factory=dict)


class Service:
    """What all routes share. Made on the event loop that serves."""

    def __init__(self, engine: Engine, options: ServerOptions, metrics: HttpMetrics) -> None:
        self.engine = engine
        self.options = options
        self.metrics = metrics
        self.draining = False
        self.started = int(time.time())
        self.refreshed = 0.0  # when the engine's numbers were last read; see ``admin.refresh``
        self.courier = Courier(asyncio.get_running_loop())
        self.preparing = ThreadPoolExecutor(WORKERS, "wellhead-prepare")
        self.encoding = ThreadPoolExecutor(WORKERS, "wellhead-encode")
        config = engine.resolved
        self.model = config.served_model_name
        self._names = {self.model, config.model_path, *ANY_MODEL}

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.engine.tokenizer

    @property
    def healthy(self) -> bool:
        """Does the engine run, and do we take requests?"""
        return self.engine.loop.healthy and not self.draining

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer, or ``InvalidRequest``."""
        if self.tokenizer is None:
            raise InvalidRequest("this server was started without a tokenizer; send token ids")
        return self.tokenizer

    def check_model(self, name: Any) -> None:
        """Refuse a model of another name; none given is ours."""
        if name is None or (isinstance(name, str) and name in self._names):
            return
        if not isinstance(name, str):
            raise InvalidRequest("model must be a string", param="model")
        raise ModelNotFound(f"the model {name!r} is not served here; this is {self.model!r}", param="model")

    async def prepare(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that takes long, such as tokenisation, on a worker."""
        return await asyncio.get_running_loop().run_in_executor(self.preparing, function, *arguments)

    async def call(self, function: Callable[[Core], T], timeout: float | None = None) -> T:
        """Run a function on the engine's core, between two steps. Raises ``EngineClosed``, ``TimeoutError``."""
        result: T = await asyncio.wait_for(asyncio.wrap_future(self.engine.loop.call(function)), timeout)
        return result

    async def body(self, http: HttpRequest) -> bytes:
        """The whole body. Raises ``BodyTooLarge`` as soon as that is known, ``BodyTooSlow``."""
        most = self.options.max_body_bytes
        declared = http.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise BodyTooLarge(f"the body has {declared} bytes; this server takes {most}")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.options.stall_timeout):
                async for part in http.stream():
                    size += len(part)
                    if size > most:
                        raise BodyTooLarge(f"the body has more than the {most} bytes that this server takes")
                    parts.append(part)
        except TimeoutError:
            raise BodyTooSlow("the body did not arrive in time") from None
        return b"".join(parts)

    async def start(self, http: HttpRequest, translate: Callable[[Service, Payload], Wish[M]]) -> Running[M]:
        """Read, translate, tokenise and submit a request. From here on a client that goes away is noticed."""
        if self.draining:
            raise EngineClosed("the server is shutting down")
        body = await self.body(http)
        running: Running[M] = Running(self, http)
        try:
            await self.prepare(running.submit, body, translate)
        except BaseException:
            running.close()
            raise
        return running

    def close(self) -> None:
        """Let the workers go."""
        self.preparing.shutdown(wait=False, cancel_futures=True)
        self.encoding.shutdown(wait=False, cancel_futures=True)


class Running(Generic[M]):
    """One HTTP request in the engine. ``close`` it, whatever happens: that aborts what still runs."""

    memo: M

    def __init__(self, service: Service, http: HttpRequest) -> None:
        self.service = service
        self._sent = Job(service.engine.loop, service.courier)
        self.batch = Batch((), True, 0)
        self._called: Mapping[str, str] = {}
        self._watch = asyncio.ensure_future(_until_gone(http))
        self._watch.add_done_callback(self._gone)

    # --- a worker's thread ----------------------------------------------------------------------------------------

    def submit(self, body: bytes, translate: Callable[[Service, Payload], Wish[M]]) -> None:
        """Body -> requests -> the engine. Raises ``InvalidRequest`` before anything runs."""
        service = self.service
        wish = translate(service, parse(body))
        with speaking(wish.called):
            check_count(wish.payload, service.options)
            batch = service.engine.normalize(with_timeout(wish.payload, service.options.request_timeout))
            check_limits(wish.payload, batch, service.options)
        self.memo, self.batch, self._called = wish.memo, batch, wish.called
        self._sent.submit(batch.requests)

    # --- the event loop -------------------------------------------------------------------------------------------

    async def take(self) -> list[Output]:
        """Outputs that have come, at least one. Raises ``ClientGone``, ``Overloaded``, ``EngineClosed``."""
        try:
            outputs = await self._sent.atake()
        except WellheadError as error:  # of the door, or found out by the engine: a stop pattern that cannot be
            raise renamed(error, self._called) from None
        for output in outputs:
            if output.error is not None:
                renamed(output.error, self._called)
        return outputs

    @property
    def open(self) -> int:
        """How many requests have not ended."""
        return self._sent.open

    @property
    def gone(self) -> bool:
        return self._sent.closed

    def replies(self) -> dict[str, Reply]:
        """An empty reply per request, by key, in order."""
        tokenizer = self.service.tokenizer
        return {r.key: Reply(r, tokenizer.token_text if tokenizer else None) for r in self.batch.requests}

    async def finished(self) -> list[Reply | WellheadError]:
        """Every request's reply or error, in order."""
        replies: dict[str, Reply | WellheadError] = dict(self.replies())
        while self.open:
            for output in await self.take():
                reply = replies[output.key]
                if output.error is not None:
                    replies[output.key] = output.error
                elif isinstance(reply, Reply):
                    reply.update(output)
        return list(replies.values())

    async def all_well(self) -> list[Reply]:
        """Every request's reply, in order; the first error is raised, naming the prompt if there are several."""
        replies: list[Reply] = []
        for request, result in zip(self.batch.requests, await self.finished(), strict=True):
            if isinstance(result, WellheadError):
                if self.batch.prompts == 1:
                    raise result
                raise type(result)(f"prompt {request.prompt_index}: {result.message}", param=result.param)
            replies.append(result)
        return replies

    def close(self) -> None:
        """Stop watching the client; abort what still runs."""
        self._watch.remove_done_callback(self._gone)
        self._watch.cancel()
        self._sent.close()

    def _gone(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled():
            watch.exception()
            self._sent.close()


async def _until_gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
