"""The engine without its thread: payloads in, steps by hand, replies out. What shares a step is up to the test."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.poison import PoisonedRunner
from wellhead.config import EngineConfig
from wellhead.core.assemble import assemble
from wellhead.frontends.native import Reply
from wellhead.requests.normalize import Batch, normalize
from wellhead.types import Output

Payload = dict[str, Any]
STEPS = 20_000


class Direct:
    """A poisoned core on a real model. ``run`` is all that most tests need."""

    def __init__(self, model: Path, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "return_hidden_states_mode": "full", "native_kernels": True, "max_total_tokens": 4096, "page_size": 16,
        }  # fmt: skip
        self.made = assemble(EngineConfig.from_options({"model_path": str(model), **defaults, **options}))
        self.core = self.made.core
        self.runner = PoisonedRunner(self.core)
        self.hidden_size = self.made.spec.hidden_size
        self._seeds = itertools.count(0)
        self._replies: dict[str, Reply] = {}
        self.errors: dict[str, Exception] = {}

    def submit(self, payload: Payload) -> Batch:
        """Normalise and queue a payload."""
        tokenizer = self.made.tokenizer
        assert tokenizer is not None
        batch = normalize(payload, self.made.limits, tokenizer.encode_batch, lambda: next(self._seeds), tokenizer.token_spans)
        for request in batch.requests:
            self.core.submit(request)
            self._replies[request.key] = Reply(request, tokenizer.token_text)
        return batch

    def step(self) -> list[Output]:
        """One step; its outputs go into the replies too."""
        outputs = self.core.step()
        for output in outputs:
            if output.error is not None:
                assert output.hidden_states is None, "errors carry no rows"
                self.errors[output.key] = output.error
            else:
                self._replies[output.key].update(output)
        self.core.check_integrity()
        return outputs

    def finish(self) -> None:
        """Step until nothing is left."""
        for _ in range(STEPS):
            if self.core.idle:
                self.runner.spoil()
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def replies(self, batch: Batch) -> list[Reply]:
        """The finished replies of a batch, in order; raises the first error."""
        for request in batch.requests:
            if request.key in self.errors:
                raise self.errors[request.key]
        found = [self._replies[request.key] for request in batch.requests]
        assert all(reply.finished for reply in found)
        return found

    def run(self, payloads: Sequence[Payload]) -> list[Reply]:
        """All payloads at once; one reply per request, in order."""
        batches = [self.submit(payload) for payload in payloads]
        self.finish()
        return [reply for batch in batches for reply in self.replies(batch)]

    def alone(self, payloads: Sequence[Payload]) -> list[Reply]:
        """One after another, each on an engine that remembers nothing."""
        replies: list[Reply] = []
        for payload in payloads:
            assert self.core.flush_cache()
            replies += self.run([payload])
        return replies
