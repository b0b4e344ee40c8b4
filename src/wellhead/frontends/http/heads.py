"""``/v1/heads``: the heads that requests may use."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from wellhead.core.heads import card
from wellhead.frontends.http.admin import reply
from wellhead.frontends.http.service import Service


async def heads(service: Service, http: HttpRequest) -> Response:
    """All heads that are loaded, with labels, layers and version."""
    del http
    return reply({"object": "list", "data": [card(head) for head in list(service.engine.heads.values())]})


async def add_head(service: Service, http: HttpRequest) -> Response:
    """The body is a head file; one of the same name is replaced. Needs ``--allow-head-upload``."""
    service.engine.assembled.heads.check_upload()
    body = await service.body(http)
    return reply(card(await service.prepare(service.engine.add_head, body)))


async def remove_head(service: Service, http: HttpRequest) -> Response:
    """Take a head away; requests that have begun finish with it. Needs ``--allow-head-upload``."""
    gone = service.engine.remove_head(http.path_params["name"])
    return reply({"id": gone.name, "object": "head", "version": gone.version, "deleted": True})
