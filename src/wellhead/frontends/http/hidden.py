"""``POST /v1/hidden_states``: rows of prompts, in the format that the client accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.encoding import base64, json, npy
from wellhead.encoding.registry import FORMATS, Format, choose
from wellhead.encoding.vectors import Layer, Vectors
from wellhead.errors import InternalError, InvalidRequest, NotAcceptable, RequestAborted
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import check_names, flag, prompt_fields, whole
from wellhead.frontends.http.respond import Streamed, answer, off_loop, owned, pieces
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.frontends.http.showing import base64_wanted, show_base64, show_float
from wellhead.frontends.native import Reply, show_heads
from wellhead.reads import parse_reduce, parse_rows
from wellhead.reductions import FIRST, ROWS
from wellhead.requests.fields import Way, at, called, handed_over
from wellhead.types import DTYPES, DType

#: Beside a .npy, which has no place for them: ``npy.positions_line``. Left out where the line is longer than clients take.
POSITIONS_HEADER, MOST_POSITIONS = "X-Hidden-States-Positions", 4096


@dataclass(frozen=True, slots=True)
class HiddenMemo:
    """What the answer must look like. ``dtype``: ``None`` for the rows' own. ``reads``: several, by name."""

    form: Format
    vector: bool
    reads: bool
    layers: tuple[Layer, ...]
    dtype: DType | None
    base64: bool
    generates: bool
    echo_ids: bool


def translator(form: Format) -> Callable[[Service, Payload], Wish[HiddenMemo]]:
    """The fields of a request -> the engine's, for an answer in this format."""

    def translate(service: Service, payload: Payload) -> Wish[HiddenMemo]:
        check_names(payload, "hidden_states")
        service.check_model(payload.get("model"))
        native, vector = _wish(payload)
        _check_form(payload, form)
        new = whole(payload, "max_new_tokens", 0, None, 0)
        params = _sampling(payload, bool(new))
        shape = prompt_fields(payload["input"], "input")
        if form.media_type == npy.MEDIA_TYPE:
            npy.check(not vector, _count(payload["input"]))
            if payload.get("heads") or payload.get("stop_on"):
                raise InvalidRequest(f"{npy.MEDIA_TYPE} has no place for what heads say; accept another format", param="heads")
        native = {
            **native,
            **shape,
            "sampling_params": {**params, "max_new_tokens": new},
            **handed_over(payload, "hidden_states"),
        }
        layers = payload.get("layers")
        memo = HiddenMemo(
            form=form, vector=vector, reads=payload.get("reads") is not None, dtype=_dtype(payload, form),
            base64=_base64(payload, form),
            layers=tuple(layers) if isinstance(layers, list) else (None,), generates=bool(new),
            echo_ids=flag(payload, "return_input_ids", False),
        )  # fmt: skip
        return Wish(native, memo, called("hidden_states"))

    return translate


def _sampling(payload: Payload, generates: bool) -> Payload:
    """``sampling_params``; refused where nothing is drawn, unless it says what holds anyway."""
    params = payload.get("sampling_params", {})
    if not isinstance(params, dict) or not {"n", "max_new_tokens"}.isdisjoint(params):
        raise InvalidRequest("sampling_params must be an object without n and max_new_tokens", param="sampling_params")
    known = at("sampling_params")
    wishes = (name for name, v in params.items() if v is not None and not (name in known and v == known[name].default))
    idle = None if generates else next(wishes, None)
    if idle is not None and idle in known and known[idle].way is Way.SAMPLING:
        raise InvalidRequest(
            f"sampling_params.{idle} is given, but nothing is generated; ask for max_new_tokens", param=f"sampling_params.{idle}"
        )
    return params


def _wish(payload: Payload) -> tuple[Payload, bool]:
    """What is wanted of the rows, in the engine's fields, and whether that is one vector per prompt and layer."""
    mode, pooling = payload.get("mode", "last"), payload.get("pooling", "none")
    if mode not in ("last", "full", "mean"):
        raise InvalidRequest(f'mode must be "last", "full" or "mean", not {mode!r:.80}', param="mode")
    if pooling not in ("none", "mean"):
        raise InvalidRequest(f'pooling must be "none" or "mean", not {pooling!r:.80}', param="pooling")
    rows, reduce, reads = payload.get("rows"), payload.get("reduce"), payload.get("reads") is not None
    if rows is None and reduce is None and not reads:
        if pooling == "mean" or mode == "mean":
            return {"return_hidden_states": "last", "hidden_states_pooling": "mean"}, True
        return {"return_hidden_states": True if mode == "full" else "last"}, mode == "last"
    for name, none in (("mode", "last"), ("pooling", "none")):
        if payload.get(name, none) != none:
            raise InvalidRequest(f"{name} is short for rows and reduce: give one or the other", param=name)
    if reads:
        return {}, False
    one = rows is not None and parse_rows(rows, "rows", ())[1]
    vector = parse_reduce(reduce, FIRST if one else ROWS, "reduce") != ROWS
    return {}, vector


