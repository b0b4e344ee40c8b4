"""The only door: a caller's payload -> validated ``Request`` objects. Everything is checked before anything is admitted.

Payloads are dicts with SGLang's field names (``/generate`` and ``Engine.generate``). A batch is refused or accepted whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.config import Resolved
from wellhead.errors import (
    CaptureAboveCeiling,
    CaptureDisabled,
    EmptyPrompt,
    InvalidRequest,
    PromptTooLong,
    TokenOutOfRange,
    UnsupportedField,
)
from wellhead.requests.sampling import is_finite_number, normalize_sampling
from wellhead.types import CaptureMode, CaptureSpec, LogprobSpec, Pooling, Request, SamplingParams

#: Fields of SGLang's request that this engine does not serve. Refused when they ask for something.
NOT_SERVED = (
    "input_embeds", "image_data", "video_data", "audio_data", "modalities", "session_params", "lora_path", "lora_id",
    "custom_logit_processor", "bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "priority",
    "return_routed_experts", "extra_key", "background", "conversation_id", "custom_labels", "no_logs", "log_metrics",
    "return_entropy", "token_indices_hidden_states", "routed_dp_rank", "return_prompt_token_ids",
)  # fmt: skip

FIELDS = frozenset(
    {
        "text", "input_ids", "sampling_params", "return_hidden_states", "hidden_states_layers", "hidden_states_pooling",
        "incremental_hidden_states", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob",
        "return_text_in_logprobs", "stream", "rid", "timeout",
    }
)  # fmt: skip

Encode = Callable[[list[str]], list[list[int]]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests are held against: the resolved configuration, the vocabulary, and whether there is a tokenizer."""

    config: Resolved
    vocab_size: int
    has_tokenizer: bool

    @property
    def pool_tokens(self) -> int:
        return self.config.max_total_tokens


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
    raise InvalidRequest(f'return_hidden_states must be true, false or "last", not {value!r}', param="return_hidden_states")


def normalize(payload: Mapping[str, Any], limits: Limits, encode: Encode, next_seed: Callable[[], int]) -> Batch:
    """Validate a payload and spread it into requests.

    ``encode`` turns texts into ids (it may be called from any thread); ``next_seed`` gives seeds to requests that bring
    none. Raises ``InvalidRequest`` or a child of it, naming the field.
    """
    _check_fields(payload)
    prompts, single = _prompts(payload, limits, encode)
    count = len(prompts)
    sampling = [
        normalize_sampling(p, limits) for p in _spread(payload, "sampling_params", count, single, default={}, scalar=_is_mapping)
    ]
    captures = _captures(payload, count, single, limits)
    logprobs = _logprobs(payload, count, single, prompts, limits)
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
                    capture=captures[i],
                    logprobs=logprobs[i],
                    seed=next_seed() if seed is None else seed + k,
                    stream=stream,
                    prompt_index=i,
                    sample_index=k,
                    timeout=timeout,
                )
            )
    return Batch(tuple(requests), single and len(requests) == 1, count)


def _check_fields(payload: Mapping[str, Any]) -> None:
    for name, value in payload.items():
        if name in FIELDS:
            continue
        if name in NOT_SERVED:
            if value is None or value is False:
                continue
            raise UnsupportedField(f"{name} is not served by this engine", param=name)
        raise InvalidRequest(f"unknown field {name!r}", param=str(name))


def _prompts(payload: Mapping[str, Any], limits: Limits, encode: Encode) -> tuple[list[NDArray[np.int32]], bool]:
    text, ids = payload.get("text"), payload.get("input_ids")
    if (text is None) == (ids is None):
        raise InvalidRequest("give exactly one of text and input_ids", param="text")
    if text is not None:
        return _texts(text, limits, encode)
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    if not isinstance(ids, (list, tuple)):
        raise InvalidRequest(
            f"input_ids must be a list of token ids or a list of such lists, not {type(ids).__name__}", param="input_ids"
        )
    if not ids:
        raise EmptyPrompt("input_ids is empty", param="input_ids")
    nested = isinstance(ids[0], (list, tuple, np.ndarray))
    rows = ids if nested else [ids]
    return [_check_ids(row, limits.vocab_size, i, len(rows)) for i, row in enumerate(rows)], not nested


