"""``POST /v1/hidden_states``: rows of prompts, in the format that the client accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.encoding import base64, json, npy
from wellhead.encoding.registry import FORMATS, Format, choose
from wellhead.encoding.vectors import Vectors
from wellhead.errors import InternalError, InvalidRequest, NotAcceptable, RequestAborted
from wellhead.frontends.http.admin import flag, only
from wellhead.frontends.http.completions import prompt_fields
from wellhead.frontends.http.openai_fields import whole
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.respond import Streamed, answer, off_loop, owned, pieces
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.frontends.native import Reply
from wellhead.types import DTYPES, DType

FIELDS = (
    "model", "input", "mode", "layers", "pooling", "dtype", "max_new_tokens", "sampling_params", "hidden_states_format",
    "return_input_ids", "rid", "timeout",
)  # fmt: skip
#: The engine's names of fields -> this route's
CALLED: Mapping[str, str] = MappingProxyType(
    {
        "text": "input",
        "input_ids": "input",
        "return_hidden_states": "mode",
        "hidden_states_layers": "layers",
        "hidden_states_pooling": "pooling",
        "sampling_params.max_new_tokens": "max_new_tokens",
    }
)


@dataclass(frozen=True, slots=True)
class HiddenJob:
    """What the answer must look like. ``dtype``: ``None`` for the rows' own."""

    form: Format
    mode: str
    layers: tuple[int | None, ...]
    pooling: str
    dtype: DType | None
    base64: bool
    generates: bool
    echo_ids: bool


def translator(form: Format) -> Callable[[Service, Payload], Wish[HiddenJob]]:
    """The fields of a request -> the engine's, for an answer in this format."""

    def translate(service: Service, payload: Payload) -> Wish[HiddenJob]:
        only(payload, *FIELDS)
        service.check_model(payload.get("model"))
        if "input" not in payload:
            raise InvalidRequest("input is missing", param="input")
        mode, pooling = _mode(payload)
        new = whole(payload, "max_new_tokens", 0, None, 0)
        params = payload.get("sampling_params", {})
        if not isinstance(params, dict) or not {"n", "max_new_tokens"}.isdisjoint(params):
            raise InvalidRequest("sampling_params must be an object without n and max_new_tokens", param="sampling_params")
        shape = prompt_fields(payload["input"], "input")
        if form.media_type == npy.MEDIA_TYPE:
            npy.check(mode == "full" and pooling == "none", _count(payload["input"]))
        native: Payload = {
            **shape,
            "sampling_params": {**params, "max_new_tokens": new},
            "return_hidden_states": True if mode == "full" and pooling == "none" else "last",
            **({"hidden_states_pooling": "mean"} if pooling == "mean" else {}),
            **({"hidden_states_layers": payload["layers"]} if "layers" in payload else {}),
            **{name: payload[name] for name in ("rid", "timeout") if name in payload},
        }
        layers = payload.get("layers")
        job = HiddenJob(
            form=form, mode=mode, pooling=pooling, dtype=_dtype(payload, form), base64=_base64(payload, form),
            layers=tuple(layers) if isinstance(layers, list) else (None,), generates=bool(new),
            echo_ids=flag(payload, "return_input_ids", False),
        )  # fmt: skip
        return Wish(native, job, CALLED)

    return translate


def _mode(payload: Payload) -> tuple[str, str]:
    mode, pooling = payload.get("mode", "last"), payload.get("pooling", "none")
    if mode not in ("last", "full", "mean"):
        raise InvalidRequest(f'mode must be "last", "full" or "mean", not {mode!r:.80}', param="mode")
    if pooling not in ("none", "mean"):
        raise InvalidRequest(f'pooling must be "none" or "mean", not {pooling!r:.80}', param="pooling")
    return ("full", "mean") if mode == "mean" else (mode, pooling)


