"""The tables of fields in ``docs/http.md``, from the one table: ``python -m wellhead.frontends.http.tables docs/http.md``.

A table stands between ``<!-- fields: PLACES [WAY] -->`` and ``<!-- end of fields -->``. ``PLACES``: ``generate``; or
``completions & chat``, the fields that both have; or ``chat - completions``, those that only the first has. ``WAY``:
``hints`` or ``idle``; without it the fields that do something.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, cast

from wellhead.requests.fields import TABLE, Field, Place, Way

_BLOCK = re.compile(r"(<!-- fields: (.*?) -->\n).*?(<!-- end of fields -->)", re.DOTALL)
_WAYS = {"hints": {Way.HINT}, "idle": {Way.IDLE}}


def filled(page: str) -> str:
    """The page with every table as it must be."""
    return _BLOCK.sub(lambda found: found[1] + table(found[2]) + found[3], page)


def table(words: str) -> str:
    """The rows that a marker asks for, as Markdown."""
    places, _, way = words.partition(", ")
    idle = way == "idle"
    head = "| field | taken with | |" if idle else "| field | default | |"
    return "\n".join([head, "|---|---|---|", *(_row(f, idle) for f in selected(places, way))]) + "\n"


def selected(places: str, way: str = "") -> list[Field]:
    """``"a"``, ``"a & b"`` or ``"a - b"`` -> the fields of the table."""
    wanted = _WAYS.get(way, set(Way) - {Way.HINT, Way.IDLE})
    first, sign, second = (part.strip() for part in re.fullmatch(r"(\w+)(?: ([&-]) (\w+))?", places).groups(""))  # type: ignore[union-attr]
    a, b = cast(Place, first), cast(Place, second)
    return [f for f in TABLE if f.way in wanted and a in f.on and (not sign or (b in f.on) is (sign == "&"))]


def _row(f: Field, idle: bool) -> str:
    values = ", ".join(_code(v) for v in f.idle) or "nothing" if idle else _code(f.default) if f.default is not None else ""
    return f"| `{f.name}`{' (required)' if f.required else ''} | {values} | {f.doc} |"


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def main(paths: list[str]) -> int:
    """Rewrite the tables in these files."""
    for path in map(Path, paths):
        path.write_text(filled(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
