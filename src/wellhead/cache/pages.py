"""The pool of KV pages: which are free. Who holds the others is known to the prefix tree and to the leases."""

from __future__ import annotations

from wellhead.errors import InternalError


class PagePool:
    """Page numbers ``0 .. total - 1``. Freed pages are handed out again last-in first-out, while they are warm."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * total)

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free page; the caller has made sure that there is one."""
        if not self._free:
            raise InternalError("no free page: the caller must reserve before it takes")
        page = self._free.pop()
        self._is_free[page] = 0
        return page

    def give(self, page: int) -> None:
        if self._is_free[page]:
            raise InternalError(f"page {page} was freed twice")
        self._is_free[page] = 1
        self._free.append(page)

    def is_free(self, page: int) -> bool:
        return bool(self._is_free[page])
