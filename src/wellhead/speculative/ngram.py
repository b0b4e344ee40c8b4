"""Drafts without a model: what followed the last time that the text stood where it stands now (prompt look-up)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Earlier places that are compared before one is chosen.
CANDIDATES = 8
#: Steps without drafts after repeated misses, at most.
LONGEST_REST = 64
#: Drafts of a sequence's first proposal; accepted ones double the next, a miss starts again here.
FIRST_DRAFTS = 4

NO_DRAFTS = np.empty(0, np.int32)


class NgramDrafter:
    """The drafts of one sequence. ``propose`` before a step, ``observe`` after it.

    Every run of ``min_window`` tokens is indexed once; of the latest places where the last run stood before, the one whose
    past agrees longest (up to ``max_window``) says what follows. A sequence whose drafts keep being refused rests, twice as
    long each time, so that text without repetition costs one look-up a token. None of this can change what is generated.
    """

    def __init__(self, min_window: int, max_window: int) -> None:
        self._min, self._max = min_window, max_window
        self._latest: dict[bytes, int] = {}
        self._before: list[int] = []  # by end of run - min_window: where the same run ended before, or 0
        self._size = FIRST_DRAFTS
        self._misses = 0
        self._rest = 0

    def propose(self, tokens: NDArray[np.int32], most: int) -> NDArray[np.int32]:
        """Up to ``most`` tokens that may follow ``tokens`` (int32, only ever longer than at the last call)."""
        if self._rest:
            self._rest -= 1
            return NO_DRAFTS
        if most < 1 or len(tokens) <= self._min:
            return NO_DRAFTS
        self._index(tokens)
        end = self._best(tokens)
        return tokens[end : end + min(most, self._size)].copy() if end else NO_DRAFTS

    def observe(self, proposed: int, accepted: int) -> None:
        """What became of a proposal."""
        if not proposed:
            return
        if accepted:
            self._misses = 0
            self._size = 2 * self._size if accepted == proposed else max(FIRST_DRAFTS, accepted + 1)
        else:
            self._misses += 1
            self._size = FIRST_DRAFTS
            self._rest = min(2**self._misses - 1, LONGEST_REST)

    def _index(self, tokens: NDArray[np.int32]) -> None:
        """Enter the runs that end at a token not seen before."""
        first = len(self._before) + self._min
        raw, width = tokens.tobytes() if first < len(tokens) - 64 else b"", self._min * 4
        for end in range(first, len(tokens) + 1):
            at = (end - self._min) * 4
            run = raw[at : at + width] if raw else tokens[end - self._min : end].tobytes()
            self._before.append(self._latest.get(run, 0))
            self._latest[run] = end

    def _best(self, tokens: NDArray[np.int32]) -> int:
        """Where the text's last run ended before: of the latest places, that with the longest agreeing past; 0: nowhere."""
        end, best, longest = len(tokens), 0, 0
        for _ in range(CANDIDATES):
            end = self._before[end - self._min]
            if not end:
                break
            agreeing = self._agreeing(tokens, end)
            if agreeing > longest:
                best, longest = end, agreeing
            if longest >= self._max:
                break
        return best

    def _agreeing(self, tokens: NDArray[np.int32], end: int) -> int:
        """How many tokens before ``end`` are those at the end of the text, ``min_window .. max_window``."""
        count, most = self._min, min(self._max, end)
        while count < most and tokens[end - 1 - count] == tokens[-1 - count]:
            count += 1
        return count
