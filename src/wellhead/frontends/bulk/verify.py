"""``wellhead verify OUT``: are the files as they were written, is every row there once, and does a sample come out again?"""

from __future__ import annotations

import argparse
import bisect
import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidConfig, OutputFileError
from wellhead.frontends.bulk.differences import differences
from wellhead.frontends.bulk.output.layout import MANIFEST
from wellhead.frontends.bulk.output.manifest import Manifest, Part
from wellhead.frontends.bulk.wish import Wish
from wellhead.types import DTYPES, DType, widen

if TYPE_CHECKING:
    from wellhead.frontends.bulk.options import Options
    from wellhead.frontends.bulk.work.order import Done

#: Of a vector's largest number, where the engine does not promise the same bits in any company.
TOLERANCE = 1e-2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``wellhead verify``."""
    parser.add_argument("output", type=Path, help="a folder or a file that wellhead extract has written")
    parser.add_argument("--sample", type=int, default=16, metavar="N", help="rows to compute again (default: 16; 0: none)")
    parser.add_argument("--seed", type=int, default=0, help="which rows")
    parser.add_argument("--model-path", help="where the model is now (default: where it was)")
    parser.add_argument("--input", nargs="+", metavar="PATH", help="where the input is now (default: where it was)")


def run(args: argparse.Namespace) -> int:
    """Check; 0 if all is well, 1 if not, with what is wrong on stdout."""
    if args.sample < 0:
        raise InvalidConfig(f"--sample must not be negative: {args.sample}", param="sample")
    check = Check(args.output)
    check.files()
    check.rows()
    if not check.faults and args.sample:
        check.sample(args.sample, args.seed, args.model_path, args.input)
    for fault in check.faults:
        print(f"WRONG     {fault}")
    print(f"{args.output}: " + (f"{len(check.faults)} faults" if check.faults else "all is well"))
    return 1 if check.faults else 0


@dataclass(slots=True)
class Check:
    """The manifests of an output, and what was found wrong."""

    output: Path
    manifests: list[Manifest] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        paths = sorted(self.output.glob(f"{MANIFEST}*.jsonl"))
        if not self.output.is_dir():
            paths = [self.output.with_name(f"{self.output.name}.{MANIFEST}.jsonl")]
        for path in paths:
            manifest = Manifest.load(path)
            if manifest is not None:
                self.manifests.append(manifest)
        if not self.manifests:
            raise OutputFileError(f"{self.output}: no manifest; was this written by wellhead extract?")

    def files(self) -> None:
        """Sizes and checksums of all files."""
        count = size = 0
        for manifest in self.manifests:
            for part in [*manifest.ordered(), *([manifest.whole] if manifest.whole else [])]:
                for file in part.files:
                    fault = file.fault(manifest.path.parent)
                    count, size = count + 1, size + file.bytes
                    if fault is not None:
                        self.faults.append(fault)
        print(f"files     {count:,}, {size:,} bytes, sha256 checked")

    def rows(self) -> None:
        """Every input row is a vector or an error, once, in order; over all shards."""
        vectors = failed = 0
        at = 0
        for manifest in self.manifests:
            whole = manifest.whole
            if whole is None:
                self.faults.append(f"{manifest.path} is not complete; run the same wellhead extract again")
                continue
            if whole.start != at:
                self.faults.append(f"{manifest.path} begins at row {whole.start}, not {at}: a shard is missing or there twice")
            at = whole.stop
            vectors, failed = vectors + whole.vectors, failed + whole.failed
            for part in _parts(manifest):
                self._rows_of(manifest, part)
        total = sum(file["rows"] for file in self.manifests[0].header["input"])
        if total >= 0 and at != total and not self.faults:
            self.faults.append(f"{self.output} ends at row {at}, the input has {total}: shards are missing")
        print(f"rows      {at:,}: {vectors:,} vectors, {failed:,} failed")

    def _rows_of(self, manifest: Manifest, part: Part) -> None:
        try:
            rows = _stored(manifest, part).rows
        except OutputFileError as error:
            self.faults.append(error.message)
            return
        inside = len(rows) == 0 or (part.start <= rows[0] and rows[-1] < part.stop and bool((np.diff(rows) > 0).all()))
        if len(rows) != part.vectors or part.vectors + part.failed != part.stop - part.start or not inside:
            self.faults.append(f"{part.files[0].path}: {len(rows)} vectors for rows {part.start} .. {part.stop - 1}")

    # --- recomputing ----------------------------------------------------------------------------------------------

    def sample(self, count: int, seed: int, model_path: str | None, inputs: list[str] | None) -> None:
        """Compute some rows again and compare them with what is stored: the same bits where the engine promises them."""
        from wellhead.frontends.bulk.fingerprint import model_facts
        from wellhead.frontends.bulk.run import open_input

        header = self.manifests[0].header
        if header["again"]["url"] is not None or "-" in header["again"]["input"]:
            print("sample    none: the rows came from stdin, or the vectors from a server", file=sys.stdout)
            return
        options = _options(header, self.output, model_path, inputs)
        source = open_input(options, [])
        now = {"input": [f.to_dict() for f in source.files], "model": model_facts(options)}
        self.faults += differences(header, now, ("input", "model"))
        places = [(m, p) for m in self.manifests for p in _parts(m) if p.vectors]
        if self.faults or not places:
            return
        chosen = _choose(places, count, seed)
        wanted = iter(sorted(chosen))
        rows = (row for number in wanted for row in source.rows(number, number + 1))
        self._compare(options, header, rows, chosen)

    def _compare(self, options: Options, header: dict[str, Any], rows: Iterator[Any], chosen: dict[int, Any]) -> None:
        from wellhead.frontends.bulk.output.schema import Schema
        from wellhead.frontends.bulk.work.opening import open_source

        with open_source(options) as vectors:
            differ = differences(header, {"engine": vectors.facts()}, ("engine",))
            schema = Schema.of(options, (), vectors.hidden_size)
            exact = bool(vectors.facts()["batch_invariant"]) and not differ
            for done in vectors.extract(rows):
                self._compare_row(done, schema, chosen[done.item.row.number], exact)
        how = "bit by bit" if exact else f"within {TOLERANCE:g} ({'; '.join(differ) or 'this engine is not batch invariant'})"
        print(f"sample    {len(chosen)} rows computed again and compared {how}")

    def _compare_row(self, done: Done, schema: Any, stored: Any, exact: bool) -> None:
        from wellhead.frontends.bulk.output.schema import positions_of, tokens_of
        from wellhead.frontends.bulk.output.schema import stored as as_stored

        row = done.item.row.number
        if done.error is not None:
            self.faults.append(f"row {row} has a vector, but now: {done.error.message}")
            return
        for column in schema.vectors:
            new = as_stored(done.states[column.template], column.layer, schema.dtype)
            if not _alike(new, stored.vector(row, column.name), schema.dtype, exact):
                self.faults.append(f"row {row}: {column.name} comes out otherwise now")
        if stored.labelled:
            for names, made in ((schema.positions, positions_of), (schema.row_tokens, tokens_of)):
                for name, positions, states in zip(names, schema.positions, done.states, strict=False):
                    if not np.array_equal(made(states), stored.label(row, name, positions)):
                        self.faults.append(f"row {row}: {name} come out otherwise now")


def _alike(new: NDArray[Any], old: NDArray[Any], dtype: DType, exact: bool) -> bool:
    if new.shape != old.shape:
        return False
    same = new.tobytes() == old.tobytes()
    if exact or same:
        return same
    a, b = widen(new, dtype), widen(old, dtype)
    return bool(np.abs(a - b).max(initial=0) <= TOLERANCE * np.abs(b).max(initial=0))


def _parts(manifest: Manifest) -> list[Part]:
    """Parts with files; of a single file that is the whole."""
    if manifest.parts or manifest.whole is None:
        return manifest.ordered()
    return [manifest.whole]


def _stored(manifest: Manifest, part: Part) -> Any:
    from wellhead.frontends.bulk.output.stored import StoredPart

    options = manifest.header["options"]
    paths = [manifest.path.parent / file.path for file in part.files]
    dtype = next(d for d in DTYPES if d == options["output_dtype"])
    return StoredPart(paths, part.start, dtype, _wish(options))


def _wish(said: dict[str, Any]) -> Wish:
    return Wish.of(said.get("mode"), said.get("rows"), said.get("reduce"), said["layers"], said.get("token_ids", False))


def _choose(places: list[tuple[Manifest, Part]], count: int, seed: int) -> dict[int, Any]:
    """Row number -> the stored part that has it; every vector is as likely."""
    ends = list(itertools.accumulate(part.vectors for _, part in places))
    chosen: dict[int, Any] = {}
    for at in random.Random(seed).sample(range(ends[-1]), min(count, ends[-1])):
        k = bisect.bisect_right(ends, at)
        stored = _stored(*places[k])
        chosen[int(stored.rows[at - ends[k]])] = stored
    return chosen


def _options(header: dict[str, Any], output: Path, model_path: str | None, inputs: list[str] | None) -> Options:
    """The job's options, as its command line gave them."""
    from wellhead.frontends.bulk.options import Options

    said, again = header["options"], header["again"]
    engine = {**again["engine"], **({"model_path": model_path} if model_path is not None else {})}
    templates = [] if said["templates"] == [""] else said["templates"]
    args = argparse.Namespace(
        input=inputs or again["input"], input_format=again["input_format"], text_column=said["text_column"],
        id_column=said["id_column"], carry=[], template=templates, truncate=said["truncate"], max_length=said["max_length"],
        shard=None, output=output, format=None if said["single"] else said["format"], mode=said.get("mode"),
        rows=said.get("rows"), reduce=said.get("reduce"), layers=said["layers"], token_ids=said.get("token_ids", False),
        output_dtype=said["output_dtype"], save_token_ids=False, save_texts=False, rows_per_part=None,
        strict=said["format"] == "npy", retry_failed=False, overwrite=False, dry_run=False, url=None, api_key=None,
        ray=None, ray_actors=None, ray_cpus_per_actor=None, **engine,
    )  # fmt: skip
    return Options.from_args(args)
