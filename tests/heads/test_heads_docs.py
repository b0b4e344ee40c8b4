"""docs/heads.md: its Python runs, its names exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from wellhead.frontends.cli import build_parser
from wellhead.heads import aggregate, link
from wellhead.heads.file import FORMAT, MOST_BYTES, MOST_HEADER
from wellhead.heads.fit.calibrate import NEEDED
from wellhead.heads.fit.run import METHODS, SHARES
from wellhead.heads.head import MOST_LABELS, Head
from wellhead.heads.kinds.registry import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "heads.md").read_text()


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Callable[..., Path]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"MODEL": str(family("llama"))}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(block, names)
    assert isinstance(names["head"], Head) and names["head"].winners(names["scores"])
    assert set(names["said"]) >= {"version", "labels", "label", "scores", "probabilities", "positions"}
    assert set(names["verdicts"]["label"]) <= {"glad", "sad"} and names["verdicts"]["scores"].shape == (2, 1)


def test_its_commands_are_accepted() -> None:
    lines = [line.split("#")[0] for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
    assert len(lines) == 3
    for line in lines:
        build_parser().parse_args(line.split()[1:])


@pytest.mark.parametrize(
    "name",
    [
        *KINDS,
        *aggregate.FIELDS,
        *link.LINKS,
        *METHODS,
        *NEEDED,
        *(f.name for f in fields(Head) if f.init and f.name != "tensors"),
    ],
)
def test_every_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE, re.I), name


def test_its_numbers_are_the_code_s() -> None:
    assert f"| `format` | {FORMAT};" in PAGE
    assert f"{MOST_HEADER >> 20} MiB of header, {MOST_BYTES >> 30} GiB in all, {MOST_LABELS:,} labels" in PAGE
    assert all(f"{round(100 * share)} %" in PAGE for share in SHARES)
    (a, b), (c, d), (e, f) = NEEDED["temperature"], NEEDED["platt"], NEEDED["isotonic"]
    assert f"{a} with {b} of each label; `platt` wants {c} and {d}, `isotonic` {e} and {f}" in PAGE
