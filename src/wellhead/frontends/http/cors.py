"""Answers that pages of other origins may read in a browser (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

#: Headers of ours that a page may read beside those that every page may.
EXPOSED = ("X-Request-ID", "Retry-After", "WWW-Authenticate", "X-Wellhead-Replica")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


def shared(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """``app`` with CORS around it; as it is if no origin is allowed.

    It belongs outside the gate: a preflight brings no key, and a page must be able to read a 401 as well. Cookies are never
    allowed: the key travels in ``Authorization``.
    """
    if not origins:
        return app
    return CORSMiddleware(app, allow_origins=origins, allow_methods=METHODS, allow_headers=("*",), expose_headers=EXPOSED)
