"""Bulk extraction beside the engine itself, and its memory.

    python bench/bulk.py                                  # tiny model: tokens/s, then the peak memory of 2,000 and 200,000 rows
    python bench/bulk.py --model PATH/TO/MODEL --rows 400  # reviews, sampled with repetition, through a real model

Both sides read the same texts with the same engine, in turn, with an empty prefix cache; one through ``Engine.extract``, one
through everything that ``wellhead extract`` does, from the JSON lines to the committed manifest.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
import numpy as np

import wellhead as wh
from wellhead.frontends.bulk import run as bulk
from wellhead.frontends.bulk.work.sources import Local
from wellhead.frontends.cli import build_parser, main

WORDS = ["a", "film", "with", "the", "best", "cast", "of", "its", "year", "and", "no", "plot", "to", "speak", "of", "music"]


def reviews(count: int) -> list[str]:
    """Rotten Tomatoes reviews, sampled with repetition, each cut to 300 characters."""
    texts = [row["text"] for row in common.film_reviews()]
    rng = np.random.default_rng(0)
    return [texts[i][:300] for i in rng.integers(0, len(texts), count)]


def short_texts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 5)) + f" {i}" for i in range(count)]


def with_tokenizer(folder: Path) -> Path:
    """The bench's tiny model has none: give it one token per byte."""
    if not (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer, models, pre_tokenizers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        built = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        built.save(str(folder / "tokenizer.json"))
    return folder


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return path


def compare(engine: wh.Engine, model: Path, texts: list[str], rounds: int, scratch: Path, more: list[str]) -> None:
    source, out = write(scratch / "in.jsonl", texts), scratch / "out"
    command = ["extract", "--model-path", str(model), "--input", str(source), "--output", str(out), "--overwrite", *more]

    @contextmanager
    def same_engine(options: Any) -> Iterator[Local]:
        yield Local(engine, options)

    def ours() -> None:
        engine.flush_cache()
        code = bulk.run(build_parser().parse_args(command))
        assert code == 0, code

    def plain() -> None:
        engine.flush_cache()
        engine.extract(texts)

    bulk.open_source = same_engine  # the same engine on both sides, so that loading it is not part of either
    plain()
    times = common.alternate({"engine": plain, "bulk": ours}, rounds)
    tokens = sum(map(len, engine.assembled.tokenizer.encode_batch(texts)))
    rates = {side: tokens / statistics.median(t) for side, t in times.items()}
    print(
        f"{len(texts)} texts, {tokens} tokens | Engine.extract {rates['engine']:,.0f} tok/s | bulk {rates['bulk']:,.0f} tok/s"
        f" | bulk reaches {common.ratio(times, 'engine', 'bulk'):.1%} of the engine",
        flush=True,
    )


def peak(model: Path, rows: int, scratch: Path) -> None:
    """Run one extraction in this process and print its peak memory in MiB."""
    source = scratch / f"in-{rows}.jsonl"
    command = ["extract", "--model-path", str(model), "--input", str(source), "--output", str(scratch / f"out-{rows}")]
    assert main([*command, "--max-total-tokens", "8192"]) == 0
    print(f"PEAK {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


def memory(model: Path, scratch: Path) -> None:
    found = {}
    for rows in (2_000, 200_000):
        write(scratch / f"in-{rows}.jsonl", short_texts(rows))
        command = [sys.executable, __file__, "--peak", str(rows), "--scratch", str(scratch), "--model", str(model)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[rows] = int(done.stdout.rpartition("PEAK ")[2])
        print(
            f"{rows:,} short rows: peak {found[rows]:,} MiB  ({done.stderr.strip().splitlines()[-1].partition(': ')[2]})",
            flush=True,
        )
    print(f"200,000 rows take {found[200_000] / found[2_000]:.3f} of the memory of 2,000")


def arguments() -> argparse.Namespace:
    parser = common.arguments(__doc__ or "")
    parser.set_defaults(model="tiny")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--only", choices=["speed", "memory"])
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def bench() -> None:
    args = arguments()
    model = with_tokenizer(common.model_folder(args.model))
    if args.peak:
        peak(model, args.peak, args.scratch)
        return
    scratch = Path(tempfile.mkdtemp(prefix="wellhead-bulk-"))
    try:
        print(common.machine(), flush=True)
        if args.only != "memory":
            with wh.Engine(str(model), dtype=args.dtype) as engine:
                texts = short_texts(args.rows) if args.model == "tiny" else reviews(args.rows)
                compare(engine, model, texts, args.rounds, scratch, ["--dtype", args.dtype])
        if args.only != "speed" and args.model == "tiny":
            memory(model, scratch)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    bench()
