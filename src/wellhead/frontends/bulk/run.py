"""``wellhead extract``: a data set in, a data set of vectors out; every row once, whatever happens in between."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from wellhead.errors import InvalidConfig, WellheadError
from wellhead.frontends.bulk.differences import differences
from wellhead.frontends.bulk.dry import dry_run
from wellhead.frontends.bulk.files import Lock, Reach, nowhere, writing
from wellhead.frontends.bulk.fingerprint import model_facts
from wellhead.frontends.bulk.input.inputs import Input, expand
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.output.assembly import Assembly
from wellhead.frontends.bulk.output.layout import Layout
from wellhead.frontends.bulk.output.manifest import VERSION, Manifest
from wellhead.frontends.bulk.output.schema import Schema
from wellhead.frontends.bulk.output.single import complete
from wellhead.frontends.bulk.output.spans import Span, missing, rows_of, shard_range
from wellhead.frontends.bulk.output.writer import Behind, PartWriter
from wellhead.frontends.bulk.progress import Progress
from wellhead.frontends.bulk.work.opening import open_source
from wellhead.frontends.bulk.work.source import Source

log = logging.getLogger("wellhead")


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does."""


def run(args: argparse.Namespace, reach: Reach = nowhere) -> int:
    """Extract; 0 if every row has its vectors, 1 if some are in the errors file instead, 130 or 143 after a signal.

    ``reach`` is called at the points where a kill is of interest. Raises ``WellheadError``.
    """
    options = Options.from_args(args)
    if options.dry_run:
        return dry_run(options, open_input(options, []))
    with _sigterm_raises():
        try:
            return Extraction(options, reach).run()
        except KeyboardInterrupt as signalled:
            return 143 if isinstance(signalled, Terminated) else 130


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def open_input(options: Options, known: list[dict[str, Any]]) -> Input:
    """The rows of a job's files, surveyed. Raises ``InputFileError``."""
    source = Input(expand(options.input, options.input_format), options.text_column, options.columns, options.id_column)
    source.survey(known)
    source.settle_carries(options.carry)
    return source


