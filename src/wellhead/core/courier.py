"""From the engine's thread to the event loop: one wake-up per step, one mailbox per job.

A mailbox is bounded by its own request: at most one output for each of its tokens. Whoever reads slowly finds them there
together and merges them; nobody else waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future

from wellhead.errors import ClientGone, InternalError, WellheadError
from wellhead.types import Output

Item = Output | WellheadError


class Courier:
    """Carries outputs over. One per event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._bag: list[tuple[Mailbox, Item]] = []

    def put(self, mailbox: Mailbox, item: Item) -> None:
        """From any thread; never blocks."""
        with self._lock:
            self._bag.append((mailbox, item))
            first = len(self._bag) == 1
        if first:
            try:
                self._loop.call_soon_threadsafe(self._distribute)
            except RuntimeError:  # the event loop is closed: nobody is left to read
                self._bag = []

    def _distribute(self) -> None:
        with self._lock:
            bag, self._bag = self._bag, []
        for mailbox, item in bag:
            mailbox.receive(item)


class Mailbox:
    """Outputs of one job. ``deliver`` and ``settle`` are called on the engine's thread, the rest on the event loop."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._items: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self.closed = False

    def deliver(self, output: Output) -> None:
        """What the engine's thread calls with each output."""
        if not self.closed:
            self._courier.put(self, output)

    def settle(self, done: Future[None]) -> None:
        """A submission was taken or, with an error, was not."""
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            known = isinstance(error, WellheadError)
            self._courier.put(self, error if known else InternalError(f"not taken: {error!r}"))  # type: ignore[arg-type]

    def receive(self, item: Item) -> None:
        """On the event loop: keep an item and wake the reader."""
        if not self.closed:
            self._items.append(item)
            self._arrived.set()

    def close(self) -> None:
        """Nobody reads any more: what is there, and what may still come, is dropped; a reader that waits gets ``ClientGone``."""
        self.closed = True
        self._items.clear()
        self._arrived.set()

    async def take(self) -> list[Output]:
        """All outputs that are there, at least one. Raises the error of a refused submission, or ``ClientGone``."""
        while not self._items:
            if self.closed:
                raise ClientGone("the client went away")
            self._arrived.clear()
            await self._arrived.wait()
        outputs: list[Output] = []
        while self._items:
            item = self._items.popleft()
            if isinstance(item, WellheadError):
                raise item
            outputs.append(item)
        return outputs
