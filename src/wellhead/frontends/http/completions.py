"""``POST /v1/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.errors import UnsupportedField
from wellhead.frontends.http.errors import openai_body
from wellhead.frontends.http.openai_choice import Choice, CompletionLogprobs, usage_of
from wellhead.frontends.http.openai_fields import split, wants_usage
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import flag, prompt_fields, whole
from wellhead.frontends.http.respond import answer, event_stream, off_loop, owned
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.frontends.http.showing import Show, by_request, gather, is_light
from wellhead.requests.fields import called
from wellhead.types import Logprobs

#: OpenAI's default on this route.
MAX_TOKENS = 16
MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class CompletionMemo:
    """What the answer must look like. ``logprobs``: how many alternatives, ``None``: no logprobs at all."""

    stream: bool
    usage: bool
    echo: bool
    logprobs: int | None
    show: Show
    skip_special: bool
    id: str
    created: int


def translate(service: Service, payload: Payload) -> Wish[CompletionMemo]:
    """OpenAI's fields -> the engine's."""
    native, show = split(payload, "completions")
    service.check_model(payload.get("model"))
    best = payload.get("best_of")
    if best is not None and best != payload.get("n", 1):
        raise UnsupportedField("best_of is not served by this engine unless it equals n", param="best_of")
    params = native["sampling_params"]
    params["max_new_tokens"] = whole(payload, "max_tokens", 0, None, MAX_TOKENS)
    logprobs = whole(payload, "logprobs", 0, MOST_LOGPROBS)
    echo = flag(payload, "echo")
    if logprobs is not None:
        service.need_tokenizer()
        native |= {"return_logprob": True, "top_logprobs_num": logprobs, "logprob_start_len": 0 if echo else -1}
    if echo:
        service.need_tokenizer()
    skip = params.get("skip_special_tokens", True) is not False
    memo = CompletionMemo(
        flag(payload, "stream"), wants_usage(payload), echo, logprobs, show, skip, f"cmpl-{uuid.uuid4().hex}", int(time.time())
    )
    return Wish({**native, **prompt_fields(payload["prompt"], "prompt")}, memo, called("completions"))


async def completions(service: Service, http: HttpRequest) -> Response:
    """Completions of one or several prompts."""
    return await owned(await service.start(http, translate), _answer)


async def _answer(running: Running[CompletionMemo]) -> Response:
    choices = {r.key: Choice(r, i) for i, r in enumerate(running.batch.requests)}
    if running.memo.stream:
        return await event_stream(running, _events(running, choices), openai_body)
    await gather(running, choices)
    light = all(is_light(r) and r.logprobs is None for r in running.batch.requests) and not running.memo.echo
    return await answer(running, await off_loop(running.service, light, lambda: _whole(running, list(choices.values()))))


def _whole(running: Running[CompletionMemo], choices: list[Choice]) -> dict[str, Any]:
    memo = running.memo
    shown = [
        {
            "index": c.index, "text": (_prompt_text(running, c) if memo.echo else "") + c.text, "logprobs": _logprobs(running, c),
            **c.reason(), **c.shown_states(memo.show), **c.shown_heads(),
        }
        for c in choices
    ]  # fmt: skip
    head = {"id": memo.id, "object": "text_completion", "created": memo.created, "model": running.service.model}
    return {**head, "choices": shown, "usage": usage_of(choices)}


def _prompt_text(running: Running[CompletionMemo], choice: Choice) -> str:
    tokenizer = running.service.need_tokenizer()
    return tokenizer.decode(choice.request.input_ids.tolist(), skip_special_tokens=running.memo.skip_special)


def _logprobs(running: Running[CompletionMemo], choice: Choice) -> dict[str, Any] | None:
    found = choice.all_logprobs()
    if running.memo.logprobs is None or found is None:
        return None
    writer = _writer(running)
    if running.memo.echo:
        found = Logprobs.join([*_prompt_logprobs(choice), found], choice.request.logprobs)  # type: ignore[arg-type]
    return writer.add(found)


def _prompt_logprobs(choice: Choice) -> list[Logprobs]:
    spec = choice.request.logprobs
    assert spec is not None
    first = Logprobs.unknown(int(choice.request.input_ids[0]), spec)
    return [first, choice.prompt_logprobs] if choice.prompt_logprobs is not None else [first]


def _writer(running: Running[CompletionMemo]) -> CompletionLogprobs:
    memo = running.memo
    return CompletionLogprobs(running.service.need_tokenizer(), memo.logprobs or 0, memo.skip_special)


async def _events(running: Running[CompletionMemo], choices: dict[str, Choice]) -> AsyncIterator[dict[str, Any]]:
    memo = running.memo
    stream = _Stream(running)
    while running.open:
        for key, outputs in by_request(await running.take()).items():
            choice = choices[key]
            text, logprobs = choice.take(outputs)
            for chunk in stream.chunks(choice, text, logprobs):
                yield chunk
    for choice in choices.values():
        if choice.hidden_states is not None or choice.reads:
            states = await off_loop(running.service, is_light(choice.request), partial(choice.shown_states, memo.show))
            last = {"index": choice.index, "text": "", "logprobs": None, "finish_reason": None}
            yield stream.chunk({**last, **states})
    if memo.usage:
        yield {**stream.head, "choices": [], "usage": usage_of(list(choices.values()))}


class _Stream:
    """Chunks of a completion: text, then one with the reason."""

    def __init__(self, running: Running[CompletionMemo]) -> None:
        self._running = running
        self._begun: set[int] = set()
        self._writers: dict[int, CompletionLogprobs] = {}
        memo = running.memo
        self.head = {"id": memo.id, "object": "text_completion", "created": memo.created, "model": running.service.model}

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self._running.memo.usage else {}
        return {**self.head, "choices": [choice], **usage}

    def chunks(self, choice: Choice, text: str, logprobs: Logprobs | None) -> list[dict[str, Any]]:
        """What is new of a choice."""
        memo, first = self._running.memo, choice.index not in self._begun
        self._begun.add(choice.index)
        parts = [logprobs] if logprobs is not None and len(logprobs) else []
        if first and memo.echo:
            text = _prompt_text(self._running, choice) + text
            parts = [*(_prompt_logprobs(choice) if memo.logprobs is not None else []), *parts]
        shown = None
        if memo.logprobs is not None and parts:
            writer = self._writers.setdefault(choice.index, _writer(self._running))
            shown = writer.add(Logprobs.join(parts, choice.request.logprobs))  # type: ignore[arg-type]
        found, heads = [], choice.new_heads()
        if text or shown is not None or heads:
            found.append(self.chunk({"index": choice.index, "text": text, "logprobs": shown, "finish_reason": None, **heads}))
        if choice.finish is not None:
            found.append(self.chunk({"index": choice.index, "text": "", "logprobs": None, **choice.reason()}))
        return found
