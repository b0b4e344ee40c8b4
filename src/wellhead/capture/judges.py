"""The heads of a request on their rows: like readers, but what they keep of a row is its scores.

Rows come by position, as to a reader, so that a verdict depends neither on chunks nor on preemption; rows of drafts come only
once these have been accepted. A prompt's verdict is there with its last row, before the first token is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wellhead.capture.readers import Kept, Reader, pick
from wellhead.reads import Positions, Read, Selection
from wellhead.types import DType, FinishReason, HeadOutput, HeadWish, Request, Scorer, Scores, StopOn, Verdict, widen


class Taker(Protocol):
    """Who wants rows of a sequence: what planning asks of a reader and of a judge."""

    @property
    def read(self) -> Read: ...

    @property
    def selection(self) -> Selection: ...

    @property
    def first_needed(self) -> int: ...

    def wanted(self, start: int, end: int, tokens: NDArray[np.int32]) -> Positions: ...


Said = tuple[NDArray[np.float32], NDArray[np.float32]]
"""What a head makes of k rows: features ``[k, F]``, which an aggregate takes, and scores ``[k, C]``."""


class Heard:
    """What one head has said of one request."""

    def __init__(self, wish: HeadWish) -> None:
        self.wish, self.head = wish, wish.head
        self.prompt: Verdict | None = None
        self._told = False  # the verdict on the prompt
        self._sum = self.head.accumulator(wish.aggregate) if wish.output is not None else None
        self._new: list[tuple[Positions, Said]] = []

    def hear(self, at: Positions, said: Said) -> None:
        """Rows of the output, in ascending order."""
        self._new.append((at, said))

    def piece(self, *, last: bool) -> HeadOutput | None:
        """What is new since the last piece; at the end also if that is nothing."""
        prompt = None if self._told else self.prompt
        self._told = self._told or prompt is not None
        tokens, aggregate = self._settle()
        if prompt is None and tokens is None and not last:
            return None
        return HeadOutput(self.head.version, self.head.labels, prompt, tokens, aggregate)

    def _settle(self) -> tuple[Scores | None, Verdict | None]:
        if not self._new or self._sum is None:
            return None, self._so_far()
        at = np.concatenate([at for at, _ in self._new])
        features, scores = (np.concatenate([said[i] for _, said in self._new]) for i in range(2))
        self._new = []
        self._sum.update(features)
        return Scores(at, scores, self.head.probabilities(scores)), self._so_far()

    def _so_far(self) -> Verdict | None:
        value = self._sum.value() if self._sum is not None else None
        return None if value is None or not np.isfinite(value).all() else verdict(self.head, value)

    def first_over(self, stop: StopOn, at: Positions, said: Said) -> FinishReason | None:
        """The first of these rows, which come after all that were heard, whose verdict ends the answer."""
        features, scores = said
        if stop.on == "aggregate" and self._sum is not None:
            rehearsal = self._sum.copy()
            for _, (earlier, _) in self._new:
                rehearsal.update(earlier)
            scores = rehearsal.update(features)
        values = level(self.head, self.head.probabilities(scores), stop.label)
        over = np.flatnonzero((values >= stop.threshold) & np.isfinite(scores).all(axis=1))  # minus infinity: not yet k in a row
        return fired(stop, values[over[0]], int(at[over[0]])) if len(over) else None

    def prompt_over(self, stop: StopOn) -> FinishReason | None:
        """The same of the verdict on the prompt, if that is there and was not told yet."""
        said = self.prompt
        if said is None or said.positions is None or self._told:
            return None
        value = level(self.head, said.probabilities[None], stop.label)[0]
        return fired(stop, value, int(said.positions[-1])) if value >= stop.threshold else None


def verdict(head: Scorer, scores: NDArray[np.float32], at: Positions | None = None, rows: Scores | None = None) -> Verdict:
    """From the scores ``[C]`` of one row, or of an aggregate."""
    (label,) = head.winners(scores[None])
    return Verdict(label, scores, head.probabilities(scores[None])[0], at, rows)


def level(head: Scorer, probabilities: NDArray[np.float32], label: str) -> NDArray[np.float32]:
    """How high a label is ``[k]``. A margin between two labels is the second one's; the first's is its negative."""
    index = head.labels.index(label)
    if probabilities.shape[1] == len(head.labels):
        return probabilities[:, index]
    return probabilities[:, 0] if index else -probabilities[:, 0]


def fired(stop: StopOn, value: np.float32, position: int) -> FinishReason:
    """Why the answer ends. The score is written as the others are: by the shortest number that is this float32."""
    return FinishReason("head", head=stop.head, label=stop.label, score=float(str(value)), position=position)


class PromptJudge:
    """Heads that look at the same rows of the prompt. They get what a reader would have given for them."""

    def __init__(self, reader: Reader, heard: tuple[Heard, ...], dtype: DType, prompt_rows: int) -> None:
        self.read, self.selection, self.heard = reader.read, reader.selection, heard
        self._reader: Reader | None = reader
        self._dtype, self._prompt_rows = dtype, prompt_rows

    @property
    def first_needed(self) -> int:
        return sys.maxsize if self._reader is None else self._reader.first_needed

    def wanted(self, start: int, end: int, tokens: NDArray[np.int32]) -> Positions:
        """As ``Reader.wanted``."""
        return _NONE if self._reader is None else self._reader.wanted(start, end, tokens)

    def take(self, at: Mapping[int, Positions], rows: Kept, end: int, tokens: NDArray[np.int32]) -> None:
        """As ``Reader.take``; with the last row comes the verdict. ``NonFinite`` if a score is not finite."""
        if self._reader is None:
            return
        self._reader.take(at, rows, end, tokens)
        if end < self._prompt_rows:
            return
        states, self._reader = self._reader.result(self._prompt_rows, tokens), None
        matrix = np.concatenate([np.atleast_2d(widen(a, states.dtype)) for a in states.arrays], axis=1)
        if not len(states.positions):
            return
        for heard in self.heard:
            scores = heard.head.scores(matrix)
            if self.read.vector:
                heard.prompt = verdict(heard.head, scores[0], states.positions)
                continue
            total = heard.head.accumulator()
            total.update(heard.head.features(matrix))
            value, each = total.value(), Scores(states.positions, scores, heard.head.probabilities(scores))
            assert value is not None
            heard.prompt = verdict(heard.head, value, states.positions, each)


class OutputJudge:
    """Heads that look at the same rows of the output, as these come."""

    def __init__(self, read: Read, selection: Selection, heard: tuple[Heard, ...], dtype: DType) -> None:
        self.read, self.selection, self.heard = read, selection, heard
        self.heads = tuple(h.head for h in heard)
        self._dtype = dtype
        self._next = 0

    @property
    def first_needed(self) -> int:
        return self.selection.next_needed(self._next)

    def wanted(self, start: int, end: int, tokens: NDArray[np.int32]) -> Positions:
        """As ``Reader.wanted``."""
        start = max(start, self._next)
        return self.selection.candidates(start, end, tokens) if start < end else _NONE

    def due(
        self, at: Mapping[int, Positions], rows: Kept, end: int, tokens: NDArray[np.int32]
    ) -> tuple[Positions, NDArray[np.float32]]:
        """Of the rows that came, those that its heads are to see, float32 ``[k, W]``, with their positions. Takes nothing."""
        due = self.wanted(self._next, end, tokens)
        parts = [pick(at[layer], rows[layer], due) for layer in self.read.layers] if len(due) else []
        if not parts:
            return due, np.zeros((0, 0), np.float32)
        return due, np.concatenate([widen(part, self._dtype) for part in parts], axis=1)

    def take(self, at: Positions, said: list[Said], end: int) -> None:
        """What the heads made of the rows at these positions; those below ``end`` are certain now."""
        count = int(np.searchsorted(at, end))
        if count:
            for heard, (features, scores) in zip(self.heard, said, strict=True):
                heard.hear(at[:count], (features[:count], scores[:count]))
        self._next = max(self._next, end)


class Bench:
    """All heads of one request."""

    def __init__(self, request: Request, dtype: DType, width: int) -> None:
        self.heard = {wish.head.name: Heard(wish) for wish in request.heads}
        prompts: dict[Read, list[Heard]] = {}
        outputs: dict[Read, list[Heard]] = {}
        for heard in self.heard.values():
            for read, found in ((heard.wish.prompt, prompts), (heard.wish.output, outputs)):
                if read is not None:
                    found.setdefault(read, []).append(heard)
        tokens, count = request.input_ids, request.prompt_tokens
        self.prompt: list[PromptJudge] = []
        for read, mine in prompts.items():
            reader = Reader(read, read.rows.of(tokens, 0), dtype, dict.fromkeys(read.layers, width), count)
            self.prompt.append(PromptJudge(reader, tuple(mine), dtype, count))
        most = request.sampling.max_new_tokens
        self.output = [OutputJudge(read, read.rows.of(tokens, most), tuple(mine), dtype) for read, mine in outputs.items()]
        self.stop = request.stop_on
        #: Is the newest token held back until its own row was judged?
        self.holds = self.stop is not None and self.stop.hold and self.heard[self.stop.head].wish.output is not None

    @property
    def judges(self) -> tuple[PromptJudge | OutputJudge, ...]:
        return (*self.prompt, *self.output)

    def pieces(self, *, last: bool) -> dict[str, HeadOutput]:
        """By head, what is new since the last pieces."""
        found = ((name, heard.piece(last=last)) for name, heard in self.heard.items())
        return {name: piece for name, piece in found if piece is not None}


def make_bench(request: Request, dtype: DType, width: int) -> Bench | None:
    """The heads that a request asks for. ``width``: of the rows of every layer."""
    return Bench(request, dtype, width) if request.heads else None


_NONE: Positions = np.empty(0, np.int64)
