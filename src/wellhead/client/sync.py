"""``Client``: a Wellhead server for ordinary code."""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
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


class Client:
    """A server at ``url``. May be used from several threads; use it as a context manager, or ``close`` it.

    ``timeout``: seconds without a sign from the server after which a call fails with ``RequestTimeout``. ``retry``: how
    often and when a call is sent again that met a full queue (429, 503) or a lost connection.
    Errors are those of ``wellhead.errors``, as the engine itself would raise them, and ``ServerUnreachable``.
    """

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
        self._http = httpx.Client(
            base_url=check_url(url), headers=headers(api_key), timeout=wait_for, limits=pool, trust_env=False
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; what is under way fails."""
        self._http.close()

    # --- facts --------------------------------------------------------------------------------------------------

    def health(self) -> bool:
        """Does the server answer, and does its engine run? Asks once."""
        try:
            self._call(HEALTH)
        except WellheadError:
            return False
        return True

    def server_info(self) -> dict[str, Any]:
        """Model, ceiling, layers, limits, state."""
        info: dict[str, Any] = generation.read_json(bytes(self._call(INFO).body))
        return info

    # --- extract ------------------------------------------------------------------------------------------------

    def extract(
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
        """Hidden states of texts (or of token id lists), as ``Engine.extract`` gives them.

        ``"last"`` and ``"mean"`` -> array ``[n, H]``; ``"full"`` -> a list of arrays ``[tokens_i, H]``. ``layers``: a dict
        from each layer number to such a result. ``dtype``: how rows travel and come; ``bfloat16``, which numpy lacks, as
        its 16 bits in uint16 (``wellhead.types.widen`` makes float32 of it).

        ``on_error``, for a text that cannot be served: ``"raise"`` its error, with its ``index``; ``"skip"`` it, and give
        ``(result, indices)``, int64 ``[k]``: the texts whose rows these are; ``"return"``: a list of ``[H]`` or
        ``[tokens_i, H]`` in which the error stands in the text's place. An engine that closes is raised all the same.
        """
        wish = Wanted.of(mode, layers, dtype, rows, reduce)
        on_error_rule.check(on_error)
        found: dict[int, HiddenStates | WellheadError] = {}
        for index, states in self._extract_all(extraction.check_texts(texts), wish, progress):
            found[index] = on_error_rule.met(index, states, on_error) if isinstance(states, WellheadError) else states
        return extraction.gather(found, wish, self._known_limits().hidden_size, on_error)

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
    ) -> Iterator[Extracted]:
        """The same one by one, in no fixed order: ``(index, HiddenStates or the error of that text)``.

        Any number of texts in bounded memory. Raises what concerns all texts: an option above the server's ceiling, a
        wrong key, a server that stays away.
        """
        return self._extract_all(extraction.check_texts(texts), Wanted.of(mode, layers, dtype, rows, reduce), progress)

    def _extract_all(self, texts: Iterator[Any], wish: Wanted, progress: bool) -> Iterator[Extracted]:
        parts = extraction.batches(texts, self._known_limits())
        pool = ThreadPoolExecutor(self._in_flight, "wellhead-client")
        running: set[Future[list[Extracted]]] = set()
        try:
            with progress_bar(progress) as bar:
                while True:
                    while len(running) < self._in_flight and (items := next(parts, None)) is not None:
                        running.add(pool.submit(self._drive, extraction.part(items, wish, self._retry, self._rng)))
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        found = future.result()
                        bar.update(len(found))
                        yield from found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _known_limits(self) -> ServerLimits:
        if self._limits is None:
            self._limits = ServerLimits.of(self.server_info())
        return self._limits

    # --- generate -----------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        *,
        return_hidden_states: Any = False,
        **fields: Any,
    ) -> Any:
        """As ``Engine.generate``: SGLang's dict, or a list of them; hidden states are float32 arrays.

        Sent again only if nothing of the answer had come. A prompt of a batch that failed has ``error`` in its dict.
        """
        call = generation.generate_call(prompt, sampling_params, input_ids, return_hidden_states, False, fields)
        return generation.results(self._call(call))

    def stream(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        *,
        return_hidden_states: Any = False,
        **fields: Any,
    ) -> Iterator[dict[str, Any]]:
        """The same as events: text and ids are cumulative. Leaving the iterator aborts the request.

        Raises the error of a stream that broke off, wherever it did.
        """
        call = generation.generate_call(prompt, sampling_params, input_ids, return_hidden_states, True, fields)
        response = self._call(call).response
        assert response is not None
        events = generation.Events()
        try:
            for piece in response.iter_bytes():
                yield from events.feed(piece)
            events.end()
        except httpx.TransportError as error:
            raise ServerUnreachable(f"/generate: the stream broke off: {error!r}") from error
        finally:
            response.close()

    # --- steps --------------------------------------------------------------------------------------------------

    def _call(self, call: Call) -> Response:
        return self._drive(exchange(call, self._retry, self._rng))

    def _drive(self, steps: Generator[Step, Response | Dropped | None, T]) -> T:
        got: Response | Dropped | None = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Sleep):
                time.sleep(step.seconds)
                got = None
            else:
                got = self._send(step.call)

    def _send(self, call: Call) -> Response | Dropped:
        request = self._http.build_request(call.method, call.path, content=call.body(), headers=call.headers())
        try:
            response = self._http.send(request, stream=True)
        except httpx.TransportError as error:
            return Dropped(error, began=False)
        if call.stream and response.is_success:
            return Response(response.status_code, response.headers, response=response)
        body = bytearray()
        try:
            for piece in response.iter_raw():
                body += piece
        except httpx.TransportError as error:
            return Dropped(error, began=True)
        finally:
            response.close()
        return Response(response.status_code, response.headers, body)
