"""Rows in order -> groups -> parts. Where a part ends is decided by its rows alone, so that it is the same in every run."""

from __future__ import annotations

from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.output.schema import Group, Schema
from wellhead.frontends.bulk.output.spans import Span
from wellhead.frontends.bulk.output.writer import Behind, Failed, PartWriter, Tally
from wellhead.frontends.bulk.work.order import Done

#: A part ends when its vectors have this many bytes, or with this many rows, unless ``--rows-per-part`` says how many.
PART_BYTES = 64 << 20
PART_ROWS = 1 << 20


class Assembly:
    """Takes rows of the spans, in order, and hands full groups and finished parts to the writer."""

    def __init__(self, options: Options, schema: Schema, spans: list[Span], writer: PartWriter, behind: Behind) -> None:
        self._strict, self._rows_per_part = options.strict, options.rows_per_part
        self._schema, self._writer, self._behind = schema, writer, behind
        self._spans = list(spans)
        self._tally = Tally(spans[0].number, spans[0].start)
        self._group = Group(schema)

    def take(self, done: Done) -> None:
        """The next row. Raises its error if the job is strict, and what went wrong in writing."""
        row, tally = done.item.row, self._tally
        if done.error is not None:
            if self._strict:
                raise type(done.error)(f"row {row.number} (id {row.id}): {done.error.message}", param=done.error.param)
            tally.failed.append(Failed(row.number, row.id, done.error.code, done.error.message))
        else:
            before = self._group.bytes
            self._group.add(done)
            tally.vectors += 1
            tally.tokens += done.item.tokens
            tally.bytes += self._group.bytes - before
        tally.stop, tally.chain = row.number + 1, row.chain
        if self._group.full:
            self._flush()
        if self._is_full():
            self._finish()

    def end(self) -> None:
        """No more rows: what is open is finished and all of it is on the disk. A job without rows has one empty part."""
        tally = self._tally
        if self._spans and (tally.stop > tally.start or not tally.number):
            tally.stop = max(tally.stop, tally.start)
            self._finish()
        self._behind.wait()

    def _is_full(self) -> bool:
        tally, span = self._tally, self._spans[0]
        if span.again:
            return tally.stop == span.stop
        if self._rows_per_part is not None:
            return tally.stop - tally.start >= self._rows_per_part
        return tally.bytes >= PART_BYTES or tally.stop - tally.start >= PART_ROWS

    def _flush(self) -> None:
        if len(self._group):
            self._behind.run(self._writer.add, self._tally.number, self._group)
            self._group = Group(self._schema)

    def _finish(self) -> None:
        self._flush()
        tally, span = self._tally, self._spans[0]
        self._behind.run(self._writer.finish, tally)
        if not span.again:
            self._tally = Tally(tally.number + 1, tally.stop)
            return
        self._spans.pop(0)
        if self._spans:
            self._tally = Tally(self._spans[0].number, self._spans[0].start)
