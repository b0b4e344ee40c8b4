"""The prefix tree: which runs of tokens have their keys (and rows) in which pages.

One node is one page. Inner nodes are full pages; a leaf may hold fewer tokens (the tail of a finished sequence)::

    root ── [t0 .. t63] ── [t64 .. t127] ── [t128 .. t140]      a leaf of 13 tokens
                       └── [t64 .. u127]                        a sibling that parts within the page

Children are sorted by their tokens, so that the child that shares most of a run is a neighbour of where the run would
stand: a lookup costs a logarithm, however many children there are. A match may end inside a page; the sharer then
copies that page and goes on in its own.

Only written pages come in here, and a page in the tree is never written again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedDict, SortedSet

Tokens = NDArray[np.int32]


def sort_key(tokens: Tokens) -> bytes:
    """Bytes that sort as the token ids do."""
    return tokens.astype(">i4").tobytes()


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    different = np.nonzero(a[:n] != b[:n])[0]
    return int(different[0]) if len(different) else n


class Node:
    """One page of tokens below its parent. ``users`` counts the leases that read it; an ancestor has at least as many."""

    __slots__ = ("children", "key", "page", "parent", "stamp", "tokens", "users")

    def __init__(self, parent: Node | None, tokens: Tokens, page: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.key = sort_key(tokens)
        self.page = page
        self.users = 0
        self.stamp = (0, 0)
        self.children: SortedDict = SortedDict()


class RadixTree:
    """Nodes, their use counts, and the order in which unused leaves may go (least recently used first)."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node(None, np.empty(0, np.int32), -1)
        self._serial = 0
        self._size = 0
        self._unused = 0
        self._leaves: SortedSet = SortedSet(key=lambda node: node.stamp)

    def __len__(self) -> int:
        return self._size

    @property
    def evictable(self) -> int:
        """Nodes that nobody uses; all of them can go, leaves first."""
        return self._unused

    def walk(self) -> Iterator[Node]:
        """All nodes but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def match(self, tokens: Tokens, limit: int) -> tuple[list[Node], Node | None, int]:
        """The longest known prefix of ``tokens[:limit]``.

        Returns the full pages of it, and the node that goes on for some more tokens, with their number.
        """
        size, node = self.page_size, self.root
        path: list[Node] = []
        at = 0
        while at < limit:
            rest = tokens[at : min(at + size, limit)]
            child = node.children.get(sort_key(rest)) if len(rest) == size else None
            if child is None:
                best, shared = self.closest(node, rest)
                return path, best, shared
            path.append(child)
            node, at = child, at + size
        return path, None, 0

    def closest(self, node: Node, tokens: Tokens) -> tuple[Node | None, int]:
        best, shared = None, 0
        at = node.children.bisect_left(sort_key(tokens))
        for i in (at - 1, at):
            if 0 <= i < len(node.children):
                child = node.children.peekitem(i)[1]
                n = common_prefix(child.tokens, tokens)
                if n > shared:
                    best, shared = child, n
        return best, shared

    def find(self, parent: Node, tokens: Tokens) -> Node | None:
        """The child with exactly these tokens."""
        found: Node | None = parent.children.get(sort_key(tokens))
        return found

    def insert(self, parent: Node, tokens: Tokens, page: int) -> Node:
        """A new child, used by nobody yet. The caller has checked that there is none with these tokens."""
        if parent is not self.root and not parent.children and not parent.users:
            self._leaves.discard(parent)
        node = Node(parent, tokens, page)
        self._touch(node)
        parent.children[node.key] = node
        self._size += 1
        self._unused += 1
        self._leaves.add(node)
        return node

    def superseded(self, parent: Node, tokens: Tokens) -> Node | None:
        """An unused partial leaf that says nothing that ``tokens`` do not say."""
        at = parent.children.bisect_left(sort_key(tokens)) - 1
        if at < 0:
            return None
        leaf: Node = parent.children.peekitem(at)[1]
        if leaf.users or leaf.children or len(leaf.tokens) >= len(tokens):
            return None
        return leaf if common_prefix(leaf.tokens, tokens) == len(leaf.tokens) else None

    def use(self, node: Node) -> None:
        if node.users == 0:
            self._unused -= 1
            self._leaves.discard(node)
        node.users += 1
        self._restamp(node)

    def unuse(self, node: Node) -> None:
        node.users -= 1
        if node.users == 0:
            self._unused += 1
            self._touch(node)
            if not node.children:
                self._leaves.add(node)

    def touch(self, node: Node) -> None:
        """Note that a match ended in this node."""
        self._restamp(node)

    def _restamp(self, node: Node) -> None:
        listed = node in self._leaves
        if listed:
            self._leaves.discard(node)
        self._touch(node)
        if listed:
            self._leaves.add(node)

    def _touch(self, node: Node) -> None:
        self._serial += 1
        node.stamp = (self._serial, id(node))

    def evict(self) -> int | None:
        """Drop the least recently used unused leaf; its page, or None if there is none."""
        return self.remove(self._leaves[0]) if self._leaves else None

    def remove(self, node: Node) -> int:
        """Drop one unused leaf and return its page."""
        self._leaves.discard(node)
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        self._size -= 1
        self._unused -= 1
        if parent is not self.root and not parent.children and not parent.users:
            self._leaves.add(parent)
        return node.page
