"""The vocabulary that every room shares. Nothing here imports torch.

Words: position ``p`` is the index of a token in prompt + output; row ``p`` is the hidden state computed when that token
was the model's input. P prompt tokens, N output tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest, WellheadError
from wellhead.reads import CaptureMode, Positions, Read, Rows, mode_of
from wellhead.reductions import FIRST, ROWS

__all__ = [
    "DTYPES", "STORAGE", "Accumulator", "CaptureMode", "DType", "FinishReason", "HeadOutput", "HeadWish", "HiddenStates",
    "LogprobSpec", "Logprobs", "Output", "Pooling", "Positions", "Read", "Request", "Rows", "SamplingParams", "Scorer", "Scores",
    "StopOn", "Usage", "Verdict", "narrow", "widen",
]  # fmt: skip

DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")
Activation = Literal["silu", "gelu_tanh"]

#: How rows of each dtype are held by numpy, which has no bfloat16 of its own: as its 16 bits.
STORAGE: Mapping[DType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.float16),
}


class Pooling(StrEnum):
    """The older word for the reduction ``mean``, and for none."""

    NONE = "none"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a request ends. Names and defaults are SGLang's; validated by ``requests``.

    ``temperature`` 0 is greedy. ``top_k`` -1 keeps all. Penalties: ``frequency`` and ``presence`` count output tokens
    and are subtracted from logits, ``repetition`` divides positive and multiplies negative logits of tokens that occur
    in the prompt or the output (Keskar et al. 2019).
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logit_bias: tuple[tuple[int, float], ...] = ()
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def penalised(self) -> bool:
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0


@dataclass(frozen=True, slots=True)
class LogprobSpec:
    """Which log-probabilities a request wants.

    ``start``: first prompt position whose token's logprob is wanted, or ``None`` for output tokens only.
    ``top``: how many of the most likely tokens at each position. ``token_ids``: tokens to report at each position.
    """

    start: int | None = None
    top: int = 0
    token_ids: tuple[int, ...] = ()
    with_text: bool = False


class Accumulator(Protocol):
    """Scores of many rows -> one; ``heads.aggregate.Aggregate``."""

    def update(self, features: NDArray[np.floating], /) -> NDArray[np.float32]:
        """Take k rows ``[k, F]``; what the aggregate is after each, ``[k, C]``."""
        ...

    def value(self) -> NDArray[np.float32] | None:
        """``[C]``; ``None`` of no rows."""
        ...

    def copy(self) -> Accumulator: ...


class Scorer(Protocol):
    """What the engine needs of a head; ``heads.head.Head``. k rows, W numbers each, F features, C scores."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def layers(self) -> tuple[Any, ...]: ...

    @property
    def rows(self) -> Any: ...

    @property
    def reduce(self) -> str: ...

    @property
    def columns(self) -> int: ...

    @property
    def thresholds(self) -> Mapping[str, float]: ...

    def features(self, rows: NDArray[np.floating], /) -> NDArray[np.float32]: ...

    def scores(self, rows: NDArray[np.floating], /) -> NDArray[np.float32]: ...

    def probabilities(self, scores: NDArray[np.floating], /) -> NDArray[np.float32]: ...

    def winners(self, scores: NDArray[np.floating], /) -> list[str]: ...

    def accumulator(self, aggregate: Any = None, /) -> Accumulator: ...


@dataclass(frozen=True, slots=True, eq=False)
class HeadWish:
    """One head of a request, in the version that the request began with. ``prompt``, ``output``: the rows that it judges, or
    ``None``; ``aggregate``: over those of the output, ``None`` for the head's own."""

    head: Scorer
    prompt: Read | None
    output: Read | None
    aggregate: Any = None

    @property
    def reads(self) -> Iterator[Read]:
        return (read for read in (self.prompt, self.output) if read is not None)


