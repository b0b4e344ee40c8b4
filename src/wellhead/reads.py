"""Which rows, of which layers, and what becomes of them: ``Rows``, ``Read``, and what a prompt makes of them, ``Selection``.

Words: position ``p`` is the index of a token in prompt + output; row ``p`` was computed when that token was the input. P
prompt tokens, N output tokens; rows exist for ``0 .. P + max(0, N - 1) - 1``, since the newest token has none yet.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest, RowOutOfRange
from wellhead.reductions import FIRST, REDUCTIONS, ROWS

Positions = NDArray[np.int64]
Spans = tuple[tuple[int, int], ...]

#: Reads that look at most this far back from the end of a prompt are of the class LAST.
LAST_ROWS = 256
#: Positions, token ids or spans that one wish may list.
MOST_LISTED = 65_536
#: How the rows of the last block before the final norm are called; Hugging Face has no number for them.
PRE_NORM = "pre_norm"

_WINDOW = re.compile(r"\s*(-?\d{1,9})?\s*:\s*(-?\d{1,9})?\s*(?::\s*(\d{1,9})?\s*)?")


class CaptureMode(IntEnum):
    """What a read costs, what a batch needs, and how much a server allows at most: ordered, the mode of several is a ``max``.

    LAST: a prompt is computed again from a few rows before its end at the most, and the rest may come from the prefix cache.
    FULL: rows of any position, for which they are kept beside the keys and values.
    """

    NULL = 0
    LAST = 1
    FULL = 2

    @property
    def word(self) -> str:
        """As users write it in ``return_hidden_states_mode``."""
        return ("off", "last", "full")[self]


class Part(StrEnum):
    """Where rows are looked for. Positions and windows count from the part's first row, or, negative, from its end."""

    PROMPT = "prompt"
    OUTPUT = "output"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Rows:
    """A wish for positions: all conditions must hold, then ``last`` of what is left. It comes out ascending.

    ``start``, ``stop``, ``step``: a window of the part, as Python's slices (``step`` >= 1). ``positions``: these of the
    part, and no others; one that does not exist is an error, where a window is cut. ``token_ids``: rows whose input was one
    of these. ``spans``: from and to positions of the prompt. ``last``: the k last ones. The exclusions are taken out before.
    """

    part: Part = Part.ALL
    start: int | None = None
    stop: int | None = None
    step: int = 1
    positions: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    last: int | None = None
    exclude_token_ids: tuple[int, ...] = ()
    exclude_positions: tuple[int, ...] = ()

    @property
    def cost(self) -> CaptureMode:
        """The class of this wish, whatever the prompt."""
        if self.part is Part.OUTPUT:
            return CaptureMode.LAST
        back = [LAST_ROWS + 1]
        if self.last is not None:
            back.append(self.last)
        if self.start is not None and self.start < 0:
            back.append(-self.start)
        if self.positions is not None and all(p < 0 for p in self.positions):
            back.append(max((-p for p in self.positions), default=0))
        return CaptureMode.LAST if min(back) <= LAST_ROWS else CaptureMode.FULL

    def most(self, length: int) -> int:
        """How many of ``length`` rows it can be, whatever the tokens are."""
        start = 0 if self.start is None else self.start + length * (self.start < 0)
        stop = length if self.stop is None else self.stop + length * (self.stop < 0)
        window = range(max(0, start), max(0, min(stop, length)), self.step)
        limits = (self.last, None if self.positions is None else len(self.positions))
        return min([len(window), *(limit for limit in limits if limit is not None)])

    @property
    def by_token(self) -> bool:
        """Does a row's own token decide whether it is wanted?"""
        return self.token_ids is not None or bool(self.exclude_token_ids)

    def of(self, prompt: NDArray[np.int32], max_new_tokens: int, param: str = "hidden_states_rows") -> Selection:
        """What this wish means for a prompt. ``param``: the field that says it. Raises ``RowOutOfRange``: no such position."""
        return Selection(self, prompt, max_new_tokens, param)


