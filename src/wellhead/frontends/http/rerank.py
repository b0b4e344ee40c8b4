"""``POST /rerank``, ``/v1/rerank`` and ``/v2/rerank``: the order of documents for a query."""

from __future__ import annotations

import uuid
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.errors import InvalidRequest
from wellhead.frontends.http.asking import Asked, asked, one_of, text, texts, usage, wish
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import check_names, flag, whole
from wellhead.frontends.http.service import Service, Wish
from wellhead.frontends.native import Reply

#: Fields that only one of the two bodies has.
_OF_TEXTS = ("raw_scores", "return_text")
_OF_DOCUMENTS = ("top_n", "return_documents", "use_activation")


def translate(service: Service, payload: Payload) -> Wish[Asked[Any]]:
    """The body of Cohere, Jina and vLLM (``documents``), or of text-embeddings-inference (``texts``)."""
    check_names(payload, "rerank")
    service.check_model(payload.get("model"))
    tasks = service.engine.tasks
    tasks.need("rerank")
    name = one_of(payload, "documents", "texts")
    stranger = next((field for field in (_OF_TEXTS if name == "documents" else _OF_DOCUMENTS) if field in payload), None)
    if stranger is not None:
        raise InvalidRequest(f"{stranger} does not go with {name}", param=stranger)
    query, documents = text(payload, "query"), texts(payload, name)
    raw = flag(payload, "raw_scores") or not flag(payload, "use_activation", True)
    work = tasks.pairs(
        [(query or "", document) for document in documents], instruct=text(payload, instruct_of(payload)), raw=raw,
        truncate=flag(payload, "truncate", True), max_document_tokens=whole(payload, "max_tokens_per_doc", 1, None),
    )  # fmt: skip
    most = whole(payload, "top_n", 0, None) or None
    documents_too, texts_too = flag(payload, "return_documents"), flag(payload, "return_text")

    def order(scores: list[float]) -> list[int]:
        return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:most]

    def results(scores: list[float], replies: list[Reply]) -> Any:
        found = [
            {"index": i, "relevance_score": scores[i], **({"document": {"text": documents[i]}} if documents_too else {})}
            for i in order(scores)
        ]
        return {"id": f"rerank-{uuid.uuid4().hex}", "model": service.model, "results": found, "usage": usage(work)}

    def ranks(scores: list[float], replies: list[Reply]) -> Any:
        return [{"index": i, "score": scores[i], **({"text": documents[i]} if texts_too else {})} for i in order(scores)]

    return wish(payload, "rerank", name, work, results if name == "documents" else ranks)


def instruct_of(payload: Payload) -> str:
    """The name under which the instruction came."""
    return one_of(payload, "instruct", "instruction") if {"instruct", "instruction"} & set(payload) else "instruct"


async def rerank(service: Service, http: HttpRequest) -> Response:
    """The documents' scores, best first; equal ones by index. The query's part of the prompts is computed once."""
    return await asked(service, http, translate)