@dataclass(frozen=True, slots=True)
class StopOn:
    """A verdict that ends an answer: ``label`` of ``head`` at ``threshold`` or above.

    ``hold``: a token is held back until its own row was judged, and a condemned one is not sent. ``on``: ``"row"``, or
    ``"aggregate"`` of the output's rows so far (a verdict on the prompt counts either way).
    """

    head: str
    label: str
    threshold: float
    hold: bool = True
    on: Literal["row", "aggregate"] = "row"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and one sample: the wish, normalised and validated.

    ``rid`` names the request as its owner does; with ``n > 1`` or a scalar rid over a batch several share it, and
    ``key`` tells them apart. ``input_ids``: int32 ``[P]``, P >= 1.
    """

    key: str
    rid: str
    input_ids: NDArray[np.int32]
    sampling: SamplingParams = SamplingParams()
    reads: tuple[Read, ...] = ()
    heads: tuple[HeadWish, ...] = ()
    stop_on: StopOn | None = None
    logprobs: LogprobSpec | None = None
    seed: int = 0
    stream: bool = False
    prompt_index: int = 0
    sample_index: int = 0
    timeout: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def mode(self) -> CaptureMode:
        """What its reads, and those of its heads, cost together."""
        return mode_of((*self.reads, *(read for wish in self.heads for read in wish.reads)))


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a request ended. ``matched``: the token id, string or pattern that stopped it; ``length``: output tokens.

    ``head``: which head ended it, with which ``label``, how high (``score``: its probability, or its margin where it has none)
    and on the row of which ``position``.
    """

    kind: Literal["stop", "length", "abort", "head"]
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    head: str | None = None
    label: str | None = None
    score: float | None = None
    position: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """SGLang's shape."""
        if self.kind == "stop":
            return {"type": "stop", "matched": self.matched}
        if self.kind == "length":
            return {"type": "length", "length": self.length}
        if self.kind == "head":
            return {"type": "head", **self.verdict()}
        return {"type": "abort", "message": self.message or "aborted"}

    def verdict(self) -> dict[str, Any]:
        """Which head ended it, and why."""
        return {"head": self.head, "label": self.label, "score": self.score, "position": self.position}


def widen(rows: NDArray[Any], dtype: DType) -> NDArray[np.float32]:
    """Rows in their storage dtype -> float32, exactly. A float32 array is returned as it is."""
    if dtype == "bfloat16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32, copy=False)


