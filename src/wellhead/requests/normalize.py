"""The only door: a caller's payload -> validated ``Request`` objects. Everything is checked before anything is admitted.

Payloads are dicts with SGLang's field names (``/generate`` and ``Engine.generate``). A batch is refused or accepted whole.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.config import Resolved
from wellhead.errors import (
    CaptureAboveCeiling,
    CaptureDisabled,
    EmptyPrompt,
    InternalError,
    InvalidRequest,
    NoLMHead,
    PromptTooLong,
    RowOutOfRange,
    TokenOutOfRange,
    UnsupportedField,
)
from wellhead.reads import CaptureMode, Read, layer_number, layer_word, mode_of, parse_reduce, parse_rows
from wellhead.reductions import FIRST, ROWS
from wellhead.requests.fields import Way, asks_for_nothing, at
from wellhead.requests.heads import wished
from wellhead.requests.limits import Limits
from wellhead.requests.sampling import is_finite_number, normalize_sampling
from wellhead.requests.words import word
from wellhead.types import LogprobSpec, Pooling, Request, SamplingParams

#: Fields of SGLang's request that this engine does not serve. Refused when they ask for something.
NOT_SERVED = at("generate", Way.IDLE)
#: Those that only shape an HTTP answer are not the engine's.
FIELDS = {**at("generate", Way.PASSED), **{name: at("generate")[name] for name in ("text", "input_ids", "sampling_params")}}
#: Fields that do nothing without ``return_logprob``.
OF_LOGPROBS = ("logprob_start_len", "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs")

Encode = Callable[[list[str]], list[list[int]]]
TokenSpans = Callable[[str], list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A payload as requests, prompt-major: p0s0, p0s1, p1s0, ... ``single``: one prompt and one sample came as scalars."""

    requests: tuple[Request, ...]
    single: bool
    prompts: int


def parse_mode(value: Any) -> CaptureMode:
    """``False -> NULL``, ``"last" -> LAST``, ``True -> FULL``; anything else is refused, 1 and "full" included."""
    if value is True:
        return CaptureMode.FULL
    if value is False:
        return CaptureMode.NULL
    if isinstance(value, str) and value == "last":
        return CaptureMode.LAST
    raise InvalidRequest(
        f'{word("return_hidden_states")} must be true, false or "last", or an object with {", ".join(READ_KEYS)}, '
        f"not {value!r:.80}",
        param="return_hidden_states",
    )


def normalize(
    payload: Mapping[str, Any], limits: Limits, encode: Encode, next_seed: Callable[[], int], spans: TokenSpans | None = None
) -> Batch:
    """Validate a payload and spread it into requests.

    ``encode`` turns texts into ids (it may be called from any thread); ``next_seed`` gives seeds to requests that bring
    none; ``spans`` says which characters of a text its tokens are. Raises ``InvalidRequest`` or a child of it, naming the field.
    """
    _check_fields(payload)
    prompts, single = _prompts(payload, limits, encode)
    count = len(prompts)
    sampling = [
        normalize_sampling(p, limits) for p in _spread(payload, "sampling_params", count, single, default={}, scalar=_is_mapping)
    ]
    reads = _reads(payload, prompts, sampling, single, limits, spans)
    judged = wished(payload, prompts, sampling, limits)
    logprobs = _logprobs(payload, count, single, prompts, limits)
    if not limits.has_head:
        _check_headless(sampling, logprobs)
    _check_idle(payload, logprobs)
    rids = _rids(payload, count, single)
    stream, timeout = _flag(payload, "stream"), _timeout(payload)
    requests = []
    for i, ids in enumerate(prompts):
        _check_length(ids, sampling[i], limits, i, count, "input_ids" if payload.get("text") is None else "text")
        seed = sampling[i].sampling_seed
        for k in range(sampling[i].n):
            requests.append(
                Request(
                    key=f"{rids[i]}#{uuid.uuid4().hex[:12]}",
                    rid=rids[i],
                    input_ids=ids,
                    sampling=sampling[i],
                    reads=reads[i],
                    heads=judged[i][0],
                    stop_on=judged[i][1],
                    logprobs=logprobs[i],
                    seed=next_seed() if seed is None else seed + k,
                    stream=stream,
                    prompt_index=i,
                    sample_index=k,
                    timeout=timeout,
                )
            )
    return Batch(tuple(requests), single and len(requests) == 1, count)


