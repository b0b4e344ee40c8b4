"""Rows overtake each other on their way through an engine; here they get back into line."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wellhead.errors import WellheadError
from wellhead.frontends.bulk.input.prompts import Item
from wellhead.types import HiddenStates

#: A window ends at this many prompts, tokens or bytes of rows, whichever comes first; at most two are in memory.
WINDOW_PROMPTS = 512
WINDOW_TOKENS = 32_768
WINDOW_BYTES = 32 << 20
#: Prompts of one template that go ahead of the next template's, in tokens: enough to be computed by the time the others come.
BLOCK_TOKENS = 1024


@dataclass(slots=True)
class Slot:
    """A row on its way: results by template, as they come."""

    item: Item
    results: list[HiddenStates | WellheadError | None] = field(default_factory=list)
    missing: int = 0

    def put(self, template: int, result: HiddenStates | WellheadError) -> None:
        self.results[template] = result
        self.missing -= 1


@dataclass(frozen=True, slots=True)
class Done:
    """A row that is through: its states by template, or the one error that keeps it out."""

    item: Item
    states: tuple[HiddenStates, ...] = ()
    error: WellheadError | None = None


class Line:
    """Slots in the order of their rows."""

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def join(self, item: Item) -> Slot:
        """The slot of the next row. An item with an error has nothing to wait for."""
        slot = Slot(item, [None] * len(item.prompts), len(item.prompts))
        self._slots.append(slot)
        return slot

    def leave(self) -> Iterator[Done]:
        """The rows at the head that are through."""
        while self._slots and not self._slots[0].missing:
            yield _done(self._slots.popleft())


def _done(slot: Slot) -> Done:
    if slot.item.error is not None:
        return Done(slot.item, error=slot.item.error)
    states: list[HiddenStates] = []
    for result in slot.results:
        if isinstance(result, WellheadError):
            return Done(slot.item, error=result)
        assert result is not None
        states.append(result)
    return Done(slot.item, tuple(states))


def windows(items: Iterator[Item], weigh: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Consecutive items that are sent to the engine together. ``weigh``: bytes of the rows that come back of an item, at most."""
    held: list[Item] = []
    prompts = tokens = size = 0
    for item in items:
        held.append(item)
        prompts += max(1, len(item.prompts))
        tokens += item.tokens
        size += weigh(item)
        if prompts >= WINDOW_PROMPTS or tokens >= WINDOW_TOKENS or size >= WINDOW_BYTES:
            yield held
            held, prompts, tokens, size = [], 0, 0, 0
    if held:
        yield held


def departures(window: list[Slot], templates: int) -> list[tuple[Slot, int]]:
    """``(slot, template)`` in the order in which prompts are submitted.

    Several templates go in turns, a block of rows each: a prefix shorter than a page can only be taken over from a prompt
    that has been computed, so the first template's prompts get a head start.
    """
    good = [slot for slot in window if slot.missing]
    if templates == 1:
        return [(slot, 0) for slot in good]
    order: list[tuple[Slot, int]] = []
    block: list[Slot] = []
    tokens = 0
    for slot in good:
        block.append(slot)
        tokens += slot.item.tokens // templates
        if tokens >= BLOCK_TOKENS:
            order += [(s, t) for t in range(templates) for s in block]
            block, tokens = [], 0
    return order + [(s, t) for t in range(templates) for s in block]
