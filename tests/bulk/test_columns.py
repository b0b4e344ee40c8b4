"""Columns of real files: values that are not what their type says, shards that disagree, and lines that end where lines end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.bulk import arguments, column, contents, extract, killed_at
from wellhead.errors import InputFileError
from wellhead.frontends.bulk.input.carry import Carried, Carry, CarryType, gathered
from wellhead.frontends.bulk.input.inputs import Input, Row, expand
from wellhead.frontends.bulk.input.unify import union
from wellhead.frontends.bulk.input.values import sizes
from wellhead.frontends.cli import main

LATIN = b"R\xc9UNION"


def raw(values: list[bytes | None], kind: Any = None) -> pa.Array:
    """A string column with these bytes, as a file that nobody checked has them."""
    return pa.Array.from_buffers(kind or pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def save(path: Path, columns: dict[str, Any]) -> Path:
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, use_dictionary=False)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), table.schema) as sink:
            sink.write_table(table)
    else:
        cells = [
            [v.as_py().encode() if not isinstance(v, pa.StringScalar) else v.as_buffer().to_pybytes() for v in c] for c in table
        ]
        lines = [",".join(table.column_names).encode(), *(b",".join(row) for row in zip(*cells, strict=True))]
        path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def opened(*paths: Path, carry: tuple[str, ...] = (), identity: str | None = None, columns: tuple[str, ...] = ("text",)) -> Input:
    source = Input(expand(tuple(map(str, paths)), None), "text", list(columns), identity)
    source.survey([])
    source.settle_carries(tuple(map(Carry.parse, carry)))
    return source


def carried(source: Input, at: int = 0) -> pa.Array:
    rows = list(source.rows(0, None))
    assert not [row.error for row in rows if row.error is not None]
    return gathered([row.carried for row in rows], at, source.carries[at].type)


# --- values that are not what their type says ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
@pytest.mark.parametrize("where", ["text", "city"])
def test_a_value_that_is_not_utf8_fails_its_row_alone(model: Path, tmp_path: Path, kind: str, where: str) -> None:
    columns = {"text": raw([b"one", b"two", b"three"]), "city": raw([b"Paris", b"Saint-Denis", b"Lyon"])}
    columns[where] = raw([b"one", LATIN, b"three"])
    source = save(tmp_path / f"in.{kind}", columns)
    assert extract(model, source, tmp_path / "out", "--carry", "city") == 1
    assert column(tmp_path / "out", "row") == [0, 2]
    errors = pq.read_table(tmp_path / "out" / "errors.parquet").to_pylist()
    assert [(e["row"], e["code"]) for e in errors] == [(1, "input_file_error")]
    assert f"'{where}' is not valid Unicode" in errors[0]["message"]
    assert main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    "bad",
    [
        raw([b"a", LATIN, None, b"z"], pa.string()),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), raw([b"a", LATIN])),
        pa.ListArray.from_arrays(pa.array([0, 1, 2, 2, 3], pa.int32()), raw([b"a", LATIN, b"z"])),
        pa.StructArray.from_arrays([raw([b"a", LATIN, None, b"z"]), pa.array([1, 2, 3, 4])], ["name", "n"]),
    ],
    ids=["string", "dictionary", "list", "struct"],
)
def test_it_does_so_at_any_depth(tmp_path: Path, bad: Any) -> None:
    rows = list(opened(save(tmp_path / "in.arrow", {"text": ["t"] * 4, "c": bad}), carry=("c",)).rows(0, None))
    assert [row.error is None for row in rows] == [True, False, True, True]
    assert rows[1].error is not None and (rows[1].error.param, "'c'" in rows[1].error.message) == ("c", True)
    for row in (rows[0], rows[2], rows[3]):
        assert gathered([row.carried], 0, row.carried.columns[0].type).validate(full=True) is None


def test_an_id_that_is_not_utf8_fails_its_row_too(tmp_path: Path) -> None:
    source = opened(save(tmp_path / "in.parquet", {"text": ["s", "t"], "id": raw([b"a", LATIN])}), identity="id")
    rows = list(source.rows(0, None))
    assert (rows[0].id, rows[1].id) == ("a", "1") and rows[1].error is not None and "'id'" in rows[1].error.message


EXACT = {
    "date": pa.array([3663000, 18000, None, -4000000], pa.date32()),
    "time": pa.array([1, 86_399_999_999_999, None, 0], pa.time64("ns")),
    "stamp": pa.array([1_600_000_000_000_000_001, -1, None, 0], pa.timestamp("ns", "Europe/Berlin")),
    "span": pa.array([1, -(2**62), None, 0], pa.duration("ns")),
    "far": pa.array([2**40, 0, None, 1], pa.timestamp("s")),
    "money": pa.array([1, 2, None, 3], pa.decimal128(20, 0)),
    "blob": pa.array([LATIN, b"", None, b"\0"], pa.binary()),
    "many": pa.array([[1.5], [], None, [2.0, None]], pa.list_(pa.float32())),
}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_values_that_python_cannot_hold_are_carried_digit_by_digit(
    model: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    source = save(tmp_path / f"in.{kind}", {"text": ["a", "b", "c", "d"], **EXACT})
    assert extract(model, source, tmp_path / "out", "--carry", *EXACT) == 0
    table = pq.read_table(tmp_path / "out" / "data")
    read = pq.read_table(source) if kind == "parquet" else pa.ipc.open_file(str(source)).read_all()  # Parquet has no seconds
    for name in EXACT:
        assert table[name].combine_chunks().equals(read[name].combine_chunks().cast(table[name].type)), name


def test_ids_of_times_have_all_their_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ids(name: str) -> list[str]:
        source = opened(save(tmp_path / "in.arrow", {"text": ["a", "b", "c"], "id": EXACT[name].take([0, 1, 3])}), identity="id")
        return [row.id for row in source.rows(0, None)]

    with_pandas = {name: ids(name) for name in ("date", "time", "stamp", "far")}
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert {name: ids(name) for name in with_pandas} == with_pandas
    assert with_pandas["date"][0] == "11998-12-15" and with_pandas["date"][1] == "2019-04-14"
    assert with_pandas["time"] == ["00:00:00.000000001", "23:59:59.999999999", "00:00:00"]
    assert with_pandas["stamp"][0] == "2020-09-13 14:26:40.000000001+0200"
    assert ids("span")[0] == "1 ns"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2), pa.large_string(), pa.string_view()])
def test_bytes_are_read_as_utf8(tmp_path: Path, kind: Any) -> None:
    cells = pa.array([b"a1", b"b2"], pa.binary()).cast(kind)
    rows = list(opened(save(tmp_path / "in.arrow", {"text": cells, "id": cells}), identity="id").rows(0, None))
    assert [(row.id, row.values["text"], row.error) for row in rows] == [("a1", "a1", None), ("b2", "b2", None)]


def test_a_date_in_a_prompt_is_refused_whether_python_can_hold_it_or_not(tmp_path: Path) -> None:
    from wellhead.frontends.bulk.input.template import Template

    source = opened(save(tmp_path / "in.arrow", {"text": ["a", "b"], "d": EXACT["date"][:2]}), columns=("text", "d"))
    for row in source.rows(0, None):
        with pytest.raises(InputFileError, match="'d' is not a string"):
            Template.parse("{text} {d}", "text").render(row.values, "text")


def test_types_that_are_asked_for(tmp_path: Path) -> None:
    columns = {
        "text": ["a", "b", "c", "d"], "float": pa.array([1.0, 1.5, None, 2.0**60]), "words": ["3", "x", "", "-4"],
        "date": EXACT["date"], "bytes": pa.array([b"a", LATIN, None, b"d"], pa.binary()),
        "int": pa.array([1, 2**60 + 1, None, 3]),
    }  # fmt: skip
    path = save(tmp_path / "in.arrow", columns)

    def found(carry: str) -> list[Any]:
        rows = opened(path, carry=(carry,)).rows(0, None)
        return [row.carried.to_python()[0] if row.error is None else "error" for row in rows]

    assert found("float:int64") == [1, "error", None, 2**60]
    assert found("int:float64") == [1.0, "error", None, 3.0]
    assert found("words:int64") == [3, "error", None, -4]
    assert found("date:json") == ['"11998-12-15"', '"2019-04-14"', None, '"-8982-05-17"']
    assert found("bytes:string") == ["a", "error", None, "d"]
    assert found("bytes:json") == ['"a"', "error", None, '"d"']


# --- shards that disagree ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.null(), pa.string(), pa.string()),
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.binary(), pa.string()),
        (pa.binary(3), pa.binary(), pa.binary()),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.timestamp("s"), pa.timestamp("s")),
        (pa.time32("s"), pa.time64("ns"), pa.time64("ns")),
        (pa.duration("s"), pa.duration("ms"), pa.duration("ms")),
        (pa.decimal128(10, 2), pa.decimal128(12, 5), pa.decimal128(13, 5)),
        (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.int8(), 2), pa.large_list(pa.int16()), pa.large_list(pa.int16())),
        (pa.struct([("a", pa.null())]), pa.struct([("a", pa.bool_())]), pa.struct([("a", pa.bool_())])),
        (pa.string(), pa.int64(), None),
        (pa.bool_(), pa.int64(), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.date32(), pa.string(), None),
        (pa.struct([("a", pa.null())]), pa.struct([("b", pa.null())]), None),
        (pa.list_(pa.int8()), pa.list_(pa.string()), None),
        (pa.decimal256(70, 0), pa.decimal256(70, 60), None),
    ],
    ids=str,
)
def test_unions(one: Any, other: Any, both: Any) -> None:
    for a, b in ((one, other), (other, one)):
        found = union(a, b)
        assert (None if found is None else found.type) == both
    if both is not None:
        assert pa.nulls(3, one).cast(both).type == pa.nulls(3, other).cast(both).type == both


def pandas_shards(folder: Path, order: list[int]) -> list[Path]:
    frames = [
        pd.DataFrame(
            {"text": ["a", "b"], "note": [None, None], "n": [1, 2], "when": pd.to_datetime(["2020-01-01", "2020-01-02"])}
        ),
        pd.DataFrame({"text": ["c", "d"], "note": ["x", None], "n": [3.0, None], "when": [None, None]}),
        pd.DataFrame({"text": ["e", "f"], "note": pd.Categorical(["x", "y"]), "n": [5, 2**53], "when": [pd.Timestamp(1)] * 2}),
    ]
    for i, frame in enumerate(frames):
        frame.to_parquet(folder / f"s{i}.parquet")
    return [folder / f"s{i}.parquet" for i in order]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_shards_of_pandas_are_one_column(tmp_path: Path, order: list[int]) -> None:
    source = opened(*pandas_shards(tmp_path, order), carry=("note", "n", "when"))
    strings = str(pq.read_schema(tmp_path / "s1.parquet").field("note").type)  # large ones, from pandas 3 on
    assert [str(c.type) for c in source.carries] == [strings, "double", "timestamp[ns]"]
    want = {0: ([None, None], [1, 2]), 1: (["x", None], [3, None]), 2: (["x", "y"], [5, 2**53])}
    assert carried(source, 0).to_pylist() == [v for i in order for v in want[i][0]]
    assert carried(source, 1).to_pylist() == [v for i in order for v in want[i][1]]
    assert carried(source, 2).cast(pa.int64()).to_pylist().count(1) == 2


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["x"], [1]),
        ([2**53 + 1], [0.5, None]),
        (pa.array([3663000], pa.date32()), pa.array([1], pa.timestamp("ns"))),
        (pa.array([2**63], pa.uint64()), pa.array([-1], pa.int8())),
        (pa.array([2**40], pa.duration("s")), pa.array([1], pa.duration("ns"))),
    ],
    ids=["text-number", "int-float", "date-stamp", "unsigned-signed", "durations"],
)
def test_what_no_type_holds_is_refused_before_work_begins(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], one: Any, other: Any, order: list[int]
) -> None:
    for name, cells in (("one", one), ("other", other)):
        save(tmp_path / f"{name}.arrow", {"text": ["t"] * len(cells), "c": cells})
    paths = [tmp_path / f"{name}.arrow" for name in ("one", "other")]
    command = arguments(model, paths[order[0]], tmp_path / "out", "--carry", "c")
    command.insert(command.index("--input") + 2, str(paths[order[1]]))
    assert main(command) == 2
    told = capsys.readouterr().err
    types = [str(pa.table({"c": cells})["c"].type) for cells in (one, other)]
    assert all(str(word) in told for word in (*paths, *types, "'c'", "--carry c:json")), told
    assert not (tmp_path / "out").exists()
    command[command.index("--carry") + 1] = "c:json"
    assert main(command) == 0, "the advice is good"


def test_a_column_that_a_later_file_lacks_is_missed_before_work_begins(tmp_path: Path) -> None:
    first = save(tmp_path / "a.parquet", {"text": ["a"], "c": [1]})
    for last in (save(tmp_path / "b.parquet", {"text": ["b"]}), save(tmp_path / "b.csv", {"text": ["b"]})):
        with pytest.raises(InputFileError, match=rf"{last.name}: no column 'c'"):
            opened(first, last, carry=("c",))


def test_types_of_lines_are_found_over_all_files(tmp_path: Path) -> None:
    def lines(name: str, *values: Any) -> Path:
        (tmp_path / name).write_text("".join(json.dumps({"text": "t", "c": v}) + "\n" for v in values))
        return tmp_path / name

    def kind(*paths: Path) -> tuple[str, list[Any]]:
        source = opened(*paths, carry=("c",))
        return "json" if source.carries[0].as_json else str(source.carries[0].type), carried(source).to_pylist()

    nothing, ints, floats, words = lines("n.jsonl", None), lines("i.jsonl", 1), lines("f.jsonl", 0.5), lines("w.jsonl", "x")
    assert kind(nothing, words) == ("string", [None, "x"]) and kind(nothing) == ("string", [None])
    assert kind(ints, floats) == ("double", [1.0, 0.5])
    assert kind(ints, words) == ("json", ["1", '"x"'])
    table = save(tmp_path / "t.parquet", {"text": ["t"], "c": pa.array([7], pa.int16())})
    assert kind(nothing, table) == ("int16", [None, 7]) and kind(table, ints) == ("int64", [7, 1])
    cells = tmp_path / "c.csv"
    cells.write_text("text,c\nt,8\n")
    assert kind(cells) == ("string", ["8"]) and kind(cells, table) == ("int16", [8, 7]), "CSV has no types of its own"
    with pytest.raises(InputFileError, match=r"'c' is int16 in .*t\.parquet and string in .*w\.jsonl"):
        opened(table, words, carry=("c",))


# --- carried columns are copied, and the bytes do not hang on how they lay ---------------------------------------------------


def test_sizes_hang_on_the_value_alone() -> None:
    cells = pa.array([["ab", None], None, [], ["é"]], pa.list_(pa.string()))
    assert sizes(cells).tolist() == [18, 8, 8, 9]
    assert [sizes(cells.slice(i, 1)).tolist()[0] for i in range(4)] == sizes(cells).tolist()
    for array in EXACT.values():
        assert [int(sizes(array.slice(i, 1))[0]) for i in range(len(array))] == sizes(array).tolist()
    assert sizes(pa.array([{"a": "xyz", "b": 1}])).tolist() == [11]


def test_runs_are_copied_in_their_order() -> None:
    kind = CarryType("c", pa.int64())
    pieces = [kind.column(pa.array(cells))[0] for cells in ([0, 1, 2, 3], [4, None, 6])]
    columns = [(piece,) for piece in pieces]
    picked = [Carried(columns[piece], at) for piece, at in ((0, 1), (0, 2), (1, 0), (1, 1), (0, 0))]
    assert gathered(picked, 0, pa.int64()).to_pylist() == [1, 2, 4, None, 0]
    assert gathered([], 0, pa.int64()).type == pa.int64()


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_killed_run_over_shards_ends_with_the_same_bytes(model: Path, tmp_path: Path, number: int) -> None:
    rng = np.random.default_rng(5)
    for i in range(3):
        cells = {name: array.take(pa.array(rng.integers(0, 4, 40))) for name, array in EXACT.items()}
        notes = raw([LATIN if k == 7 * i else b"note %d" % k for k in range(40)]) if i else pa.nulls(40)
        save(tmp_path / f"s{i}.parquet", {"text": [f"text {i} {k}" for k in range(40)], "note": notes, **cells})
    more = ("--carry", "note", *EXACT, "--rows-per-part", "17")
    source = tmp_path / "s*.parquet"
    killed_at("commit", number, arguments(model, source, tmp_path / "broken", *more))
    for folder in ("broken", "whole"):
        assert extract(model, source, tmp_path / folder, *more) == 1
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert main(["verify", str(tmp_path / "broken")]) == 0


# --- lines ----------------------------------------------------------------------------------------------------------------

ODD = ["a\u2028b", "c\u2029d", "e\x85f", "g\x1ch\x1di\x1ej", "plain", "\u2028", "k\x0bl\x0cm"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "txt"])
def test_lines_end_at_their_ends_only(tmp_path: Path, kind: str, end: str) -> None:
    made = {
        "jsonl": [json.dumps({"text": t}, ensure_ascii=False) for t in ODD],
        "csv": ["text", *ODD], "tsv": ["text\tn", *(f"{t}\t1" for t in ODD)], "txt": ODD,
    }  # fmt: skip
    (tmp_path / f"in.{kind}").write_bytes("".join(line + end for line in made[kind]).encode())
    source = opened(tmp_path / f"in.{kind}")
    assert source.total == len(ODD)
    for start in range(len(ODD)):
        rows: list[Row] = list(source.rows(start, None))
        assert [row.values["text"] for row in rows] == ODD[start:]


def test_a_line_of_text_keeps_what_is_not_its_end(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"a\r\r\nb\rc\nd\r")
    assert [row.values["text"] for row in opened(tmp_path / "in.txt").rows(0, None)] == ["a\r", "b\rc", "d\r"]


def test_they_come_out_as_they_went_in(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": t, "c": t}, ensure_ascii=False) + "\n" for t in ODD))
    assert extract(model, tmp_path / "in.jsonl", tmp_path / "out", "--carry", "c", "--save-texts") == 0
    assert column(tmp_path / "out", "c") == column(tmp_path / "out", "text") == ODD
