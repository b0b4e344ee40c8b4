"""The lines of docs/bulk.md that read vectors back do so, for the libraries that are here."""

from __future__ import annotations

import importlib.util
import re
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from support.bulk import TEXTS, extract
from wellhead.frontends.engine import Engine

DOCS = Path(__file__).parents[2] / "docs" / "bulk.md"


def lines() -> list[str]:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    code = re.sub(r"^(t = .*)\n", r"\1; ", code, flags=re.MULTILINE)  # a file and what is taken from it are one example
    found = [line for line in code.splitlines() if not line.startswith("#")]
    return [line for line in found if "pl." not in line or importlib.util.find_spec("polars") is not None]


@pytest.fixture(scope="module")
def outputs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "in.txt").write_text("\n".join(TEXTS))
    for name, more in {
        "OUT": (), "OUT16": ("--output-dtype", "bfloat16"), "OUTST": ("--format", "safetensors"), "FULL": ("--mode", "full"),
        "FULLST": ("--mode", "full", "--format", "safetensors"), "LAST8": ("--rows", "-8:"), "vectors.npy": ("--strict",),
    }.items():  # fmt: skip
        parts = ("--rows-per-part", "25") if name in ("OUT", "OUT16", "OUTST") else ()
        assert extract(model, folder / "in.txt", folder / name, *parts, *more) == 0
    return folder


@pytest.mark.parametrize("line", lines())
def test_a_line_reads_the_vectors_back(line: str, outputs: Path, reference: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(outputs)
    scope: dict[str, Any] = {"np": np, "pd": pd, "pq": pq, "torch": torch, "load_file": load_file, "glob": glob, "H": 64, "i": 7}
    if "pl." in line:
        scope["pl"] = importlib.import_module("polars")
    exec(line, scope)
    if "P" in scope:
        assert scope["P"] == list(range(len(TEXTS[7]) - 8, len(TEXTS[7])))
        return
    if "M" in scope:
        np.testing.assert_array_equal(np.asarray(scope["M"]), reference.extract([TEXTS[7]], "full")[0])
        return
    want = reference.extract(TEXTS)
    if "OUT16" in line:
        assert torch.equal(scope["X"], torch.from_numpy(want).to(torch.bfloat16))
    else:
        np.testing.assert_array_equal(np.asarray(scope["X"]), want)


def test_the_docs_name_every_flag() -> None:
    import argparse

    from wellhead.frontends.bulk.options import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    engine = next(g for g in parser._action_groups if g.title == "engine")
    ours = [a.option_strings[0] for g in parser._action_groups if g is not engine for a in g._group_actions]
    told = DOCS.read_text(encoding="utf-8")
    assert [
        flag
        for flag in ours
        if flag.startswith("--") and flag not in told and flag not in ("--api-key", "--text-column", "--help")
    ] == []
