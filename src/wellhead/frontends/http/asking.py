"""What the endpoints of tasks share: prompts of a ``Work`` on their way through the engine, and its answers on their way out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.errors import EmptyPrompt, InvalidRequest, RequestAborted
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.respond import answer, off_loop, owned
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.frontends.native import Reply
from wellhead.frontends.tasks import Rows, Work
from wellhead.requests.fields import Place, called, handed_over
from wellhead.types import HiddenStates

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """``work``: what runs; ``show``: its answers, and the replies of the engine, -> the body in the caller's own shape."""

    work: Work[T]
    show: Callable[[list[T], list[Reply]], Any]


def wish(payload: Payload, place: Place, name: str, work: Work[T], show: Callable[[list[T], list[Reply]], Any]) -> Wish[Asked[T]]:
    """``name``: the field that the prompts came in, for errors."""
    words = {**called(place), "input_ids": name, "text": name}
    return Wish({**work.payload, **handed_over(payload, place)}, Asked(work, show), words)


async def asked(service: Service, http: HttpRequest, translate: Callable[[Service, Payload], Wish[Asked[Any]]]) -> Response:
    """One request of a task, from its body to its answer."""
    return await owned(await service.start(http, translate), answered)


async def answered(running: Running[Asked[Any]]) -> Response:
    """The answer of a task's request that runs."""
    replies = await running.all_well()

    def whole() -> Any:
        return running.memo.show(running.memo.work.finish([_rows(reply) for reply in replies]), replies)

    return await answer(running, await off_loop(running.service, len(replies) <= 4, whole))


def _rows(reply: Reply) -> Rows:
    found: Mapping[str, HiddenStates] | None = reply.reads or ({"": reply.hidden_states} if reply.hidden_states else None)
    if found is None:
        raise RequestAborted("the request was aborted")
    return found


def usage(work: Work[Any]) -> dict[str, int]:
    """OpenAI's counts of a request that generates nothing."""
    return {"prompt_tokens": work.tokens, "total_tokens": work.tokens}


def listing(service: Service, prefix: str, data: list[Any], work: Work[Any]) -> dict[str, Any]:
    """OpenAI's list of results."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": service.model, "data": data,
        "usage": usage(work),
    }  # fmt: skip


def one_of(payload: Payload, *names: str) -> str:
    """The one field of these that is given."""
    given = [name for name in names if name in payload]
    if len(given) != 1:
        raise InvalidRequest(f"give exactly one of {', '.join(names)}", param=given[1] if given else names[0])
    return given[0]


def inputs_of(payload: Payload, name: str) -> tuple[list[Any], bool]:
    """A text, texts, token ids or lists of them -> a list, and whether it was one that came by itself."""
    value = payload[name]
    if isinstance(value, str):
        return [value], True
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a string, a list of strings, token ids, or lists of token ids", param=name)
    if not value:
        raise EmptyPrompt(f"{name} is empty", param=name)
    if isinstance(value[0], int):
        return [value], True
    if not all(isinstance(one, type(value[0])) and isinstance(one, (str, list)) for one in value):
        raise InvalidRequest(f"{name} must be a list of strings, of token ids, or of lists of token ids", param=name)
    return value, False


def text(payload: Payload, name: str) -> str | None:
    """A field that is a text."""
    value = payload.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {value!r:.80}", param=name)
    return value


def texts(payload: Payload, name: str) -> list[str]:
    """A field that is a list of texts, or of objects that have a ``text``; not empty."""
    value = payload[name]
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a list of texts", param=name)
    if not value:
        raise EmptyPrompt(f"{name} is empty", param=name)
    found = [one.get("text") if isinstance(one, dict) else one for one in value]
    if not all(isinstance(one, str) for one in found):
        raise InvalidRequest(f"{name} must be a list of texts, or of objects with a text", param=name)
    return found  # type: ignore[return-value]
