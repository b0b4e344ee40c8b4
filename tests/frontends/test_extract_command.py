"""``wellhead extract``: order, places, bad rows, files that appear only when they are whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from wellhead.frontends.cli import main
from wellhead.frontends.engine import Engine

TEXTS = [f"text number {i} " + "x" * (i * 7 % 40) for i in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.families import write_family

    return write_family("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, Any]:
    with Engine(str(model), return_hidden_states_mode="full", capture_layers=[0, 2, -1], max_total_tokens=4096) as engine:
        return {
            "last": engine.extract(TEXTS),
            "mean": engine.extract(TEXTS, "mean"),
            "full": engine.extract(TEXTS, "full"),
            "layers": engine.extract(TEXTS, layers=[0, -1]),
        }


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def extract(model: Path, source: Path, output: Path, *more: str) -> int:
    return main(
        [
            "extract",
            "--model-path",
            str(model),
            "--input",
            str(source),
            "--output",
            str(output),
            "--max-total-tokens",
            "4096",
            *more,
        ]
    )


def vectors(path: Path, column: str = "vector") -> np.ndarray:
    return np.array(pq.read_table(path)[column].to_pylist(), np.float32)


@pytest.mark.parametrize("mode", ["last", "mean"])
def test_every_row_at_its_place(model: Path, expected: dict[str, Any], tmp_path: Path, mode: str) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": t, "key": f"k{i}"} for i, t in enumerate(TEXTS)])
    out = tmp_path / "out.parquet"
    assert extract(model, source, out, "--mode", mode, "--id-column", "key") == 0
    assert pq.read_table(out)["id"].to_pylist() == [f"k{i}" for i in range(len(TEXTS))]
    np.testing.assert_array_equal(vectors(out), expected[mode])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.parquet", "out.parquet.manifest.jsonl"]


def test_full_mode_keeps_every_row(model: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": t} for t in TEXTS])
    assert extract(model, source, tmp_path / "out.parquet", "--mode", "full") == 0
    rows = pq.read_table(tmp_path / "out.parquet")["vector"].to_pylist()
    for got, want in zip(rows, expected["full"], strict=True):
        np.testing.assert_array_equal(np.array(got, np.float32), want)


def test_layers_come_as_columns(model: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": t} for t in TEXTS])
    assert extract(model, source, tmp_path / "out.parquet", "--layers", "0", "-1") == 0
    for layer in (0, -1):
        np.testing.assert_array_equal(vectors(tmp_path / "out.parquet", f"layer_{layer}"), expected["layers"][layer])


def test_npy_has_its_shape_in_the_header(model: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    assert extract(model, source, tmp_path / "out.npy", "--strict") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy", mmap_mode="r"), expected["last"])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables(model: Path, expected: dict[str, Any], tmp_path: Path, kind: str) -> None:
    table, source = pa.table({"n": range(len(TEXTS)), "body": TEXTS}), tmp_path / f"in.{kind}"
    pa.csv.write_csv(table, source) if kind == "csv" else pq.write_table(table, source)
    assert extract(model, source, tmp_path / "out.parquet", "--text-column", "body", "--id-column", "n") == 0
    np.testing.assert_array_equal(vectors(tmp_path / "out.parquet"), expected["last"])


def test_bfloat16_is_stored_as_its_bits(model: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": t} for t in TEXTS])
    common = ("--dtype", "bfloat16")
    assert extract(model, source, tmp_path / "bits.parquet", *common, "--output-dtype", "bfloat16") == 0
    assert extract(model, source, tmp_path / "wide.parquet", *common) == 0
    bits = np.array(pq.read_table(tmp_path / "bits.parquet")["vector"].to_pylist(), np.uint16)
    assert pq.read_schema(tmp_path / "bits.parquet").field("vector").metadata == {b"dtype": b"bfloat16"}
    np.testing.assert_array_equal((bits.astype(np.uint32) << 16).view(np.float32), vectors(tmp_path / "wide.parquet"))


def test_template_wraps_each_text(model: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "a {b} c"}])
    assert extract(model, source, tmp_path / "out.parquet", "--template", "Say: {text}!") == 0
    with Engine(str(model), max_total_tokens=4096) as engine:
        np.testing.assert_array_equal(vectors(tmp_path / "out.parquet"), engine.extract(["Say: a {b} c!"]))


def test_bad_rows_leave_their_neighbours_alone(model: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    good = [json.dumps({"text": t, "id": f"g{i}"}).encode() for i, t in enumerate(TEXTS)]
    bad = [
        b"{broken",
        b'{"text": ""}',
        b'{"text": "", "id": "e"}',
        b'{"text": "\xff"}',
        json.dumps({"text": "y" * 600, "id": "long"}).encode(),
        b'{"text": 3}',
        b"[" * 100_000,
        b'{"text": "x", "id": "\\ud800"}',
    ]
    lines = [line for pair in zip(good[: len(bad)], bad, strict=True) for line in pair] + good[len(bad) :]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    assert extract(model, tmp_path / "in.jsonl", tmp_path / "out.parquet", "--id-column", "id") == 1
    np.testing.assert_array_equal(vectors(tmp_path / "out.parquet"), expected["last"])
    errors = pq.read_table(tmp_path / "out.parquet.errors.parquet").to_pylist()
    assert sorted((e["row"], e["code"]) for e in errors) == [
        (1, "input_file_error"), (3, "input_file_error"), (5, "empty_prompt"), (7, "input_file_error"),
        (9, "prompt_too_long"), (11, "input_file_error"), (13, "input_file_error"), (15, "input_file_error"),
    ]  # fmt: skip


def test_strict_stops_and_leaves_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "fine"}, {"text": ""}])
    assert extract(model, source, tmp_path / "out.parquet", "--strict") == 2
    assert "empty_prompt: row 1" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--input", "none.jsonl"), "no such file"),
        (("--output", "nowhere/out.parquet"), "no folder"),
        (("--output", "out.bin"), "cannot write"),
        (("--output", "in.jsonl"), "cannot write"),
        (("--output", "out.npy"), "--strict"),
        (("--template", "no place"), "{text}"),
        (("--layers", "9"), "layer 9"),
        (("--return-hidden-states-mode", "off"), "does not return hidden states"),
        (("--mode", "full", "--return-hidden-states-mode", "last"), "above the server's maximum"),
    ],
)
def test_refusals_say_why(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "fine"}])
    assert extract(model, source, tmp_path / "out.parquet", *more) == 2
    assert word in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_input_is_never_replaced(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": ["a text"]}), path)
    before = path.read_bytes()
    assert extract(model, path, path, "--overwrite") == 2
    assert "input file" in capsys.readouterr().err and path.read_bytes() == before


@pytest.mark.parametrize("column", ["--id-column", "--text-column"])
def test_lines_have_no_columns(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str) -> None:
    (tmp_path / "in.txt").write_text("a text\n")
    assert extract(model, tmp_path / "in.txt", tmp_path / "out.parquet", column, "key") == 2
    assert column in capsys.readouterr().err


def test_ten_thousand_rows_stay_in_order(model: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": f"{i % 97}", "id": i} for i in range(10_000)]
    assert extract(model, write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet", "--id-column", "id") == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == [str(i) for i in range(10_000)]
    got = vectors(tmp_path / "out.parquet")
    for i in range(97):
        assert (got[i::97] == got[i]).all()


def test_help_is_quick_and_lists_options(capsys: pytest.CaptureFixture[str], check_no_torch: Callable[..., None]) -> None:
    with pytest.raises(SystemExit):
        main(["extract", "--help"])
    assert "--return-hidden-states-mode" in capsys.readouterr().out
    check_no_torch("import wellhead.frontends.cli as c; c.build_parser()")
