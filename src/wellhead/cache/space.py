"""Room for sequences: what they share, what they own, and what can be had.

The invariant, checked by ``check_integrity``: every page is exactly one of

* free,
* cached: in the prefix tree (in use by any number of leases, or by none and then evictable),
* held: owned by one lease, the only one that may write it.

``free + cached + held == total`` at all times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wellhead.cache.pages import PagePool
from wellhead.cache.radix import Node, RadixTree, Tokens
from wellhead.errors import InternalError


class Lease:
    """The pages of one running sequence: ``nodes`` it shares, then ``own`` pages; in the order of positions."""

    __slots__ = ("_table", "cached", "copy", "nodes", "own")

    def __init__(self, nodes: list[Node], own: list[int], cached: int, copy: tuple[int, int] | None) -> None:
        self.nodes = nodes
        self.own = own
        self.cached = cached
        self.copy = copy
        self._table: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.nodes) + len(self.own)

    def table(self) -> NDArray[np.int32]:
        """Page numbers by position, int32 ``[pages]``; a new array whenever they change."""
        if self._table is None:
            self._table = np.array([n.page for n in self.nodes] + self.own, np.int32)
        return self._table

    def changed(self) -> None:
        self._table = None


class Space:
    """Pages and the prefix tree together. All sizes are in tokens unless they say pages."""

    def __init__(self, pages: int, page_size: int, *, prefix_cache: bool) -> None:
        self.page_size = page_size
        self.prefix_cache = prefix_cache
        self.pool = PagePool(pages)
        self.tree = RadixTree(page_size)
        self._leases: set[Lease] = set()
        self.evictions = 0

    @property
    def available(self) -> int:
        """Pages that can be had at once."""
        return self.pool.free + self.tree.evictable

    @property
    def leases(self) -> int:
        """Leases that are out."""
        return len(self._leases)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def lookup(self, tokens: Tokens, limit: int) -> int:
        """How many of ``tokens[:limit]`` are cached; changes nothing."""
        if not self.prefix_cache:
            return 0
        nodes, _, more = self.tree.match(tokens, limit)
        return len(nodes) * self.page_size + more

    def lease(self, tokens: Tokens, limit: int, total: int) -> Lease | None:
        """Room for ``total`` tokens, starting with the longest cached prefix of ``tokens[:limit]``.

        ``None``, and nothing changed, if there is not enough.
        """
        nodes: list[Node] = []
        partial, shared = None, 0
        if self.prefix_cache:
            nodes, partial, shared = self.tree.match(tokens, limit)
        for node in nodes:
            self.tree.use(node)
        if partial is not None:
            self.tree.touch(partial)
        need = self.pages_for(total) - len(nodes)
        if need > self.available:
            for node in reversed(nodes):
                self.tree.unuse(node)
            return None
        own = [self._take() for _ in range(need)]
        copy = (partial.page, own[0]) if partial is not None and own else None
        if copy is None:
            shared = 0
        lease = Lease(nodes, own, len(nodes) * self.page_size + shared, copy)
        self._leases.add(lease)
        return lease

    def extend(self, lease: Lease, total: int) -> bool:
        """Make room for ``total`` tokens; False, and nothing changed, if there is not enough."""
        need = self.pages_for(total) - len(lease)
        if need > self.available:
            return False
        if need > 0:
            lease.own.extend(self._take() for _ in range(need))
            lease.changed()
        return True

    def trim(self, lease: Lease, total: int) -> None:
        """Give back pages beyond those of ``total`` tokens; what drafts were given and do not need now."""
        surplus = min(len(lease) - self.pages_for(total), len(lease.own))
        for _ in range(surplus):
            self.pool.give(lease.own.pop())
            lease.changed()

    def publish(self, lease: Lease, tokens: Tokens) -> None:
        """Share the full pages of ``tokens``, all of them written. One that another lease published first is swapped for it."""
        if not self.prefix_cache:
            return
        size = self.page_size
        while (len(lease.nodes) + 1) * size <= len(tokens):
            at = len(lease.nodes) * size
            self._share(lease, tokens[at : at + size])
            lease.changed()

    def _share(self, lease: Lease, run: Tokens) -> None:
        parent = lease.nodes[-1] if lease.nodes else self.tree.root
        page = lease.own.pop(0)
        node = self.tree.find(parent, run)
        if node is not None:
            self.pool.give(page)
        else:
            node = self._insert(parent, run, page)
        self.tree.use(node)
        lease.nodes.append(node)

    def _insert(self, parent: Node, run: Tokens, page: int) -> Node:
        old = self.tree.superseded(parent, run)
        node = self.tree.insert(parent, run.copy(), page)
        if old is not None:
            self.pool.give(self.tree.remove(old))
        return node

    def release(self, lease: Lease, tokens: Tokens) -> None:
        """Give the lease back. ``tokens`` are those whose pages are written; they stay cached, the tail page included."""
        self.publish(lease, tokens)
        tail = tokens[len(lease.nodes) * self.page_size :]
        parent = lease.nodes[-1] if lease.nodes else self.tree.root
        own = lease.own
        if self.prefix_cache and 0 < len(tail) < self.page_size and own and not self._known(parent, tail):
            self._insert(parent, tail, own.pop(0))
        for page in own:
            self.pool.give(page)
        for node in reversed(lease.nodes):
            self.tree.unuse(node)
        self._leases.remove(lease)

    def _known(self, parent: Node, tail: Tokens) -> bool:
        return self.tree.closest(parent, tail)[1] == len(tail)

    def _take(self) -> int:
        if not self.pool.free:
            page = self.tree.evict()
            if page is None:
                raise InternalError("no page to evict: reserve before you take")
            self.evictions += 1
            self.pool.give(page)
        return self.pool.take()

    def flush(self) -> bool:
        """Forget all prefixes; False, and nothing done, while anything runs."""
        if self._leases:
            return False
        while (page := self.tree.evict()) is not None:
            self.pool.give(page)
        return True

    def counts(self) -> dict[str, int]:
        """Pages by state: free, cached, held, total."""
        held = sum(len(lease.own) for lease in self._leases)
        return {"free": self.pool.free, "cached": len(self.tree), "held": held, "total": self.pool.total}

    def check_integrity(self) -> None:
        """Raise ``InternalError`` unless every page is in exactly one place and every count is right."""
        owner: dict[int, str] = {}

        def claim(page: int, who: str) -> None:
            if not 0 <= page < self.pool.total or page in owner or self.pool.is_free(page):
                raise InternalError(f"page {page} of {who} is also {owner.get(page, 'free')}")
            owner[page] = who

        users: dict[int, int] = {}
        for lease in self._leases:
            for page in lease.own:
                claim(page, "a lease")
            for node in lease.nodes:
                users[id(node)] = users.get(id(node), 0) + 1
        unused = 0
        for node in self.tree.walk():
            claim(node.page, "the tree")
            unused += node.users == 0
            if node.users != users.get(id(node), 0):
                raise InternalError(f"a node counts {node.users} users, there are {users.get(id(node), 0)}")
            if node.children and len(node.tokens) != self.page_size:
                raise InternalError("an inner node is not a full page")
        if unused != self.tree.evictable:
            raise InternalError(f"{self.tree.evictable} evictable nodes counted, {unused} found")
        counts = self.counts()
        if (
            counts["free"] + counts["cached"] + counts["held"] != counts["total"]
            or len(owner) + counts["free"] != counts["total"]
        ):
            raise InternalError(f"pages do not add up: {counts}")