def narrow(rows: NDArray[np.float32], dtype: DType) -> NDArray[Any]:
    """float32 -> storage of ``dtype``, rounded to nearest even (NaN stays NaN)."""
    if dtype != "bfloat16":
        return rows.astype(STORAGE[dtype], copy=False)
    bits = np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)) >> 16).astype(np.uint16)
    return np.where(np.isnan(rows), np.uint16(0x7FC0), rounded)


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates:
    """The rows of one read, one contiguous array per layer, labelled.

    ``arrays``, one for each of ``layers``: ``[k, W]``, or ``[W]`` if they were reduced to one (``reduce``); in the dtype in
    which the model computed them (sums and means: float32). ``positions`` (int64 ``[k]``, ascending) says which rows these
    are, or what was reduced; ``token_ids`` (int32 ``[k]``) are the tokens at these positions, where they are known. Rows of
    prompt tokens are those below ``prompt_rows``; ``total_rows`` is how many rows the request has in all by now. Layer
    numbers are those of ``Read``.
    """

    dtype: DType
    layers: tuple[int, ...]
    arrays: tuple[NDArray[Any], ...]
    positions: Positions
    prompt_rows: int
    reduce: str = ROWS
    asked: tuple[int | str, ...] | None = None
    total_rows: int = 0
    token_ids: NDArray[np.int32] | None = None
    sglang: bool = False

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays)

    @property
    def mode(self) -> CaptureMode:
        """``LAST`` for one row as it is, else ``FULL``."""
        return CaptureMode.LAST if self.reduce == FIRST else CaptureMode.FULL

    @property
    def pooling(self) -> Pooling:
        return Pooling.MEAN if self.reduce == "mean" else Pooling.NONE

    @property
    def first_row(self) -> int:
        """The position of the first row, or where it would be."""
        return int(self.positions[0]) if len(self.positions) else self.total_rows

    def raw(self, layer: int | str | None = None) -> NDArray[Any]:
        """The stored array of a layer as the caller asked for it (default: the only or first one); bfloat16 as uint16."""
        if layer is None:
            return self.arrays[0]
        for names in (self.asked or (), self.layers):
            if layer in names:
                return self.arrays[names.index(layer)]
        raise InvalidRequest(f"layer {layer} was not captured; this request has {list(self.asked or self.layers)}", param="layer")

    def numpy(self, layer: int | str | None = None) -> NDArray[np.float32]:
        """A layer as float32: ``[W]`` or ``[k, W]``."""
        return widen(self.raw(layer), self.dtype)

    def stored(self, layer: int | str | None, dtype: DType) -> NDArray[Any]:
        """A layer in the storage of ``dtype``, rounded to it if need be; the array itself where it is in it already."""
        raw = self.raw(layer)
        return raw if self.dtype == dtype else narrow(widen(raw, self.dtype), dtype)

    def _entries(self, rows: NDArray[np.float32]) -> Any:
        if rows.ndim == 1 or not self.sglang:
            return rows
        if self.first_row >= self.prompt_rows:
            return list(rows)
        cut = self.prompt_rows - self.first_row
        return [rows[:cut], *rows[cut:]]

    def entries(self) -> Any:
        """As ``meta_info`` shows it, in float32 numpy views of one array per layer.

        ``[W]`` or ``[k, W]``; for ``return_hidden_states=True`` SGLang's shape, a list of N entries: the prompt's ``[P, H]``
        and then one ``[H]`` per further output token. If layers were asked for by number: a dict from that to the same.
        """
        if self.asked is None:
            return self._entries(self.numpy())
        return {layer: self._entries(widen(a, self.dtype)) for layer, a in zip(self.asked, self.arrays, strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """Log-probabilities of k consecutive tokens, as arrays: ``ids`` and ``values`` ``[k]`` (NaN: not known, as for
    position 0), ``top_ids`` and ``top_values`` ``[k, top]``, ``picked`` ``[k, len(token_ids)]``."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    top_ids: NDArray[np.int64]
    top_values: NDArray[np.float32]
    picked: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Logprobs:
        return Logprobs(self.ids[part], self.values[part], self.top_ids[part], self.top_values[part], self.picked[part])

    @staticmethod
    def unknown(token: int, spec: LogprobSpec) -> Logprobs:
        """One token that nothing predicts: the first of a prompt."""
        nan = np.float32(np.nan)
        return Logprobs(
            np.array([token], np.int64),
            np.array([nan]),
            np.zeros((1, spec.top), np.int64),
            np.full((1, spec.top), nan),
            np.full((1, len(spec.token_ids)), nan),
        )

    @staticmethod
    def join(parts: list[Logprobs], spec: LogprobSpec) -> Logprobs:
        if not parts:
            top, picked = np.empty((0, spec.top)), np.empty((0, len(spec.token_ids)), np.float32)
            none = np.empty(0, np.int64)
            return Logprobs(none, np.empty(0, np.float32), top.astype(np.int64), top.astype(np.float32), picked)
        return Logprobs(
            np.concatenate([p.ids for p in parts]),
            np.concatenate([p.values for p in parts]),
            np.concatenate([p.top_ids for p in parts]),
            np.concatenate([p.top_values for p in parts]),
            np.concatenate([p.picked for p in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What a head says of k rows: ``positions`` int64 ``[k]``, ``scores`` float32 ``[k, C]`` (before calibration and
    activation), ``probabilities`` float32 ``[k, labels]`` (the scores, where the head has no probabilities)."""

    positions: Positions
    scores: NDArray[np.float32]
    probabilities: NDArray[np.float32]

    @staticmethod
    def join(parts: list[Scores]) -> Scores | None:
        if len(parts) < 2:
            return parts[0] if parts else None
        columns = zip(*((p.positions, p.scores, p.probabilities) for p in parts), strict=True)
        positions, scores, probabilities = (np.concatenate(column) for column in columns)
        return Scores(positions, scores, probabilities)

    def to_dict(self) -> dict[str, Any]:
        return {"positions": self.positions, "scores": self.scores, "probabilities": self.probabilities}


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a head says of some rows together. ``scores`` ``[C]``, ``probabilities`` ``[labels]``. ``rows``: of each alone."""

    label: str
    scores: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    positions: Positions | None = None
    rows: Scores | None = None

    def to_dict(self) -> dict[str, Any]:
        shown = {"label": self.label, "scores": self.scores, "probabilities": self.probabilities}
        if self.positions is not None:
            shown["positions"] = self.positions
        return shown if self.rows is None else {**shown, "rows": self.rows.to_dict()}


@dataclass(frozen=True, slots=True, eq=False)
class HeadOutput:
    """What a head has said of a request since the piece before: its verdict on the ``prompt`` (once), the scores of rows of the
    output (``tokens``), and the ``aggregate`` of all of these so far."""

    version: str
    labels: tuple[str, ...]
    prompt: Verdict | None = None
    tokens: Scores | None = None
    aggregate: Verdict | None = None

    def and_then(self, later: HeadOutput) -> HeadOutput:
        """Both pieces as one."""
        tokens = Scores.join([part for part in (self.tokens, later.tokens) if part is not None])
        aggregate = self.aggregate if later.aggregate is None else later.aggregate
        return HeadOutput(self.version, self.labels, self.prompt or later.prompt, tokens, aggregate)

    def to_dict(self) -> dict[str, Any]:
        """As ``meta_info["heads"]`` has it: ``label``, ``scores``, ``probabilities`` and ``positions`` of the verdict on the
        prompt, ``tokens`` and their ``aggregate``; what is not there was not judged."""
        shown: dict[str, Any] = {"version": self.version, "labels": list(self.labels)}
        if self.prompt is not None:
            shown |= self.prompt.to_dict()
        if self.tokens is not None:
            shown["tokens"] = self.tokens.to_dict()
        return shown if self.aggregate is None else {**shown, "aggregate": self.aggregate.to_dict()}


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts that go with every output. ``cached_tokens``: prompt tokens that were not computed, at first admission.

    With speculative decoding: ``verify_steps``, the steps that drew tokens after the first one's; ``proposed`` and
    ``accepted``, the drafts that these judged and those that stood.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    retractions: int = 0
    verify_steps: int = 0
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """A piece of one request's reply: what is new since the piece before it.

    A request that does not stream gets exactly one. The terminal piece has ``finish`` or ``error`` set, never both,
    and carries the hidden states (only the rows since the last piece if these go out with the text), under their names in
    ``reads`` if the request named them, and the prompt's logprobs. ``heads``: what these said since the piece before. An error
    carries nothing else.
    """

    key: str
    rid: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish: FinishReason | None = None
    error: WellheadError | None = None
    usage: Usage = field(default_factory=lambda: Usage(0))
    hidden_states: HiddenStates | None = None
    reads: Mapping[str, HiddenStates] = field(default_factory=dict)
    heads: Mapping[str, HeadOutput] = field(default_factory=dict)
    prompt_logprobs: Logprobs | None = None
    output_logprobs: Logprobs | None = None

    def all_states(self) -> Iterator[HiddenStates]:
        """The hidden states of all reads."""
        if self.hidden_states is not None:
            yield self.hidden_states
        yield from self.reads.values()

    @property
    def terminal(self) -> bool:
        return self.finish is not None or self.error is not None
