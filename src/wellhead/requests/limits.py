"""The numbers that a payload must keep to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wellhead.config import Resolved
from wellhead.types import Scorer


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests are held against: the resolved configuration, the vocabulary, whether there are a tokenizer and an LM
    head, which tokens are special, and the heads that there are now."""

    config: Resolved
    vocab_size: int
    has_tokenizer: bool
    special_ids: frozenset[int] = frozenset()
    has_head: bool = True
    heads: Mapping[str, Scorer] = field(default_factory=dict)