def _check_form(payload: Payload, form: Format) -> None:
    """Refuse what a format has no place for."""
    if payload.get("reads") is not None and form.media_type != json.MEDIA_TYPE:
        raise InvalidRequest(f"several reads are answered in JSON, not in {form.media_type}", param="reads")
    if flag(payload, "return_token_ids") and form.media_type == npy.MEDIA_TYPE:
        raise InvalidRequest(f"{form.media_type} has no place for token ids; accept another format", param="return_token_ids")


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
    wanted = base64_wanted(payload)
    if wanted and form.media_type != json.MEDIA_TYPE:
        raise InvalidRequest(f"hidden_states_format belongs to JSON, not to {form.media_type}", param="hidden_states_format")
    return wanted


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


async def _answer(running: Running[HiddenMemo]) -> Response:
    memo = running.memo
    replies = await running.all_well()
    if memo.reads:
        return await answer(running, await off_loop(running.service, False, lambda: _by_name(running, replies)))
    vectors = _vectors(running, replies)
    if memo.base64:
        return await answer(running, await off_loop(running.service, False, lambda: _in_base64(vectors, memo.dtype)))
    length, chunks = memo.form.encode(vectors)
    headers = {"Content-Length": str(length)} if length is not None else {}
    if memo.form.media_type == npy.MEDIA_TYPE:
        line = npy.positions_line(vectors.positions())
        headers |= {POSITIONS_HEADER: line} if len(line) <= MOST_POSITIONS else {}
    return Streamed(pieces(running.service, chunks, memo.form.name), running, memo.form.media_type, headers)


def _vectors(running: Running[HiddenMemo], replies: list[Reply]) -> Vectors:
    memo = running.memo
    states = []
    for reply in replies:
        if reply.hidden_states is None:
            raise RequestAborted("the request was aborted")
        states.append(reply.hidden_states)
    if not states:
        raise InternalError("a batch of no requests")
    full = not memo.vector
    return Vectors(tuple(states), memo.layers, memo.dtype or states[0].dtype, full, _facts(running, replies))


def _facts(running: Running[HiddenMemo], replies: list[Reply]) -> dict[str, Any]:
    """What goes with the rows: per-prompt lists, in order."""
    memo, shown = running.memo, [reply.summary() for reply in replies]
    facts: dict[str, Any] = {"model": running.service.model}
    if not memo.reads:
        (read,) = running.batch.requests[0].reads
        facts |= {
            "mode": {"rows": "full", "first": "last"}.get(read.reduce, read.reduce),
            "pooling": "mean" if read.reduce == "mean" else "none",
            "reduce": read.reduce,
            "layers": None if memo.layers == (None,) else list(memo.layers),
        }
    facts |= {
        "prompt_tokens": [s["prompt_tokens"] for s in shown],
        "cached_tokens": [s["cached_tokens"] for s in shown],
    }
    if memo.generates:
        facts["completion_tokens"] = [s["completion_tokens"] for s in shown]
        facts["output_ids"] = [reply.output_ids for reply in replies]
        facts["text"] = [reply.text for reply in replies]
        facts["finish_reason"] = [s["finish_reason"] for s in shown]
    if running.batch.requests[0].heads:
        facts["heads"] = json.plain([show_heads(reply.heads) for reply in replies])
    if memo.echo_ids:
        facts["input_ids"] = [request.input_ids.tolist() for request in running.batch.requests]
    return facts


def _by_name(running: Running[HiddenMemo], replies: list[Reply]) -> dict[str, Any]:
    """Several reads of each prompt, each with its positions."""
    memo = running.memo
    dtype = memo.dtype or "float32"
    show = show_base64(dtype) if memo.base64 else show_float
    data = []
    for i, reply in enumerate(replies):
        if not reply.reads:
            raise RequestAborted("the request was aborted")
        shown = {
            name: {"positions": states.positions, "hidden_states": show(states)}
            | ({} if states.token_ids is None else {"token_ids": states.token_ids})
            for name, states in reply.reads.items()
        }
        data.append({"index": i, "reads": shown})
    return {**_facts(running, replies), "object": "list", "dtype": dtype, "data": data}


def _in_base64(vectors: Vectors, dtype: DType | None) -> dict[str, Any]:
    data = [
        {"index": i, "positions": states.positions, "hidden_states": base64.encode(states, dtype or "float32")}
        | ({} if states.token_ids is None else {"token_ids": states.token_ids})
        for i, states in enumerate(vectors.states)
    ]
    return {**vectors.facts, "object": "list", "dtype": dtype or "float32", "full": vectors.full, "data": data}
