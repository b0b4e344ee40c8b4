"""``POST /embed``: vectors in the shape of text-embeddings-inference."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.frontends.http.asking import Asked, asked, inputs_of, text, wish
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import check_names, flag, whole
from wellhead.frontends.http.service import Service, Wish


def translate(service: Service, payload: Payload) -> Wish[Asked[Any]]:
    """``inputs``: a text, texts, token ids, or lists of them."""
    check_names(payload, "embed")
    inputs, _ = inputs_of(payload, "inputs")
    work = service.engine.tasks.embed(
        inputs, prompt_name=text(payload, "prompt_name"), dimensions=whole(payload, "dimensions", 1, None),
        normalize=flag(payload, "normalize", True), truncate=flag(payload, "truncate"), param="inputs",
    )  # fmt: skip
    return wish(payload, "embed", "inputs", work, lambda vectors, replies: vectors)


async def embed(service: Service, http: HttpRequest) -> Response:
    """A list of vectors, one for each input, by the model's own modules if it has them."""
    return await asked(service, http, translate)
