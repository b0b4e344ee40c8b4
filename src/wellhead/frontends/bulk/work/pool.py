"""Vectors from a pool of engines on a Ray cluster: blocks of rows out, answers back, in the order of the rows.

The driver reads, hands out and writes; actors render, tokenise and compute. So the output does not know of the pool: parts,
manifest and errors are those of a run without it. At most ``AHEAD`` blocks for each actor are in memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from wellhead.errors import InternalError, InvalidConfig, WellheadError
from wellhead.frontends.bulk.differences import differences
from wellhead.frontends.bulk.input.inputs import NOTHING, Row
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.work.order import Done
from wellhead.frontends.bulk.work.source import Usage
from wellhead.frontends.bulk.work.worker import About, Answers, Worker
from wellhead.frontends.cluster import connected

log = logging.getLogger("wellhead")

#: A block ends at this many prompts or characters, or at characters that make about so many bytes of rows.
BLOCK_PROMPTS = 64
BLOCK_CHARACTERS = 1 << 18
BLOCK_BYTES = 16 << 20
CHARACTERS_PER_TOKEN = 3
#: Blocks that an actor has at once: one is tokenised while the other is computed.
IN_FLIGHT = 2
#: Blocks for each actor that are out, or back before their turn.
AHEAD = 4
#: Actors may die; so many for each place in the pool, without a block that came through between them, are too many.
DEATHS = 3
#: Seconds after which it is said that no engine runs yet.
PATIENCE = 60.0


@contextlib.contextmanager
def open_pool(options: Options) -> Iterator[Pool]:
    """A pool whose first engine runs. Raises what keeps it from starting, or from doing what is asked."""
    assert options.ray is not None
    with connected(options.ray.address) as ray:
        pool = Pool(ray, options)
        try:
            pool.start()
            yield pool
        finally:
            pool.close()


@dataclass(slots=True, eq=False)
class Place:
    """A place in the pool, and the actor that fills it. ``up``: its engine runs. ``blocks``: what is in the works."""

    actor: Any
    up: bool = False
    blocks: list[Block] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Block:
    """Consecutive rows. ``answers``: None until they are back."""

    rows: list[Row]
    answers: Answers | None = None


class Pool:
    """A ``Source`` that owns actors."""

    def __init__(self, ray: Any, options: Options) -> None:
        assert options.ray is not None
        self._ray, self._options = ray, options
        self._cpus, self._gpus = options.ray.cpus_per_actor, int(options.engine.get("device") == "cuda")
        self._count = options.ray.actors or self._room()
        self._places: list[Place] = []
        self._out: dict[Any, tuple[Place, Block | None]] = {}  # by reference; None: the actor starts
        self._lost: deque[Block] = deque()
        self._about: About | None = None
        self._deaths = 0
        self.usage = Usage()

    def _room(self) -> int:
        """Actors that the cluster has room for, as it is now."""
        total = self._ray.cluster_resources()
        room = total.get("GPU", 0) if self._gpus else total.get("CPU", 0) // self._cpus
        if room < 1:
            raise InvalidConfig(
                f"the cluster ({total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs) has no room for an engine of "
                f"{self._cpus} CPUs and {self._gpus} GPUs; if it grows when it is asked, say --ray-actors",
                param="ray_cpus_per_actor",
            )
        return int(room)

    def start(self) -> None:
        """Start the actors, and wait for the first of them."""
        self._places = [self._fill(Place(None)) for _ in range(self._count)]
        while self._about is None:
            self._wait()

    def close(self) -> None:
        for place in self._places:
            self._ray.kill(place.actor)

    @property
    def hidden_size(self) -> int:
        return self._first.hidden_size

    def facts(self) -> dict[str, Any]:
        return self._first.facts

    @property
    def _first(self) -> About:
        assert self._about is not None
        return self._about

    def extract(self, rows: Iterator[Row]) -> Iterator[Done]:
        """Every row, in order. Raises ``InternalError`` if engines do nothing but die."""
        blocks, line = self._blocks(rows), deque[Block]()
        while True:
            while (place := self._free()) is not None and (given := self._next(blocks, line)) is not None:
                self._send(place, given)
            if not line:
                return
            if line[0].answers is None:
                self._wait()
                continue
            block = line.popleft()
            assert block.answers is not None
            for row, answer in zip(block.rows, block.answers.answers, strict=True):
                yield answer.done(row)

    def _next(self, blocks: Iterator[Block], line: deque[Block]) -> Block | None:
        """What to compute next, if there is anything: first what a dead actor had in the works."""
        if self._lost:
            return self._lost.popleft()
        block = next(blocks, None) if len(line) < AHEAD * self._count else None
        if block is not None:
            line.append(block)
        return block

    def _blocks(self, rows: Iterator[Row]) -> Iterator[Block]:
        wish, templates = self._options.wish, len(self._options.templates)
        width = 4 * self.hidden_size * len(wish.layers or (0,))
        held, characters, size = list[Row](), 0, 0
        for row in rows:
            held.append(row)
            length = sum(len(v) for v in row.values.values() if isinstance(v, str))
            characters += templates * length
            size += templates * width * wish.most_rows(length // CHARACTERS_PER_TOKEN + 1)
            if len(held) * templates >= BLOCK_PROMPTS or characters >= BLOCK_CHARACTERS or size >= BLOCK_BYTES:
                yield Block(held)
                held, characters, size = [], 0, 0
        if held:
            yield Block(held)

    # --- actors -------------------------------------------------------------------------------------------------------

    def _fill(self, place: Place) -> Place:
        """A new actor at a place."""
        kind = self._ray.remote(Worker).options(
            num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0, max_concurrency=IN_FLIGHT, max_task_retries=0
        )
        place.actor, place.up = kind.remote(self._options, self._cpus), False
        self._out[place.actor.start.remote()] = place, None
        return place

    def _free(self) -> Place | None:
        """The actor with the least to do, if it can take more."""
        places = [p for p in self._places if p.up and len(p.blocks) < IN_FLIGHT]
        return min(places, key=lambda p: len(p.blocks), default=None)

    def _send(self, place: Place, block: Block) -> None:
        place.blocks.append(block)
        self._out[place.actor.compute.remote([replace(row, carried=NOTHING) for row in block.rows])] = place, block

    def _wait(self) -> None:
        """Until something is back, or an actor is gone; take what is there."""
        ready, _ = self._ray.wait(list(self._out), num_returns=1, timeout=PATIENCE)
        if not ready and not any(p.up for p in self._places):
            log.warning("no engine runs yet: the cluster may have no room for %d CPUs", self._cpus)
        for reference in ready:
            if reference not in self._out:  # its actor was replaced meanwhile
                continue
            place, block = self._out[reference]
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as failed:
                raise _cause(failed) from None
            except self._ray.exceptions.RayError as gone:
                self._replace(place, gone)
            else:
                del self._out[reference]
                self._take(place, block, answer)

    def _take(self, place: Place, block: Block | None, answer: Any) -> None:
        if block is None:
            about: About = answer
            self._about = self._about or about
            unlike = differences({"engine": self._about.facts}, {"engine": about.facts}, ("engine",))
            if unlike:
                raise InvalidConfig(f"the machines of the cluster differ ({'; '.join(unlike)})", param="ray")
            place.up = True
            return
        place.blocks.remove(block)
        block.answers = answer
        self.usage.tokens += answer.usage.tokens
        self.usage.cached += answer.usage.cached
        self._deaths = 0

    def _replace(self, place: Place, gone: Exception) -> None:
        """Another actor for one that died, or cannot be reached; who is free takes what it had in the works."""
        self._deaths += 1
        lost, place.blocks = place.blocks, []
        self._lost += lost
        self._out = {ref: (p, b) for ref, (p, b) in self._out.items() if p is not place}
        first = f"; rows {lost[0].rows[0].number} .. {lost[-1].rows[-1].number} were in the works" if lost else ""
        told = str(gone).strip().splitlines()[0]
        if self._deaths >= DEATHS * self._count:
            raise InternalError(f"engines die one after the other{first}: {told}")
        log.warning("an engine is gone, another one takes its place%s: %s", first, told)
        self._ray.kill(place.actor)
        self._fill(place)


def _cause(failed: Any) -> WellheadError:
    cause = failed.cause
    return cause if isinstance(cause, WellheadError) else InternalError(f"an engine failed: {cause!r}")
