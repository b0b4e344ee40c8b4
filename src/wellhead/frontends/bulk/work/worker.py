"""What an actor of ``wellhead extract --ray`` does: an engine, and blocks of rows through it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wellhead.errors import WellheadError
from wellhead.frontends.bulk.input.inputs import Row
from wellhead.frontends.bulk.input.prompts import Item, Prompt
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.work.order import Done
from wellhead.frontends.bulk.work.source import Usage
from wellhead.frontends.bulk.work.sources import Local, open_engine
from wellhead.frontends.cluster import own_share
from wellhead.types import HiddenStates

if TYPE_CHECKING:
    from wellhead.frontends.engine import Engine


@dataclass(frozen=True, slots=True)
class About:
    """What an engine says of itself once it runs: ``facts`` as ``Source.facts``."""

    facts: dict[str, Any]
    hidden_size: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A row that is through, without the row, which the asker has."""

    prompts: tuple[Prompt, ...]
    states: tuple[HiddenStates, ...]
    error: WellheadError | None

    @staticmethod
    def of(done: Done, with_texts: bool) -> Answer:
        prompts = done.item.prompts if with_texts else tuple(replace(p, text="") for p in done.item.prompts)
        return Answer(prompts, done.states, done.error)

    def done(self, row: Row) -> Done:
        return Done(Item(row, self.prompts), self.states, self.error)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to a block, in its order."""

    answers: list[Answer]
    usage: Usage


class Worker:
    """One engine of ``threads`` threads. ``start`` comes first; ``compute`` may then be called from several threads."""

    def __init__(self, options: Options, threads: int) -> None:
        self._options, self._threads = options, threads
        self._held = contextlib.ExitStack()
        self._engine: Engine | None = None

    def start(self) -> About:
        """Load the model. Raises what keeps the engine from starting, or from doing what is asked."""
        options = replace(self._options, engine=own_share(self._options.engine, self._threads))
        self._engine = self._held.enter_context(open_engine(options))
        local = Local(self._engine, options)
        return About(local.facts(), local.hidden_size)

    def compute(self, rows: list[Row]) -> Answers:
        """The answers to some rows."""
        assert self._engine is not None
        local = Local(self._engine, self._options)
        answers = [Answer.of(done, self._options.save_texts) for done in local.extract(iter(rows))]
        return Answers(answers, local.usage)