ALL = Rows()
LAST = Rows(last=1)


_NONE: Positions = np.empty(0, np.int64)


class Selection:
    """``Rows`` of one request: what a prompt decides is decided, what its answer decides is asked step by step.

    ``first_needed``: the first position of the prompt whose row may be wanted, P if there is none: what lies before it may
    come from the prefix cache even where no rows are kept. ``bound``: how many rows it can be at most.
    """

    def __init__(self, rows: Rows, prompt: NDArray[np.int32], max_new_tokens: int, param: str) -> None:
        self.rows = rows
        self._param = param
        self._prompt_length = len(prompt)
        #: Rows before which the reply cannot end, and those behind which it cannot go on.
        most = len(prompt) + max(0, max_new_tokens - 1)
        self._base = len(prompt) if rows.part is Part.OUTPUT else 0
        self._token_ids = None if rows.token_ids is None else np.array(rows.token_ids, np.int64)
        self._no_token_ids = np.array(rows.exclude_token_ids, np.int64)
        self._in_spans = None if rows.spans is None else _covered(rows.spans, len(prompt))
        self.grows = most > len(prompt) and rows.part is not Part.PROMPT
        self._plain = rows == Rows(part=rows.part, last=rows.last)
        #: Hangs it on the end which of *all* possible rows it is, so that ``last`` cannot let any of them go before?
        back = rows.positions is not None and any(p < 0 for p in rows.positions)
        self._unsettled = back or (rows.step > 1 and (rows.start or 0) < 0)
        #: Is it only known at the end which rows it is?
        self.trailing = self.grows and self._looks_back()
        self._check(most)
        every = np.arange(self._base, len(prompt), dtype=np.int64)
        exact = not self.grows
        self._of_prompt = self.exact(every, prompt, len(prompt)) if exact else self.possible(every, prompt, len(prompt))
        self.first_needed = min(self.next_needed(0), len(prompt))
        self.bound = self._bound(most)

    @property
    def newest(self) -> int | None:
        """How many rows it is if it is simply the newest ones, whatever they are; else ``None``."""
        return self.rows.last if self._plain else None

    @property
    def by_answer(self) -> bool:
        """Do tokens of the answer decide which of its rows are wanted?"""
        return self.grows and self.rows.by_token

    def _looks_back(self) -> bool:
        rows = self.rows
        ends = (rows.start or 0) < 0 or (rows.stop or 0) < 0 or rows.last is not None
        return ends or any(p < 0 for p in (*(rows.positions or ()), *rows.exclude_positions))

    def _check(self, most: int) -> None:
        """Explicit positions must be there: those of the prompt, and those that the answer may still come to."""
        length = (self._prompt_length if self.rows.part is Part.PROMPT else most) - self._base
        for p in self.rows.positions or ():
            if not -length <= p < length:
                raise self._absent(p, f"there are {length} at most" if self.grows else f"there are {length}")

    def _absent(self, p: int, why: str) -> RowOutOfRange:
        part = "" if self.rows.part is Part.ALL else f" of the {self.rows.part}"
        return RowOutOfRange(f"row {p}{part} does not exist: {why}", param=self._param)

    def _bound(self, most: int) -> int:
        rows = self.rows
        count = len(self._of_prompt)
        if self.grows:
            outputs = most - self._prompt_length
            if rows.stop is not None and rows.stop >= 0:
                outputs = min(outputs, max(0, rows.stop + self._base - self._prompt_length))
            if rows.step > 1:
                outputs = -(-outputs // rows.step)
            count += outputs
            for limit in (rows.last, None if rows.positions is None else len(set(rows.positions))):
                count = count if limit is None else min(count, limit)
            if rows.start is not None and rows.start < 0:
                count = min(count, -rows.start)
        return count

    def next_needed(self, start: int) -> int:
        """The first position from ``start`` on whose row may be wanted; beyond all of them if there is none."""
        if start < self._prompt_length:
            index = int(np.searchsorted(self._of_prompt, start))
            if index < len(self._of_prompt):
                return int(self._of_prompt[index])
        return max(start, self._prompt_length) if self.grows else sys.maxsize

    # --- which rows ---------------------------------------------------------------------------------------------

    def candidates(self, start: int, end: int, tokens: NDArray[np.int32]) -> Positions:
        """Of the rows ``start .. end - 1``, those that may be wanted, ascending. ``tokens``: of all positions below ``end``."""
        if start >= self._prompt_length:
            if not self.grows:
                return _NONE
            outputs = np.arange(start, end, dtype=np.int64)
            return outputs if self._plain else self._filtered(outputs, tokens, None)
        mine = self._of_prompt
        if start > 0 or end < self._prompt_length:
            low, high = np.searchsorted(mine, (start, end))
            mine = mine[low:high]
        if not self.grows or end <= self._prompt_length:
            return mine
        outputs = np.arange(self._prompt_length, end, dtype=np.int64)
        if not self._plain:
            outputs = self._filtered(outputs, tokens, None)
        return np.concatenate([mine, outputs]) if len(mine) else outputs

    def possible(self, at: Positions, tokens: NDArray[np.int32], end: int) -> Positions:
        """Of candidates below ``end``, all of them from some position on: those that may still count if there are at least
        ``end`` rows."""
        length, rows = end - self._base, self.rows
        if self._plain:
            return at if rows.last is None else at[max(0, len(at) - rows.last) :]
        at = self._filtered(at, tokens, None)
        if rows.start is not None and rows.start < 0:
            at = at[at - self._base >= length + rows.start]
        if rows.positions is not None:
            ahead = [p for p in rows.positions if p >= 0]
            back = max((-p for p in rows.positions if p < 0), default=0)
            index = at - self._base
            at = at[np.isin(index, ahead) | (index >= length - back)]
        if rows.last is not None and not self._unsettled:
            kept_back = -min(0, rows.stop or 0, *rows.exclude_positions)
            at = at[max(0, len(at) - rows.last - kept_back) :]
        return at

    def exact(self, at: Positions, tokens: NDArray[np.int32], end: int) -> Positions:
        """Of possible rows, those that are wanted, now that there are ``end`` rows and no more."""
        at = at[: np.searchsorted(at, end)] if self._plain else self._filtered(at, tokens, end)
        return at if self.rows.last is None else at[max(0, len(at) - self.rows.last) :]

    def _filtered(self, at: Positions, tokens: NDArray[np.int32], end: int | None) -> Positions:
        """All conditions but ``last``; with no ``end``, those alone that do not hang on it."""
        rows, index = self.rows, at - self._base
        length = None if end is None else max(0, min(end, self._end_of_part(end)) - self._base)
        keep = np.ones(len(at), bool)
        if rows.start is not None or rows.stop is not None or rows.step != 1:
            keep &= _in_window(index, rows, length)
        if rows.positions is not None and (length is not None or all(p >= 0 for p in rows.positions)):
            keep &= np.isin(index, _resolved(rows.positions, length))
        if rows.exclude_positions:
            keep &= ~np.isin(index, _resolved(rows.exclude_positions, length))
        if self._in_spans is not None:
            keep &= self._in_spans[np.minimum(at, self._prompt_length)]
        at = at[keep]
        if self._token_ids is not None:
            at = at[np.isin(tokens[at], self._token_ids)]
        if len(self._no_token_ids):
            at = at[~np.isin(tokens[at], self._no_token_ids)]
        return at

    def _end_of_part(self, end: int) -> int:
        return self._prompt_length if self.rows.part is Part.PROMPT else end

    def check_end(self, end: int) -> None:
        """The answer is over with ``end`` rows. Raises ``InvalidRequest`` if a row that was named does not exist."""
        if not self.grows or self.rows.positions is None:
            return
        length = end - self._base
        for p in self.rows.positions:
            if not -length <= p < length:
                raise self._absent(p, f"the answer ended after {length}")


def _covered(spans: Spans, length: int) -> NDArray[np.bool_]:
    """Which positions of a prompt lie in a span; the last entry, for all behind it, is False."""
    inside = np.zeros(length + 1, bool)
    for first, stop in spans:
        inside[first : min(stop, length)] = True
    return inside


def _in_window(index: Positions, rows: Rows, length: int | None) -> NDArray[np.bool_]:
    start, stop = rows.start or 0, rows.stop
    if length is not None:
        start, stop, _ = slice(rows.start, rows.stop).indices(length)
    keep = np.ones(len(index), bool)
    if start >= 0:
        keep &= (index >= start) & ((index - start) % rows.step == 0)
    if stop is not None and stop >= 0:
        keep &= index < stop
    return keep


def _resolved(positions: Sequence[int], length: int | None) -> list[int]:
    return [p if p >= 0 else p + length for p in positions if p >= 0 or length is not None]  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Read:
    """Rows x layers x reduction, under a name.

    ``layers`` are resolved: 0 = embeddings, i = after block i, N = after the final norm, N + 1 = after the last block and
    before that norm. ``asked``: how the caller wrote them, or ``None`` if only the default layer was meant. ``reduce``: a
    name of ``REDUCTIONS``. ``each``: rows go out with the piece of text that they belong to. ``token_ids``: rows come with
    their tokens. ``sglang``: shown in SGLang's shape, the prompt's rows as one entry and each further one as its own.
    """

    rows: Rows
    layers: tuple[int, ...]
    asked: tuple[int | str, ...] | None = None
    reduce: str = ROWS
    name: str = ""
    each: bool = False
    sglang: bool = False
    token_ids: bool = False

    @property
    def cost(self) -> CaptureMode:
        return self.rows.cost

    @property
    def field(self) -> str:
        """The field that says which rows, for errors."""
        return "reads" if self.name else "hidden_states_rows"

    @property
    def vector(self) -> bool:
        """One row per layer, ``[W]``, or any number, ``[k, W]``?"""
        return self.reduce != ROWS

    @classmethod
    def last(cls, layers: tuple[int, ...], **more: Any) -> Read:
        """The last row alone."""
        return cls(LAST, layers, reduce=FIRST, **more)


def mode_of(reads: Sequence[Read]) -> CaptureMode:
    """What several reads cost together."""
    return max((read.cost for read in reads), default=CaptureMode.NULL)


# --- words -------------------------------------------------------------------------------------------------------


def parse_rows(
    value: Any, param: str, special_ids: Sequence[int] | None = None
) -> tuple[Rows, bool, tuple[tuple[int, int], ...]]:
    """A caller's words -> rows, whether one row is meant (an array without an axis of rows), and the character spans.

    ``"last"``, ``"all"``, ``"prompt"``, ``"output"``; a position; ``"start:stop:step"`` or a ``slice``; a list of positions;
    or an object with any of ``part``, ``start``, ``stop``, ``step``, ``positions``, ``token_ids``, ``chars``, ``last``,
    ``exclude`` (``"special"``, or an object with ``token_ids``, ``positions``, ``special``). ``special_ids``: what
    ``special`` means, ``None`` where nobody knows. Raises ``InvalidRequest``.
    """
    if isinstance(value, Rows):
        return value, False, ()
    if isinstance(value, (np.ndarray, np.integer)):
        value = value.tolist()
    if isinstance(value, str):
        return _word(value, param)
    if isinstance(value, int) and not isinstance(value, bool):
        return Rows(positions=(_whole(value, param),)), True, ()
    if isinstance(value, slice):
        return _window(Part.ALL, {"start": value.start, "stop": value.stop, "step": value.step}, param), False, ()
    if isinstance(value, (list, tuple, range)):
        return Rows(positions=_numbers(value, param, "positions")), False, ()
    if isinstance(value, Mapping):
        rows, chars = _object(value, param, special_ids)
        return rows, False, chars
    raise InvalidRequest(
        f'{param} must be "last", "all", "prompt", "output", "start:stop", a position, a list of positions or an object, '
        f"not {value!r:.80}",
        param=param,
    )


def as_json(value: Any) -> Any:
    """A caller's words for rows in Python -> the same as JSON has them. Raises ``InvalidRequest`` for ``Rows`` with spans, for
    which there are no words."""
    if isinstance(value, slice):
        given = {"start": value.start, "stop": value.stop, "step": value.step}
        return {name: int(n) for name, n in given.items() if n is not None}
    if isinstance(value, (np.ndarray, np.integer)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, Rows):
        return _rows_as_json(value)
    return [as_json(item) for item in value] if isinstance(value, (list, tuple, range)) else value


def _rows_as_json(rows: Rows) -> dict[str, Any]:
    if rows.spans is not None:
        raise InvalidRequest("rows with spans cannot be written down; say chars", param="rows")
    excluded = {"token_ids": list(rows.exclude_token_ids), "positions": list(rows.exclude_positions)}
    said = {
        "part": str(rows.part), "start": rows.start, "stop": rows.stop, "step": rows.step, "last": rows.last,
        "positions": None if rows.positions is None else list(rows.positions),
        "token_ids": None if rows.token_ids is None else list(rows.token_ids),
        "exclude": {name: numbers for name, numbers in excluded.items() if numbers} or None,
    }  # fmt: skip
    return {name: said_so for name, said_so in said.items() if said_so is not None}


def _word(value: str, param: str) -> tuple[Rows, bool, Spans]:
    if value == "last":
        return LAST, True, ()
    if value in set(Part):
        return (ALL if value == Part.ALL else Rows(part=Part(value))), False, ()
    match = _WINDOW.fullmatch(value)
    if match is None:
        raise InvalidRequest(
            f'{param} must be "last", "all", "prompt", "output" or a window "start:stop:step", not {value!r:.80}', param=param
        )
    start, stop, step = (int(n) if n else None for n in match.groups())
    return _window(Part.ALL, {"start": start, "stop": stop, "step": step}, param), False, ()


_KEYS = ("part", "start", "stop", "step", "positions", "token_ids", "chars", "last", "exclude")


def _object(value: Mapping[str, Any], param: str, special_ids: Sequence[int] | None) -> tuple[Rows, Spans]:
    unknown = [key for key in value if key not in _KEYS]
    if unknown:
        raise InvalidRequest(f"{param} has an unknown key {unknown[0]!r:.80}; there are {', '.join(_KEYS)}", param=param)
    part = value.get("part", "all")
    if not isinstance(part, str) or part not in set(Part):
        raise InvalidRequest(f'{param}: part must be "prompt", "output" or "all", not {part!r:.80}', param=param)
    last = value.get("last")
    if last is not None and (isinstance(last, bool) or not isinstance(last, (int, np.integer)) or last < 1):
        raise InvalidRequest(f"{param}: last must be a whole number of at least 1, not {last!r:.80}", param=param)
    chars = _spans(value["chars"], param) if value.get("chars") is not None else ()
    if chars and part == Part.OUTPUT:
        raise InvalidRequest(f"{param}: chars are of the prompt's text, part is output", param=param)
    excluded_ids, excluded = _excluded(value.get("exclude"), param, special_ids)
    window = _window(Part(part), value, param)
    lists = {name: _numbers(value[name], param, name) for name in ("positions", "token_ids") if value.get(name) is not None}
    if any(t < 0 for t in lists.get("token_ids", ())):
        raise InvalidRequest(f"{param}: token_ids must not be negative", param=param)
    rows = Rows(
        part=window.part, start=window.start, stop=window.stop, step=window.step, positions=lists.get("positions"),
        token_ids=lists.get("token_ids"), last=None if last is None else int(last),
        exclude_token_ids=excluded_ids, exclude_positions=excluded,
    )  # fmt: skip
    return rows, chars


def _window(part: Part, value: Mapping[str, Any], param: str) -> Rows:
    start, stop, step = (value.get(name) for name in ("start", "stop", "step"))
    for name, n in (("start", start), ("stop", stop), ("step", step)):
        if n is not None:
            _whole(n, f"{param}: {name}")
    if step is not None and step < 1:
        raise InvalidRequest(f"{param}: step must be at least 1 (rows come in ascending order), not {step}", param=param)
    return Rows(part=part, start=start, stop=stop, step=step or 1)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or abs(int(value)) >= 2**31:
        raise InvalidRequest(f"{name} must be a whole number, not {value!r:.80}", param=name.split(":")[0])
    return int(value)


def _numbers(value: Any, param: str, name: str) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple, range)):
        raise InvalidRequest(f"{param}: {name} must be a list of whole numbers, not {value!r:.80}", param=param)
    if len(value) > MOST_LISTED:
        raise InvalidRequest(f"{param}: {name} has {len(value)} entries, {MOST_LISTED} are the most", param=param)
    return tuple(sorted({_whole(n, f"{param}: {name}") for n in value}))


