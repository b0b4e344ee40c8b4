"""Bulk extraction under test: a tiny model's command line, in this process or in one that dies at a named point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from wellhead.frontends.cli import main

TEXTS = [f"text number {i} " + "x" * (i * 7 % 40) for i in range(60)]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def arguments(model: Path, source: Path | str, output: Path, *more: str) -> list[str]:
    fixed = ["extract", "--model-path", str(model), "--input", str(source), "--output", str(output)]
    return [*fixed, "--max-total-tokens", "4096", *more]


def extract(model: Path, source: Path | str, output: Path, *more: str) -> int:
    return main(arguments(model, source, output, *more))


def killed_at(point: str, time: int, command: list[str]) -> None:
    """Run a command in a process that kills itself when it comes to a point for the n-th time."""
    done = start([*command], kill=(point, time)).wait(timeout=120)
    assert done == -signal.SIGKILL, f"{point} was not reached {time} times: {done}"


def start(command: list[str], kill: tuple[str, int] = ("", 0), **more: Any) -> subprocess.Popen[bytes]:
    """A command in a process of its own."""
    code = "import sys; from support.bulk import child; sys.exit(child(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))"
    roots = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    return subprocess.Popen([sys.executable, "-c", code, kill[0], str(kill[1]), *command], env=environment, **more)


def child(point: str, time: int, command: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background hands on that it is ignored
    from wellhead.frontends.bulk.run import run
    from wellhead.frontends.cli import build_parser

    left = time

    def reach(here: str) -> None:
        nonlocal left
        if here == point:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    return run(build_parser().parse_args(command), reach)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def column(output: Path, name: str = "vector") -> Any:
    """One column of a folder's parts, or of a file, as it is."""
    return pq.read_table(output / "data" if output.is_dir() else output)[name].to_pylist()


def vectors(output: Path, name: str = "vector") -> np.ndarray:
    return np.array(column(output, name), np.float32)
