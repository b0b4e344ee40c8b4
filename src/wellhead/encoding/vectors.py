"""What all formats carry: the hidden states of n prompts, and the few facts that go with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest
from wellhead.reductions import FIRST, REDUCTIONS, ROWS
from wellhead.types import STORAGE, DType, HiddenStates, Positions, narrow, widen

#: Bytes of one row-group: what an encoder holds at once beyond the rows themselves.
GROUP_BYTES = 1 << 20

Layer = int | str | None
"""A layer as it was asked for; ``None``: the default one."""


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Hidden states of n prompts, in order.

    ``states[i]`` belongs to prompt i. ``layers``: numbers as they were asked for, ``(None,)`` for the default one.
    ``dtype``: in which they travel (rows keep their own until a row-group is written). ``full``: ``[rows_i, H]`` per
    prompt and layer, otherwise ``[H]``. ``facts``: JSON values, such as the model's name and the token counts.
    """

    states: tuple[HiddenStates, ...]
    layers: tuple[Layer, ...]
    dtype: DType
    full: bool
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hidden_size(self) -> int:
        return int(self.states[0].arrays[0].shape[-1])

    def counts(self) -> list[int]:
        """Rows of each prompt; 1 where there is one vector."""
        return [len(s.arrays[0]) if self.full else 1 for s in self.states]

    def names(self) -> dict[str, Layer]:
        """``hidden_states``, or ``hidden_states.<layer>`` for layers by number."""
        return {"hidden_states" if la is None else f"hidden_states.{la}": la for la in self.layers}

    def positions(self) -> list[Positions]:
        """Of each prompt, which rows these are, or what was reduced."""
        return [s.positions for s in self.states]

    def token_ids(self) -> list[NDArray[np.int32]] | None:
        """Of each prompt, the tokens at these positions, if they were asked for."""
        found = [s.token_ids for s in self.states if s.token_ids is not None]
        return found if found and len(found) == len(self.states) else None

    def cast(self, index: int, layer: Layer) -> NDArray[Any]:
        """All rows of one prompt and layer, in the storage of ``dtype``."""
        return self.states[index].stored(layer, self.dtype)

    def groups(self, layer: Layer, size: int = GROUP_BYTES) -> Iterator[NDArray[Any]]:
        """All rows of a layer in order, as contiguous ``[k, H]`` arrays of about ``size`` bytes."""
        most = max(1, size // (self.hidden_size * STORAGE[self.dtype].itemsize))
        held: list[NDArray[Any]] = []
        count = 0
        for states in self.states:
            rows = np.atleast_2d(states.raw(layer))
            for at in range(0, len(rows), most):
                part = rows[at : at + most]
                part = part if states.dtype == self.dtype else narrow(widen(part, states.dtype), self.dtype)
                if count + len(part) > most:
                    yield np.concatenate(held)
                    held, count = [], 0
                held.append(part)
                count += len(part)
        if held:
            yield np.concatenate(held)


def rebuild(
    arrays: Mapping[Layer, list[NDArray[Any]]],
    positions: list[Positions] | None,
    dtype: DType,
    full: bool,
    facts: Mapping[str, Any],
    token_ids: list[NDArray[np.int32]] | None = None,
) -> Vectors:  # fmt: skip
    """Vectors from what a decoder found: per layer, one array per prompt (views are fine), the positions of each, and the
    tokens there if they came.

    ``positions`` is ``None`` where the format has no place for them: all rows from 0 on, or nothing known but one row.
    """
    layers = tuple(arrays)
    count = len(next(iter(arrays.values()), []))
    prompts = facts.get("prompt_tokens") or [0] * count
    reduce = facts.get("reduce", ROWS if full else FIRST)
    if not count or reduce not in REDUCTIONS or not isinstance(prompts, list) or len(prompts) != count:
        raise InvalidRequest("the facts about the hidden states do not fit them")
    if any(len(rows) != count or any(r.ndim != (2 if full else 1) for r in rows) for rows in arrays.values()):
        raise InvalidRequest("the hidden states do not have the shape that their facts say")
    states = []
    for i in range(count):
        mine = tuple(arrays[la][i] for la in layers)
        at = positions[i] if positions is not None else np.arange(len(mine[0]) if full else 0, dtype=np.int64)
        tokens = None if token_ids is None else token_ids[i]
        if (full and len(at) != len(mine[0])) or (tokens is not None and len(tokens) != len(at)):
            raise InvalidRequest("the positions of the hidden states do not fit them")
        states.append(
            HiddenStates(
                dtype=dtype,
                layers=tuple(la if isinstance(la, int) else -1 for la in layers),
                arrays=mine,
                positions=at,
                prompt_rows=prompts[i],
                reduce=reduce,
                asked=None if layers == (None,) else tuple(la for la in layers if la is not None),
                total_rows=_total(facts, i, prompts[i]),
                token_ids=tokens,
            )
        )
    return Vectors(tuple(states), layers, dtype, full, facts)


def _total(facts: Mapping[str, Any], i: int, prompt: int) -> int:
    """Rows of a prompt and its answer."""
    made = facts.get("completion_tokens")
    return prompt + (max(0, int(made[i]) - 1) if isinstance(made, list) and len(made) > i else 0)


def layer_of(name: str) -> Layer:
    """The layer in a tensor's or column's name."""
    head, _, layer = name.partition(".")
    if head != "hidden_states":
        raise InvalidRequest(f"{name!r} is no name of hidden states")
    try:
        return int(layer) if layer else None
    except ValueError:
        return layer
