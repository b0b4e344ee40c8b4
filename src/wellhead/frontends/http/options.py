"""What a server accepts at most, and where it listens."""

from __future__ import annotations

import argparse
import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from wellhead.errors import InvalidConfig

#: As a browser sends it: scheme and host in small letters, no path, not even a slash.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of the server itself; the engine's are in ``EngineConfig``.

    ==================== ===========================================================================================
    host, port           where to listen; port 0: any free one
    api_key              if set, every request needs ``Authorization: Bearer <key>``; only ``/health`` does not
    cors_allow_origins   origins (``https://host[:port]``; ``"*"``: all) whose pages may call from a browser; none by default
    max_body_bytes       largest body of a request
    max_batch_size       prompts times samples in one request
    max_request_tokens   prompt and new tokens of all its sequences together in one request; ``None``: no such limit
    max_request_logprobs log-probabilities of alternatives (``top_logprobs_num``, ``token_ids_logprob``) in one request
    max_connections      requests that are being served at once; more get 503
    request_timeout      seconds that a request may take in the engine; ``None``: no limit but the request's own
    stall_timeout        seconds that a client may take to send its body, or to take one piece of an answer
    drain_timeout        seconds that running requests get after SIGTERM
    enable_metrics       serve ``/metrics``
    ==================== ===========================================================================================
    """

    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    cors_allow_origins: tuple[str, ...] = ()
    max_body_bytes: int = 64 << 20
    max_batch_size: int = 1024
    max_request_tokens: int | None = None
    max_request_logprobs: int = 4_194_304
    max_connections: int = 4096
    request_timeout: float | None = None
    stall_timeout: float = 300.0
    drain_timeout: float = 30.0
    enable_metrics: bool = True

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_batch_size", "max_connections", "max_request_tokens", "max_request_logprobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name} must be at least 1, not {value}", param=name)
        for name in ("request_timeout", "stall_timeout", "drain_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e6:
                raise InvalidConfig(f"{name} must be a positive number of seconds, not {value}", param=name)
        if not 0 <= self.port < 65536:
            raise InvalidConfig(f"port must lie between 0 and 65535, not {self.port}", param="port")
        if self.api_key is not None and (not self.api_key or not self.api_key.isascii()):
            raise InvalidConfig("api_key must not be empty, and in ASCII", param="api_key")
        if isinstance(self.cors_allow_origins, str):
            raise InvalidConfig("cors_allow_origins must be a list of origins", param="cors_allow_origins")
        object.__setattr__(self, "cors_allow_origins", tuple(self.cors_allow_origins))  # a list out of a config file
        for origin in self.cors_allow_origins:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise InvalidConfig(
                    f"cors_allow_origins: {origin!r} is no origin; write it as a browser does, without a path: https://host[:port],"
                    " in small letters, or * for all",
                    param="cors_allow_origins",
                )


_HELP: dict[str, tuple[Any, str]] = {
    "host": (str, "address to listen on (default: 127.0.0.1)"),
    "port": (int, "port (default: 30000; 0: any free one)"),
    "api_key": (str, "key that every request but /health must bring"),
    "max_body_bytes": (int, "largest body of a request (default: 64 MiB)"),
    "max_batch_size": (int, "prompts times samples in one request (default: 1024)"),
    "max_request_tokens": (int, "prompt and new tokens in one request (default: no limit)"),
    "max_request_logprobs": (int, "log-probabilities of alternatives in one request (default: 4194304)"),
    "max_connections": (int, "requests served at once (default: 4096)"),
    "request_timeout": (float, "seconds that a request may take (default: no limit)"),
    "stall_timeout": (float, "seconds that a client may stall (default: 300)"),
    "drain_timeout": (float, "seconds for running requests after SIGTERM (default: 30)"),
}


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the server's options to a parser; one that is not given is not passed on."""
    group = parser.add_argument_group("server")
    for name, (kind, text) in _HELP.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS, help=text)
    group.add_argument(
        "--cors-allow-origins",
        nargs="+",
        metavar="ORIGIN",
        default=argparse.SUPPRESS,
        help="web pages that may call this server from a browser, as https://host[:port]; *: all (default: none)",
    )
    group.add_argument(
        "--enable-metrics", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help="serve /metrics (default)"
    )


def server_options(args: argparse.Namespace) -> ServerOptions:
    """The options that were given. Raises ``InvalidConfig``."""
    names = [f.name for f in dataclasses.fields(ServerOptions)]
    return ServerOptions(**{name: getattr(args, name) for name in names if hasattr(args, name)})
