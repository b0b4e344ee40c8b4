"""The numbers that a payload must keep to."""

from __future__ import annotations

from dataclasses import dataclass

from wellhead.config import Resolved


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests are held against: the resolved configuration, the vocabulary, and whether there is a tokenizer."""

    config: Resolved
    vocab_size: int
    has_tokenizer: bool

    @property
    def pool_tokens(self) -> int:
        return self.config.max_total_tokens
