"""``POST /v1/embeddings``: OpenAI's, from hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.encoding import base64
from wellhead.errors import InvalidRequest, RequestAborted
from wellhead.frontends.http.asking import Asked, answered, inputs_of, text, wish
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import check_names, flag, prompt_fields, whole
from wellhead.frontends.http.respond import answer, off_loop, owned
from wellhead.frontends.http.service import Running, Service, Wish
from wellhead.frontends.native import Reply
from wellhead.requests.fields import called, handed_over


@dataclass(frozen=True, slots=True)
class EmbeddingMemo:
    """What the answer must look like."""

    base64: bool
    dimensions: int
    normalize: bool


def translate(service: Service, payload: Payload) -> Wish[Any]:
    """OpenAI's fields, and ``pooling`` and ``normalize``, -> the engine's."""
    check_names(payload, "embeddings")
    service.check_model(payload.get("model"))
    form = payload.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise InvalidRequest(f'encoding_format must be "float" or "base64", not {form!r:.80}', param="encoding_format")
    pooling = payload.get("pooling", "last")
    if pooling not in ("last", "mean"):
        raise InvalidRequest(f'pooling must be "last" or "mean", not {pooling!r:.80}', param="pooling")
    if "pooling" not in payload and (service.engine.tasks.task.embedding or {"prompt", "prompt_name"} & set(payload)):
        return by_modules(service, payload, form == "base64")
    width = service.engine.hidden_size
    dimensions = whole(payload, "dimensions", 1, width, width)
    assert dimensions is not None
    native: Payload = {
        **prompt_fields(payload["input"], "input"),
        "sampling_params": {"max_new_tokens": 0},
        "return_hidden_states": "last",
        **({"hidden_states_pooling": "mean"} if pooling == "mean" else {}),
        **handed_over(payload, "embeddings"),
    }
    memo = EmbeddingMemo(form == "base64", dimensions, flag(payload, "normalize", True))
    return Wish(native, memo, called("embeddings"))


def by_modules(service: Service, payload: Payload, packed: bool) -> Wish[Any]:
    """The same by the model's own modules and prompts."""
    inputs, _ = inputs_of(payload, "input")
    normalize = flag(payload, "normalize") if "normalize" in payload else None
    work = service.engine.tasks.embed(
        inputs, prompt_name=text(payload, "prompt_name"), prompt=text(payload, "prompt"), normalize=normalize,
        dimensions=whole(payload, "dimensions", 1, service.engine.tasks.width), param="input",
    )  # fmt: skip

    def show(vectors: list[NDArray[np.float32]], replies: list[Reply]) -> Any:
        return listed(service, vectors, packed, work.tokens)

    return wish(payload, "embeddings", "input", work, show)


async def embeddings(service: Service, http: HttpRequest) -> Response:
    """One vector per input: its first ``dimensions`` numbers, scaled to length 1 unless ``normalize`` is false."""
    return await owned(await service.start(http, translate), _answer)


async def _answer(running: Running[Any]) -> Response:
    if isinstance(running.memo, Asked):
        return await answered(running)
    replies = await running.all_well()
    light = len(replies) <= 16
    return await answer(running, await off_loop(running.service, light, lambda: _whole(running, replies)))


def _whole(running: Running[EmbeddingMemo], replies: list[Reply]) -> dict[str, Any]:
    memo = running.memo
    vectors = []
    for reply in replies:
        if reply.hidden_states is None:
            raise RequestAborted("the request was aborted")
        vectors.append(shorten(reply.hidden_states.numpy(), memo.dimensions, memo.normalize))
    tokens = sum(request.prompt_tokens for request in running.batch.requests)
    return listed(running.service, vectors, memo.base64, tokens)


def listed(service: Service, vectors: list[NDArray[np.float32]], packed: bool, tokens: int) -> dict[str, Any]:
    """OpenAI's answer."""
    data = [
        {"object": "embedding", "index": i, "embedding": base64.encode_array(vector) if packed else vector}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": service.model, "usage": usage}


def shorten(vector: NDArray[np.float32], dimensions: int, normalize: bool) -> NDArray[np.float32]:
    """The first ``dimensions`` numbers, then scaled to length 1 (a zero vector stays as it is)."""
    part = np.ascontiguousarray(vector[:dimensions])
    if not normalize:
        return part
    norm = np.sqrt(np.square(part, dtype=np.float64).sum())
    return (part / norm).astype(np.float32) if norm > 0 else part
