"""Who runs in the next step, and which tokens of it.

One step mixes decodes and prompt chunks. Decodes go first, one token each; prompt tokens fill a budget, oldest request
first. A request gets all pages of its prompt when it is admitted, so that only decodes can run out of room; then the
youngest running sequence goes back to the queue, keeps its sink and its tokens, and is computed again later.

Nobody starves: the queue is in order of arrival, its head is never overtaken for want of room, and under ``lpm`` (longest
prefix first) a request that was passed over ``PATIENCE`` times goes before those with a better prefix.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedDict

from wellhead.cache.radix import common_prefix
from wellhead.cache.space import Space
from wellhead.config import Resolved
from wellhead.scheduler.rows import NO_TOKENS, Standing, foreseeable, plan_row
from wellhead.scheduler.sequence import Phase, Sequence
from wellhead.step import Plan, PlanRow

PATIENCE = 16
LOOKAHEAD = 128


class Scheduler:
    """Owns the queue, the running sequences and their leases."""

    def __init__(self, config: Resolved, space: Space, eos_ids: tuple[int, ...], drafted: Callable[[float], None]) -> None:
        """``drafted`` is told the seconds that went into looking up drafts."""
        self._config = config
        self.space = space
        self._eos_ids = eos_ids
        self._drafted = drafted
        #: Keys that a draft model writes ahead while it proposes.
        self._ahead = config.speculation.drafts if config.speculation.algorithm.has_model else 0
        self.waiting: SortedDict = SortedDict()
        self.running: dict[int, Sequence] = {}  # by order
        self._by_key: dict[str, Sequence] = {}
        self._by_rid: dict[str, dict[str, Sequence]] = {}
        self._deadlines: SortedDict = SortedDict()  # (deadline, order) -> sequence
        self._flying: dict[str, PlanRow] = {}  # rows of the step that runs while the next is planned; else empty
        self._number = 0
        self.preemptions = 0

    # --- the door -----------------------------------------------------------------------------------------------

    def add(self, seq: Sequence) -> None:
        self._by_key[seq.key] = seq
        self._by_rid.setdefault(seq.request.rid, {})[seq.key] = seq
        if seq.deadline is not None:
            self._deadlines[seq.deadline, seq.order] = seq
        self.waiting[seq.order] = seq

    def get(self, key: str) -> Sequence | None:
        """The sequence of this key, unless it is done."""
        return self._by_key.get(key)

    def of_request(self, rid: str) -> list[Sequence]:
        """The sequences of a request that are not done; found without a look at the others."""
        return list(self._by_rid.get(rid, {}).values())

    def overdue(self, now: float) -> list[Sequence]:
        """Sequences whose deadline lies before ``now``, the earliest first; found without a look at the others."""
        late = []
        for (deadline, _), seq in self._deadlines.items():
            if deadline >= now:
                break
            late.append(seq)
        return late

    def all(self) -> list[Sequence]:
        return list(self._by_key.values())

    @property
    def idle(self) -> bool:
        return not self._by_key

    def drop(self, seq: Sequence, *, publish: bool = True) -> None:
        """Take a sequence out, wherever it is, and give its pages back. ``publish``: let its written pages stay cached."""
        self._by_key.pop(seq.key, None)
        mine = self._by_rid.get(seq.request.rid, {})
        mine.pop(seq.key, None)
        if not mine:
            self._by_rid.pop(seq.request.rid, None)
        if seq.deadline is not None:
            self._deadlines.pop((seq.deadline, seq.order), None)
        self.waiting.pop(seq.order, None)
        self.running.pop(seq.order, None)
        self._release(seq, publish=publish)
        seq.phase = Phase.DONE

    def _release(self, seq: Sequence, *, publish: bool) -> None:
        lease = seq.lease
        if lease is None:
            return
        written = seq.computed if publish and lease.copy is None else len(lease.nodes) * self.space.page_size
        self.space.release(lease, seq.tokens[:written])
        seq.lease = None

    # --- one step -----------------------------------------------------------------------------------------------

    def plan_ahead(self, running: Plan) -> Plan | None:
        """The step after ``running``, which has not come back; the tokens that it draws are UNKNOWN.

        A sequence that ``running`` turns out to end is in it nevertheless; what comes of that row concerns nobody. ``None``
        if the step hangs on more than that (penalties, prompt logprobs, somebody who must make room), or there is none.
        """
        flying = {row.key: row for row in running.rows if row.key in self._by_key}
        if not all(foreseeable(self._by_key[key], row) for key, row in flying.items()):
            return None
        self._flying = flying
        try:
            plan = self.plan() if self._room_for_all() else None
        finally:
            self._flying = {}
        return plan if plan is not None and plan.rows else None

    def withdraw(self, plan: Plan) -> None:
        """Give up a plan that was made ahead: what it was to begin goes back to the queue."""
        for row in plan.rows:
            seq = self._by_key.get(row.key)
            if seq is not None and seq.phase is Phase.RUNNING:
                self._preempt(seq)

    def _standing(self, seq: Sequence) -> Standing:
        return Standing.of(seq, self._flying.get(seq.key))

    def _room_for_all(self) -> bool:
        """Can every sequence that decodes get room for its newest token without anybody's leave?"""
        need = 0
        for seq in self.running.values():
            at = self._standing(seq)
            if at.decodes(seq) and seq.lease is not None:
                need += max(0, self.space.pages_for(at.length) - len(seq.lease))
        return need <= self.space.available

    def plan(self) -> Plan:
        """The next step; empty if nothing can run."""
        self._number += 1
        rows = self._decodes()
        budget = self._config.chunk
        for seq in sorted((s for s in self.running.values() if self._standing(s).has_more(s)), key=lambda s: s.order):
            if budget > 0:
                rows.append(self._chunk(seq, budget))
                budget -= len(rows[-1].tokens)
        copies = []
        for seq in self._admit(budget):
            rows.append(self._chunk(seq, budget))
            budget -= len(rows[-1].tokens)
            if seq.lease is not None and seq.lease.copy is not None:
                copies.append(seq.lease.copy)
        return Plan(self._number, tuple(rows), tuple(copies))

    def _decodes(self) -> list[PlanRow]:
        """First room for the newest token of each, then drafts, as far as there is room left: nobody goes for a draft."""
        chosen = []
        for seq in sorted((s for s in self.running.values() if self._standing(s).decodes(s)), key=lambda s: s.order):
            if seq.phase is Phase.RUNNING and self._make_room(seq):
                chosen.append(seq)
        return [self._row(seq, 1, self._drafts(seq)) for seq in chosen if seq.phase is Phase.RUNNING]

    def _row(self, seq: Sequence, count: int, drafts: NDArray[np.int32] = NO_TOKENS) -> PlanRow:
        return plan_row(seq, self._standing(seq), count, self._eos_ids, drafts)

    def _chunk(self, seq: Sequence, budget: int) -> PlanRow:
        """The next tokens of a prompt, or of what was computed before a preemption."""
        remaining = self._standing(seq).remaining
        if budget >= remaining and seq.left > 1:
            self._reserve(seq, 0)
        return self._row(seq, min(budget, remaining))

    def _make_room(self, seq: Sequence) -> bool:
        """Room for the newest token, at the cost of drafts' pages, then of the youngest; False if that is ``seq`` itself."""
        assert seq.lease is not None
        trimmed = False
        while not self.space.extend(seq.lease, self._standing(seq).length):
            if not trimmed:
                self._trim()
                trimmed = True
                continue
            victim = self.running[max(self.running)]
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _trim(self) -> None:
        for seq in self.running.values():
            if self._standing(seq).newest(seq) and seq.lease is not None:
                self.space.trim(seq.lease, seq.length)

    def _drafts(self, seq: Sequence) -> NDArray[np.int32]:
        """Drafts to be judged in this step: none beyond ``max_new_tokens`` (and so the context), nor beyond the pages at hand."""
        most = min(self._config.speculation.drafts, seq.left - 1)
        if seq.speculation is None or seq.lease is None or most < 1:
            return NO_TOKENS
        started = time.perf_counter()
        drafts = seq.speculation.propose(seq.tokens, most)
        self._drafted(time.perf_counter() - started)
        self._reserve(seq, len(drafts))
        return drafts[: len(seq.lease) * self.space.page_size - seq.length]

    def _reserve(self, seq: Sequence, drafts: int) -> None:
        """Room for drafts and, behind a draft model, for the keys that it writes while it proposes the next ones."""
        assert seq.lease is not None
        if not drafts + self._ahead:
            return
        if not self.space.extend(seq.lease, seq.length + drafts + self._ahead):
            self.space.extend(seq.lease, seq.length + drafts)

    def _preempt(self, seq: Sequence) -> None:
        del self.running[seq.order]
        self._release(seq, publish=True)
        seq.computed = 0
        if seq.speculation is not None:
            seq.speculation.forget()
        seq.retractions += 1
        seq.phase = Phase.WAITING
        self.waiting[seq.order] = seq
        self.preemptions += 1

    def _admit(self, budget: int) -> Iterable[Sequence]:
        """Start waiting sequences while budget, slots and pages last."""
        leaders = [
            s for s in self.running.values() if not Standing.of(s).newest(s)
        ]  # what a step still computes is not to be had yet
        for seq in self._candidates():
            if budget <= 0 or len(self.running) >= self._config.max_running:
                return
            limit = self._cacheable(seq)
            hit = self.space.lookup(seq.tokens, limit)
            if self._shares_with(seq, leaders, hit, limit):
                continue
            growing = sum(1 for s in self.running.values() if s.generates)
            if self.space.pages_for(seq.length) - hit // self.space.page_size + growing > self.space.available and self.running:
                return
            lease = self.space.lease(seq.tokens, limit, seq.length)
            if lease is None:
                return
            self._start(seq)
            seq.lease = lease
            seq.computed = lease.cached
            if seq.cached_tokens is None:
                seq.cached_tokens = min(lease.cached, seq.prompt_length)
            leaders.append(seq)
            budget -= self._standing(seq).remaining
            yield seq

    def _start(self, seq: Sequence) -> None:
        for earlier in self.waiting.values():
            if earlier.order >= seq.order:
                break
            earlier.passed_over += 1
        del self.waiting[seq.order]
        seq.phase = Phase.RUNNING
        self.running[seq.order] = seq

    def _candidates(self) -> list[Sequence]:
        queue: list[Sequence] = list(self.waiting.values()[:LOOKAHEAD])
        if self._config.policy == "lpm":
            hits = {s.key: self.space.lookup(s.tokens, self._cacheable(s)) for s in queue}
            queue.sort(key=lambda s: (0, s.order, 0) if s.passed_over >= PATIENCE else (1, -hits[s.key], s.order))
        return queue

    def _cacheable(self, seq: Sequence) -> int:
        """How many leading tokens need not be computed if they are cached: all but those whose rows are still
        wanted, where none are kept, and those that must pass the head."""
        limit = seq.length - 1 if seq.generates else seq.length
        if not self._config.rows_in_pages:
            limit = min(limit, *(reader.first_needed for reader in seq.takers)) if seq.takers else limit
        if seq.targets_done < seq.prompt_length:
            limit = min(limit, seq.targets_done - 1)
        return limit

    def _shares_with(self, seq: Sequence, leaders: list[Sequence], hit: int, limit: int) -> bool:
        """Is a good part of this prompt, beyond what is cached, being computed by a sequence that will share it soon?"""
        if not self.space.prefix_cache:
            return False
        size = self.space.page_size
        worth = max(16, size // 4)
        probe = hit + worth - 1
        if probe >= limit:
            return False
        tokens = seq.tokens
        for leader in leaders:
            whole = leader.length // size * size
            if probe < whole and leader.tokens[probe] == tokens[probe]:
                shared = min(common_prefix(leader.tokens[:whole], tokens), limit)
                if shared - hit >= worth:
                    return True
        return False

    def settle(self, plan: Plan) -> None:
        """After a step: note what is computed, share what is written, let go of what is done."""
        for row in plan.rows:
            seq = self._by_key.get(row.key)
            if seq is None or seq.lease is None:
                continue
            seq.computed = seq.length - 1 if row.samples else row.end
            seq.lease.copy = None
            if row.targets is not None:
                seq.targets_done = row.targets_from + 1 + len(row.targets)
            if seq.phase in (Phase.DONE, Phase.FAILED):
                self.drop(seq, publish=seq.phase is Phase.DONE)
            elif len(row.tokens):
                self.space.publish(seq.lease, seq.tokens[: seq.computed])
