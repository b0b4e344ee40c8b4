"""The engine's numbers at one moment: all that metrics, ``/server_info`` and replicas know of its inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wellhead.metrics.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Made by ``Core.snapshot`` on the engine's thread; a copy that nobody changes afterwards.

    ``counters``: since the start, never reset, by the names of ``metrics.http.COUNTERS``; times in seconds.
    ``running``, ``waiting``: sequences now. ``accept_length``: tokens per judging of a sequence's drafts, 0 before the first.
    ``pages``: free, cached, held, total. ``latencies``: queue, prefill, total, in seconds.
    """

    counters: Mapping[str, float] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0
    accept_length: float = 0.0
    pages: Mapping[str, int] = field(default_factory=dict)
    latencies: Mapping[str, Histogram] = field(default_factory=dict)

    @property
    def cache_hit_ratio(self) -> float:
        """Cached prompt tokens over prompt tokens, since the start; 0 before the first."""
        prompts = self.counters.get("prompt_tokens", 0)
        return self.counters.get("cached_tokens", 0) / prompts if prompts else 0.0
