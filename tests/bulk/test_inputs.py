"""What can be read, and what becomes of rows that cannot."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wellhead.errors import InputFileError, InvalidConfig
from wellhead.frontends.bulk.input import tables
from wellhead.frontends.bulk.input.carry import Carry
from wellhead.frontends.bulk.input.inputs import Input, Row, expand
from wellhead.frontends.bulk.input.readers import STDIN, kind_of

ROWS = [{"text": f"text {i}", "id": f"k{i}", "n": i, "part": i / 4, "good": i % 2 == 0} for i in range(2500)]


def write(folder: Path, kind: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    path = folder / f"in.{kind}"
    table = pa.Table.from_pylist(rows)
    lines = "".join(json.dumps(r) + "\n" for r in rows).encode()
    cells = ("text,id,n,part,good\n" + "".join(",".join(map(str, r.values())) + "\n" for r in rows)).encode()
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=700)
    elif kind == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as sink:
            sink.write_table(table, max_chunksize=900)
    elif kind == "saved":
        save_dataset(table, path)
    else:
        opener: Any = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}.get(kind.rpartition(".")[2], io.open)
        body = cells if "csv" in kind else cells.replace(b",", b"\t") if "tsv" in kind else lines
        with opener(path, "wb") as file:
            file.write(body if "txt" not in kind else "".join(r["text"] + "\n" for r in rows).encode())
    return path


def save_dataset(table: pa.Table, folder: Path) -> None:
    """As ``datasets.Dataset.save_to_disk``: IPC streams, and a file that names them in order."""
    folder.mkdir()
    names = [f"data-{i:05}-of-00002.arrow" for i in range(2)]
    for i, name in enumerate(names):
        with pa.ipc.new_stream(str(folder / name), table.schema) as sink:
            sink.write_table(table.slice(i * 1500, 1500), max_chunksize=1000)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": n} for n in names], "_indices_files": None}))


def opened(
    *paths: str | Path, carry: tuple[str, ...] = (), kind: str | None = None, columns: tuple[str, ...] = ("text",)
) -> Input:
    source = Input(expand(tuple(map(str, paths)), kind), "text", list(columns), "id" if kind != "txt" else None)
    source.survey([])
    source.settle_carries(tuple(map(Carry.parse, carry)))
    return source


KINDS = ["jsonl", "csv", "tsv", "parquet", "arrow", "saved", "jsonl.gz", "csv.bz2", "jsonl.xz"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [0, 1, 699, 700, 1499, 1500, 1501, 2499, 2500])
def test_every_kind_from_any_row_on(tmp_path: Path, kind: str, start: int) -> None:
    source = opened(write(tmp_path, kind))
    assert source.total == len(ROWS)
    found = list(source.rows(start, start + 900))
    assert [(r.number, r.id, r.values["text"]) for r in found] == [
        (i, f"k{i}", f"text {i}") for i in range(start, min(start + 900, 2500))
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "saved"])
def test_carried_columns_keep_their_types(tmp_path: Path, kind: str) -> None:
    source = opened(write(tmp_path, kind), carry=("n", "part", "good"))
    assert [str(c.type) for c in source.carries] == ["int64", "double", "bool"]
    assert [r.carried.to_python() for r in source.rows(0, 4)] == [
        (0, 0.0, True),
        (1, 0.25, False),
        (2, 0.5, True),
        (3, 0.75, False),
    ]


def test_csv_has_no_types_but_those_that_are_given(tmp_path: Path) -> None:
    source = opened(write(tmp_path, "csv"), carry=("n", "part:float64", "good:bool"))
    assert next(source.rows(3, None)).carried.to_python() == ("3", 0.75, False)


def test_several_files_are_one_sequence(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
    write(tmp_path / "a", "jsonl", ROWS[:10]), write(tmp_path / "b", "jsonl", ROWS[10:30])
    source = opened(f"{tmp_path}/*/in.jsonl", write(tmp_path, "parquet", ROWS[30:]))
    assert source.total == 2500
    assert [r.id for r in source.rows(5, 40)] == [f"k{i}" for i in range(5, 40)]


BAD = [
    ("jsonl", b'{"text": "a", "id": 1}\n{broken\n\n[1]\n{"id": 1}\n{"text": "\xff", "id": 2}\n{"text": "z", "id": null}\n'
     b'{"text": "b", "id": 3}\n',
     [None, "not JSON", "neither", "no field 'text'", "not UTF-8", "for an id", None]),
    ("csv", b'\xef\xbb\xbftext,id\na,1\nonly one\n"quoted\nline",2\n\n"bad"tail,3\nb,\xff\n"b",4\n',
     [None, "1 fields", None, "not CSV", "valid Unicode", None]),
    ("txt", b"\xef\xbb\xbffirst\r\n\n\xff\nlast", [None, None, "not UTF-8", None]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "errors"), BAD, ids=[b[0] for b in BAD])
def test_bad_rows_are_errors_at_their_places(tmp_path: Path, kind: str, data: bytes, errors: list[str | None]) -> None:
    (tmp_path / f"in.{kind}").write_bytes(data)
    source = opened(tmp_path / f"in.{kind}", kind=kind if kind == "txt" else None)
    assert source.total == len(errors)
    rows = list(source.rows(0, None))
    for at, (row, error) in enumerate(zip(rows, errors, strict=True)):
        assert row.number == at
        assert (row.error is None) == (error is None) and (error is None or error in row.error.message), row.error
    for start in range(len(errors)):
        assert [str(r.error) for r in source.rows(start, None)] == [str(r.error) for r in rows[start:]]
    assert (rows[0].values["text"], rows[-1].error) == ("first" if kind == "txt" else "a", None)


def test_values_that_do_not_fit_their_column(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    more = [{"text": "t", "id": "x", "n": v} for v in ("no", 1.5, 2**70, None, True)]
    path.write_text("".join(json.dumps(r) + "\n" for r in [*ROWS[:1000], *more]))
    assert [r.carried.to_python() if r.error is None else r.error.code for r in opened(path, carry=("n",)).rows(1000, None)] == [
        "input_file_error", "input_file_error", "input_file_error", (None,), "input_file_error",
    ]  # fmt: skip
    assert [r.carried.to_python() for r in opened(path, carry=("n:json",)).rows(1000, 1003)] == [
        ('"no"',),
        ("1.5",),
        (str(2**70),),
    ]


@pytest.mark.parametrize(
    ("name", "data", "word"),
    [
        ("in.parquet", b"PAR1 and nothing", "in.parquet"),
        ("in.arrow", b"ARROW1 and nothing", "in.arrow"),
        ("in.jsonl.gz", b"not gzip", "in.jsonl.gz"),
        ("in.csv", b"a,b\n1,2\n", "no column 'text'"),
        ("in.csv", b"text,text,id\n1,2,3\n", "more than one"),
        ("in.doc", b"", "cannot read"),
        ("in", b"", "without a suffix"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, data: bytes, word: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputFileError, match=word):
        list(opened(tmp_path / name).rows(0, None))


def test_folders_that_datasets_did_not_save_or_that_have_splits(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"no state\.json"):
        expand((str(tmp_path),), None)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputFileError, match="train, test"):
        expand((str(tmp_path),), None)


def test_stdin_is_read_once_and_has_a_digest_at_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(text: bytes) -> list[Row]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        return list(opened("-", kind="txt").rows(0, None))

    first, longer, other = read(b"a\nb\n"), read(b"a\nb\nc\n"), read(b"a\nx\nb\n")
    assert [r.values["text"] for r in first] == ["a", "b"]
    assert [r.chain for r in longer[:2]] == [r.chain for r in first]
    assert other[0].chain == first[0].chain and other[1].chain != first[1].chain
    assert opened("-", kind="txt").total is None
    with pytest.raises(InvalidConfig, match="--input-format"):
        expand(("-",), None)
    with pytest.raises(InvalidConfig, match="alone"):
        expand(("-", "-"), "txt")


def test_what_was_surveyed_is_trusted_only_while_size_and_time_agree(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl")
    facts = opened(path).files[0].to_dict()
    again = Input(expand((str(path),), None), "text", ["text"], None)
    again.survey([{**facts, "rows": 7}])
    assert again.total == 7
    again.survey([{**facts, "rows": 7, "mtime_ns": 1}])
    assert again.files[0].to_dict() == facts


def test_kinds_by_suffix() -> None:
    assert [kind_of(Path(n)) for n in ("a.JSONL", "b.v2.csv.gz", "c.tsv", "d.feather")] == ["jsonl", "csv", "tsv", "arrow"]
    assert STDIN.name == "-" and tables.BATCH > 0