def _check_headless(sampling: list[SamplingParams], logprobs: list[LogprobSpec | None]) -> None:
    """Refuse what only an LM head could answer."""
    for params in sampling:
        if params.max_new_tokens:
            raise NoLMHead(
                f"{word('max_new_tokens')} {params.max_new_tokens} asks for tokens, but this model was saved without its LM head "
                f"and gives hidden states alone; set {word('max_new_tokens')} to 0",
                param="max_new_tokens",
            )
    if any(spec is not None for spec in logprobs):
        raise NoLMHead(
            f"{word('return_logprob')} asks for log-probabilities, but this model was saved without its LM head and gives hidden "
            "states alone",
            param="return_logprob",
        )


def _check_fields(payload: Mapping[str, Any]) -> None:
    for name, value in payload.items():
        if name in FIELDS:
            continue
        if name in NOT_SERVED:
            if asks_for_nothing(NOT_SERVED[name], value):
                continue
            raise UnsupportedField(f"{word(name)} is not served by this engine", param=name)
        raise InvalidRequest(f"unknown field {name!r}", param=str(name))


def _check_idle(payload: Mapping[str, Any], logprobs: list[LogprobSpec | None]) -> None:
    """Refuse what is asked for and could have no effect. A value that is the field's default asks for nothing."""
    for name in OF_LOGPROBS:
        if not any(logprobs) and _asks(name, payload.get(name)):
            raise InvalidRequest(f"{word(name)} is given, but {word('return_logprob')} asks for none", param=name)


def _asks(name: str, value: Any) -> bool:
    """Does it ask for something, for any prompt?"""
    each = value if isinstance(value, (list, tuple)) else [value]
    return any(v not in (None, FIELDS[name].default) for v in each)


def _prompts(payload: Mapping[str, Any], limits: Limits, encode: Encode) -> tuple[list[NDArray[np.int32]], bool]:
    text, ids = payload.get("text"), payload.get("input_ids")
    if (text is None) == (ids is None):
        raise InvalidRequest(f"give exactly one of {word('text')} and {word('input_ids')}", param="text")
    if text is not None:
        return _texts(text, limits, encode)
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    if not isinstance(ids, (list, tuple)):
        raise InvalidRequest(
            f"{word('input_ids')} must be a list of token ids or a list of such lists, not {type(ids).__name__}",
            param="input_ids",
        )
    if not ids:
        raise EmptyPrompt(f"{word('input_ids')} is empty", param="input_ids")
    nested = isinstance(ids[0], (list, tuple, np.ndarray))
    rows = ids if nested else [ids]
    return [_check_ids(row, limits.vocab_size, i, len(rows)) for i, row in enumerate(rows)], not nested


def _texts(text: Any, limits: Limits, encode: Encode) -> tuple[list[NDArray[np.int32]], bool]:
    if not limits.has_tokenizer:
        raise InvalidRequest("this engine has no tokenizer; send token ids", param="text")
    single = isinstance(text, str)
    texts = [text] if single else text
    if not isinstance(texts, (list, tuple)):
        raise InvalidRequest(f"{word('text')} must be a string or a list of strings, not {type(text).__name__}", param="text")
    if not texts:
        raise EmptyPrompt("the batch is empty", param="text")
    for i, one in enumerate(texts):
        if not isinstance(one, str):
            raise InvalidRequest(f"{word('text')}{_at(i, len(texts))} must be a string, not {type(one).__name__}", param="text")
        if not one:
            raise EmptyPrompt(f"{word('text')}{_at(i, len(texts))} is empty", param="text")
    encoded = encode(list(texts))
    return [_check_ids(row, limits.vocab_size, i, len(texts), "text") for i, row in enumerate(encoded)], single


