"""Each example runs as it stands, on a tiny model, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "hidden_states"
PROMISED = {
    "engine.py": ["last: (3, 64)", "mean: (3, 64)", "-> None", "-> (64,)", "-> [(19, 64), (64,), (64,), (64,)]"],
    "rows.py": [
        "probe: (3, 64)",
        "end: (3, 64)",
        "word 'The': rows [0, 1, 2] (3, 64)",
        "answer: (64,) of 5 rows",
        "alone the same: True",
    ],
    "engine_async.py": ["state (64,)", "new states [(16, 64)]", "new states [(64,)]"],
    "server.py": ["ready on http://", "last: (24, 64)", "application/vnd.safetensors", "bfloat16", "generate:"],
    "openai_client.py": ["state of 64 numbers", "embeddings: 2 of 64 numbers"],
}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_it_runs(family: Callable[..., Path], name: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / name), "--model-path", str(family("llama"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    for words in PROMISED[name]:
        assert words in done.stdout, done.stdout


def test_every_example_is_listed_and_tested() -> None:
    listed = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    scripts = {p.name for p in FOLDER.glob("*.py")} - {"common.py"}
    assert scripts == set(PROMISED)
    assert all(f"hidden_states/{name}" in listed for name in scripts)
