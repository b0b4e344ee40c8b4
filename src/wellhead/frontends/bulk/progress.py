"""How far a run is: a bar on a terminal, a line a minute elsewhere, and a summary at the end."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

from wellhead.frontends.bulk.work.source import Usage

#: Seconds between two plain lines.
EVERY = 60.0


class Progress:
    """``total``: rows of the job, if that is known; ``before``: rows that an earlier run has done."""

    def __init__(self, total: int | None, before: int, usage: Usage) -> None:
        self._total, self._before, self._usage = total, before, usage
        self._started = self._told = time.perf_counter()
        self._bar: Any = None
        self.rows = 0
        if sys.stderr.isatty():
            self._bar = tqdm(desc="extract", unit=" rows", total=total, initial=before, mininterval=0.5)

    def step(self) -> None:
        """One more row is through."""
        self.rows += 1
        if self._bar is not None:
            self._bar.update()
            if self.rows % 64 == 0:
                self._bar.set_postfix_str(self._speed(), refresh=False)
        elif self.rows % 64 == 0 and time.perf_counter() - self._told >= EVERY:
            self._told = time.perf_counter()
            print(f"extract: {self._line()}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(self._speed())
            self._bar.close()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def _speed(self) -> str:
        """Tokens per second, and the share that the prefix cache had; nothing where a server counts them."""
        usage = self._usage
        if not usage.tokens:
            return f"{self.rows / max(self.seconds, 1e-9):,.0f} rows/s"
        return f"{usage.tokens / max(self.seconds, 1e-9):,.0f} tokens/s, {usage.cached / usage.tokens:.0%} cached"

    def _line(self) -> str:
        done = self._before + self.rows
        if self._total is None:
            return f"{done:,} rows, {self._speed()}"
        left = (self._total - done) * self.seconds / max(self.rows, 1)
        return f"{done:,} of {self._total:,} rows, {self._speed()}, {duration(left)} left"

    def summary(self) -> str:
        """One line about this run."""
        rate = self.rows / max(self.seconds, 1e-9)
        return f"{self.rows:,} rows in {duration(self.seconds)} ({rate:,.0f} rows/s, {self._speed()})"


def duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 20 s``, ``5 h 12 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Bytes, in a unit that people read."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