def _check_ids(row: Any, vocab_size: int, i: int, count: int, param: str = "input_ids") -> NDArray[np.int32]:
    where = _at(i, count)
    if not isinstance(row, (list, tuple, np.ndarray)):
        raise InvalidRequest(f"{word('input_ids')}{where} must be a list of token ids", param=param)
    if len(row) == 0:
        raise EmptyPrompt(f"{word(param)}{where} has no tokens", param=param)
    if isinstance(row, np.ndarray) and (row.ndim != 1 or row.dtype.kind not in "iu"):
        raise InvalidRequest(f"{word('input_ids')}{where} must be one-dimensional and whole numbers", param=param)
    if not isinstance(row, np.ndarray) and any(type(t) is not int and not isinstance(t, np.integer) for t in row):
        bad = next(t for t in row if type(t) is not int and not isinstance(t, np.integer))
        raise InvalidRequest(f"{word('input_ids')}{where}: {bad!r} is not a token id", param=param)
    low, high = min(row), max(row)
    if low < 0 or high >= vocab_size:
        raise TokenOutOfRange(
            f"{word(param)}{where}: token id {low if low < 0 else high} is outside [0, {vocab_size})", param=param
        )
    return np.array(row, np.int32)


def _check_length(ids: NDArray[np.int32], params: SamplingParams, limits: Limits, i: int, count: int, came_as: str) -> None:
    new = params.max_new_tokens
    where, prompt = _at(i, count), len(ids)
    if prompt + new > limits.config.context_length:
        raise PromptTooLong(
            f"prompt{where} has {prompt} tokens, with {word('max_new_tokens')} {new} that is {prompt + new}; the context is "
            f"{limits.config.context_length}",
            param="max_new_tokens" if prompt < limits.config.context_length else came_as,
        )
    rows = prompt + max(0, new - 1)
    if rows > limits.config.max_total_tokens:
        raise PromptTooLong(
            f"prompt{where} has {prompt} tokens, with {word('max_new_tokens')} {new} it needs {rows} slots; the KV pool has "
            f"{limits.config.max_total_tokens} (max_total_tokens)",
            param=came_as,
        )


#: Which fields say what is wanted of the rows; each asks for something only if hidden states are asked for.
READ_FIELDS = (
    "hidden_states_layers", "hidden_states_pooling", "hidden_states_rows", "hidden_states_reduce", "hidden_states_token_ids",
    "incremental_hidden_states",
)  # fmt: skip
#: What one read says, in ``reads`` or in ``return_hidden_states``.
READ_KEYS = ("rows", "reduce", "layers")
MOST_READS = 64

Wished = tuple[Read, tuple[tuple[int, int], ...]]
"""A read, and the spans of characters that its prompt still has to turn into positions."""


def _reads(
    payload: Mapping[str, Any], prompts: list[NDArray[np.int32]], sampling: list[SamplingParams], single: bool, limits: Limits,
    spans: TokenSpans | None,
) -> list[tuple[Read, ...]]:  # fmt: skip
    """Per prompt, what is wanted of its rows; all of it can be had."""
    wishes = _wishes(payload, len(prompts), single, limits)
    cost = max((mode_of([read for read, _ in wish]) for wish in wishes), default=CaptureMode.NULL)
    check_ceiling(cost, limits.config.ceiling, _asking(payload))
    token_ids = _flag(payload, "hidden_states_token_ids")
    found = []
    for i, (wish, prompt, params) in enumerate(zip(wishes, prompts, sampling, strict=True)):
        reads = tuple(_in_tokens(read, chars, payload, i, single, prompt, spans) if chars else read for read, chars in wish)
        reads = tuple(replace(read, token_ids=token_ids) for read in reads)
        for read in reads:
            try:
                read.rows.of(prompt, params.max_new_tokens, _asking(payload))
            except RowOutOfRange as error:
                where = f"prompt{_at(i, len(prompts))}: " if len(prompts) > 1 else ""
                named = f"reads.{read.name}: " if read.name else ""
                raise RowOutOfRange(f"{where}{named}{error.message}", param=error.param) from None
        found.append(reads)
    return found


