"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.errors import InvalidRequest, PromptTooLong
from wellhead.frontends.http.errors import openai_body
from wellhead.frontends.http.openai_choice import Choice, chat_logprobs, usage_of
from wellhead.frontends.http.openai_fields import plain_messages, split, wants_usage
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import flag, naming, whole
from wellhead.frontends.http.respond import answer, event_stream, off_loop, owned
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.frontends.http.showing import Show, by_request, gather, is_light
from wellhead.requests.fields import called
from wellhead.types import Logprobs

MOST_LOGPROBS = 20
#: Arguments of the renderer, which are no variables of a template.
_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "variables", "self")


@dataclass(frozen=True, slots=True)
class ChatMemo:
    """What the answer must look like. ``logprobs``: how many alternatives, ``None``: no logprobs at all."""

    stream: bool
    usage: bool
    logprobs: int | None
    show: Show
    id: str
    created: int


def translate(service: Service, payload: Payload) -> Wish[ChatMemo]:
    """OpenAI's fields -> the engine's. The prompt's ids are the template's own, without a second opening token."""
    native, show = split(payload, "chat")
    service.check_model(payload.get("model"))
    tokenizer = service.need_tokenizer()
    continued = flag(payload, "continue_final_message")
    opening = flag(payload, "add_generation_prompt", not continued)
    messages, variables = plain_messages(payload["messages"]), template_variables(payload.get("chat_template_kwargs"))
    with naming("messages"):
        ids = tokenizer.encode_chat(messages, add_generation_prompt=opening, continue_final_message=continued, **variables)
    native["sampling_params"]["max_new_tokens"] = max_tokens(service, payload, len(ids))
    logprobs = top_logprobs(payload)
    if logprobs is not None:
        native |= {"return_logprob": True, "top_logprobs_num": logprobs}
    memo = ChatMemo(
        flag(payload, "stream"), wants_usage(payload), logprobs, show, f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
    )
    return Wish({**native, "input_ids": ids}, memo, _called(payload))


def _called(payload: Payload) -> Mapping[str, str]:
    """The engine's names of fields -> those that this caller used: one of them has two here."""
    names = called("chat")
    if "max_completion_tokens" not in payload:
        return names
    return {engines: "max_completion_tokens" if name == "max_tokens" else name for engines, name in names.items()}


def max_tokens(service: Service, payload: Payload, prompt: int) -> int:
    """As asked; by default all that the context and the pool leave."""
    old, new = whole(payload, "max_tokens", 0, None), whole(payload, "max_completion_tokens", 0, None)
    if old is not None and new is not None and old != new:
        raise InvalidRequest("max_tokens and max_completion_tokens differ", param="max_tokens")
    asked = old if new is None else new
    if asked is not None:
        return asked
    config = service.engine.resolved
    left = min(config.context_length - prompt, config.max_total_tokens - prompt + 1)
    if left < 1:
        raise PromptTooLong(f"the messages make {prompt} tokens; the context is {config.context_length}", param="messages")
    return left


def top_logprobs(payload: Payload) -> int | None:
    """How many alternatives; ``None`` without ``logprobs``."""
    top = whole(payload, "top_logprobs", 0, MOST_LOGPROBS)
    if flag(payload, "logprobs"):
        return top or 0
    if top:
        raise InvalidRequest("top_logprobs needs logprobs", param="top_logprobs")
    return None


def template_variables(value: Any) -> dict[str, Any]:
    """Variables of the model's own template, such as ``enable_thinking``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest("chat_template_kwargs must be an object", param="chat_template_kwargs")
    for name in value:
        if name in _RESERVED or not name.isidentifier():
            raise InvalidRequest(f"chat_template_kwargs: {name!r} is no variable of a template", param="chat_template_kwargs")
    return value


async def chat(service: Service, http: HttpRequest) -> Response:
    """The assistant's next message."""
    return await owned(await service.start(http, translate), _answer)


async def _answer(running: Running[ChatMemo]) -> Response:
    choices = {r.key: Choice(r, i) for i, r in enumerate(running.batch.requests)}
    if running.memo.stream:
        return await event_stream(running, _events(running, choices), openai_body)
    await gather(running, choices)
    light = all(is_light(r) and r.logprobs is None for r in running.batch.requests)
    return await answer(running, await off_loop(running.service, light, lambda: _whole(running, list(choices.values()))))


def _whole(running: Running[ChatMemo], choices: list[Choice]) -> dict[str, Any]:
    memo = running.memo
    shown = [
        {
            "index": c.index, "message": {"role": "assistant", "content": c.text, "refusal": None},
            "logprobs": _logprobs(running, c.all_logprobs()), **c.reason(), **c.shown_states(memo.show), **c.shown_heads(),
        }
        for c in choices
    ]  # fmt: skip
    head = {"id": memo.id, "object": "chat.completion", "created": memo.created, "model": running.service.model}
    return {**head, "choices": shown, "usage": usage_of(choices)}


def _logprobs(running: Running[ChatMemo], logprobs: Logprobs | None) -> dict[str, Any] | None:
    if running.memo.logprobs is None or logprobs is None:
        return None
    return chat_logprobs(logprobs, running.service.need_tokenizer(), running.memo.logprobs)


async def _events(running: Running[ChatMemo], choices: dict[str, Choice]) -> AsyncIterator[dict[str, Any]]:
    memo = running.memo
    head = {"id": memo.id, "object": "chat.completion.chunk", "created": memo.created, "model": running.service.model}
    none_yet = {"usage": None} if memo.usage else {}

    def chunk(choice: Choice, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        shown = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return {**head, "choices": [shown], **none_yet}

    begun: set[str] = set()
    while running.open:
        for key, outputs in by_request(await running.take()).items():
            choice = choices[key]
            text, logprobs = choice.take(outputs)
            if key not in begun:
                begun.add(key)
                yield chunk(choice, {"role": "assistant", "content": ""})
            shown = _logprobs(running, logprobs) if logprobs is not None and len(logprobs) else None
            heads = choice.new_heads()
            if text or shown is not None or heads:
                yield chunk(choice, {"content": text}, logprobs=shown, **heads)
            if choice.finish is not None:
                yield chunk(choice, {}, **choice.reason())
    for choice in choices.values():
        if choice.hidden_states is not None or choice.reads:
            states = await off_loop(running.service, is_light(choice.request), partial(choice.shown_states, memo.show))
            yield chunk(choice, states)
    if memo.usage:
        yield {**head, "choices": [], "usage": usage_of(list(choices.values()))}
