"""The engine's only state of a request."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from wellhead.cache.space import Lease
from wellhead.capture.judges import Bench, Taker
from wellhead.capture.readers import Reader
from wellhead.requests.text import TextStream
from wellhead.speculative.progress import Progress
from wellhead.types import Logprobs, Request, Usage


class Phase(Enum):
    WAITING = auto()
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()


class Sequence:
    """Tokens, pages, progress and readers of one request.

    ``tokens[:computed]`` have keys in pages. The next token to compute is always ``tokens[computed]``; a sequence
    decodes when only its newest token is uncomputed.
    """

    __slots__ = (
        "_tokens", "arrival", "bench", "cached_tokens", "computed", "deadline", "held_text", "lease", "length", "mode", "order",
        "output_logprobs", "passed_over", "phase", "prompt_logprobs", "readers", "request", "retractions", "sent_chars",
        "sent_tokens", "speculation", "takers", "targets_done", "text", "unsent_text",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        *,
        order: int,
        arrival: float,
        readers: tuple[Reader, ...],
        text: TextStream | None,
        speculation: Progress | None = None,
        bench: Bench | None = None,
    ) -> None:
        prompt = request.input_ids
        self._tokens = np.empty(len(prompt) + request.sampling.max_new_tokens, np.int32)
        self._tokens[: len(prompt)] = prompt
        self.length = len(prompt)
        self.request = request
        self.order = order
        self.arrival = arrival
        self.deadline = arrival + request.timeout if request.timeout is not None else None
        self.readers = readers
        self.bench = bench
        #: All that want rows of it: readers, and judges.
        self.takers: tuple[Taker, ...] = (*readers, *(bench.judges if bench is not None else ()))
        self.mode = request.mode
        self.text = text
        self.speculation = speculation
        self.unsent_text: list[str] = []
        self.held_text = ""  # of the newest token, while a head still has to judge it
        self.sent_chars = 0
        self.phase = Phase.WAITING
        self.lease: Lease | None = None
        self.computed = 0
        self.cached_tokens: int | None = None
        self.retractions = 0
        self.passed_over = 0
        self.sent_tokens = 0
        self.prompt_logprobs: list[Logprobs] = []
        self.output_logprobs: list[Logprobs] = []
        spec = request.logprobs
        self.targets_done = len(prompt) if spec is None or spec.start is None else max(1, spec.start)

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def prompt_length(self) -> int:
        return len(self.request.input_ids)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Prompt and output so far; a view."""
        return self._tokens[: self.length]

    @property
    def output(self) -> NDArray[np.int32]:
        return self._tokens[self.prompt_length : self.length]

    @property
    def generates(self) -> bool:
        return self.request.sampling.max_new_tokens > 0

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return len(self._tokens) - self.length

    def append(self, token: int) -> None:
        self._tokens[self.length] = token
        self.length += 1

    def truncate(self, length: int) -> None:
        """Take back the newest tokens of the output."""
        self.length = length

    def usage(self) -> Usage:
        plain = Usage(self.prompt_length, self.length - self.prompt_length, self.cached_tokens or 0, self.retractions)
        if self.speculation is None:
            return plain
        spec = self.speculation
        return replace(plain, verify_steps=max(0, spec.draws - 1), proposed=spec.proposed, accepted=spec.accepted)
