"""Stop strings and patterns in a stream: found as soon as they are whole, never shown in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex

from wellhead.errors import InvalidRequest

PATTERN_REACH = 256  # characters: a pattern's match is found if it is no longer than this
_PATTERN_SECONDS = 0.25


@dataclass(frozen=True)
class StopMatch:
    """Which stop was met, and where: ``start`` and ``end`` are character offsets into the whole text."""

    stop: str
    start: int
    end: int


class StopMatcher:
    """Cuts a text that comes in pieces at the first stop.

    The first stop is the string that is complete first, reading character by character; of those complete at the same
    character, the longest. It does not depend on how the text is cut into pieces. Patterns (``regex`` syntax) are
    searched after each piece, leftmost match first, and so do depend on the pieces; they lose to a string that begins
    no later. A match longer than ``PATTERN_REACH`` characters may be missed, which bounds what is held back; a pattern
    that takes over a quarter of a second on so short a text is refused.

    Held back is only text that could be the beginning of a stop.
    """

    def __init__(self, stops: Sequence[str] = (), patterns: Sequence[str] = (), *, keep: bool = False) -> None:
        """``keep``: leave the stop itself in the text. Errors: InvalidRequest for an empty stop or a bad pattern."""
        if any(not stop for stop in stops) or any(not pattern for pattern in patterns):
            raise InvalidRequest("a stop string may not be empty", param="sampling_params.stop")
        self._strings = [_Progress(stop) for stop in dict.fromkeys(stops)]
        self._patterns = [(pattern, _compile(pattern)) for pattern in dict.fromkeys(patterns)]
        self._keep = keep
        self._held = ""
        self._before = ""  # the end of what was given out: what ``^``, ``\b`` and lookbehind may look at
        self._given = 0
        self.match: StopMatch | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take a piece; the text that can be shown, and the stop string or pattern that ended it (then: the last call).

        After a match, further pieces give nothing.
        """
        if self.match is not None:
            return "", self.match.stop
        known = len(self._held)
        self._held += text
        found = self._search(known)
        if found is None:
            return self._give(len(self._held) - self._hold()), None
        self.match = found
        shown = self._give((found.end if self._keep else found.start) - self._given)
        self._held = ""
        return shown, found.stop

    def finish(self) -> str:
        """What was held back, at the end of the text; nothing after a match."""
        return self._give(len(self._held))

    def _give(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        self._given += len(text)
        if self._patterns:
            self._before = (self._before + text)[-PATTERN_REACH:]
        return text

    def _search(self, known: int) -> StopMatch | None:
        """The stop completed by ``held[known:]``."""
        string = self._search_strings(known)
        best: StopMatch | None = None
        for pattern, compiled in self._patterns:
            found = self._find(compiled, partial=False)
            if found is not None and (best is None or found[0] < best.start):
                best = StopMatch(pattern, *found)
        if string is None or (best is not None and best.start < string.start):
            return best
        return string

    def _search_strings(self, known: int) -> StopMatch | None:
        for place in range(known, len(self._held)):
            character = self._held[place]
            complete = [string.stop for string in self._strings if string.advance(character)]
            if complete:
                stop, end = max(complete, key=len), self._given + place + 1
                return StopMatch(stop, end - len(stop), end)
        return None

    def _hold(self) -> int:
        """How many characters at the end could be the beginning of a stop."""
        held = max((string.length for string in self._strings), default=0)
        for _, compiled in self._patterns:
            found = self._find(compiled, partial=True)
            if found is not None:
                held = max(held, min(self._given + len(self._held) - found[0], PATTERN_REACH))
        return held

    def _find(self, compiled: regex.Pattern[str], *, partial: bool) -> tuple[int, int] | None:
        """The first match within ``held`` as offsets into the whole text: a whole one, or one cut short by its end."""
        known = len(self._before)
        try:
            found = compiled.search(self._before + self._held, pos=known, partial=partial, timeout=_PATTERN_SECONDS)
        except TimeoutError:
            raise InvalidRequest("a stop pattern takes too long to search for", param="sampling_params.stop_regex") from None
        if found is None or found.partial != partial or (found.start() == found.end() and not partial):
            return None
        return found.start() - known + self._given, found.end() - known + self._given


class _Progress:
    """How much of one stop string the text ends with, kept up to date a character at a time (Knuth, Morris, Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._shorter = [0] * len(stop)
        length = 0
        for place in range(1, len(stop)):
            length = self._next(length, stop[place])
            self._shorter[place] = length

    def advance(self, character: str) -> bool:
        """Whether the stop is complete with this character."""
        self.length = self._next(self.length, character)
        return self.length == len(self.stop)

    def _next(self, length: int, character: str) -> int:
        while length and (length == len(self.stop) or self.stop[length] != character):
            length = self._shorter[length - 1]
        return length + 1 if self.stop[length] == character else 0


def _compile(pattern: str) -> regex.Pattern[str]:
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise InvalidRequest(f"stop pattern {pattern!r:.80}: {error}", param="sampling_params.stop_regex") from None
    if compiled.fullmatch(""):
        raise InvalidRequest(f"stop pattern {pattern!r:.80} matches the empty text", param="sampling_params.stop_regex")
    return compiled
