"""docs/hidden-states.md, held against the engine: its Python runs, its words and reductions are all there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.families import HIDDEN
from wellhead.errors import CaptureAboveCeiling
from wellhead.frontends.engine import Engine
from wellhead.reads import _KEYS, LAST_ROWS, MOST_LISTED, parse_rows
from wellhead.reductions import REDUCTIONS
from wellhead.requests.normalize import MOST_READS

PAGE = (Path(__file__).parents[2] / "docs" / "hidden-states.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_python_runs(family: Callable[..., Path]) -> None:
    texts = ["The cat sat on the mat", "Another text"]
    names: dict[str, Any] = {"path": str(family("llama")), "texts": texts}
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(block, names)
    try:
        assert names["X"].shape == (2, HIDDEN) and [w.shape for w in names["windows"]] == [(8, HIDDEN)] * 2
        assert {layer: m.shape for layer, m in names["M"].items()} == {2: (2, HIDDEN), "L:pre_norm": (2, HIDDEN)}
        assert [at.tolist() for at in names["positions"]] == [[4, 5, 6]] * 2
        np.testing.assert_array_equal(names["both"]["end"], names["X"])
        assert names["out"]["meta_info"]["hidden_states"].shape == (HIDDEN,)
    finally:
        names["engine"].shutdown()


@pytest.mark.parametrize("ceiling", ["last", "full"])
def test_each_spelling_has_the_shape_and_needs_the_ceiling_that_the_table_says(
    ceiling: str, engine: Callable[..., Engine]
) -> None:
    made = engine(return_hidden_states_mode=ceiling)
    text = "A text of some fifty characters, which is enough here"
    for cells in table("Rows"):
        for words in re.findall(r"`([^`]+)`", cells[0]):
            value = eval(words)
            needs = re.findall(r"`(last|full)`", cells[3])[0]
            if needs == "full" and ceiling == "last":
                with pytest.raises(CaptureAboveCeiling):
                    made.extract([text], rows=value)
                continue
            (rows,) = made.extract([text], rows=value)
            assert rows.ndim == (1 if cells[2] == "`[H]`" else 2), words


def test_every_key_reduction_and_bound_is_on_the_page() -> None:
    assert [cells[0].strip('`"') for cells in table("Reductions")] != []
    assert {cells[0].strip('`"') for cells in table("Reductions")} == set(REDUCTIONS)
    keys = section("Rows").split("any of these keys:")[1].split(".")[0]
    assert all(f"`{key}`" in keys for key in _KEYS)
    assert f"{MOST_LISTED:,}" in section("Limits") and f"up to {MOST_READS} wishes" in section("Several reads")
    assert str(LAST_ROWS) in section("Rows")
    for cells in table("Older words"):
        for words in re.findall(r'rows=("\w+")', cells[1]):
            parse_rows(eval(words), "rows")