def reads_of(payload: Mapping[str, Any], limits: Limits) -> tuple[Read, ...]:
    """What a payload wants of the rows of any one prompt. Raises ``InvalidRequest`` for what is wrong for all of them."""
    reads = tuple(read for read, _ in _wishes(payload, 1, True, limits)[0])
    check_ceiling(mode_of(reads), limits.config.ceiling, _asking(payload))
    return reads


def _asking(payload: Mapping[str, Any]) -> str:
    """The field that says which rows."""
    asking = ("reads", "hidden_states_rows", "hidden_states_reduce")
    return next((name for name in asking if payload.get(name) is not None), "return_hidden_states")


def _wishes(payload: Mapping[str, Any], count: int, single: bool, limits: Limits) -> list[list[Wished]]:
    raw = payload.get("return_hidden_states", False)
    values = _spread({"return_hidden_states": raw}, "return_hidden_states", count, single, default=False, scalar=_not_list)
    each = _flag(payload, "incremental_hidden_states")
    if each and not _flag(payload, "stream"):
        raise InvalidRequest("incremental_hidden_states needs stream", param="incremental_hidden_states")
    if payload.get("reads") is not None:
        return [_named(payload, values, limits)] * count
    new = {name: payload[name] for name in ("hidden_states_rows", "hidden_states_reduce") if payload.get(name) is not None}
    if new and all(v is False for v in values):
        values = [True] * count
    wishes = [_wish(value, payload, new, limits) for value in values]
    if not any(wishes):
        for name in READ_FIELDS:
            if _given(payload, name):
                raise InvalidRequest(f"{word(name)} is given, but {word('return_hidden_states')} asks for none", param=name)
    if each and not any(read.each for wish in wishes for read, _ in wish):
        raise InvalidRequest(
            "incremental_hidden_states sends rows as they come: it needs rows that are neither one vector nor counted from the "
            "end of the answer",
            param="incremental_hidden_states",
        )
    return wishes


def _given(payload: Mapping[str, Any], name: str) -> bool:
    """Does a field ask for something? (Position 0 does, though it equals False.)"""
    value = payload.get(name)
    return not (value is None or value is False or (name == "hidden_states_pooling" and value == "none"))


def _in_pieces(read: Read) -> bool:
    rows = read.rows
    ends = (rows.start or 0, rows.stop or 0, *(rows.positions or ()), *rows.exclude_positions)
    return not read.vector and rows.last is None and min(ends) >= 0


def _wish(value: Any, payload: Mapping[str, Any], new: Mapping[str, Any], limits: Limits) -> list[Wished]:
    """One prompt's ``return_hidden_states``, and the fields beside it."""
    name = "return_hidden_states"
    if isinstance(value, Mapping) and value:
        field = next((f for f in READ_FIELDS[:4] if _given(payload, f)), None)
        if field is not None:
            raise InvalidRequest(f"{word(field)} is given, and {word(name)} is an object that says it too", param=field)
        return [_read(value, name, limits, each=_flag(payload, "incremental_hidden_states"))]
    mode = parse_mode(value)
    if mode is CaptureMode.NULL:
        return []
    if mode is CaptureMode.LAST and "hidden_states_rows" in new:
        raise InvalidRequest(
            f'{word("hidden_states_rows")} says which rows, and {word(name)} "last" says it too: give one',
            param="hidden_states_rows",
        )
    pooling = _pooling(payload)
    if new and pooling is not Pooling.NONE:
        raise InvalidRequest(
            f"{word('hidden_states_pooling')} is the older word for {word('hidden_states_reduce')}: give one",
            param="hidden_states_pooling",
        )
    said = {key: new[f"hidden_states_{key}"] for key in ("rows", "reduce") if f"hidden_states_{key}" in new}
    if not said:
        said = (
            {"rows": "all", "reduce": "mean"}
            if pooling is Pooling.MEAN
            else {"rows": "all" if mode is CaptureMode.FULL else "last"}
        )
    elif "rows" not in said:
        said["rows"] = "all" if mode is CaptureMode.FULL else "last"
    read, chars = _read(
        {**said, "layers": payload.get("hidden_states_layers")}, "hidden_states", limits,
        each=_flag(payload, "incremental_hidden_states"),
    )  # fmt: skip
    return [(replace(read, sglang=not new and mode is CaptureMode.FULL), chars)]