def _spans(value: Any, param: str) -> tuple[tuple[int, int], ...]:
    pairs = [value] if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (list, tuple)) else value
    if not isinstance(pairs, (list, tuple)) or not pairs or len(pairs) > MOST_LISTED:
        raise InvalidRequest(f"{param}: chars must be [from, to] or a list of such pairs, not {value!r:.80}", param=param)
    found = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise InvalidRequest(f"{param}: chars must be [from, to] or a list of such pairs, not {pair!r:.80}", param=param)
        first, stop = (_whole(n, f"{param}: chars") for n in pair)
        if not 0 <= first < stop:
            raise InvalidRequest(f"{param}: chars [{first}, {stop}] is no span of characters", param=param)
        found.append((first, stop))
    return tuple(found)


def _excluded(value: Any, param: str, special_ids: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids and positions that are left out."""
    if value is None:
        return (), ()
    if value == "special":
        value = {"special": True}
    if not isinstance(value, Mapping) or not set(value) <= {"token_ids", "positions", "special"}:
        raise InvalidRequest(
            f'{param}: exclude must be "special" or an object with token_ids, positions or special, not {value!r:.80}',
            param=param,
        )
    ids, positions = (
        () if value.get(name) is None else _numbers(value[name], param, f"exclude.{name}") for name in ("token_ids", "positions")
    )
    special = value.get("special")
    if any(t < 0 for t in ids) or not (special is None or isinstance(special, bool)):
        raise InvalidRequest(f"{param}: exclude takes token ids from 0 on, and special is true or false", param=param)
    if special:
        if special_ids is None:
            raise InvalidRequest(f"{param}: this engine has no tokenizer that says which tokens are special", param=param)
        ids = tuple(sorted({*ids, *special_ids}))
    return ids, positions


def parse_reduce(value: Any, default: str, param: str) -> str:
    """The name of a reduction; raises ``InvalidRequest`` with the list of all."""
    if value is None:
        return default
    if not isinstance(value, str) or value not in REDUCTIONS:
        raise InvalidRequest(f"{param} must be one of {', '.join(REDUCTIONS)}, not {value!r:.80}", param=param)
    return value


def layer_number(value: Any, count: int) -> int | None:
    """A layer as callers write it -> its number: 0 .. ``count`` as Hugging Face numbers them, negative from the end, and
    ``count`` + 1 for ``"L:pre_norm"`` (or the last block's own number before the colon). ``None`` if there is no such layer.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value % (count + 1) if -count - 1 <= value <= count else None
    if isinstance(value, str) and value in (f"L:{PRE_NORM}", f"{count}:{PRE_NORM}", f"-1:{PRE_NORM}"):
        return count + 1
    return None


def layer_word(number: int, count: int) -> int | str:
    """The other way round."""
    return number if number <= count else f"L:{PRE_NORM}"
