"""``POST /score`` and ``/v1/score``: how well texts fit each other, pair by pair."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.errors import InvalidRequest
from wellhead.frontends.http.asking import Asked, asked, listing, one_of, text, texts, wish
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import check_names, flag, whole
from wellhead.frontends.http.rerank import instruct_of
from wellhead.frontends.http.service import Service, Wish
from wellhead.frontends.native import Reply

#: What the two sides of the pairs are called by different callers.
_SIDES = {"queries": ("documents", "items"), "data_1": ("data_2",), "text_1": ("text_2",)}


def translate(service: Service, payload: Payload) -> Wish[Asked[Any]]:
    """One query for all documents, or one for each."""
    check_names(payload, "score")
    service.check_model(payload.get("model"))
    tasks = service.engine.tasks
    tasks.need("rerank")
    left = one_of(payload, *_SIDES)
    right = one_of(payload, *_SIDES[left])
    stranger = next((s for sides in _SIDES.values() for s in sides if s in payload and s not in _SIDES[left]), None)
    if stranger is not None:
        raise InvalidRequest(f"{stranger} does not go with {left}", param=stranger)
    queries, documents = _side(payload, left), _side(payload, right)
    if not all(queries):
        raise InvalidRequest(f"{left} holds a query that is empty", param=left)
    if len(queries) == 1:
        queries *= len(documents)
    if len(queries) != len(documents):
        raise InvalidRequest(f"{len(queries)} {left} for {len(documents)} {right}", param=left)
    work = tasks.pairs(
        list(zip(queries, documents, strict=True)), instruct=text(payload, instruct_of(payload)),
        raw=not flag(payload, "use_activation", True), truncate=flag(payload, "truncate", True),
        max_query_tokens=whole(payload, "max_tokens_per_query", 1, None),
        max_document_tokens=whole(payload, "max_tokens_per_doc", 1, None),
    )  # fmt: skip

    def show(scores: list[float], replies: list[Reply]) -> Any:
        data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
        return listing(service, "score", data, work)

    return wish(payload, "score", right, work, show)


def _side(payload: Payload, name: str) -> list[str]:
    value = payload[name]
    return [value] if isinstance(value, str) else texts(payload, name)


async def score(service: Service, http: HttpRequest) -> Response:
    """A score for each pair, in their order."""
    return await asked(service, http, translate)
