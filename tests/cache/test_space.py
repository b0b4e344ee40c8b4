"""Pages and prefixes against a naive model that remembers what was written where."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wellhead.cache.pages import PagePool
from wellhead.cache.space import Lease, Space
from wellhead.errors import InternalError

B = 4
PAGES = 12
#: Beginnings that recur, so that leases share several pages and part within them.
STEMS = ([0] * 18, [0] * 9 + [1] * 9, [2, 1, 0] * 6)
TOKENS = st.builds(
    lambda stem, length, tail: [*stem[:length], *tail],
    st.sampled_from(STEMS),
    st.integers(1, 18),
    st.lists(st.integers(0, 2), max_size=5),
)


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


@dataclass
class Held:
    """A lease, the tokens it is for, and how many of them are written."""

    lease: Lease
    tokens: list[int]
    written: int = 0
    shared: set[int] = field(default_factory=set)


class SpaceMachine(RuleBasedStateMachine):
    """``memory[page]`` is what lies in a page; a reader checks every slot that a lease says is written."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Held] = []
        self.published: set[tuple[int, ...]] = set()
        self.memory: dict[int, list[int]] = {page: [-1] * B for page in range(PAGES)}

    @initialize(cache=st.booleans())
    def begin(self, cache: bool) -> None:
        self.space = Space(PAGES, B, prefix_cache=cache)

    # --- rules --------------------------------------------------------------------------------------------------

    @rule(tokens=TOKENS, less=st.integers(0, 3))
    def lease(self, tokens: list[int], less: int) -> None:
        limit = max(0, len(tokens) - less)
        longest = self.longest(tokens, limit)
        available = self.space.available
        lease = self.space.lease(ids(tokens), limit, len(tokens))
        if lease is None:
            assert self.space.available == available
            assert self.space.pages_for(len(tokens)) > available, "refused although there was room"
            return
        assert lease.cached == longest
        if lease.copy is not None:
            source, target = lease.copy
            self.memory[target] = list(self.memory[source])
            lease.copy = None
        self.held.append(Held(lease, list(tokens), lease.cached))
        self.check_content(self.held[-1])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 9))
    def compute(self, data: st.DataObject, count: int) -> None:
        """Write some tokens, as a step does, and share what is whole."""
        one = self.pick(data)
        for position in range(one.written, min(one.written + count, len(one.tokens))):
            page = int(one.lease.table()[position // B])
            assert page not in {node.page for node in self.space.tree.walk()}, "a shared page was written"
            self.memory[page][position % B] = one.tokens[position]
            one.written = position + 1
        self.space.publish(one.lease, ids(one.tokens[: one.written]))
        self.check_content(one)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=TOKENS)
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        one = self.pick(data)
        before = self.space.counts(), len(one.lease)
        if self.space.extend(one.lease, len(one.tokens) + len(more)):
            one.tokens += more
        else:
            assert (self.space.counts(), len(one.lease)) == before

    @precondition(lambda self: self.held)
    @rule(data=st.data(), publish=st.booleans())
    def release(self, data: st.DataObject, publish: bool) -> None:
        one = self.pick(data)
        self.held.remove(one)
        written = one.written if publish else len(one.lease.nodes) * B
        self.space.release(one.lease, ids(one.tokens[:written]))
        if publish and self.space.prefix_cache:
            assert self.space.lookup(ids(one.tokens), one.written) == one.written

    @rule()
    def flush(self) -> None:
        assert self.space.flush() is not bool(self.held)
        if not self.held:
            assert self.space.pool.free == PAGES

    # --- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "space"):
            self.space.check_integrity()
            for one in self.held:
                self.check_content(one)
            if not self.held:
                assert self.space.available == PAGES

    def pick(self, data: st.DataObject) -> Held:
        return self.held[data.draw(st.integers(0, len(self.held) - 1))]

    def check_content(self, one: Held) -> None:
        table = one.lease.table()
        assert len(set(table.tolist())) == len(table)
        found = [self.memory[int(table[p // B])][p % B] for p in range(one.written)]
        assert found == one.tokens[: one.written]

    def longest(self, tokens: list[int], limit: int) -> int:
        """The longest prefix, by walking every path of the tree without its order."""
        if not self.space.prefix_cache:
            return 0
        best = 0
        for node in self.space.tree.walk():
            path: list[int] = []
            at = node
            while at.parent is not None:
                path = [*at.tokens.tolist(), *path]
                at = at.parent
            same = next((i for i, (a, b) in enumerate(zip(path, tokens, strict=False)) if a != b), min(len(path), len(tokens)))
            best = max(best, min(same, limit))
        return best


TestSpace = SpaceMachine.TestCase
TestSpace.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def write_and_release(space: Space, tokens: list[int]) -> None:
    lease = space.lease(ids(tokens), len(tokens), len(tokens))
    assert lease is not None
    lease.copy = None
    space.release(lease, ids(tokens))


def test_the_least_recently_used_leaf_goes_first() -> None:
    space = Space(3, B, prefix_cache=True)
    for first in (1, 2, 3):
        write_and_release(space, [first] * B)
    write_and_release(space, [1] * B)
    write_and_release(space, [4] * B)
    assert [space.lookup(ids([first] * B), B) for first in (1, 2, 3, 4)] == [B, 0, B, B]


def test_leaves_go_before_what_they_hang_on() -> None:
    space = Space(4, B, prefix_cache=True)
    write_and_release(space, list(range(3 * B)))
    write_and_release(space, [9] * 2 * B)
    assert space.lookup(ids(list(range(3 * B))), 3 * B) == 2 * B


@pytest.mark.parametrize("length", [1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1])
@pytest.mark.parametrize("shared", [1, B - 1, B, B + 1, 2 * B])
def test_lookup_is_exact_to_the_token(length: int, shared: int) -> None:
    space = Space(16, B, prefix_cache=True)
    write_and_release(space, list(range(length)))
    other = [*range(min(shared, length)), *[77] * 9]
    assert space.lookup(ids(other), len(other)) == min(shared, length)


def test_a_page_in_use_is_never_evicted() -> None:
    space = Space(3, B, prefix_cache=True)
    write_and_release(space, [1] * B)
    lease = space.lease(ids([1] * B + [2]), B, B + 1)
    assert lease is not None
    assert space.lease(ids([3] * 2 * B), 0, 2 * B) is None
    assert space.lookup(ids([1] * B), B) == B
    space.release(lease, ids([1] * B + [2]))
    space.check_integrity()


def test_a_pool_refuses_what_would_lose_a_page() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.give(page)
    with pytest.raises(InternalError, match="twice"):
        pool.give(page)
    pool.take(), pool.take()
    with pytest.raises(InternalError, match="no free page"):
        pool.take()


def test_check_integrity_sees_a_page_that_is_nowhere_and_one_that_is_in_two_places() -> None:
    space = Space(4, B, prefix_cache=True)
    space.pool.take()
    with pytest.raises(InternalError, match="do not add up"):
        space.check_integrity()
    space = Space(4, B, prefix_cache=True)
    lease = space.lease(ids([1, 2]), 0, 2)
    assert lease is not None
    lease.own.append(lease.own[0])
    with pytest.raises(InternalError, match="also"):
        space.check_integrity()
