"""``examples/train_draft`` from end to end at toy size: what it trains has learned something, is loaded, and changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

FOLDER = Path(__file__).parents[2] / "examples" / "train_draft"


def test_it_writes_extracts_trains_and_serves(family: Callable[..., Path], tmp_path: Path) -> None:
    """A random tiny model soon goes round in circles, which its draft can learn."""
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"{i} is a number of which the model has something to say" for i in range(64)))
    command = [sys.executable, str(FOLDER / "train.py"), "--model-path", str(family("llama")), "--texts", str(lines)]
    sizes = ["--prompts", "48", "--words", "3", "--new", "24", "--vocabulary", "200", "--epochs", "6", "--lr", "0.005"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *sizes, "--out", str(tmp_path / "out")],
        capture_output=True, text=True, check=False, timeout=240, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    agreed = [float(found) for found in re.findall(r"same token ([0-9.]+)", done.stdout)]
    assert len(agreed) == 6
    assert agreed[-1] > agreed[0] + 0.05
    assert "the same tokens and hidden states" in done.stdout
    length = re.search(r"acceptance length ([0-9.]+) tokens per step, of at most 4", done.stdout)
    assert length is not None
    assert float(length[1]) > 1.1, "some drafts stood: the file is what was trained"
    assert load_file(tmp_path / "out" / "draft" / "model.safetensors")["lm_head.weight"].shape == (200, 64)


def test_it_is_listed() -> None:
    assert "train_draft/train.py" in (FOLDER.parent / "README.md").read_text(encoding="utf-8")