def _named(payload: Mapping[str, Any], values: list[Any], limits: Limits) -> list[Wished]:
    """Several reads, by name."""
    reads = payload["reads"]
    if any(v is not False for v in values):
        raise InvalidRequest(f"reads and {word('return_hidden_states')} say the same thing: give one", param="reads")
    for name in (*READ_FIELDS[:4], "incremental_hidden_states"):
        if _given(payload, name):
            raise InvalidRequest(f"{word(name)} is given, but each of reads says it for itself", param=name)
    if not isinstance(reads, Mapping) or not 1 <= len(reads) <= MOST_READS:
        raise InvalidRequest(f"reads must be an object of 1 to {MOST_READS} reads by name", param="reads")
    found = []
    for name, wish in reads.items():
        if not isinstance(name, str) or not re.fullmatch(r"[\w.:-]{1,64}", name):
            raise InvalidRequest(f"reads: {name!r:.80} is no name (1 to 64 letters, digits, . : _ -)", param="reads")
        if not isinstance(wish, Mapping):
            raise InvalidRequest(f"reads: {name} must be an object with {', '.join(READ_KEYS)}", param="reads")
        read, chars = _read(wish, "reads", limits)
        found.append((replace(read, name=name), chars))
    return found


def _read(wish: Mapping[str, Any], param: str, limits: Limits, *, each: bool = False) -> Wished:
    """``rows``, ``reduce`` and ``layers`` -> a read. ``param``: the field, or what its fields' names begin with."""
    unknown = [key for key in wish if key not in READ_KEYS]
    if unknown:
        raise InvalidRequest(
            f"{word(param)} has an unknown key {unknown[0]!r:.80}; there are {', '.join(READ_KEYS)}", param=param
        )
    whole = param != "hidden_states"
    fields = {key: word(param if whole else f"hidden_states_{key}") for key in READ_KEYS}
    special = sorted(limits.special_ids) if limits.has_tokenizer else None
    rows, one, chars = parse_rows("all" if wish.get("rows") is None else wish["rows"], fields["rows"], special)
    reduce = parse_reduce(wish.get("reduce"), FIRST if one else ROWS, fields["reduce"])
    asked = _layers(wish.get("layers"), fields["layers"], limits)
    config = limits.config
    layers = _default_layers(config) if asked is None else tuple(layer_number(la, config.layers) or 0 for la in asked)
    read = Read(rows, layers, asked, reduce)
    return replace(read, each=each and _in_pieces(read)), chars


