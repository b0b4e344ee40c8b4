"""The application: which path leads where, and what becomes of errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import wellhead
from wellhead.errors import ClientGone, InternalError, InvalidRequest, MethodNotAllowed, NotFound, WellheadError
from wellhead.frontends.http import admin, heads, native
from wellhead.frontends.http.chat import chat
from wellhead.frontends.http.classify import classify
from wellhead.frontends.http.completions import completions
from wellhead.frontends.http.cors import shared
from wellhead.frontends.http.embed import embed
from wellhead.frontends.http.embeddings import embeddings
from wellhead.frontends.http.gate import SCOPE_ID, Gate, error_response
from wellhead.frontends.http.hidden import hidden_states
from wellhead.frontends.http.options import ServerOptions
from wellhead.frontends.http.rerank import rerank
from wellhead.frontends.http.schemas import operation
from wellhead.frontends.http.score import score
from wellhead.frontends.http.service import Service
from wellhead.metrics.http import HttpMetrics

if TYPE_CHECKING:
    from wellhead.frontends.engine import Engine

log = logging.getLogger("wellhead")

Handler = Callable[[Service, HttpRequest], Awaitable[Response]]

#: path -> methods, and their handler, or one for each
ROUTES: dict[str, tuple[tuple[str, ...], Handler | Mapping[str, Handler]]] = {
    "/generate": (("POST", "PUT"), native.generate),
    "/v1/completions": (("POST",), completions),
    "/v1/chat/completions": (("POST",), chat),
    "/v1/embeddings": (("POST",), embeddings),
    "/v1/hidden_states": (("POST",), hidden_states),
    "/v1/heads": (("GET", "POST"), {"GET": heads.heads, "POST": heads.add_head}),
    "/v1/heads/{name}": (("DELETE",), heads.remove_head),
    "/embed": (("POST",), embed),
    "/classify": (("POST",), classify),
    "/v1/classify": (("POST",), classify),
    "/rerank": (("POST",), rerank),
    "/v1/rerank": (("POST",), rerank),
    "/v2/rerank": (("POST",), rerank),
    "/score": (("POST",), score),
    "/v1/score": (("POST",), score),
    "/tokenize": (("POST",), admin.tokenize),
    "/detokenize": (("POST",), admin.detokenize),
    "/health": (("GET",), admin.health),
    "/health_generate": (("GET",), admin.health_generate),
    "/v1/models": (("GET",), admin.models),
    "/v1/models/{model:path}": (("GET",), admin.model),
    "/model_info": (("GET",), admin.model_info),
    "/get_model_info": (("GET",), admin.model_info),
    "/server_info": (("GET",), admin.server_info),
    "/get_server_info": (("GET",), admin.server_info),
    "/metrics": (("GET",), admin.metrics),
    "/flush_cache": (("POST", "GET"), admin.flush_cache),
    "/abort_request": (("POST",), admin.abort_request),
}


class Application:
    """The ASGI application of one engine. The service comes to life with the event loop, in the lifespan."""

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self._engine = engine
        self._options = options
        self.metrics = HttpMetrics()
        self.service: Service | None = None
        about = wellhead.__doc__ or ""
        self.api = FastAPI(title="Wellhead", version=wellhead.__version__, description=about, lifespan=self._life)
        for path, (methods, named) in ROUTES.items():
            by_method = named if isinstance(named, Mapping) else dict.fromkeys(methods, named)
            for i, method in enumerate(methods):
                own = i == 0 or by_method is named  # other methods of one handler are the same once more
                self._add(path, method, by_method[method], shown=own and not path.startswith("/get_"))
            if "GET" in methods:  # uvicorn leaves the body out
                self._add(path, "HEAD", by_method["GET"], shown=False)
        self.api.add_exception_handler(HTTPException, _http_error)
        self.gate = Gate(self.api, options, self.metrics, ROUTES)

    @contextlib.asynccontextmanager
    async def _life(self, api: FastAPI) -> AsyncIterator[None]:
        del api
        self.service = Service(self._engine, self._options, self.metrics)
        try:
            yield
        finally:
            self.service.close()

    def _add(self, path: str, method: str, handler: Handler, *, shown: bool) -> None:
        self.api.add_api_route(
            path,
            self._endpoint(handler),
            methods=[method],
            response_model=None,
            include_in_schema=shown,
            operation_id=operation_id(path, handler.__name__) if shown else None,
            openapi_extra=operation(path, method),
        )

    def _endpoint(self, handler: Handler) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def endpoint(http: HttpRequest) -> Response:
            assert self.service is not None
            try:
                return await handler(self.service, http)
            except ClientGone:
                return Response(status_code=499)
            except WellheadError as error:
                return error_response(error, http.url.path)
            except Exception as error:
                log.exception("%s failed (request %s)", http.url.path, http.scope.get(SCOPE_ID))
                return error_response(InternalError(f"the server failed: {type(error).__name__}"), http.url.path)

        endpoint.__name__ = handler.__name__
        endpoint.__doc__ = handler.__doc__
        return endpoint


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    """What the router itself refuses."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = http.scope["path"]
    if status == 404:
        return error_response(NotFound(f"there is no {path} here; see /docs"), path)
    if status == 405:
        refusal = error_response(MethodNotAllowed(f"{path} does not take {http.method}"), path)
        refusal.headers.update(getattr(error, "headers", None) or {})  # Allow
        return refusal
    return error_response(InvalidRequest(str(getattr(error, "detail", error))), path)


def operation_id(path: str, name: str) -> str:
    """A name of its own for each path that a handler has."""
    paths = {
        other
        for other, (_, named) in ROUTES.items()
        for handler in (named.values() if isinstance(named, Mapping) else (named,))
        if handler.__name__ == name and not other.startswith("/get_")
    }
    return path.strip("/").replace("/", "_") if len(paths) > 1 else name


def build(engine: Engine, options: ServerOptions) -> tuple[Any, Application]:
    """The ASGI callable, and the application behind it."""
    application = Application(engine, options)
    return shared(application.gate, options.cors_allow_origins), application
