"""``heads`` and ``stop_on`` of a payload -> what each request wants of which head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import HeadNotFound, InvalidHead, InvalidRequest
from wellhead.reads import Part, Read, Rows, layer_number, parse_reduce, parse_rows
from wellhead.reductions import FIRST, ROWS
from wellhead.requests.limits import Limits
from wellhead.requests.sampling import is_finite_number
from wellhead.types import HeadWish, SamplingParams, Scorer, StopOn

#: What an object of ``heads`` may say of one head.
HEAD_KEYS = ("rows", "reduce", "on", "aggregate")
STOP_KEYS = ("head", "label", "threshold", "hold", "on")
MOST_HEADS = 256
_SIDES = ("prompt", "output", "both")

Wished = tuple[tuple[HeadWish, ...], StopOn | None]


def wished(
    payload: Mapping[str, Any], prompts: list[NDArray[np.int32]], sampling: list[SamplingParams], limits: Limits
) -> list[Wished]:
    """Per prompt, the heads that are to judge it and its answer, and what ends that. Raises ``InvalidRequest``."""
    asked = _asked(payload.get("heads"), limits)
    stop = _stop(payload.get("stop_on"), limits)
    if stop is not None and stop.head not in asked:
        asked[stop.head] = {}
    found: list[Wished] = []
    for prompt, params in zip(prompts, sampling, strict=True):
        wishes = tuple(_wish(limits.heads[name], said, prompt, params, limits) for name, said in asked.items())
        if stop is not None:
            _check_stop(stop, wishes)
        found.append((wishes, stop))
    return found


def _asked(value: Any, limits: Limits) -> dict[str, Mapping[str, Any]]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        named = {name: {} if said is None else said for name, said in value.items()}
    elif isinstance(value, (list, tuple)):
        named = {name: {} for name in value if isinstance(name, str)}
        if len(named) < len(value):
            raise InvalidRequest("heads: each name is a string, and stands there once", param="heads")
    else:
        raise InvalidRequest(
            f"heads must be a list of names, or an object of what is wanted by name, not {value!r:.80}", param="heads"
        )
    if len(named) > MOST_HEADS:
        raise InvalidRequest(f"heads has {len(named)} entries, {MOST_HEADS} are the most", param="heads")
    for name, said in named.items():
        _find(name, "heads", limits)
        if not isinstance(said, Mapping):
            raise InvalidRequest(f"heads: {name} must be an object with {', '.join(HEAD_KEYS)}", param="heads")
        unknown = [key for key in said if key not in HEAD_KEYS]
        if unknown:
            raise InvalidRequest(
                f"heads: {name} has an unknown key {unknown[0]!r:.80}; there are {', '.join(HEAD_KEYS)}", param="heads"
            )
    return named


def _find(name: Any, param: str, limits: Limits) -> Scorer:
    head = limits.heads.get(name) if isinstance(name, str) else None
    if head is None:
        there = ", ".join(sorted(limits.heads)[:16]) or "none; start the engine with --heads"
        raise HeadNotFound(f"{param}: there is no head {name!r:.80}; there are {there}", param=param)
    return head


def _wish(head: Scorer, said: Mapping[str, Any], prompt: NDArray[np.int32], params: SamplingParams, limits: Limits) -> HeadWish:
    name, config = head.name, limits.config
    special = sorted(limits.special_ids) if limits.has_tokenizer else None
    rows, one, chars = parse_rows(head.rows if said.get("rows") is None else said["rows"], "heads", special)
    if chars:
        raise InvalidRequest(f"heads: {name}: rows by characters are not for heads; give positions", param="heads")
    default = head.reduce if said.get("rows") is None and head.reduce != ROWS else FIRST if one else ROWS
    reduce = parse_reduce(said.get("reduce"), default, "heads")
    layers = tuple(layer_number(layer, config.layers) or 0 for layer in head.layers)
    side = said.get("on")
    if side is not None and side not in _SIDES:
        raise InvalidRequest(f"heads: {name}: on must be one of {', '.join(_SIDES)}, not {side!r:.80}", param="heads")
    of_output = rows.part is Part.OUTPUT
    if of_output and side in ("prompt", "both"):
        raise InvalidRequest(f"heads: {name}: its rows are of the output, and on is {side}", param="heads")
    generates = params.max_new_tokens > 0
    if side is None:
        side = "output" if of_output else "both" if generates else "prompt"
    if side != "prompt" and not generates:
        raise InvalidRequest(f"heads: {name} is to judge the output, and max_new_tokens is 0", param="heads")
    if of_output and reduce != ROWS:
        raise InvalidRequest(
            f"heads: {name}: rows of the output are judged one by one; aggregate says what becomes of their scores", param="heads"
        )
    whole = replace(rows, part=Part.PROMPT)
    try:
        first = Read(whole, layers, reduce=reduce) if side != "output" else None
        if first is not None:
            whole.of(prompt, 0)
        then = Read(rows if of_output else Rows(part=Part.OUTPUT), layers) if side != "prompt" else None
        trailing = then is not None and then.rows.of(prompt, params.max_new_tokens).trailing
    except InvalidRequest as error:
        raise type(error)(f"heads: {name}: {error.message}", param="heads") from None
    if trailing:
        raise InvalidRequest(
            f"heads: {name}: rows of the output are judged as they come, so none can be counted from its end; the aggregate "
            '"last" has the last one\'s score',
            param="heads",
        )
    aggregate = said.get("aggregate")
    if aggregate is not None:
        if then is None:
            raise InvalidRequest(f"heads: {name}: aggregate is of rows of the output, and it judges none", param="heads")
        try:
            head.accumulator(aggregate)
        except InvalidHead as error:
            raise InvalidRequest(f"heads: {name}: {error.message}", param="heads") from None
    return HeadWish(head, first, then, aggregate)


def _stop(value: Any, limits: Limits) -> StopOn | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not {"head", "label"} <= set(value) <= set(STOP_KEYS):
        raise InvalidRequest(
            f"stop_on must be an object with head and label, and perhaps threshold, hold and on, not {value!r:.80}",
            param="stop_on",
        )
    head, label = _find(value["head"], "stop_on", limits), value["label"]
    if not isinstance(label, str) or label not in head.labels:
        raise InvalidRequest(
            f"stop_on: head {head.name} has no label {label!r:.80}; it has {', '.join(head.labels[:16])}", param="stop_on"
        )
    threshold = value.get("threshold")
    if threshold is None:
        threshold = head.thresholds.get(label)
    if not is_finite_number(threshold):
        raise InvalidRequest(
            f"stop_on: threshold must be a number, not {threshold!r:.80} (the head has none of its own for this label)",
            param="stop_on",
        )
    hold, on = value.get("hold"), value.get("on")
    if hold not in (None, 0, 1):
        raise InvalidRequest(f"stop_on: hold is 1 (a token waits until it was judged) or 0, not {hold!r:.80}", param="stop_on")
    if on not in (None, "row", "aggregate"):
        raise InvalidRequest(f'stop_on: on must be "row" or "aggregate", not {on!r:.80}', param="stop_on")
    assert threshold is not None
    return StopOn(head.name, label, float(threshold), hold is None or bool(hold), on or "row")


def _check_stop(stop: StopOn, wishes: tuple[HeadWish, ...]) -> None:
    wish = next(wish for wish in wishes if wish.head.name == stop.head)
    if stop.on == "aggregate" and wish.output is None:
        raise InvalidRequest("stop_on: on is aggregate, and this head judges no rows of the output", param="stop_on")
