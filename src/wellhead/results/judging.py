"""Heads on the rows of a step, before anything of it is judged: what they say decides which of the drawn tokens count.

The rows of all sequences that are for the same heads are scored together; no score depends on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wellhead.capture.judges import OutputJudge, Said
from wellhead.errors import NonFinite, WellheadError
from wellhead.heads.head import Head
from wellhead.heads.together import Together
from wellhead.reads import Positions
from wellhead.scheduler.sequence import Sequence
from wellhead.step import PlanRow, RowResult, count_below
from wellhead.types import DType, FinishReason, Scorer

Live = tuple[Sequence, PlanRow, RowResult]
_NO_ROWS: NDArray[Any] = np.empty((0, 0), np.uint16)


@dataclass(slots=True)
class Look:
    """What the heads of a sequence say of a step's rows. ``ends``: the first verdict that ends the answer."""

    said: list[tuple[OutputJudge, Positions, list[Said]]] = field(default_factory=list)
    ends: FinishReason | None = None
    error: WellheadError | None = None

    def settle(self, end: int) -> None:
        """Rows below ``end`` count: the judges take what was said of them."""
        for judge, at, said in self.said:
            judge.take(at, said, end)


def all_finite(rows: NDArray[Any], dtype: DType) -> bool:
    """No NaN and no infinity, looking at the exponent where numpy has no such dtype."""
    if dtype == "bfloat16":
        return not bool(np.any((rows & 0x7F80) == 0x7F80))
    return bool(np.isfinite(rows).all())


def rows_below(row: PlanRow, got: RowResult, end: int) -> tuple[dict[int, Positions], dict[int, NDArray[Any]]]:
    """Positions and rows below ``end``, of each layer, of those that a step handed over."""
    at, rows = {}, {}
    for layer, kept in row.keep.items():
        due = count_below(kept, end)
        at[layer] = kept[:due]
        rows[layer] = got.hidden[layer][:due] if got.hidden is not None and due else _NO_ROWS
    return at, rows


def check_finite(seq: Sequence, at: Mapping[int, Positions], rows: Mapping[int, NDArray[Any]], dtype: DType) -> None:
    """Raise ``NonFinite``, naming layer and rows."""
    for layer, part in rows.items():
        if not all_finite(part, dtype):
            where = f"layer {layer}, rows {at[layer][0]} to {at[layer][-1]}, {dtype}"
            raise NonFinite(f"NaN or infinity in the hidden states of request {seq.request.rid!r} ({where})")


def look(live: list[Live], dtype: DType) -> dict[str, Look]:
    """By key of a sequence, what its heads say of the rows that every drawn token left, if all of these count."""
    looks: dict[str, Look] = {}
    waiting: dict[tuple[Scorer, ...], list[tuple[Look, OutputJudge, Positions, NDArray[np.float32]]]] = {}
    for seq, row, got in live:
        if seq.bench is None:
            continue
        mine = looks[seq.key] = Look()
        end = row.valid_end(len(got.tokens))
        tokens = seq.tokens if len(got.tokens) < 2 else np.concatenate([seq.tokens, np.array(got.tokens, np.int32)])
        at, rows = rows_below(row, got, end)
        try:
            check_finite(seq, at, rows, dtype)
            for prompt in seq.bench.prompt:
                prompt.take(at, rows, end, tokens)
        except NonFinite as error:
            mine.error = error
            continue
        for judge in seq.bench.output:
            due, matrix = judge.due(at, rows, end, tokens)
            if len(due):
                waiting.setdefault(judge.heads, []).append((mine, judge, due, matrix))
            else:
                mine.said.append((judge, due, []))
    for heads, batch in waiting.items():
        _score(heads, batch)
    for seq, _, _ in live:
        if seq.key in looks and looks[seq.key].error is None:
            looks[seq.key].ends = _first(seq, looks[seq.key])
    return looks


@lru_cache(maxsize=256)
def _together(heads: tuple[Head, ...]) -> Together:
    return Together(heads)


def _score(heads: tuple[Scorer, ...], batch: list[tuple[Look, OutputJudge, Positions, NDArray[np.float32]]]) -> None:
    """Score the rows of several sequences at once; if one of them goes wrong, each by itself."""
    matrix = np.concatenate([part for *_, part in batch]) if len(batch) > 1 else batch[0][3]
    known = cast(tuple[Head, ...], heads)
    features = _together(known).features(matrix)
    bad = [head.name for head, f in zip(heads, features, strict=True) if f is None]
    if bad and len(batch) > 1:
        for one in batch:
            _score(heads, [one])
        return
    if bad:
        batch[0][0].error = NonFinite(f"head {bad[0]!r}: the score of a row is NaN or infinite")
        return
    good = [f for f in features if f is not None]
    said = [(f, f if head.evaluator.streams is None else head.scores(matrix)) for head, f in zip(known, good, strict=True)]
    first = 0
    for mine, judge, due, part in batch:
        span = slice(first, first + len(part))
        mine.said.append((judge, due, [(f[span], s[span]) for f, s in said]))
        first += len(part)


def _first(seq: Sequence, mine: Look) -> FinishReason | None:
    """The first verdict that ends this answer: on its prompt, or on a row of its output."""
    assert seq.bench is not None
    stop = seq.bench.stop
    if stop is None:
        return None
    heard = seq.bench.heard[stop.head]
    over = heard.prompt_over(stop)
    if over is not None:
        return over
    for judge, at, said in mine.said:
        if heard in judge.heard and len(at):
            return heard.first_over(stop, at, said[judge.heard.index(heard)])
    return None