class Extraction:
    """One run of one command."""

    def __init__(self, options: Options, reach: Reach) -> None:
        self._options, self._reach = options, reach
        self._layout = Layout.of(options)

    def run(self) -> int:
        options, layout = self._options, self._layout
        earlier = None if options.overwrite else self._stored()
        source = open_input(options, earlier.header.get("input", []) if earlier else [])
        self._spare_inputs(source)
        said = {
            "wellhead": VERSION, "options": options.deciding(), "input": [f.to_dict() for f in source.files],
            "model": model_facts(options),
        }  # fmt: skip
        if earlier is not None:
            self._refuse(differences(earlier.header, said, ("options", "input", "model")))
        self._check_siblings(said)
        try:
            if not options.overwrite:
                layout.prepare()
            with writing(layout.root):
                layout.root.mkdir(exist_ok=True)
                with Lock(layout.lock):
                    return self._locked(source, said)
        finally:
            layout.remove_empty()

    def _spare_inputs(self, source: Input) -> None:
        output = self._options.output
        for file in source.files:
            if file.path.exists() and output.exists() and output.samefile(file.path):
                raise InvalidConfig("--output is the input file, which it would replace", param="output")

    def _stored(self) -> Manifest | None:
        """What an earlier run has left: the manifest of what is complete, or of what was begun."""
        return Manifest.load(self._layout.final_manifest) or Manifest.load(self._layout.manifest)

    def _check_siblings(self, said: dict[str, Any]) -> None:
        """Shards of one folder are shards of one job."""
        for path in self._layout.siblings():
            other = Manifest.load(path)
            theirs = other.header["options"]["shard"] if other is not None else None
            ours = self._options.shard
            if other is None or (theirs is None) != (ours is None) or (theirs and ours and theirs[1] != ours[1]):
                raise InvalidConfig(f"{self._layout.root} holds other shards than I/N of one N ({path.name})", param="shard")
            alike = {**other.header["options"], "shard": None if ours is None else list(ours)}
            self._refuse(differences({**other.header, "options": alike}, said, ("options", "input", "model")))

    def _refuse(self, found: list[str]) -> None:
        if found:
            told = "; ".join(found)
            raise InvalidConfig(
                f"{self._options.output} is of another job ({told}); use --overwrite to begin anew", param="output"
            )

    def _locked(self, source: Input, said: dict[str, Any]) -> int:
        options, layout = self._options, self._layout
        if options.overwrite:
            layout.clear()
        stored = self._stored()
        start, stop = shard_range(source.total, options.shard)
        again: list[int] = []
        if stored is not None:
            again = self._again(stored)
            if layout.single is not None and stored.path == layout.final_manifest and stored.whole is None:
                layout.clear()
                stored, again = None, []
        layout.prepare()
        layout.tidy()
        if stored is not None and stored.whole is not None and not again:
            for _ in rows_of(source, [], [stored.whole]):
                pass  # of stdin, whose rows are compared on the way
            return self._report(stored, None)
        before = self._before(stored, again)
        spans = [Span(0, start, stop)] if stored is None else missing(stored, again, start, stop)
        if stored is not None and not spans:
            return self._report(complete(layout, stored, self._reach), None)
        return self._compute(source, said, stored, spans, again, before)

    def _again(self, stored: Manifest) -> list[int]:
        """Parts to be computed again: files are not as they were written, or rows failed and are to be retried."""
        root, again = stored.path.parent, []
        for part in stored.ordered():
            faults = [fault for f in part.files if (fault := f.fault(root)) is not None]
            for fault in faults:
                log.warning("%s; its rows are computed again", fault)
            if faults or (self._options.retry_failed and part.failed):
                again.append(part.number)
        if stored.whole is not None:
            faults = [fault for f in stored.whole.files if (fault := f.fault(root)) is not None]
            for fault in faults:
                log.warning("%s; it is made again", fault)
            if faults or again or (self._options.retry_failed and stored.whole.failed):
                stored.whole = None
        return again

    @staticmethod
    def _kept(stored: Manifest | None, again: list[int]) -> list[Any]:
        return [] if stored is None else [p for p in stored.ordered() if p.number not in again]

    def _before(self, stored: Manifest | None, again: list[int]) -> int:
        return sum(p.stop - p.start for p in self._kept(stored, again))

    def _compute(
        self, source: Input, said: dict[str, Any], stored: Manifest | None, spans: list[Span], again: list[int], before: int
    ) -> int:
        options, layout = self._options, self._layout
        kept = self._kept(stored, again)
        manifest = stored
        try:
            with open_source(options) as vectors, Behind() as behind:
                schema = Schema.of(options, source.carries, vectors.hidden_size)
                header = self._header(said, vectors, schema)
                if stored is not None:
                    self._refuse(differences(stored.header, header))
                manifest = stored or Manifest(layout.manifest, header)
                manifest.drop(again)
                if stored is None:
                    manifest.write()
                writer = PartWriter(layout, options.format, schema, manifest, self._reach)
                assembly = Assembly(options, schema, spans, writer, behind)
                start, stop = shard_range(source.total, options.shard)
                progress = Progress(None if stop is None else stop - start, before, vectors.usage)
                try:
                    for done in vectors.extract(rows_of(source, spans, kept)):
                        assembly.take(done)
                        progress.step()
                    assembly.end()
                except BaseException:
                    behind.forget()
                    writer.discard()
                    raise
                finally:
                    progress.close()
            return self._report(complete(layout, manifest, self._reach), progress)
        except BaseException as error:
            self._leave(manifest, error)
            raise

    def _header(self, said: dict[str, Any], vectors: Source, schema: Schema) -> dict[str, Any]:
        options = self._options
        again = {
            "input": [p if p == "-" else os.path.abspath(p) for p in options.input], "input_format": options.input_format,
            "engine": {name: _absolute(name, value) for name, value in options.engine.items()},
            "url": options.url,
        }  # fmt: skip
        return {**said, "engine": vectors.facts(), "columns": schema.to_list(), "again": again}

    def _leave(self, manifest: Manifest | None, error: BaseException) -> None:
        """After a failure or a signal: nothing, if nothing was committed; else a word on what is safe."""
        if manifest is None or not manifest.parts:
            self._layout.clear()
            if isinstance(error, KeyboardInterrupt):
                print("wellhead: interrupted; nothing was written yet", file=sys.stderr)
            return
        rows = sum(p.stop - p.start for p in manifest.ordered())
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        if isinstance(error, (WellheadError, KeyboardInterrupt)):
            print(f"wellhead: {word}; {rows:,} rows are safe, the same command goes on from there", file=sys.stderr)

    def _report(self, manifest: Manifest, progress: Progress | None) -> int:
        """A line or two on stderr; the exit status."""
        whole = manifest.whole
        assert whole is not None
        told = "it was complete already" if progress is None else progress.summary()
        print(f"{whole.vectors:,} vectors in {self._options.output}: {told}", file=sys.stderr)
        if whole.failed:
            print(f"{whole.failed:,} rows failed; see {self._layout.errors}", file=sys.stderr)
        return 1 if whole.failed else 0


def _absolute(name: str, value: Any) -> Any:
    """An engine option as it can be used from any folder; hub ids stay as they are."""
    return os.path.abspath(value) if name.endswith("_path") and os.path.exists(value) else value
