"""``AsyncClient``: the same server for coroutines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, TypeVar

import httpx

from wellhead import on_error as on_error_rule
from wellhead.client import extraction, generation
from wellhead.client.exchange import Call, Dropped, Response, Retry, Sleep, Step, exchange
from wellhead.client.extraction import IN_FLIGHT, Extracted, ServerLimits, Wanted
from wellhead.client.settings import HEALTH, INFO, check_url, headers, progress_bar
from wellhead.errors import ServerUnreachable, WellheadError
from wellhead.on_error import OnError
from wellhead.types import DType, HiddenStates

T = TypeVar("T")


class AsyncClient:
    """``Client`` with coroutines: the same options, methods, results and errors. Cancelling a call aborts its request."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        retry: Retry | None = None,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._retry = retry or Retry()
        self._rng = random.Random()
        self._in_flight = max(1, in_flight)
        self._limits: ServerLimits | None = None
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=self._in_flight)
        wait_for = httpx.Timeout(timeout, connect=min(timeout, 10.0))
        self._http = httpx.AsyncClient(
            base_url=check_url(url), headers=headers(api_key), timeout=wait_for, limits=pool, trust_env=False
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; what is under way fails."""
        await self._http.aclose()

    async def health(self) -> bool:
        """Does the server answer, and does its engine run? Asks once."""
        try:
            await self._call(HEALTH)
        except WellheadError:
            return False
        return True

    async def server_info(self) -> dict[str, Any]:
        """Model, ceiling, layers, limits, state."""
        info: dict[str, Any] = generation.read_json(bytes((await self._call(INFO)).body))
        return info

    # --- extract ------------------------------------------------------------------------------------------------

    async def extract(
        self,
        texts: Iterable[str] | Iterable[list[int]],
        mode: Literal["last", "full", "mean"] | None = None,
        *,
        rows: Any = None,
        reduce: str | None = None,
        layers: list[int | str] | None = None,
        dtype: DType = "float32",
        progress: bool = False,
        on_error: OnError = "raise",
    ) -> Any:
        """As ``Client.extract``: ``[n, H]``, or a list of ``[tokens_i, H]``; a dict of those by layer number."""
        wish = Wanted.of(mode, layers, dtype, rows, reduce)
        on_error_rule.check(on_error)
        found: dict[int, HiddenStates | WellheadError] = {}
        async for index, states in self._extract_all(extraction.check_texts(texts), wish, progress):
            found[index] = on_error_rule.met(index, states, on_error) if isinstance(states, WellheadError) else states
        return extraction.gather(found, wish, (await self._known_limits()).hidden_size, on_error)

    def extract_iter(
        self,
        texts: Iterable[str] | Iterable[list[int]],
        mode: Literal["last", "full", "mean"] | None = None,
        *,
        rows: Any = None,
        reduce: str | None = None,
        layers: list[int | str] | None = None,
        dtype: DType = "float32",
        progress: bool = False,
    ) -> AsyncGenerator[Extracted]:
        """As ``Client.extract_iter``: ``(index, HiddenStates or the error of that text)``, in no fixed order."""
        return self._extract_all(extraction.check_texts(texts), Wanted.of(mode, layers, dtype, rows, reduce), progress)

    async def _extract_all(self, texts: Iterator[Any], wish: Wanted, progress: bool) -> AsyncGenerator[Extracted]:
        parts = extraction.batches(texts, await self._known_limits())
        running: set[asyncio.Task[list[Extracted]]] = set()
        try:
            with progress_bar(progress) as bar:
                while True:
                    while len(running) < self._in_flight and (items := next(parts, None)) is not None:
                        steps = extraction.part(items, wish, self._retry, self._rng)
                        running.add(asyncio.create_task(self._drive(steps)))
                    if not running:
                        return
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        found = task.result()
                        bar.update(len(found))
                        for one in found:
                            yield one
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _known_limits(self) -> ServerLimits:
        if self._limits is None:
            self._limits = ServerLimits.of(await self.server_info())
        return self._limits

    # --- generate -----------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        *,
        return_hidden_states: Any = False,
        **fields: Any,
    ) -> Any:
        """As ``Client.generate``: SGLang's dict, or a list of them; hidden states are float32 arrays."""
        call = generation.generate_call(prompt, sampling_params, input_ids, return_hidden_states, False, fields)
        return generation.results(await self._call(call))

    async def stream(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        *,
        return_hidden_states: Any = False,
        **fields: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """As ``Client.stream``: events with cumulative text. Leaving the iterator aborts the request."""
        call = generation.generate_call(prompt, sampling_params, input_ids, return_hidden_states, True, fields)
        response = (await self._call(call)).response
        assert response is not None
        events = generation.Events()
        try:
            async for piece in response.aiter_bytes():
                for event in events.feed(piece):
                    yield event
            events.end()
        except httpx.TransportError as error:
            raise ServerUnreachable(f"/generate: the stream broke off: {error!r}") from error
        finally:
            await response.aclose()

    # --- steps --------------------------------------------------------------------------------------------------

    async def _call(self, call: Call) -> Response:
        return await self._drive(exchange(call, self._retry, self._rng))

    async def _drive(self, steps: Generator[Step, Response | Dropped | None, T]) -> T:
        got: Response | Dropped | None = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Sleep):
                await asyncio.sleep(step.seconds)
                got = None
            else:
                got = await self._send(step.call)

    async def _send(self, call: Call) -> Response | Dropped:
        request = self._http.build_request(call.method, call.path, content=call.body(), headers=call.headers())
        try:
            response = await self._http.send(request, stream=True)
        except httpx.TransportError as error:
            return Dropped(error, began=False)
        if call.stream and response.is_success:
            return Response(response.status_code, response.headers, response=response)
        body = bytearray()
        try:
            async for piece in response.aiter_raw():
                body += piece
        except httpx.TransportError as error:
            return Dropped(error, began=True)
        finally:
            await response.aclose()
        return Response(response.status_code, response.headers, body)
