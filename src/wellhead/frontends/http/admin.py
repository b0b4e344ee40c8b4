"""Everything that is not a model's answer: health, facts, tokens, the cache, aborts, metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import wellhead
from wellhead.encoding import json
from wellhead.errors import CacheBusy, EngineClosed, InvalidRequest, NotFound, WellheadError
from wellhead.frontends.http.openai_fields import plain_messages
from wellhead.frontends.http.payload import Payload, parse
from wellhead.frontends.http.reading import check_names, flag, naming
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.metrics.http import CONTENT_TYPE
from wellhead.metrics.snapshot import Snapshot

#: Seconds for which the engine's numbers are good enough.
FRESH = 0.25
#: Seconds to wait for the step that runs.
PATIENCE = 5.0


def reply(value: Any, status: int = 200) -> Response:
    """A small JSON answer."""
    return Response(json.dumps(value), status, media_type=json.MEDIA_TYPE)


# --- health -------------------------------------------------------------------------------------------------------


async def health(service: Service, http: HttpRequest) -> Response:
    """200 while the engine runs and requests are taken; 503 otherwise."""
    del http
    if service.healthy:
        return reply({"status": "ok"})
    error = service.engine.loop.error or EngineClosed("the server is shutting down")
    return reply({"status": "unavailable", "error": {"message": error.message, "code": error.code, "param": None}}, 503)


async def health_generate(service: Service, http: HttpRequest) -> Response:
    """One token through the engine (of a model without an LM head: one row); 503 if it does not come within 20 seconds."""

    def one_token(service: Service, payload: Payload) -> Wish[None]:
        del payload
        tokens = int(service.engine.assembled.spec.has_head)
        return Wish({"input_ids": [0], "sampling_params": {"max_new_tokens": tokens, "temperature": 0}, "timeout": 20.0}, None)

    if service.draining:
        raise EngineClosed("the server is shutting down")
    running: Running[None] = Running(service, http)
    try:
        await service.prepare(running.submit, b"{}", one_token)
        await asyncio.wait_for(running.all_well(), 20.0)
    except (WellheadError, TimeoutError) as error:
        raise EngineClosed(f"no token came: {error}") from None
    finally:
        running.close()
    return reply({"status": "ok"})


# --- facts --------------------------------------------------------------------------------------------------------


async def models(service: Service, http: HttpRequest) -> Response:
    """The one model, as OpenAI lists models."""
    del http
    return reply({"object": "list", "data": [_card(service)]})


async def model(service: Service, http: HttpRequest) -> Response:
    """The card of the model; 404 for another name."""
    service.check_model(http.path_params["model"])
    return reply(_card(service))


def _card(service: Service) -> dict[str, Any]:
    config = service.engine.resolved
    return {
        "id": service.model, "object": "model", "created": service.started, "owned_by": "wellhead", "root": config.model_path,
        "max_model_len": config.context_length, "is_generation": service.engine.assembled.spec.has_head,
        "tasks": list(service.engine.tasks.kinds),
    }  # fmt: skip


async def model_info(service: Service, http: HttpRequest) -> Response:
    """What the model is: SGLang's fields, and those that hidden states need."""
    del http
    info = service.engine.info()
    names = (
        "model_path", "served_model_name", "architecture", "dtype", "return_hidden_states_mode", "capture_layers", "num_layers",
        "is_generation", "tasks", "hidden_size", "vocab_size", "context_length", "batch_invariant",
    )  # fmt: skip
    path = service.engine.config.tokenizer_path or info["model_path"]
    facts = {"tokenizer_path": path, "has_chat_template": _has_template(service)}
    return reply({**{name: info[name] for name in names}, **facts, "weight_version": "default"})


def _has_template(service: Service) -> bool:
    return service.tokenizer is not None and service.tokenizer.has_chat_template


async def server_info(service: Service, http: HttpRequest) -> Response:
    """Configuration, limits, and the engine's numbers now."""
    del http
    snapshot = await refresh(service)
    options = service.options
    limits = {
        "max_body_bytes": options.max_body_bytes,
        "max_batch_size": options.max_batch_size,
        "max_request_tokens": options.max_request_tokens,
        "max_request_logprobs": options.max_request_logprobs,
        "max_connections": options.max_connections,
        "request_timeout": options.request_timeout,
    }
    state = {
        "healthy": service.healthy,
        "pages": snapshot.pages,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "counters": {name: int(value) if float(value).is_integer() else value for name, value in snapshot.counters.items()},
    }
    return reply({**service.engine.info(), "version": wellhead.__version__, "limits": limits, "state": state})


async def metrics(service: Service, http: HttpRequest) -> Response:
    """Prometheus's text."""
    del http
    if not service.options.enable_metrics:
        raise NotFound("metrics are turned off on this server (--no-enable-metrics)")
    await refresh(service)
    return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE})


