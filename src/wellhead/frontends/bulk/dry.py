"""``--dry-run``: how many rows and tokens there are, how large the output would be, and how long it would take."""

from __future__ import annotations

import itertools
import time

from wellhead.errors import WellheadError
from wellhead.frontends.bulk.input.inputs import Input, Row
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.output.schema import Schema
from wellhead.frontends.bulk.output.spans import shard_range
from wellhead.frontends.bulk.progress import duration, size
from wellhead.frontends.bulk.work.sources import Local, open_engine

#: Rows that are computed to see how fast it goes, and the seconds after which that is enough.
TRIAL_ROWS = 256
TRIAL_SECONDS = 5.0


def dry_run(options: Options, source: Input) -> int:
    """Read and tokenise all rows, compute some, and print what that says of the whole; 0. Writes nothing."""
    start, stop = shard_range(source.total, options.shard)
    rows = tokens = failed = numbers = 0
    codes: dict[str, int] = {}
    trial: list[Row] = []
    with open_engine(options) as engine:
        vectors = Local(engine, options)
        schema = Schema.of(options, source.carries, vectors.hidden_size)
        every = max(1, ((stop or TRIAL_ROWS) - start) // TRIAL_ROWS)
        for item in vectors.prompts.items(source.rows(start, stop)):
            rows += 1
            tokens += item.tokens
            error = item.error
            try:
                numbers += vectors.rows_of(item)
            except WellheadError as absent:
                error = absent
            if error is not None:
                failed += 1
                codes[error.code] = codes.get(error.code, 0) + 1
            elif rows % every == 0 and len(trial) < TRIAL_ROWS:
                trial.append(item.row)
        rate = _tokens_per_second(vectors, trial)
    bytes_ = numbers * schema.row_bytes // len(options.templates)
    print(f"rows      {rows:,}" + (f", of which {failed:,} would fail ({_listed(codes)})" if failed else ""))
    print(f"tokens    {tokens:,}")
    print(f"vectors   {size(bytes_)} before compression, {options.dtype}")
    if rate:
        print(f"time      about {duration(tokens / rate)} at {rate:,.0f} tokens/s, as {len(trial)} rows went just now")
    return 0


def _tokens_per_second(vectors: Local, trial: list[Row]) -> float:
    """0 if there is nothing to try."""
    for _ in vectors.extract(iter(trial[:8])):  # the first rows pay for warming up
        pass
    started, tokens, done = time.perf_counter(), 0, 0
    while done < len(trial) and (not done or time.perf_counter() - started < TRIAL_SECONDS):
        part = list(itertools.islice(trial, done, done + 32))
        for finished in vectors.extract(iter(part)):
            tokens += finished.item.tokens
        done += len(part)
    return tokens / (time.perf_counter() - started) if tokens else 0.0


def _listed(codes: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {code}" for code, count in sorted(codes.items()))
