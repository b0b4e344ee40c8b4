"""Which rows are still to be computed, and into which part they go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wellhead.errors import InvalidConfig
from wellhead.frontends.bulk.input.inputs import Input, Row
from wellhead.frontends.bulk.output.manifest import Manifest, Part


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``start .. stop - 1``. A part that is computed again has the rows it had (``again``); else the span is cut into
    parts from ``number`` on. ``stop`` is None where nobody knows how many rows there are."""

    number: int
    start: int
    stop: int | None
    again: bool = False


def shard_range(total: int | None, shard: tuple[int, int] | None) -> tuple[int, int | None]:
    """First row, and the row after the last one, of a job."""
    if shard is None or total is None:
        return 0, total
    return total * shard[0] // shard[1], total * (shard[0] + 1) // shard[1]


def missing(manifest: Manifest, again: list[int], start: int, stop: int | None) -> list[Span]:
    """The spans that committed parts leave open. ``again``: numbers of parts that are to be computed again.

    Raises ``InvalidConfig`` if the parts are not a run of rows from ``start`` on.
    """
    spans, at = [], start
    for number, part in enumerate(manifest.ordered()):
        if part.number != number or part.start != at:
            raise InvalidConfig(f"{manifest.path}: part {number} is missing; use --overwrite to begin anew", param="output")
        if number in again:
            spans.append(Span(number, part.start, part.stop, again=True))
        at = part.stop
    if (manifest.whole is None and stop is None) or (stop is not None and at < stop) or not manifest.parts:
        spans.append(Span(len(manifest.parts), at, stop))
    return spans


def rows_of(source: Input, spans: list[Span], committed: list[Part]) -> Iterator[Row]:
    """The rows of spans, in order. Of stdin, which is read once and whole, rows of committed parts are compared with what
    they were. Raises ``InvalidConfig`` if they differ."""
    if not source.from_stdin:
        for span in spans:
            yield from source.rows(span.start, span.stop)
        return
    ends = {part.stop - 1: part.chain for part in committed}
    seen = 0
    for row in source.rows(0, None):
        seen = row.number + 1
        if row.number in ends and ends[row.number] != row.chain:
            raise InvalidConfig(f"stdin has other rows than last time, up to row {row.number}; use --overwrite", param="input")
        if any(span.start <= row.number and (span.stop is None or row.number < span.stop) for span in spans):
            yield row
    known = max((part.stop for part in committed), default=0)
    if seen < known or (seen > known and all(span.stop is not None for span in spans)):
        raise InvalidConfig(f"stdin has {seen:,} rows, last time it had {known:,} or more; use --overwrite", param="input")
