"""``POST /classify`` and ``/v1/classify``: labels and scores by the head that the model brings."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.errors import InvalidRequest
from wellhead.frontends.http.asking import Asked, asked, inputs_of, listing, one_of, wish
from wellhead.frontends.http.openai_fields import plain_messages
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import check_names, flag
from wellhead.frontends.http.service import Service, Wish
from wellhead.frontends.native import Reply
from wellhead.frontends.tasks import Verdict


def translate(service: Service, payload: Payload) -> Wish[Asked[Any]]:
    """vLLM's body (``input`` or ``messages``), or SGLang's (``text`` or ``input_ids``)."""
    check_names(payload, "classify")
    service.check_model(payload.get("model"))
    tasks = service.engine.tasks
    tasks.need("classify")
    name = one_of(payload, "input", "messages", "text", "input_ids")
    if name == "messages":
        inputs, single = [plain_messages(payload["messages"])], True
    else:
        inputs, single = inputs_of(payload, name)
        if name != "input" and isinstance(inputs[0], str) != (name == "text"):
            raise InvalidRequest(f"{name} must hold {'texts' if name == 'text' else 'token ids'}", param=name)
    work = tasks.classify(inputs, name)
    activate = flag(payload, "use_activation", name in ("input", "messages"))

    def values(verdict: Verdict) -> Any:
        return verdict.values if activate else verdict.scores

    def listed(verdicts: list[Verdict], replies: list[Reply]) -> Any:
        data = [
            {"index": i, "label": v.to_dict()["label"], "probs": values(v), "num_classes": len(v.labels)}
            for i, v in enumerate(verdicts)
        ]
        return listing(service, "classify", data, work)

    def native(verdicts: list[Verdict], replies: list[Reply]) -> Any:
        found = [{"embedding": values(v), "meta_info": r.summary()} for v, r in zip(verdicts, replies, strict=True)]
        return found[0] if single else found

    return wish(payload, "classify", name, work, listed if name in ("input", "messages") else native)


async def classify(service: Service, http: HttpRequest) -> Response:
    """Labels of texts: the values of each, and the largest one's label; with ``text``, the scores in SGLang's shape."""
    return await asked(service, http, translate)
