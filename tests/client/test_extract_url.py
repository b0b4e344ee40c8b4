"""``wellhead extract --url``: the same file as with an engine of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.live import LiveServer
from wellhead.frontends.cli import main

TEXTS: list[Any] = [f"text number {i} " + "x" * (i * 5 % 30) for i in range(40)]


def write(path: Path, texts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    return path


def extract(source: Path, output: Path, *more: str) -> int:
    return main(["extract", "--input", str(source), "--output", str(output), *more])


@pytest.mark.parametrize("mode", ["last", "mean", "full"])
def test_the_vectors_are_the_engines(server: LiveServer, tmp_path: Path, mode: Any) -> None:
    out = tmp_path / "out.parquet"
    assert extract(write(tmp_path / "in.jsonl", TEXTS), out, "--url", server.url, "--mode", mode) == 0
    table = pq.read_table(out)
    assert table["id"].to_pylist() == [str(i) for i in range(len(TEXTS))]
    for got, want in zip(table["vector"].to_pylist(), server.engine.extract(TEXTS, mode), strict=True):
        np.testing.assert_allclose(np.array(got, np.float32), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rows", "-8:"), {"rows": "-8:"}),
        (("--rows", '{"last": 8, "exclude": "special"}', "--reduce", "mean"), {
            "rows": {"last": 8, "exclude": "special"}, "reduce": "mean"}),
        (("--rows", "-1"), {"rows": -1}),
        (("--rows", '{"chars": [0, 4]}'), {"rows": {"chars": [0, 4]}}),
        (("--reduce", "sum"), {"reduce": "sum"}),
    ],
)  # fmt: skip
def test_rows_are_the_engines_and_labelled(server: LiveServer, tmp_path: Path, flags: tuple[str, ...], words: Any) -> None:
    out = tmp_path / "out.parquet"
    assert extract(write(tmp_path / "in.jsonl", TEXTS), out, "--url", server.url, *flags) == 0
    table = pq.read_table(out)
    want, at = server.engine.extract(TEXTS, return_positions=True, **words)
    assert table["positions"].to_pylist() == [p.tolist() for p in at]
    for got, theirs in zip(table["vector"].to_pylist(), want, strict=True):
        np.testing.assert_allclose(np.array(got, np.float32), theirs, rtol=1e-5, atol=1e-5)


def test_a_text_without_the_row_or_the_characters_fails_alone(server: LiveServer, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", ["long enough", "no", "long enough too"])
    for name, words in (("a", "0,5"), ("b", '{"chars": [0, 5]}')):
        assert extract(source, tmp_path / f"{name}.parquet", "--url", server.url, "--rows", words) == 1
        assert pq.read_table(tmp_path / f"{name}.parquet")["row"].to_pylist() == [0, 2]
        (failed,) = pq.read_table(tmp_path / f"{name}.parquet.errors.parquet").to_pylist()
        assert (failed["row"], failed["code"]) == (1, "row_out_of_range")


def test_of_no_rows_there_is_the_null_of_an_engine(server: LiveServer, tmp_path: Path) -> None:
    more = ("--url", server.url, "--rows", '{"start": 20}', "--reduce", "max")
    assert extract(write(tmp_path / "in.jsonl", TEXTS), tmp_path / "out.parquet", *more) == 0
    table = pq.read_table(tmp_path / "out.parquet")
    some = [len(p) > 0 for p in table["positions"].to_pylist()]
    assert [v is not None for v in table["vector"].to_pylist()] == some and 0 < sum(some) < len(some)


def test_layers_and_a_narrow_dtype(server: LiveServer, tmp_path: Path) -> None:
    source, more = write(tmp_path / "in.jsonl", TEXTS[:5]), ("--layers", "0", "-1", "--output-dtype", "float16")
    assert extract(source, tmp_path / "out.parquet", "--url", server.url, *more) == 0
    want = server.engine.extract(TEXTS[:5], layers=[0, -1], dtype="float16")
    for layer in (0, -1):
        got = np.array(pq.read_table(tmp_path / "out.parquet")[f"layer_{layer}"].to_pylist())
        np.testing.assert_allclose(got, want[layer], rtol=2e-3, atol=1e-3)


def test_bad_rows_are_in_the_errors_file(server: LiveServer, tmp_path: Path) -> None:
    texts = [*TEXTS[:10], "", *TEXTS[10:20], "y" * 3000]
    assert extract(write(tmp_path / "in.jsonl", texts), tmp_path / "out.parquet", "--url", server.url) == 1
    assert len(pq.read_table(tmp_path / "out.parquet")) == 20
    errors = pq.read_table(tmp_path / "out.parquet.errors.parquet").to_pylist()
    assert {e["row"]: e["code"] for e in errors} == {10: "empty_prompt", 21: "prompt_too_long"}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ((), "--model-path"),
        (("--url", "http://127.0.0.1:9", "--model-path", "x"), "belongs to an engine"),
        (("--url", "http://127.0.0.1:9", "--max-total-tokens", "64"), "--max-total-tokens"),
        (("--model-path", "x", "--api-key", "k"), "--api-key"),
        (("--url", "127.0.0.1"), "http://host:port"),
        (("--url", "http://127.0.0.1:9", "--rows", "all", "--token-ids"), "--token-ids needs a tokenizer here"),
    ],
)
def test_one_source_and_its_own_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], word: str
) -> None:
    assert extract(write(tmp_path / "in.jsonl", TEXTS), tmp_path / "out.parquet", *more) == 2
    assert word in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl"]
