"""What the examples share: which model, and a server of one's own."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import assets


def model_path(description: str | None) -> str:
    """``--model-path``, by default the demo's model (SmolLM2-135M, 93 MB, fetched once)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model-path", help="model folder or .gguf file (default: the demo's model)")
    given = parser.parse_args().model_path
    return given or str(assets.fetch_smollm2())


@contextlib.contextmanager
def serving(model: str, *options: str) -> Iterator[str]:
    """``wellhead serve`` in a process of its own, on a free port; its address. It is ended, and waited for, at the end."""
    command = [sys.executable, "-m", "wellhead", "serve", "--model-path", model, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()  # "wellhead: ..., ready on http://127.0.0.1:41234"
        if "ready on " not in line:
            raise SystemExit(f"the server did not start (exit status {process.wait()})")
        print(line)
        yield line.rsplit("ready on ", 1)[1]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
