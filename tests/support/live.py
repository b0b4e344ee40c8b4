"""A server on loopback, in a thread of this process, around a tiny model; and small helpers to talk to it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from wellhead.frontends.engine import Engine
from wellhead.frontends.http.options import ServerOptions
from wellhead.frontends.http.serve import Server, bind

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def add_chat_template(folder: Path) -> Path:
    """Give a checkpoint a chat template; the folder."""
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": CHAT_TEMPLATE}))
    return folder


class LiveServer:
    """An engine and its server; ``stop`` is what SIGTERM does."""

    def __init__(self, folder: Path, options: dict[str, Any] | None = None, **engine: Any) -> None:
        defaults: dict[str, Any] = {
            "return_hidden_states_mode": "full", "max_total_tokens": 4096, "page_size": 16, "served_model_name": "tiny",
        }  # fmt: skip
        self.engine = Engine(model_path=str(folder), **{**defaults, **engine})
        self.options = ServerOptions(**{"port": 0, "drain_timeout": 20.0, **(options or {})})
        self.server = Server(self.engine, self.options)
        self._thread = threading.Thread(target=self._run, args=(bind("127.0.0.1", 0),), daemon=True)
        self._thread.start()
        wait_for(lambda: self.server.address or not self._thread.is_alive())
        self.url = self.server.address
        headers = {"Authorization": f"Bearer {self.options.api_key}"} if self.options.api_key else {}
        self.http = httpx.Client(base_url=self.url, timeout=120, headers=headers)

    def _run(self, listening: socket.socket) -> None:
        self.server.run(sockets=[listening])

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def ok(self, path: str, **body: Any) -> Any:
        """The JSON of an answer that must be 200."""
        answer = self.post(path, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
        """The error object of an answer that must have this status."""
        answer = self.post(path, **body)
        assert answer.status_code == status, answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert error["message"] and error["code"]
        return error

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """All events of a stream, which must end with ``[DONE]``."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            found = list(read_events(answer))
        assert found[-1] == "[DONE]" and "[DONE]" not in found[:-1]
        return [json.loads(event) for event in found[:-1]]

    def pages(self) -> dict[str, int]:
        """Pages by state, as the engine's thread sees them between two steps."""
        counts: dict[str, int] = self.engine.loop.call(lambda core: core.space.counts()).result()
        return counts

    def idle(self) -> bool:
        """Does nothing run and nothing wait?"""
        return bool(self.engine.loop.call(lambda core: core.idle).result())

    def check_all_given_back(self) -> None:
        """Nothing runs, every page is free or cached, and a flush makes all of them free."""
        wait_for(self.idle)
        self.engine.check_integrity()
        total = self.engine.assembled.config.pages
        counts = self.pages()
        assert counts["free"] + counts["cached"] == total, counts
        assert self.http.post("/flush_cache").status_code == 200
        assert self.pages()["free"] == total

    def stop(self) -> None:
        """Drain and end; harmless if repeated."""
        self.http.close()
        self.server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not end"
        self.engine.shutdown()


def read_events(answer: httpx.Response) -> Iterator[str]:
    """The data of each event, as our server writes them: one line, and an empty one behind it."""
    kept = b""
    for piece in answer.iter_bytes():
        *lines, kept = (kept + piece).split(b"\n")
        for line in lines:
            if line:
                assert line.startswith(b"data: "), line[:80]
                yield line[len(b"data: ") :].decode()
    assert not kept, kept[:80]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Poll until it holds; fail only after a time that no working machine needs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
