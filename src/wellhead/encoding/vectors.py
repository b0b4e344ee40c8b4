"""What all formats carry: the hidden states of n prompts, and the few facts that go with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest
from wellhead.types import STORAGE, CaptureMode, DType, HiddenStates, Pooling, narrow

#: Bytes of one row-group: what an encoder holds at once beyond the rows themselves.
GROUP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Hidden states of n prompts, in order.

    ``states[i]`` belongs to prompt i. ``layers``: numbers as they were asked for, ``(None,)`` for the default one.
    ``dtype``: in which they travel (rows keep their own until a row-group is written). ``full``: ``[rows_i, H]`` per
    prompt and layer, otherwise ``[H]``. ``facts``: JSON values, such as the model's name and the token counts.
    """

    states: tuple[HiddenStates, ...]
    layers: tuple[int | None, ...]
    dtype: DType
    full: bool
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hidden_size(self) -> int:
        return int(self.states[0].arrays[0].shape[-1])

    def counts(self) -> list[int]:
        """Rows of each prompt; 1 where there is one vector."""
        return [len(s.arrays[0]) if self.full else 1 for s in self.states]

    def names(self) -> dict[str, int | None]:
        """``hidden_states``, or ``hidden_states.<layer>`` for layers by number."""
        return {"hidden_states" if la is None else f"hidden_states.{la}": la for la in self.layers}

    def cast(self, index: int, layer: int | None) -> NDArray[Any]:
        """All rows of one prompt and layer, in the storage of ``dtype``."""
        return self._cast(self.states[index], self.states[index].raw(layer))

    def groups(self, layer: int | None, size: int = GROUP_BYTES) -> Iterator[NDArray[Any]]:
        """All rows of a layer in order, as contiguous ``[k, H]`` arrays of about ``size`` bytes."""
        most = max(1, size // (self.hidden_size * STORAGE[self.dtype].itemsize))
        held: list[NDArray[Any]] = []
        count = 0
        for states in self.states:
            rows = np.atleast_2d(states.raw(layer))
            for at in range(0, len(rows), most):
                part = self._cast(states, rows[at : at + most])
                if count + len(part) > most:
                    yield np.concatenate(held)
                    held, count = [], 0
                held.append(part)
                count += len(part)
        if held:
            yield np.concatenate(held)

    def _cast(self, states: HiddenStates, rows: NDArray[Any]) -> NDArray[Any]:
        if states.dtype == self.dtype:
            return rows
        wide = (rows.astype(np.uint32) << 16).view(np.float32) if states.dtype == "bfloat16" else rows.astype(np.float32)
        return narrow(wide, self.dtype)


def rebuild(arrays: Mapping[int | None, list[NDArray[Any]]], dtype: DType, full: bool, facts: Mapping[str, Any]) -> Vectors:
    """Vectors from what a decoder found: per layer, one array per prompt (views are fine)."""
    layers = tuple(arrays)
    count = len(next(iter(arrays.values()), []))
    prompts = facts.get("prompt_tokens") or [0] * count
    pooling = facts.get("pooling", "none")
    if not count or pooling not in ("none", "mean") or not isinstance(prompts, list) or len(prompts) != count:
        raise InvalidRequest("the facts about the hidden states do not fit them")
    if any(len(rows) != count or any(r.ndim != (2 if full else 1) for r in rows) for rows in arrays.values()):
        raise InvalidRequest("the hidden states do not have the shape that their facts say")
    states = []
    for i in range(count):
        mine = tuple(arrays[la][i] for la in layers)
        rows = len(mine[0]) if full else prompts[i]
        states.append(
            HiddenStates(
                mode=CaptureMode.FULL if full else CaptureMode.LAST,
                pooling=Pooling(pooling),
                dtype=dtype,
                layers=tuple(la if la is not None else -1 for la in layers),
                arrays=mine,
                prompt_rows=prompts[i],
                asked=None if layers == (None,) else tuple(la for la in layers if la is not None),
                total_rows=rows,
            )
        )
    return Vectors(tuple(states), layers, dtype, full, facts)


def layer_of(name: str) -> int | None:
    """The layer in a tensor's or column's name."""
    head, _, number = name.partition(".")
    if head != "hidden_states":
        raise InvalidRequest(f"{name!r} is no name of hidden states")
    return int(number) if number else None
