"""Extraction through a server: texts -> requests that it takes -> hidden states, each at its index.

Generators of steps, as in ``exchange``; the clients carry them out.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wellhead.client.exchange import Call, Dropped, Payload, Response, Retry, Step, exchange
from wellhead.encoding import safetensors
from wellhead.errors import InternalError, InvalidRequest, WellheadError
from wellhead.halving import Halving
from wellhead.on_error import OnError, settled
from wellhead.reads import as_json, parse_reduce, parse_rows
from wellhead.reductions import FIRST, ROWS
from wellhead.types import DTYPES, STORAGE, DType, HiddenStates

Extracted = tuple[int, HiddenStates | WellheadError]
Item = tuple[int, Any]
Part = Generator[Step, Response | Dropped | None, list[Extracted]]

MODES = ("last", "full", "mean")
#: Texts, and their bytes as JSON, that go in one request, and the requests that are under way at once.
BATCH_TEXTS = 64
BATCH_BYTES = 256 << 10
IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one request may hold: texts, bytes of JSON, and tokens (``None``: any number)."""

    texts: int
    bytes: int
    tokens: int | None
    hidden_size: int

    @staticmethod
    def of(info: Payload) -> ServerLimits:
        """From a reply of ``/server_info``; what it does not say is not a limit."""
        try:
            said, width = info.get("limits") or {}, int(info["hidden_size"])
            texts, size = int(said.get("max_batch_size") or BATCH_TEXTS), int(said.get("max_body_bytes") or BATCH_BYTES)
            tokens = said.get("max_request_tokens")
            return ServerLimits(min(texts, BATCH_TEXTS), min(size, BATCH_BYTES), None if tokens is None else int(tokens), width)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InternalError(f"/server_info makes no sense: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of every text: fields of ``/v1/hidden_states``. ``dtype``: in which rows travel and are handed over.
    ``vector``: one per text and layer, or any number of rows?"""

    fields: Payload
    layers: tuple[int | str, ...] | None
    dtype: DType
    vector: bool

    @staticmethod
    def of(
        mode: str | None, layers: Iterable[int | str] | None, dtype: str, rows: Any = None, reduce: str | None = None
    ) -> Wanted:
        """Raises ``InvalidRequest`` for what cannot be meant."""
        known = next((d for d in DTYPES if d == dtype), None)
        if known is None:
            raise InvalidRequest(f"dtype must be {', '.join(DTYPES)}, not {dtype!r}", param="dtype")
        numbers = None if layers is None else tuple(n if isinstance(n, str) else int(n) for n in layers)
        if mode is not None and (rows is not None or reduce is not None):
            raise InvalidRequest("mode is short for rows and reduce: give one or the other", param="mode")
        if rows is None and reduce is None:
            mode = mode or "last"
            if mode not in MODES:
                raise InvalidRequest(f"mode must be last, full or mean, not {mode!r}", param="mode")
            return Wanted({"mode": mode}, numbers, known, mode != "full")
        one = rows is not None and parse_rows(rows, "rows", ())[1]
        vector = parse_reduce(reduce, FIRST if one else ROWS, "reduce") != ROWS
        said = {"rows": as_json(rows), "reduce": reduce}
        return Wanted({name: value for name, value in said.items() if value is not None}, numbers, known, vector)

    def call(self, inputs: list[Any]) -> Call:
        """The request for some texts, or for some lists of token ids."""
        payload: Payload = {"input": inputs, **self.fields, "dtype": self.dtype}
        if self.layers is not None:
            payload["layers"] = list(self.layers)
        return Call("POST", "/v1/hidden_states", payload, accept=safetensors.MEDIA_TYPE)


def check_texts(texts: Any) -> Iterator[Any]:
    """Texts to iterate over; one text alone is refused."""
    if isinstance(texts, (str, bytes)):
        raise InvalidRequest("texts must be a list of texts, not one text", param="texts")
    return iter(texts)


def batches(texts: Iterable[Any], limits: ServerLimits) -> Iterator[list[Item]]:
    """``(index, text)`` in lists that fit one request each; strings and lists of token ids are never mixed."""
    held: list[Item] = []
    size = tokens = 0
    for index, text in enumerate(texts):
        item = text if isinstance(text, str) else _ids(text)
        its_size, its_tokens = _cost(item)
        full = len(held) >= limits.texts or size + its_size > limits.bytes - 1024
        full |= limits.tokens is not None and tokens + its_tokens > limits.tokens
        if held and (full or isinstance(held[0][1], str) != isinstance(item, str)):
            yield held
            held, size, tokens = [], 0, 0
        held.append((index, item))
        size, tokens = size + its_size, tokens + its_tokens
    if held:
        yield held


def _ids(text: Any) -> Any:
    """Token ids as JSON has them; anything else is left for ``part`` to refuse at its place."""
    if isinstance(text, np.ndarray) and text.ndim == 1 and text.dtype.kind in "iu":
        return text.tolist()
    return list(text) if isinstance(text, (list, tuple)) else text


def _cost(item: Any) -> tuple[int, int]:
    """Bytes as JSON and tokens, neither of them less than the truth but for a special token or two."""
    if isinstance(item, list):
        return 12 * len(item), len(item)
    if not isinstance(item, str):
        return 0, 0
    plain = item.isascii() and item.isprintable()
    written = len(item) + item.count("\\") + item.count('"') + 4 if plain else 12 * len(item) + 4
    return written, len(item.encode("utf-8", "surrogatepass")) + 2


def part(items: list[Item], wish: Wanted, retry: Retry, rng: random.Random) -> Part:
    """Extract a batch. A text that the server refuses gives its error in its place, and the others go on.

    Raises what concerns all of them: options above the ceiling, a wrong key, a server that stays away.
    """
    bad = [(i, text) for i, text in items if not isinstance(text, (str, list))]
    good = [item for item in items if isinstance(item[1], (str, list))]
    refused: list[Extracted] = [
        (i, InvalidRequest("each text must be a string or a list of token ids", param="text")) for i, _ in bad
    ]
    return refused + (yield from _good(good, wish, retry, rng))


def _good(items: list[Item], wish: Wanted, retry: Retry, rng: random.Random) -> Part:
    found: list[Extracted] = []
    halving = Halving(items)
    for batch in halving:
        try:
            answer = yield from exchange(wish.call([text for _, text in batch]), retry, rng)
        except WellheadError as error:
            if not _concerns_a_text(error):
                raise
            if not halving.halve(batch):
                found.append((batch[0][0], error))
            continue
        found += [(i, one) for (i, _), one in zip(batch, read_states(answer, len(batch), wish), strict=True)]
    return found


#: Errors that fewer texts, or others, would not have met.
_OF_A_TEXT = frozenset(
    {
        "non_finite", "empty_prompt", "token_out_of_range", "row_out_of_range", "prompt_too_long",
        "body_too_large", "batch_too_large", "request_too_large",
    }
)  # fmt: skip


def _concerns_a_text(error: WellheadError) -> bool:
    return error.code in _OF_A_TEXT or (error.code == "invalid_request" and error.param in ("input", "text", "input_ids"))


def read_states(reply: Response, count: int, wish: Wanted) -> tuple[HiddenStates, ...]:
    """The states in a reply, as views of its body; ``InternalError`` if they are not what was asked for."""
    try:
        vectors = safetensors.decode(memoryview(reply.body))
    except WellheadError as error:
        raise InternalError(f"the server's answer cannot be read: {error.message}") from error
    layers: tuple[int | str | None, ...] = (None,) if wish.layers is None else wish.layers
    dimensions = 1 if wish.vector else 2
    fits = len(vectors.states) == count and vectors.layers == layers and vectors.dtype == wish.dtype
    if not fits or any(a.ndim != dimensions for s in vectors.states for a in s.arrays):
        raise InternalError(
            f"the server answered {len(vectors.states)} texts, layers {list(vectors.layers)}, {vectors.dtype}; "
            f"asked were {count}, {list(layers)}, {wish.dtype}"
        )
    return vectors.states


def gather(found: dict[int, HiddenStates | WellheadError], wish: Wanted, hidden_size: int, on_error: OnError) -> Any:
    """States by index -> ``[n, H]``, or a list of ``[rows_i, H]``; a dict from layer to that for layers by number."""
    ordered = [found[i] for i in range(len(found))]
    stand = [one for one in ordered if isinstance(one, HiddenStates)]
    if wish.layers is None:
        return settled(_column(stand, None, wish, hidden_size), ordered, on_error)
    return settled({layer: _column(stand, layer, wish, hidden_size) for layer in wish.layers}, ordered, on_error)


def _column(ordered: list[HiddenStates], layer: int | str | None, wish: Wanted, hidden_size: int) -> Any:
    rows = [s.stored(layer, wish.dtype) for s in ordered]
    if not wish.vector:
        return rows
    return np.stack(rows) if rows else np.empty((0, hidden_size), STORAGE[wish.dtype])
