"""``wellhead extract``: a file of texts in, a file of vectors out, in the same order, in bounded memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from wellhead.errors import InvalidConfig, WellheadError
from wellhead.frontends.options import add_engine_arguments, engine_options
from wellhead.frontends.readers import Row, read_rows
from wellhead.frontends.writers import Writer, open_writer
from wellhead.types import DTYPES, HiddenStates

Extracted = tuple[int, HiddenStates | WellheadError]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``wellhead extract``."""
    parser.add_argument("--input", required=True, type=Path, help=".jsonl, .txt (one text a line), .csv or .parquet")
    parser.add_argument("--output", required=True, type=Path, help=".parquet, or .npy for one vector per text")
    parser.add_argument("--mode", default="last", choices=["last", "mean", "full"], help="which rows (default: last)")
    parser.add_argument("--layers", type=int, nargs="+", help="layers, numbered as in Hugging Face (default: the final one)")
    parser.add_argument("--output-dtype", default="float32", choices=DTYPES)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--id-column", help="column of ids (default: the row number)")
    parser.add_argument("--template", help='wraps each text, for example "Review: {text}\\nOverall, this movie was"')
    parser.add_argument("--strict", action="store_true", help="stop at the first row that cannot be embedded")
    remote = parser.add_argument_group("server", "extract through a running server instead of an engine of one's own")
    remote.add_argument("--url", help="address of a server, for example http://127.0.0.1:30000; then no --model-path")
    remote.add_argument("--api-key", help="the server's key")
    add_engine_arguments(parser, model_required=False)


def run(args: argparse.Namespace) -> int:
    """Extract; 0 if every row has its vector, 1 if some are in the errors file instead."""
    _check_source(args)
    if args.template is not None and "{text}" not in args.template:
        raise InvalidConfig("--template has no {text} in it", param="template")
    if args.output.exists() and args.input.exists() and args.output.samefile(args.input):
        raise InvalidConfig("--output is the input file, which it would replace", param="output")
    if args.output.suffix.lower() == ".npy" and not args.strict:
        raise InvalidConfig("--output .npy has no place for failed rows; use --strict or .parquet", param="output")
    rows = read_rows(args.input, args.text_column, args.id_column)
    metadata = {"wellhead.mode": args.mode, "wellhead.dtype": args.output_dtype, "wellhead.template": args.template or ""}
    writer = open_writer(args.output, args.mode, args.layers, args.output_dtype, metadata)
    try:
        with _source(args) as source:
            job = Job(args)
            job.write(source(job.texts(rows)), writer)
    except BaseException:
        writer.discard()
        raise
    writer.close()
    job.report()
    return 1 if job.failed else 0


def _check_source(args: argparse.Namespace) -> None:
    """Either a server or an engine; options of the one are refused with the other."""
    engine = engine_options(args)
    if args.url is None:
        if args.api_key is not None:
            raise InvalidConfig("--api-key belongs to --url", param="api_key")
        if "model_path" not in engine:
            raise InvalidConfig("give --model-path, or --url of a running server", param="model_path")
    elif engine:
        flag = next(iter(engine)).replace("_", "-")
        raise InvalidConfig(f"--{flag} belongs to an engine; the server at --url has its own", param="url")


@contextlib.contextmanager
def _source(args: argparse.Namespace) -> Iterator[Callable[[Iterator[str]], Iterator[Extracted]]]:
    """What turns texts into ``(index, hidden states or error)``: an engine of our own, or a server."""
    if args.url is None:
        from wellhead.frontends.engine import Engine

        with Engine(**_options(args)) as engine:
            yield lambda texts: engine.extract_iter(texts, args.mode, layers=args.layers)
        return
    try:
        from wellhead.client import Client
    except ImportError as missing:
        raise InvalidConfig(f"--url needs more packages ({missing.name}): pip install 'wellhead[client]'", param="url") from None
    with Client(args.url, api_key=args.api_key) as client:
        yield lambda texts: client.extract_iter(texts, args.mode, layers=args.layers, dtype=args.output_dtype)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The engine's options; ceiling and layers follow from what is extracted, unless they are given."""
    options = engine_options(args)
    if not {"return_hidden_states_mode", "enable_return_hidden_states"} & set(options):
        options["return_hidden_states_mode"] = "last" if args.mode == "last" else "full"
    if args.layers is not None:
        options.setdefault("capture_layers", args.layers)
    return options


class Job:
    """One run: feeds texts to the engine, puts vectors back into the order of the input, and keeps count."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._template: str | None = args.template
        self._strict: bool = args.strict
        self._output: Path = args.output
        self.errors_path = args.output.with_name(f"{args.output.name}.errors.jsonl")
        self._errors: IO[str] | None = None
        self._sent: dict[int, Row] = {}
        self._ready: dict[int, HiddenStates | WellheadError] = {}
        self._next = 0
        self.written = 0
        self.failed = 0
        self._started = time.perf_counter()
        self.errors_path.unlink(missing_ok=True)

    def texts(self, rows: Iterator[Row]) -> Iterator[str]:
        """Texts in the order of the rows; rows that have none are recorded as failed."""
        sent = 0
        for row in rows:
            if row.error is not None:
                self._fail(row, row.error)
                continue
            self._sent[sent] = row
            sent += 1
            yield row.text if self._template is None else self._template.replace("{text}", row.text)

    def write(self, extracted: Iterator[Extracted], writer: Writer) -> None:
        """Write every vector at its place. Held back are only those that overtook an earlier one."""
        with tqdm(desc="extract", unit=" rows", mininterval=0.5) as bar:
            for index, states in extracted:
                self._ready[index] = states
                while self._next in self._ready:
                    self._put(self._sent.pop(self._next), self._ready.pop(self._next), writer)
                    self._next += 1
                    bar.update()
        if self._errors is not None:
            self._errors.close()

    def _put(self, row: Row, states: HiddenStates | WellheadError, writer: Writer) -> None:
        if isinstance(states, WellheadError):
            self._fail(row, states)
        else:
            writer.add(row.id, states)
            self.written += 1

    def _fail(self, row: Row, error: WellheadError) -> None:
        if self._strict:
            raise type(error)(f"row {row.number} (id {row.id}): {error.message}", param=error.param)
        if self._errors is None:
            self._errors = self.errors_path.open("w", encoding="utf-8")
        record = {"row": row.number, "id": row.id, "code": error.code, "message": error.message}
        self._errors.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._errors.flush()
        self.failed += 1

    def report(self) -> None:
        """One line, or two if rows failed, on stderr."""
        seconds = time.perf_counter() - self._started
        rate = self.written / seconds if seconds > 0 else 0.0
        print(f"{self.written:,} vectors in {self._output} ({seconds:.1f} s, {rate:,.0f} rows/s)", file=sys.stderr)
        if self.failed:
            print(f"{self.failed:,} rows failed; see {self.errors_path}", file=sys.stderr)
