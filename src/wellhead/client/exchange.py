"""One call to the server and its retries, without any input or output of its own.

``exchange`` is a generator of steps: it yields ``Send`` and ``Sleep``, is sent what came of them, and returns the reply.
``Client`` and ``AsyncClient`` carry the steps out, each in its own way; all decisions are here.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from wellhead import errors
from wellhead.errors import InternalError, InvalidRequest, Overloaded, RequestTimeout, ServerUnreachable, WellheadError

Payload = dict[str, Any]
#: The longest ``Retry-After`` that is honoured, in seconds.
MOST_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Waits between attempts: ``first`` seconds, doubling up to ``most``, each shortened at random by up to a half.

    ``attempts`` counts the first try. A ``Retry-After`` of the server is waited for in full.
    """

    attempts: int = 6
    first: float = 0.25
    most: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first < 0 or self.most < self.first:
            raise InvalidRequest("a Retry needs at least one attempt, and 0 <= first <= most", param="retry")

    def delay(self, failures: int, after: float, rng: random.Random) -> float | None:
        """Seconds to wait after that many failures (at least 1), or ``None`` to give up."""
        if failures >= self.attempts:
            return None
        backoff = min(self.most, self.first * 2.0 ** min(failures - 1, 60))
        return max(min(after, MOST_PATIENCE), backoff * rng.uniform(0.5, 1.0))


@dataclass(frozen=True, slots=True)
class Call:
    """A request. ``idempotent``: it may be sent again even after a part of the answer has come."""

    method: str
    path: str
    payload: Payload | None = None
    accept: str = "application/json"
    idempotent: bool = True
    stream: bool = False
    retry: bool = True

    def body(self) -> bytes | None:
        return None if self.payload is None else json.dumps(self.payload).encode()

    def headers(self) -> dict[str, str]:
        # identity: vectors do not compress, and a reply is then as long as its Content-Length says
        kind = {} if self.payload is None else {"Content-Type": "application/json"}
        return {"Accept": self.accept, "Accept-Encoding": "identity", **kind}


@dataclass(frozen=True, slots=True)
class Response:
    """What the server said. ``response`` is still open, and ``body`` empty, for a stream that has begun."""

    status: int
    headers: Mapping[str, str]
    body: bytearray = field(default_factory=bytearray)
    response: httpx.Response | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The connection failed; ``began``: after the answer had begun."""

    error: Exception
    began: bool


@dataclass(frozen=True, slots=True)
class Send:
    call: Call


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Step = Send | Sleep
Exchange = Generator[Step, Response | Dropped | None, Response]


def exchange(call: Call, retry: Retry, rng: random.Random) -> Exchange:
    """Send a call until it is answered. Raises the server's error, ``ServerUnreachable`` or ``RequestTimeout``."""
    failures = 0
    while True:
        got = yield Send(call)
        if isinstance(got, Response) and got.status < 300:
            return got
        error, again, after = _judge(call, got)
        failures += 1
        delay = retry.delay(failures, after, rng) if again and call.retry else None
        if delay is None:
            raise error
        yield Sleep(delay)


def _judge(call: Call, got: Response | Dropped | None) -> tuple[WellheadError, bool, float]:
    """The error, whether the same call may be sent again, and after how many seconds at least."""
    if isinstance(got, Response):
        return error_of(got.status, bytes(got.body)), got.status in (429, 503), retry_after(got.headers)
    assert isinstance(got, Dropped)
    if isinstance(got.error, httpx.TimeoutException) and not isinstance(got.error, (httpx.ConnectTimeout, httpx.PoolTimeout)):
        return RequestTimeout(f"{call.path}: no answer in time ({type(got.error).__name__})"), False, 0.0
    what = "the connection was lost in the middle of the answer" if got.began else "the server cannot be reached"
    return ServerUnreachable(f"{call.path}: {what}: {got.error!r}"), call.idempotent or not got.began, 0.0


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds in ``Retry-After``, given as a number or as a date; 0 if there is none that can be read."""
    text = headers.get("retry-after", "").strip()
    try:
        seconds = float(text) if text[:1].isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, seconds)


def _tree(root: type[WellheadError]) -> dict[str, type[WellheadError]]:
    return {kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, root)}


def error_of(status: int, body: bytes) -> WellheadError:
    """The error in a body, as the class that has its ``code``; one without a code that we know, by its status."""
    try:
        said = json.loads(body)["error"]
        message, code, param = str(said["message"]), said.get("code"), said.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code, param = f"status {status}: {body[:200].decode('utf-8', 'replace')}", None, None
    kind = _tree(WellheadError).get(code) if isinstance(code, str) else None
    error = (kind or _kind_of(status))(message, param=param if isinstance(param, str) else None)
    if kind is None and isinstance(code, str):
        error.code = code
    return error


def _kind_of(status: int) -> type[WellheadError]:
    if status in (429, 503):
        return Overloaded
    if status in (408, 504):
        return RequestTimeout
    return InvalidRequest if 400 <= status < 500 else InternalError
