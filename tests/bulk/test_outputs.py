"""Every shape of output holds the engine's own vectors, each in its row."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from support.bulk import TEXTS, arguments, column, contents, extract, vectors, write_jsonl
from wellhead.frontends.bulk.output import assembly, schema
from wellhead.frontends.bulk.run import run
from wellhead.frontends.cli import build_parser, main
from wellhead.frontends.engine import Engine

PARTS = ("--rows-per-part", "25")


def test_a_folder_of_parts_with_all_columns(model: Path, source: Path, reference: Engine, tmp_path: Path) -> None:
    more = (
        "--carry",
        "label",
        "--id-column",
        "id",
        "--save-token-ids",
        "--save-texts",
        "--truncate",
        "right",
        "--max-length",
        "40",
    )
    assert extract(model, source, tmp_path / "out", *PARTS, *more) == 0
    assert [p.name for p in sorted((tmp_path / "out" / "data").iterdir())] == [f"part-00000{i}.parquet" for i in range(3)]
    table = pq.read_table(tmp_path / "out" / "data")
    assert table.column_names == ["row", "id", "label", "truncated", "token_ids", "text", "vector"]
    cut = [t[:40] for t in TEXTS]
    np.testing.assert_array_equal(vectors(tmp_path / "out"), reference.extract(cut))
    assert table["id"].to_pylist() == [f"k{i}" for i in range(60)] and table["row"].to_pylist() == list(range(60))
    assert table["label"].to_pylist() == [i % 3 for i in range(60)]
    assert table["truncated"].to_pylist() == [max(0, len(t) - 40) for t in TEXTS]
    assert table["text"].to_pylist() == cut
    assert table["token_ids"].to_pylist() == [reference.assembled.tokenizer.encode(t) for t in cut]  # type: ignore[union-attr]


def test_several_templates_are_several_columns_and_share_what_they_begin_with(
    model: Path, source: Path, reference: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    templates = ["Review: {text}. It was", "Review: {text}. Her role"]
    more = [arg for t in templates for arg in ("--template", t)]
    assert extract(model, source, tmp_path / "out.parquet", *more, "--layers", "0", "-1", "--page-size", "16") == 0
    for k, template in enumerate(templates):
        want = reference.extract([template.replace("{text}", t) for t in TEXTS], layers=[0, -1])
        for layer in (0, -1):
            got = vectors(tmp_path / "out.parquet", f"layer_{layer}_{k}")
            np.testing.assert_allclose(got, want[layer], atol=1e-5)
    cached = int(capsys.readouterr().err.rpartition("% cached")[0].rpartition(" ")[2])
    assert cached >= 35, "of each pair of prompts the second has all but its question from the first"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mode", ["last", "full"])
def test_safetensors(model: Path, source: Path, reference: Engine, tmp_path: Path, dtype: Any, mode: Any) -> None:
    more = ("--format", "safetensors", "--output-dtype", dtype, "--mode", mode, "--layers", "2", "-1", "--carry", "label")
    assert extract(model, source, tmp_path / "out", *PARTS, *more) == 0
    want = reference.extract(TEXTS, mode, layers=[2, -1], dtype=dtype)
    for number in range(3):
        part = slice(25 * number, 25 * number + 25)
        tensors = load_file(tmp_path / "out" / "data" / f"part-00000{number}.safetensors")
        facts = pq.read_table(tmp_path / "out" / "data" / f"part-00000{number}.rows.parquet")
        assert (
            facts["row"].to_pylist() == list(range(60))[part] and facts["label"].to_pylist() == [i % 3 for i in range(60)][part]
        )
        for layer in (2, -1):
            got = tensors[f"layer_{layer}"]
            if mode == "full":
                ends = tensors[f"layer_{layer}.offsets"]
                for i, rows in enumerate(want[layer][part]):
                    assert torch.equal(got[ends[i] : ends[i + 1]], torch.as_tensor(rows))
                assert len(ends) == len(want[layer][part]) + 1
            else:
                assert torch.equal(got, torch.as_tensor(want[layer][part]))


def test_groups_and_parts_are_bounded_by_bytes(
    model: Path, source: Path, reference: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "GROUP_BYTES", 10 * 256)
    monkeypatch.setattr(assembly, "PART_BYTES", 25 * 256)
    assert extract(model, source, tmp_path / "out") == 0
    groups = [pq.read_metadata(p) for p in sorted((tmp_path / "out" / "data").iterdir())]
    assert [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in groups] == [[10, 10, 5]] * 2 + [[10]]
    np.testing.assert_array_equal(vectors(tmp_path / "out"), reference.extract(TEXTS))
    for name, kind in (("out.parquet", ()), ("out.npy", ("--strict",))):
        assert extract(model, source, tmp_path / name, *kind) == 0
    np.testing.assert_array_equal(vectors(tmp_path / "out.parquet"), reference.extract(TEXTS))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy", mmap_mode="r"), reference.extract(TEXTS))
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".work") == []


@pytest.mark.parametrize("kind", ["folder", "out.parquet", "out.npy", "safetensors"])
def test_no_rows_are_an_output_too(model: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "in.jsonl").write_text("")
    more = ("--format", "safetensors") if kind == "safetensors" else ("--strict",)
    assert extract(model, tmp_path / "in.jsonl", tmp_path / kind, *more) == 0
    if kind == "out.npy":
        assert np.load(tmp_path / kind).shape == (0, 64)
    elif kind == "safetensors":
        assert load_file(tmp_path / kind / "data" / "part-000000.safetensors")["vector"].shape == (0, 64)
    else:
        table = pq.read_table(tmp_path / kind / "data" if kind == "folder" else tmp_path / kind)
        assert (len(table), table.column_names) == (0, ["row", "id", "vector"])
    assert main(["verify", str(tmp_path / kind)]) == 0


def test_vectors_are_never_null(model: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "a"}, {"text": ""}, {"text": "b"}])
    assert extract(model, source, tmp_path / "out") == 1
    table = pq.read_table(tmp_path / "out" / "data")
    assert not table.schema.field("vector").nullable and table["row"].to_pylist() == [0, 2]
    errors = pq.read_table(tmp_path / "out" / "errors.parquet").to_pylist()
    assert [(e["row"], e["id"], e["code"]) for e in errors] == [(1, "1", "empty_prompt")]
    assert contents(tmp_path / "out").keys() == {
        "data/part-000000.parquet", "errors/part-000000.parquet", "errors.parquet", "manifest.jsonl",
    }  # fmt: skip


def from_stdin(monkeypatch: pytest.MonkeyPatch, texts: list[str], command: list[str]) -> int:
    data = "".join(json.dumps({"text": t}) + "\n" for t in texts).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    return main(command)


def test_stdin_is_gone_on_with_only_if_it_says_the_same(
    model: Path, reference: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(model, "-", tmp_path / "out", "--input-format", "jsonl", "--rows-per-part", "20")
    assert from_stdin(monkeypatch, TEXTS, command) == 0
    np.testing.assert_array_equal(vectors(tmp_path / "out"), reference.extract(TEXTS))
    whole = contents(tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:3]))
    assert from_stdin(monkeypatch, [*TEXTS[:19], "another", *TEXTS[20:]], command) == 2
    assert "other rows than last time" in capsys.readouterr().err
    assert from_stdin(monkeypatch, TEXTS, command) == 0
    assert contents(tmp_path / "out") == whole
    assert from_stdin(monkeypatch, TEXTS, command) == 0
    for other in (TEXTS[:-1], [*TEXTS, "more"]):
        assert from_stdin(monkeypatch, other, command) == 2
        assert "stdin has" in capsys.readouterr().err
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--mode", "mean"), 'options.mode: was "last", is "mean"'),
        (("--output-dtype", "float16"), "options.output_dtype"),
        (("--template", "{text}!"), "options.templates"),
        (("--dtype", "bfloat16"), "engine.dtype"),
        (("--page-size", "16"), "engine.page_size"),
        (("--input", "other.jsonl"), "input[0].sha256"),
        (("--model-path", "other"), "model.model.safetensors[1]"),
        (("--shard", "0/2"), "other shards"),
    ],
)
def test_another_job_on_the_same_output_is_refused(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...], word: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "other.jsonl", [{"text": t} for t in reversed(TEXTS)])
    (tmp_path / "other").mkdir()
    for file in model.iterdir():
        data = file.read_bytes()
        (tmp_path / "other" / file.name).write_bytes(data[:-1] + b"\x01" if file.suffix == ".safetensors" else data)
    assert extract(model, source, tmp_path / "out", *PARTS) == 0
    whole = contents(tmp_path / "out")
    assert extract(model, source, tmp_path / "out", *PARTS, *more) == 2
    assert word in capsys.readouterr().err
    assert contents(tmp_path / "out") == whole
    if "--shard" not in more:
        assert extract(model, source, tmp_path / "out", *PARTS, *more, "--overwrite") == 0
        assert contents(tmp_path / "out") != whole


def test_what_is_not_ours_is_not_written_over(
    model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "old.parquet").write_bytes(b"PAR1")
    for output in (tmp_path / "mine", tmp_path / "old.parquet"):
        assert extract(model, source, output) == 2
        assert "no manifest" in capsys.readouterr().err
    assert [contents(tmp_path / "mine"), (tmp_path / "old.parquet").read_bytes()] == [{"thesis.txt": b"years of work"}, b"PAR1"]
    assert extract(model, source, tmp_path / "old.parquet", "--overwrite") == 0
    assert len(column(tmp_path / "old.parquet", "row")) == 60


def test_carried_names_may_not_be_ours(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "a", "vector": 1}])
    assert extract(model, source, tmp_path / "out", "--carry", "vector") == 2
    assert "column 'vector' of its own" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_shards_are_one_data_set(
    model: Path, source: Path, reference: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in (2, 0, 3):
        assert extract(model, source, tmp_path / "out", "--shard", f"{i}/4", "--rows-per-part", "10") == 0
    assert main(["verify", str(tmp_path / "out"), "--sample", "0"]) == 1
    assert "a shard is missing" in capsys.readouterr().out
    assert extract(model, source, tmp_path / "out", "--shard", "1/4", "--rows-per-part", "10") == 0
    assert main(["verify", str(tmp_path / "out"), "--sample", "4"]) == 0
    assert column(tmp_path / "out", "row") == list(range(60))
    np.testing.assert_array_equal(vectors(tmp_path / "out"), reference.extract(TEXTS))
    for more in (("--shard", "0/5"), ("--shard", "1/4", "--mode", "mean")):
        assert extract(model, source, tmp_path / "out", "--rows-per-part", "10", *more) == 2


def test_a_dry_run_counts_and_writes_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": t} for t in [*TEXTS, "", "y" * 600]])
    assert extract(model, source, tmp_path / "out", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "rows      62, of which 2 would fail (1 empty_prompt, 1 prompt_too_long)" in told
    assert f"tokens    {sum(map(len, TEXTS)):,}" in told
    assert f"vectors   {60 * 256 / 1024:.1f} KiB" in told and "time      about" in told
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_full_queue_is_waited_for(model: Path, source: Path, reference: Engine, tmp_path: Path) -> None:
    assert extract(model, source, tmp_path / "out", "--max-queued-requests", "3") == 0
    np.testing.assert_array_equal(vectors(tmp_path / "out"), reference.extract(TEXTS))


def test_plain_lines_where_there_is_no_terminal(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wellhead.frontends.bulk import progress

    monkeypatch.setattr(progress, "EVERY", 0.0)
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": t} for t in TEXTS * 5])
    assert run(build_parser().parse_args(arguments(model, source, tmp_path / "out"))) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("extract: 64 of 300 rows, ") and " tokens/s, " in lines[0] and lines[0].endswith(" left")
    assert lines[-1].startswith(f"300 vectors in {tmp_path / 'out'}: 300 rows in ")


def test_verify_notices_what_has_changed(model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert extract(model, source, tmp_path / "out", *PARTS) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert "16 rows computed again and compared bit by bit" in capsys.readouterr().out
    part = tmp_path / "out" / "data" / "part-000001.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    assert main(["verify", str(tmp_path / "out")]) == 1
    assert "part-000001.parquet has" in capsys.readouterr().out
    part.write_bytes(whole)
    (source.with_name("moved.jsonl")).write_bytes(source.read_bytes().replace(b"number 7 ", b"number 8 "))
    assert main(["verify", str(tmp_path / "out"), "--input", str(source.with_name("moved.jsonl"))]) == 1
    assert "input[0].sha256" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["verify"])
    assert main(["verify", str(tmp_path)]) == 2


@pytest.mark.parametrize("kind", ["parquet", "safetensors", "npy", "single"])
@pytest.mark.parametrize("mode", ["last", "full"])
def test_verify_notices_a_vector_that_is_not_the_models(
    model: Path,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    mode: str,
) -> None:
    from wellhead.frontends.bulk.output import stored

    if kind == "npy" and mode == "full":
        return
    output = tmp_path / {"npy": "out.npy", "single": "out.parquet"}.get(kind, "out")
    more = ("--format", kind) if kind in ("parquet", "safetensors") else ()
    assert extract(model, source, output, "--mode", mode, "--strict", *more) == 0
    assert main(["verify", str(output), "--sample", "3"]) == 0
    right = stored.StoredPart.vector
    monkeypatch.setattr(stored.StoredPart, "vector", lambda *args: np.nextafter(right(*args), np.float32(9)))
    assert main(["verify", str(output), "--sample", "3"]) == 1
    assert "vector comes out otherwise now" in capsys.readouterr().out


def test_columns_are_the_types_that_the_manifest_says(model: Path, source: Path, tmp_path: Path) -> None:
    assert extract(model, source, tmp_path / "out", "--mode", "full", "--carry", "label", "--save-token-ids") == 0
    header = json.loads((tmp_path / "out" / "manifest.jsonl").read_text().splitlines()[0])
    written: pa.Schema = pq.read_schema(tmp_path / "out" / "data" / "part-000000.parquet")
    assert [c["name"] for c in header["columns"]] == written.names
    assert header["columns"][2] == {"name": "label", "type": "int64"}