def _in_tokens(
    read: Read, chars: tuple[tuple[int, int], ...], payload: Mapping[str, Any], i: int, single: bool, prompt: NDArray[np.int32],
    spans: TokenSpans | None,
) -> Read:  # fmt: skip
    """Spans of characters -> the positions of the tokens that touch them."""
    text = payload.get("text")
    if text is None or spans is None:
        raise InvalidRequest("chars are of a prompt's text, and this prompt came as token ids", param=_asking(payload))
    text = text if single else text[i]
    if chars[-1][1] > len(text) or any(stop > len(text) for _, stop in chars):
        raise RowOutOfRange(f"chars: the prompt's text has {len(text)} characters", param=_asking(payload))
    offsets = np.array(spans(text), np.int64).reshape(-1, 2)
    if len(offsets) != len(prompt):
        raise InternalError(f"{len(offsets)} offsets for {len(prompt)} tokens")
    inside = np.zeros(len(prompt), bool)
    for first, stop in chars:
        inside |= (offsets[:, 0] < stop) & (offsets[:, 1] > first)
    at = np.flatnonzero(inside)
    edges = np.flatnonzero(np.diff(at) > 1)
    starts, stops = [at[0], *at[edges + 1]] if len(at) else [], [*at[edges] + 1, at[-1] + 1] if len(at) else []
    found = tuple((int(a), int(b)) for a, b in zip(starts, stops, strict=True))
    return replace(read, rows=replace(read.rows, spans=found))


def _default_layers(config: Resolved) -> tuple[int, ...]:
    """The final layer, unless the server does not capture it; then the last that it does."""
    return (config.layers if config.layers in config.capture_layers else max(config.capture_layers),)


def check_ceiling(mode: CaptureMode, ceiling: CaptureMode, param: str) -> None:
    """Refuse a mode, asked for in the field ``param``, above what the engine was started with, and say how to start it."""
    if mode <= ceiling:
        return
    if ceiling is CaptureMode.NULL:
        raise CaptureDisabled(
            "this server does not return hidden states; start it with --return-hidden-states-mode last|full "
            "(or --enable-return-hidden-states, which means full)",
            param=param,
        )
    raise CaptureAboveCeiling(
        f"this request needs the capture mode '{mode.word}', above the server's maximum '{ceiling.word}'; "
        f"start it with --return-hidden-states-mode {mode.word}",
        param=param,
    )


def _layers(value: Any, param: str, limits: Limits) -> tuple[int | str, ...] | None:
    """Layers as they were asked for, all of which this engine shows."""
    if value is None:
        return None
    count, config = limits.config.layers, limits.config
    if not isinstance(value, (list, tuple)) or not value:
        raise InvalidRequest(f"{param} must be a list of layer numbers, not {value!r:.80}", param=param)
    seen: set[int] = set()
    for layer in value:
        number = layer_number(layer, count)
        if number is None:
            raise InvalidRequest(
                f"layer {layer!r:.80} is not in {-count - 1} .. {count} (0 = embeddings, {count} or -1 = final), nor "
                f'"L:pre_norm" (before the final norm)',
                param=param,
            )
        if number in seen:
            raise InvalidRequest(f"layer {layer} is named twice", param=param)
        if number not in config.capture_layers:
            raise CaptureAboveCeiling(
                f"layer {layer} is not captured by this server; it was started with --capture-layers "
                f"{' '.join(str(layer_word(n, count)) for n in config.capture_layers)}",
                param=param,
            )
        seen.add(number)
    return tuple(value)


def _pooling(payload: Mapping[str, Any]) -> Pooling:
    value = payload.get("hidden_states_pooling")
    if value is None:
        return Pooling.NONE
    if value in ("none", "mean"):
        return Pooling(value)
    raise InvalidRequest(
        f'{word("hidden_states_pooling")} must be "none" or "mean", not {value!r}', param="hidden_states_pooling"
    )


