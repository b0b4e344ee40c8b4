"""What one caller has in the engine: every door (Python, asyncio, bulk, HTTP) submits and waits through a ``Job``."""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from wellhead.core.courier import Courier, Mailbox
from wellhead.core.loop import EngineLoop
from wellhead.errors import WellheadError
from wellhead.halving import Halving
from wellhead.types import Output, Request

T = TypeVar("T")


class Job:
    """Requests of one caller, from ``submit`` to the last output of each. Closing it, at whatever point, aborts what still runs.

    Without a courier outputs are taken with ``take`` and ``outputs``, which block; with one, on its event loop, with
    ``atake`` and ``aoutputs``. ``submit`` and ``close`` may be called on two threads at once: nothing outlives a close.
    """

    def __init__(self, loop: EngineLoop, courier: Courier | None = None) -> None:
        self._loop = loop
        self._mailbox = Mailbox(courier) if courier is not None else None
        self._pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self._open: set[str] = set()
        self._closed = False

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def open(self) -> int:
        """How many requests have not ended, as far as their outputs were taken."""
        return len(self._open)

    @property
    def closed(self) -> bool:
        return self._closed

    def submit(self, requests: tuple[Request, ...], *, patient: bool = False) -> None:
        """Hand over requests as a whole; after ``close``, nothing is done.

        Raises ``Overloaded`` or ``EngineClosed`` if they are not taken: at once without a courier; with one this does not
        wait, and ``atake`` raises it. ``patient``: a full queue is waited for, and the requests enter as it gets room.
        """
        keys = {request.key for request in requests}
        self._open |= keys
        if self._closed:
            return
        deliver = self._pieces.put if self._mailbox is None else self._mailbox.deliver
        done = self._loop.submit(requests, deliver, patient=patient)
        if self._mailbox is not None:
            done.add_done_callback(self._mailbox.settle)
        else:
            try:
                done.result()
            except WellheadError:
                self._open -= keys
                raise
        if self._closed:  # meanwhile, and its abort may have come too early
            self._abort(keys)

    def abort(self) -> None:
        """End what still runs; each request's terminal output says so."""
        self._abort(set(self._open))

    def close(self) -> None:
        """Abort what still runs and take no more outputs. Harmless if repeated."""
        if self._closed:
            return
        self._closed = True
        if self._mailbox is not None:
            self._mailbox.close()
        self.abort()

    def _abort(self, keys: set[str]) -> None:
        if keys:
            with contextlib.suppress(WellheadError):
                self._loop.abort_keys(keys)

    # --- who blocks -----------------------------------------------------------------------------------------------

    def take(self) -> Output:
        """The next output; wait for it. Only while requests are open."""
        output = self._pieces.get()
        if output.terminal:
            self._open.discard(output.key)
        return output

    def outputs(self) -> Iterator[Output]:
        """All outputs, until every request has ended. Letting go of them closes the job, even before the first is taken."""

        def run() -> Iterator[Output]:
            with self:
                yield Output("", "")  # taken below: a generator that was never begun would not run its ``finally``
                while self._open:
                    yield self.take()

        begun = run()
        next(begun)
        return begun

    # --- who awaits -----------------------------------------------------------------------------------------------

    async def atake(self) -> list[Output]:
        """Outputs that have come, at least one. Raises ``Overloaded``, ``EngineClosed``; ``ClientGone`` once it is closed."""
        assert self._mailbox is not None
        outputs = await self._mailbox.take()
        self._open -= {output.key for output in outputs if output.terminal}
        return outputs

    async def aoutputs(self) -> AsyncIterator[Output]:
        """All outputs, until every request has ended; then, or if it is let go of, the job is closed."""
        with self:
            while self._open:
                for output in await self.atake():
                    yield output


def submit_each(
    job: Job, items: Sequence[T], prepare: Callable[[list[T]], tuple[Request, ...]]
) -> Iterator[tuple[T, Request | WellheadError]]:
    """Submit items in batches as large as can be, and say of each what became of it: its request, or why it is refused.

    ``prepare`` makes one request of each item of a batch, in order, or raises. A full queue refuses nobody: it is waited for.
    """
    halving = Halving(items)
    for batch in halving:
        try:
            requests = prepare(batch)
        except WellheadError as error:
            if not halving.halve(batch):
                yield batch[0], error
            continue
        try:
            job.submit(requests, patient=True)
        except WellheadError as error:
            yield from ((item, error) for item in batch)
        else:
            yield from zip(batch, requests, strict=True)


def work_through(
    loop: EngineLoop,
    items: Iterator[T],
    prepare: Callable[[list[T]], tuple[Request, ...]],
    *,
    at_once: int,
    in_flight: int,
) -> Iterator[tuple[int, Output | WellheadError]]:
    """Any number of items in bounded memory: the index of each with its last output, or why it was refused, as they get ready.

    ``at_once``: items that are prepared together; ``in_flight``: requests that may be in the engine, at least ``at_once``.
    """
    numbered = enumerate(items)
    index: dict[str, int] = {}
    more = True
    with Job(loop) as job:
        while more or index:
            if more and len(index) <= in_flight - at_once:
                part = list(itertools.islice(numbered, at_once))
                more = len(part) == at_once
                for (i, _), made in submit_each(job, part, lambda batch: prepare([item for _, item in batch])):
                    if isinstance(made, WellheadError):
                        yield i, made
                    else:
                        index[made.key] = i
            else:
                output = job.take()
                if output.terminal:
                    yield index.pop(output.key), output
