"""Server-sent events out of the bytes of an answer, whatever the pieces in which these come."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: The only ends of a line. ``str.splitlines`` knows more (U+2028, U+0085, ...), and those are text inside JSON.
_ENDS = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class EventStream:
    """Pieces of a body -> the data of its events. Time is linear in the bytes, however small the pieces are.

    Fields other than ``data`` and comments are left out. An event that is not ended by an empty line does not count.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the line that is not over yet
        self._data: list[bytes] = []  # the data lines of the event that is not over yet
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> Iterator[str]:
        """The data of each event that ends in this piece. Bytes that are not UTF-8 show as U+FFFD."""
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):  # the second half of a CRLF: its line has ended already
            piece = piece[1:]
            self._after_cr = False
            if not piece:
                return
        self._after_cr = piece.endswith(b"\r")
        *ended, rest = _ENDS.split(piece)
        for part in ended:
            data = self._take(b"".join([*self._line, part]))
            self._line = []
            if data is not None:
                yield data.decode("utf-8", "replace")
        self._line.append(rest)

    def _take(self, line: bytes) -> bytes | None:
        """A whole line; the data of the event that it ends."""
        if self._first:
            line, self._first = line.removeprefix(_BOM), False
        if not line:
            found, self._data = self._data, []
            return b"\n".join(found) if found else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