async def refresh(service: Service) -> Snapshot:
    """The engine's numbers, at most ``FRESH`` seconds old unless the engine is busy or dead: then the last ones."""
    if time.monotonic() - service.refreshed > FRESH:
        try:
            service.metrics.update(await service.call(lambda core: core.snapshot(), PATIENCE))
            service.refreshed = time.monotonic()
        except TimeoutError:
            pass
        except WellheadError:
            service.metrics.engine_died()
    return service.metrics.snapshot


# --- the engine's switches ----------------------------------------------------------------------------------------


async def flush_cache(service: Service, http: HttpRequest) -> Response:
    """Forget all cached prefixes; refused while requests run."""
    del http
    if not await service.call(lambda core: core.flush_cache()):
        raise CacheBusy("requests are running; the cache cannot be flushed now")
    return reply({"flushed": True})


async def abort_request(service: Service, http: HttpRequest) -> Response:
    """End all samples of a request by its ``rid``, or everything with ``abort_all``."""
    payload = parse(await service.body(http))
    check_names(payload, "abort_request")
    rid, everything = payload.get("rid"), payload.get("abort_all", False)
    if not isinstance(everything, bool):
        raise InvalidRequest("abort_all must be true or false", param="abort_all")
    if everything is (rid is not None):
        raise InvalidRequest("give either rid or abort_all", param="rid")
    if rid is not None and (not isinstance(rid, str) or not rid):
        raise InvalidRequest("rid must be a string", param="rid")

    loop = service.engine.loop
    ended = loop.abort_all() if rid is None else loop.abort(rid)
    return reply({"aborted": await asyncio.wrap_future(ended)})


# --- tokens -------------------------------------------------------------------------------------------------------


async def tokenize(service: Service, http: HttpRequest) -> Response:
    """Text, texts or chat messages -> the ids that the engine would see."""
    body = await service.body(http)
    return reply(await service.prepare(_tokenize, service, body))


def _tokenize(service: Service, body: bytes) -> dict[str, Any]:
    payload = parse(body)
    check_names(payload, "tokenize")
    service.check_model(payload.get("model"))
    tokenizer = service.need_tokenizer()
    given = [name for name in ("prompt", "text", "messages") if name in payload]
    if len(given) != 1:
        raise InvalidRequest("give exactly one of prompt, text and messages", param="prompt")
    (name,) = given
    stranger = "add_special_tokens" if name == "messages" else "add_generation_prompt"
    if payload.get(stranger):
        raise InvalidRequest(f"{stranger} does not go with {name}", param=stranger)
    special, opening = flag(payload, "add_special_tokens", True), flag(payload, "add_generation_prompt", True)
    most = service.engine.resolved.context_length
    if name == "messages":
        with naming("messages"):
            ids = tokenizer.encode_chat(plain_messages(payload["messages"]), add_generation_prompt=opening)
        return {"tokens": ids, "count": len(ids), "max_model_len": most}
    texts = payload[name]
    with naming(name):
        if isinstance(texts, str):
            ids = tokenizer.encode(texts, add_special_tokens=special)
            return {"tokens": ids, "count": len(ids), "max_model_len": most}
        if not isinstance(texts, list):
            raise InvalidRequest(f"{name} must be a string or a list of strings")
        many = tokenizer.encode_batch(texts, add_special_tokens=special)
    return {"tokens": many, "count": [len(ids) for ids in many], "max_model_len": most}


async def detokenize(service: Service, http: HttpRequest) -> Response:
    """Ids, or lists of ids -> text."""
    body = await service.body(http)
    return reply(await service.prepare(_detokenize, service, body))


def _detokenize(service: Service, body: bytes) -> dict[str, Any]:
    payload = parse(body)
    check_names(payload, "detokenize")
    service.check_model(payload.get("model"))
    tokenizer = service.need_tokenizer()
    tokens, skip = payload.get("tokens"), flag(payload, "skip_special_tokens", True)
    if not isinstance(tokens, list):
        raise InvalidRequest("tokens must be a list of token ids, or a list of such lists", param="tokens")
    if tokens and isinstance(tokens[0], list):
        return {"text": [tokenizer.decode(_ids(row, service), skip_special_tokens=skip) for row in tokens]}
    return {"text": tokenizer.decode(_ids(tokens, service), skip_special_tokens=skip)}


def _ids(row: Any, service: Service) -> list[int]:
    most = service.engine.vocab_size
    if not isinstance(row, list) or any(type(t) is not int or not 0 <= t < most for t in row):
        raise InvalidRequest(f"tokens must be token ids in [0, {most})", param="tokens")
    return row
