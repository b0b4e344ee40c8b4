"""The numbers that a payload must keep to."""

from __future__ import annotations

from dataclasses import dataclass

from wellhead.config import Resolved


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests are held against: the resolved configuration, the vocabulary, whether there are a tokenizer and an LM
    head, and which tokens are special."""

    config: Resolved
    vocab_size: int
    has_tokenizer: bool
    special_ids: frozenset[int] = frozenset()
    has_head: bool = True