def _dtype(payload: Payload, form: Format) -> DType | None:
    value = payload.get("dtype", "auto")
    if value != "auto" and value not in DTYPES:
        raise InvalidRequest(f"dtype must be auto, {', '.join(DTYPES)}, not {value!r:.80}", param="dtype")
    if form.media_type == json.MEDIA_TYPE and value not in ("auto", "float32") and not _base64(payload, form):
        raise InvalidRequest(
            f'numbers in JSON are float32; for {value} accept a binary format, or ask for hidden_states_format "base64"',
            param="dtype",
        )
    if value == "auto":
        return "float32" if form.media_type == json.MEDIA_TYPE else None
    return next(d for d in DTYPES if d == value)


def _base64(payload: Payload, form: Format) -> bool:
    value = payload.get("hidden_states_format", "float")
    if value not in ("float", "list", "base64"):
        message = f'hidden_states_format must be "float" (also called "list") or "base64", not {value!r:.80}'
        raise InvalidRequest(message, param="hidden_states_format")
    if value == "base64" and form.media_type != json.MEDIA_TYPE:
        raise InvalidRequest(f"hidden_states_format belongs to JSON, not to {form.media_type}", param="hidden_states_format")
    return bool(value == "base64")


def _count(value: Any) -> int:
    many = isinstance(value, list) and bool(value) and isinstance(value[0], (str, list))
    return len(value) if many else 1


async def hidden_states(service: Service, http: HttpRequest) -> Response:
    """Rows of one or several prompts, as JSON, safetensors, npy or an Arrow stream."""
    accept = ", ".join(http.headers.getlist("accept"))  # several lines are one list
    form = choose(accept)
    if form is None:
        raise NotAcceptable(f"nothing that is served is in Accept: {accept!r:.200}; there are {', '.join(FORMATS)}")
    return await owned(await service.start(http, translator(form)), _answer)


async def _answer(running: Running[HiddenJob]) -> Response:
    job = running.job
    replies = await running.all_well()
    vectors = _vectors(running, replies)
    if job.base64:
        return await answer(running, await off_loop(running.service, False, lambda: _in_base64(vectors, job.dtype)))
    length, chunks = job.form.encode(vectors)
    headers = {"Content-Length": str(length)} if length is not None else None
    return Streamed(pieces(running.service, chunks, job.form.name), running, job.form.media_type, headers)


def _vectors(running: Running[HiddenJob], replies: list[Reply]) -> Vectors:
    job = running.job
    states = []
    for reply in replies:
        if reply.hidden_states is None:
            raise RequestAborted("the request was aborted")
        states.append(reply.hidden_states)
    if not states:
        raise InternalError("a batch of no requests")
    full = job.mode == "full" and job.pooling == "none"
    return Vectors(tuple(states), job.layers, job.dtype or states[0].dtype, full, _facts(running, replies))


def _facts(running: Running[HiddenJob], replies: list[Reply]) -> dict[str, Any]:
    """What goes with the rows: per-prompt lists, in order."""
    job, shown = running.job, [reply.summary() for reply in replies]
    facts: dict[str, Any] = {
        "model": running.service.model,
        "mode": "last" if job.mode == "last" and job.pooling == "none" else "mean" if job.pooling == "mean" else "full",
        "pooling": job.pooling,
        "layers": None if job.layers == (None,) else list(job.layers),
        "prompt_tokens": [s["prompt_tokens"] for s in shown],
        "cached_tokens": [s["cached_tokens"] for s in shown],
    }
    if job.generates:
        facts["completion_tokens"] = [s["completion_tokens"] for s in shown]
        facts["output_ids"] = [reply.output_ids for reply in replies]
        facts["text"] = [reply.text for reply in replies]
        facts["finish_reason"] = [s["finish_reason"] for s in shown]
    if job.echo_ids:
        facts["input_ids"] = [request.input_ids.tolist() for request in running.batch.requests]
    return facts


def _in_base64(vectors: Vectors, dtype: DType | None) -> dict[str, Any]:
    data = [{"index": i, "hidden_states": base64.encode(states, dtype or "float32")} for i, states in enumerate(vectors.states)]
    return {**vectors.facts, "object": "list", "dtype": dtype or "float32", "full": vectors.full, "data": data}
