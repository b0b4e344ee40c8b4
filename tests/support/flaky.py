"""A tiny HTTP server whose every answer is scripted: refusals, dropped connections, bodies cut off, silence."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from wellhead.encoding import safetensors
from wellhead.encoding.vectors import Vectors
from wellhead.types import HiddenStates

HIDDEN = 4
INFO = {"hidden_size": HIDDEN, "limits": {"max_batch_size": 8, "max_body_bytes": 1 << 16, "max_request_tokens": None}}


@dataclass
class Say:
    """An answer. ``cut``: send only so many bytes of the body and drop the connection. ``wait``: seconds of silence first."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    wait: float = 0.0


@dataclass
class Drop:
    """No answer: the connection is closed."""


class Good:
    """A right answer to the request, whatever it asks."""


def error(status: int, code: str, message: str = "no", param: str | None = None, **headers: str) -> Say:
    shown = {name.replace("_", "-"): value for name, value in headers.items()}
    return Say(status, json.dumps({"error": {"message": message, "code": code, "param": param}}).encode(), shown)


def vector(text: Any) -> np.ndarray:
    """The row that this server computes for a text or a list of ids."""
    return np.full(HIDDEN, len(text), np.float32)


def right_answer(path: str, payload: dict[str, Any]) -> bytes:
    if path == "/generate":
        return json.dumps({"text": "x", "output_ids": [1], "meta_info": {"id": "a"}}).encode()
    if path != "/v1/hidden_states":
        return json.dumps(INFO).encode()
    states = tuple(
        HiddenStates("float32", (-1,), (vector(t),), np.array([len(t) - 1]), len(t), reduce="first", total_rows=len(t))
        for t in payload["input"]
    )
    facts = {"prompt_tokens": [len(t) for t in payload["input"]]}
    return b"".join(safetensors.encode(Vectors(states, (None,), "float32", False, facts))[1])


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what these tests are about."""


class FlakyServer:
    """Actions are for every path but ``/server_info``, in the order of requests. ``seen``: paths and payloads that came."""

    def __init__(self, *actions: Any) -> None:
        self._actions = list(actions)
        self._lock = threading.Lock()
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.times: list[float] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server._handle(self)

            do_POST = do_GET

            def log_message(self, *args: Any) -> None: ...

        self._http = _Quiet(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def _next(self, path: str, payload: dict[str, Any]) -> Any:
        with self._lock:
            if path == "/server_info":
                return Good()
            self.seen.append((path, payload))
            self.times.append(time.monotonic())
            return self._actions.pop(0) if len(self._actions) > 1 else self._actions[0]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        payload = json.loads(raw or b"{}")
        action = self._next(handler.path, payload)
        if callable(action):
            action = action(payload)
        if isinstance(action, Drop):
            handler.close_connection = True
            return
        say = Say(body=right_answer(handler.path, payload)) if isinstance(action, Good) else action
        time.sleep(say.wait)
        handler.send_response(say.status)
        for name, value in {"Content-Length": str(len(say.body)), **say.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(say.body if say.cut is None else say.body[: say.cut])
        handler.close_connection = say.cut is not None

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