def _texts(text: Any, limits: Limits, encode: Encode) -> tuple[list[NDArray[np.int32]], bool]:
    if not limits.has_tokenizer:
        raise InvalidRequest("this engine has no tokenizer; send input_ids", param="text")
    single = isinstance(text, str)
    texts = [text] if single else text
    if not isinstance(texts, (list, tuple)):
        raise InvalidRequest(f"text must be a string or a list of strings, not {type(text).__name__}", param="text")
    if not texts:
        raise EmptyPrompt("the batch is empty", param="text")
    for i, one in enumerate(texts):
        if not isinstance(one, str):
            raise InvalidRequest(f"text{_at(i, len(texts))} must be a string, not {type(one).__name__}", param="text")
        if not one:
            raise EmptyPrompt(f"text{_at(i, len(texts))} is empty", param="text")
    encoded = encode(list(texts))
    return [_check_ids(row, limits.vocab_size, i, len(texts), "text") for i, row in enumerate(encoded)], single


def _check_ids(row: Any, vocab_size: int, i: int, count: int, param: str = "input_ids") -> NDArray[np.int32]:
    where = _at(i, count)
    if not isinstance(row, (list, tuple, np.ndarray)):
        raise InvalidRequest(f"input_ids{where} must be a list of token ids", param=param)
    if len(row) == 0:
        raise EmptyPrompt(f"{param}{where} has no tokens", param=param)
    if isinstance(row, np.ndarray) and (row.ndim != 1 or row.dtype.kind not in "iu"):
        raise InvalidRequest(f"input_ids{where} must be one-dimensional and whole numbers", param=param)
    if not isinstance(row, np.ndarray) and any(type(t) is not int and not isinstance(t, np.integer) for t in row):
        bad = next(t for t in row if type(t) is not int and not isinstance(t, np.integer))
        raise InvalidRequest(f"input_ids{where}: {bad!r} is not a token id", param=param)
    low, high = min(row), max(row)
    if low < 0 or high >= vocab_size:
        raise TokenOutOfRange(f"{param}{where}: token id {low if low < 0 else high} is outside [0, {vocab_size})", param=param)
    return np.array(row, np.int32)


def _check_length(ids: NDArray[np.int32], params: SamplingParams, limits: Limits, i: int, count: int, came_as: str) -> None:
    new = params.max_new_tokens
    where, prompt = _at(i, count), len(ids)
    if prompt + new > limits.config.context_length:
        raise PromptTooLong(
            f"prompt{where} has {prompt} tokens, with max_new_tokens {new} that is {prompt + new}; the context is "
            f"{limits.config.context_length}",
            param="max_new_tokens" if prompt < limits.config.context_length else came_as,
        )
    rows = prompt + max(0, new - 1)
    if rows > limits.pool_tokens:
        raise PromptTooLong(
            f"prompt{where} has {prompt} tokens, with max_new_tokens {new} it needs {rows} slots; the KV pool has "
            f"{limits.pool_tokens} (max_total_tokens)",
            param=came_as,
        )


def _captures(payload: Mapping[str, Any], count: int, single: bool, limits: Limits) -> list[CaptureSpec]:
    raw = payload.get("return_hidden_states", False)
    values = _spread({"return_hidden_states": raw}, "return_hidden_states", count, single, default=False, scalar=_not_list)
    modes = [parse_mode(v) for v in values]
    asked = _layers(payload, limits)
    pooling = _pooling(payload)
    incremental = _flag(payload, "incremental_hidden_states")
    if incremental and not _flag(payload, "stream"):
        raise InvalidRequest("incremental_hidden_states needs stream", param="incremental_hidden_states")
    wanted = max(modes)
    if wanted is CaptureMode.NULL:
        for name in ("hidden_states_layers", "hidden_states_pooling", "incremental_hidden_states"):
            if payload.get(name) not in (None, False, "none"):
                raise InvalidRequest(f"{name} is given, but return_hidden_states asks for none", param=name)
        return [CaptureSpec()] * count
    config = limits.config
    layers = _default_layers(config) if asked is None else tuple(la % (config.layers + 1) for la in asked)
    specs = [
        CaptureSpec(mode=m, layers=layers, asked=asked, pooling=pooling, incremental=incremental)
        if m is not CaptureMode.NULL
        else CaptureSpec()
        for m in modes
    ]
    check_ceiling(max(s.effective for s in specs), config.ceiling)
    return specs