def _logprobs(
    payload: Mapping[str, Any], count: int, single: bool, prompts: list[NDArray[np.int32]], limits: Limits
) -> list[LogprobSpec | None]:
    asked = _spread(payload, "return_logprob", count, single, default=False, scalar=_not_list)
    starts = _spread(payload, "logprob_start_len", count, single, default=-1, scalar=_not_list)
    tops = _spread(payload, "top_logprobs_num", count, single, default=0, scalar=_not_list)
    picked = _picked_ids(payload, count, single)
    with_text = _flag(payload, "return_text_in_logprobs")
    specs: list[LogprobSpec | None] = []
    for want, start, top, ids, prompt in zip(asked, starts, tops, picked, prompts, strict=True):
        if not isinstance(want, bool):
            raise InvalidRequest(f"{word('return_logprob')} must be true or false, not {want!r}", param="return_logprob")
        if isinstance(start, bool) or not isinstance(start, int) or not -1 <= start <= len(prompt):
            raise InvalidRequest(
                f"logprob_start_len must lie between -1 and the prompt's {len(prompt)} tokens, not {start!r}",
                param="logprob_start_len",
            )
        if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= limits.vocab_size:
            raise InvalidRequest(
                f"{word('top_logprobs_num')} must lie between 0 and {limits.vocab_size}, not {top!r}", param="top_logprobs_num"
            )
        bad = [t for t in ids if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < limits.vocab_size]
        if bad:
            raise TokenOutOfRange(f"token_ids_logprob: {bad[0]!r} is outside [0, {limits.vocab_size})", param="token_ids_logprob")
        spec = LogprobSpec(start=None if start < 0 else start, top=top, token_ids=tuple(ids), with_text=with_text)
        specs.append(spec if want else None)
    return specs


def _picked_ids(payload: Mapping[str, Any], count: int, single: bool) -> list[list[int]]:
    value = payload.get("token_ids_logprob")
    if value is None:
        return [[]] * count
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(
            "token_ids_logprob must be a list of token ids, or one such list per prompt", param="token_ids_logprob"
        )
    if not value or (not isinstance(value[0], (list, tuple)) and value[0] is not None):
        return [list(value)] * count
    if len(value) != count:
        raise _wrong_length("token_ids_logprob", len(value), count)
    if not all(v is None or isinstance(v, (list, tuple)) for v in value):
        raise InvalidRequest("token_ids_logprob mixes token ids and lists of them", param="token_ids_logprob")
    return [list(v or ()) for v in value]


def _rids(payload: Mapping[str, Any], count: int, single: bool) -> list[str]:
    value = payload.get("rid")
    if value is None:
        return [uuid.uuid4().hex for _ in range(count)]
    rids = _spread(payload, "rid", count, single, default="", scalar=_not_list)
    for rid in rids:
        if not isinstance(rid, str) or not rid or len(rid) > 256:
            raise InvalidRequest("rid must be a string of 1 to 256 characters, or one per prompt", param="rid")
    if isinstance(value, (list, tuple)) and len(set(rids)) != len(rids):
        raise InvalidRequest("rid names two prompts alike", param="rid")
    return rids


def _spread(
    payload: Mapping[str, Any], name: str, count: int, single: bool, *, default: Any, scalar: Callable[[Any], bool]
) -> list[Any]:
    """A scalar for every prompt, or a list with one entry per prompt."""
    value = payload.get(name, default)
    if value is None and name != "return_hidden_states":
        value = default
    if scalar(value):
        return [value] * count
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(f"{word(name)} has the wrong type: {type(value).__name__}", param=name)
    if len(value) != count:
        raise _wrong_length(name, len(value), count)
    return [default if v is None and name != "return_hidden_states" else v for v in value]


def _wrong_length(name: str, got: int, count: int) -> InvalidRequest:
    return InvalidRequest(f"{word(name)} has {got} entries for {count} prompt{'s' if count != 1 else ''}", param=name)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, (Mapping, SamplingParams))


def _not_list(value: Any) -> bool:
    return not isinstance(value, (list, tuple))


def _flag(payload: Mapping[str, Any], name: str) -> bool:
    value = payload.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"{word(name)} must be true or false, not {value!r}", param=name)
    return value


def _timeout(payload: Mapping[str, Any]) -> float | None:
    value = payload.get("timeout")
    if value is None:
        return None
    if not is_finite_number(value) or value <= 0:
        raise InvalidRequest(f"timeout must be a positive number of seconds, not {value!r}", param="timeout")
    return float(value)


def _at(i: int, count: int) -> str:
    return f"[{i}]" if count > 1 else ""
