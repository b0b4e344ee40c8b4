"""``wellhead serve``: one engine, one port."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvicorn

from wellhead.errors import InvalidConfig, WellheadError
from wellhead.frontends.http.app import Application, build
from wellhead.frontends.http.options import ServerOptions, add_server_arguments, server_options
from wellhead.frontends.options import add_engine_arguments, engine_options

if TYPE_CHECKING:
    from wellhead.frontends.engine import Engine

log = logging.getLogger("wellhead")

#: Seconds for the last answers to leave once the engine has been closed.
LAST_WORDS = 5.0
#: Seconds that a thread may keep the interpreter while another wants it. Python's own 5 ms would cost the engine's thread,
#: which asks for it after every kernel, more than the HTTP side takes.
SWITCH_INTERVAL = 0.0005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``wellhead serve``."""
    add_engine_arguments(parser)
    add_server_arguments(parser)
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Load the model, serve until SIGTERM or SIGINT, let running requests end; 0. If the engine dies: say why; 1."""
    options = server_options(args)  # before torch is imported: what is wrong with them is said at once
    from wellhead.frontends.engine import Engine

    listening = bind(options.host, options.port)
    sys.setswitchinterval(SWITCH_INTERVAL)
    with Engine(**engine_options(args)) as engine:
        check_queue(engine, options)
        # uvicorn raises the signal again when it is done; by then it must be harmless, or the exit status would tell of a kill
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _ignore)
        server = Server(engine, options)
        engine.loop.ended.add_done_callback(server.leave)
        server.run(sockets=[listening])
        died = engine.loop.ended.exception() if engine.loop.ended.done() else None
    if isinstance(died, WellheadError):
        print(f"wellhead: {died.code}: {died.message}", file=sys.stderr)
    return 0 if died is None else 1


def _ignore(number: int, frame: Any) -> None:
    del number, frame


def bind(host: str, port: int) -> socket.socket:
    """A socket on the address, not yet listening: nobody is kept waiting while the model loads. Raises ``InvalidConfig``."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise InvalidConfig(f"cannot listen on {host}:{port}: {error.strerror or error}", param="port") from None
    return bound


def url_of(host: str, port: int) -> str:
    """How to reach an address; IPv6 stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_queue(engine: Engine, options: ServerOptions) -> None:
    """A batch that can never fit the engine's queue would be refused as overloaded for ever."""
    queue = engine.resolved.max_queued
    if options.max_batch_size > queue:
        raise InvalidConfig(
            f"max_batch_size {options.max_batch_size} exceeds max_queued_requests {queue}", param="max_batch_size"
        )


class Server(uvicorn.Server):
    """uvicorn with a start-up line, and with an engine to close when the time to drain is over."""

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        asgi, self.application = build(engine, options)
        super().__init__(
            uvicorn.Config(
                asgi,
                lifespan="on",
                log_config=None,
                access_log=False,
                ws="none",
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(options.drain_timeout + LAST_WORDS) + 1,
                backlog=2048,
            )
        )
        self._engine = engine
        self._options = options
        self.address = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.should_exit:
            return
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self.address = url_of(host, port)
        print(start_line(self._engine, self.address), flush=True)

    def leave(self, ended: object) -> None:
        """End as if asked to by a signal; from any thread."""
        del ended
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests; let those that run end, or end them after ``drain_timeout``."""
        closing = asyncio.create_task(self._drain(self.application))
        await super().shutdown(sockets)
        closing.cancel()

    async def _drain(self, application: Application) -> None:
        if application.service is not None:
            application.service.draining = True
        deadline = asyncio.get_running_loop().time() + self._options.drain_timeout
        while application.gate.in_flight and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        if application.gate.in_flight:
            log.warning("%d requests did not end in time", application.gate.in_flight)
        await asyncio.to_thread(self._engine.shutdown)


def start_line(engine: Engine, address: str) -> str:
    """What is served, how, and where."""
    info = engine.info()
    seconds = sum(info["start_seconds"].values())
    return (
        f"wellhead: {info['served_model_name']} ({info['architecture']}), {info['dtype']} on {info['device']}, "
        f"hidden states: {info['return_hidden_states_mode']}, pages: {info['pages']} x {info['page_size']} tokens, "
        f"batch_invariant: {str(info['batch_invariant']).lower()}, loaded in {seconds:.1f} s, ready on {address}"
    )