def _default_layers(config: Resolved) -> tuple[int, ...]:
    """The final layer, unless the server does not capture it; then the last that it does."""
    return (max(config.capture_layers),)


def check_ceiling(mode: CaptureMode, ceiling: CaptureMode) -> None:
    """Refuse a mode above what the engine was started with, and say how to start it."""
    if mode <= ceiling:
        return
    if ceiling is CaptureMode.NULL:
        raise CaptureDisabled(
            "this server does not return hidden states; start it with --return-hidden-states-mode last|full "
            "(or --enable-return-hidden-states, which means full)",
            param="return_hidden_states",
        )
    raise CaptureAboveCeiling(
        f"this request needs the capture mode '{mode.word}', above the server's maximum '{ceiling.word}'; "
        f"start it with --return-hidden-states-mode {mode.word}",
        param="return_hidden_states",
    )


def _layers(payload: Mapping[str, Any], limits: Limits) -> tuple[int, ...] | None:
    value = payload.get("hidden_states_layers")
    if value is None:
        return None
    count, config = limits.config.layers, limits.config
    if not isinstance(value, (list, tuple)) or not value:
        raise InvalidRequest(f"hidden_states_layers must be a list of layer numbers, not {value!r}", param="hidden_states_layers")
    seen: set[int] = set()
    for layer in value:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -count - 1 <= layer <= count:
            raise InvalidRequest(
                f"layer {layer!r} is not in {-count - 1} .. {count} (0 = embeddings, {count} or -1 = final)",
                param="hidden_states_layers",
            )
        number = layer % (count + 1)
        if number in seen:
            raise InvalidRequest(f"layer {layer} is named twice", param="hidden_states_layers")
        if number not in config.capture_layers:
            raise CaptureAboveCeiling(
                f"layer {layer} is not captured by this server; it was started with --capture-layers "
                f"{' '.join(map(str, config.capture_layers))}",
                param="hidden_states_layers",
            )
        seen.add(number)
    return tuple(value)


def _pooling(payload: Mapping[str, Any]) -> Pooling:
    value = payload.get("hidden_states_pooling")
    if value is None:
        return Pooling.NONE
    if value in ("none", "mean"):
        return Pooling(value)
    raise InvalidRequest(f'hidden_states_pooling must be "none" or "mean", not {value!r}', param="hidden_states_pooling")


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
            raise InvalidRequest(f"return_logprob must be true or false, not {want!r}", param="return_logprob")
        if isinstance(start, bool) or not isinstance(start, int) or not -1 <= start <= len(prompt):
            raise InvalidRequest(
                f"logprob_start_len must lie between -1 and the prompt's {len(prompt)} tokens, not {start!r}",
                param="logprob_start_len",
            )
        if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= limits.vocab_size:
            raise InvalidRequest(
                f"top_logprobs_num must lie between 0 and {limits.vocab_size}, not {top!r}", param="top_logprobs_num"
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
        raise InvalidRequest(f"{name} has the wrong type: {type(value).__name__}", param=name)
    if len(value) != count:
        raise _wrong_length(name, len(value), count)
    return [default if v is None and name != "return_hidden_states" else v for v in value]


def _wrong_length(name: str, got: int, count: int) -> InvalidRequest:
    return InvalidRequest(f"{name} has {got} entries for {count} prompt{'s' if count != 1 else ''}", param=name)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, (Mapping, SamplingParams))


def _not_list(value: Any) -> bool:
    return not isinstance(value, (list, tuple))


def _flag(payload: Mapping[str, Any], name: str) -> bool:
    value = payload.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r}", param=name)
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
