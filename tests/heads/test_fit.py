"""``wellhead fit``: the whole way from files or texts to a head that is right, and a page that says how right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

import wellhead
from support.bulk import extract, write_jsonl
from wellhead.errors import InputFileError, InvalidHead, InvalidRequest
from wellhead.frontends.bulk.fingerprint import file_facts
from wellhead.frontends.cli import main
from wellhead.heads.fit.run import METHODS, fit_rows
from wellhead.heads.fit.sources import ArraySource, ParquetSource
from wellhead.heads.fit.split import deal
from wellhead.heads.head import Head
from wellhead.types import narrow

N, W = 900, 16
RNG = np.random.default_rng(11)
CODES = RNG.integers(0, 3, N)
NAMES = np.array(["calm", "glad", "mad"])[CODES]
TEXTS = [f"row {i} {'word ' * int(RNG.integers(1, 9))}" for i in range(N)]
#: Layer 2 says most, layer 0 nothing.
LAYERS = {
    la: (RNG.normal(size=(N, W)) * 3 + 40 + la * CODES[:, None] * np.eye(W)[la + 3] * 3).astype(np.float32) for la in range(3)
}


def write(path: Path, dtype: str = "float32", rows: slice = slice(None), group: int = 100, **columns: Any) -> Path:
    """A file as ``wellhead extract`` writes it."""
    arrays, fields = [], []
    for name, values in {"row": np.arange(N), "label": NAMES, "text": TEXTS, "talk": np.arange(N) // 3, **columns}.items():
        arrays.append(pa.array(list(values)[rows]))
        fields.append(pa.field(name, arrays[-1].type))
    for layer, x in LAYERS.items():
        stored = narrow(x[rows], dtype)  # type: ignore[arg-type]
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(stored.ravel()), W))
        fields.append(pa.field(f"layer_{layer}", arrays[-1].type, metadata={b"dtype": dtype.encode()}))
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, row_group_size=group)
    return path


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("labels", [NAMES, NAMES == "mad"], ids=["three", "two"])
def test_the_best_layer_is_found_and_the_figures_are_true(method: str, labels: Any) -> None:
    names = [str(v) for v in labels]
    fitted = fit_rows(ArraySource(LAYERS, names, np.arange(N) // 3, TEXTS), method=method)
    head, report = fitted.head, fitted.report
    assert report["layer"] == 2 and head.layers == (2,) and [s["layer"] for s in report["sweep"]] == [0, 1, 2]
    sweep = [s["auroc"] for s in report["sweep"]]
    assert sweep[0] < 0.6 < sweep[1] < sweep[2]
    codes = np.array([head.labels.index(v) for v in names], np.int32)
    test = deal(np.arange(N) // 3, codes, (0.7, 0.15, 0.15), 0) == 2
    scores = head.scores(LAYERS[2][test])
    p = head.probabilities(scores)
    assert report["test"]["accuracy"] == pytest.approx(accuracy_score(codes[test], p.argmax(1)))
    if len(head.labels) == 2:
        assert report["test"]["auroc"] == pytest.approx(roc_auc_score(codes[test], scores[:, 0]), abs=1e-6)
    else:
        wide = p.astype(np.float64) / p.astype(np.float64).sum(1, keepdims=True)
        assert report["test"]["auroc"] == pytest.approx(roc_auc_score(codes[test], wide, multi_class="ovr"), abs=1e-5)
    assert report["test"]["accuracy"] > 0.6 and report["test"]["auroc"] > 0.8
    assert 0.3 < report["baselines"]["length"]["auroc"] < 0.7 and 0.3 < report["baselines"]["bag_of_words"]["auroc"] < 0.7
    assert report["calibration"]["kind"] == "temperature" and report["calibration"]["rows"] == report["rows"]["calibrated"]
    hardest = report["hardest"]
    assert len(hardest) == 20 and hardest[0]["text"] == TEXTS[hardest[0]["row"]] and test[hardest[0]["row"]]
    assert hardest[0]["probability"] == pytest.approx(float(p[np.arange(test.sum()), codes[test]].min()))


def test_files_in_any_cut_give_the_head_of_the_arrays(tmp_path: Path) -> None:
    folder = tmp_path / "OUT" / "data"
    folder.mkdir(parents=True)
    write(folder / "part-000000.parquet", rows=slice(0, 350), group=77)
    write(folder / "part-000001.parquet", rows=slice(350, N))
    source = ParquetSource([tmp_path / "OUT"], "label", group="talk", text="text", chunk=64)
    assert source.layers == (0, 1, 2) and source.labels == ("calm", "glad", "mad") and source.width == W
    ours = fit_rows(source, method="ridge")
    arrays = fit_rows(ArraySource(LAYERS, NAMES, np.arange(N) // 3, TEXTS), method="ridge")
    assert np.allclose(ours.head.tensors["weight"], arrays.head.tensors["weight"], rtol=1e-9, atol=1e-12)
    assert ours.report["test"]["confusion"] == arrays.report["test"]["confusion"]
    assert ours.head.provenance["data"]["files"]["part-000001.parquet"][0] > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounded_vectors(dtype: str, tmp_path: Path) -> None:
    source = ParquetSource([write(tmp_path / "x.parquet", dtype)], "label", [2])
    rows = np.concatenate([x[2] for _, x in source.chunks([2])])
    assert rows.dtype == np.float32 and np.abs(rows - LAYERS[2]).max() <= 2**-7 * np.abs(LAYERS[2]).max()


def test_only_the_wanted_columns_are_read_one_row_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ParquetSource([write(tmp_path / "x.parquet")], "label", chunk=50)
    read: list[tuple[int, list[str]]] = []
    original = pq.ParquetFile.iter_batches

    def spied(self: Any, size: int, columns: list[str], row_groups: list[int]) -> Any:
        assert len(row_groups) == 1
        for batch in original(self, size, columns=columns, row_groups=row_groups):
            read.append((batch.num_rows, list(batch.schema.names)))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spied)
    for _ in source.chunks([1]):
        assert len(read) <= 2 or read[-1][0] <= 50
    assert {name for _, names in read for name in names} == {"layer_1"} and max(n for n, _ in read) <= 50


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write(tmp_path / "rows.parquet"), tmp_path / "mood.head"
    status = main([
        "fit", "--input", str(path), "--label-column", "label", "--layers", "1-2", "--output", str(out), "--group-column", "talk",
        "--text-column", "text", "--false-alarm-rate", "0.1", "--positive", "mad",
    ])  # fmt: skip
    said = capsys.readouterr().out
    assert status == 0 and "layer 2" in said and "auroc" in said and "threshold" in said
    head = Head.load(out)
    assert head.name == "mood" and head.labels == ("calm", "glad", "mad") and set(head.thresholds) == {"mad"}
    p = head.probabilities(head.scores(LAYERS[2]))[:, 2]
    assert (p[CODES != 2] >= head.thresholds["mad"]).mean() < 0.2
    report = json.loads((tmp_path / "mood.report.json").read_text())
    assert report["test"]["auroc"] == head.metrics["auroc"] and report["layer"] == 2
    page = (tmp_path / "mood.report.html").read_text()
    assert not re.search(r"https?:|src=|<script|@import|url\(", page), "nothing from elsewhere"
    assert page.count("<svg") >= 8 and "bag of words" in page


def test_a_report_of_hostile_texts_is_text(tmp_path: Path) -> None:
    from wellhead.heads.fit.report import page

    evil = ["<script>alert(1)</script>\udc80" for _ in range(N)]
    fitted = fit_rows(ArraySource({2: LAYERS[2]}, [f"<b>{v}" for v in NAMES], texts=evil), method="ridge")
    found = page(fitted.report)
    assert "<script" not in found and "<b>" not in found and "&lt;script&gt;" in found
    found.encode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": "forest"}, "method"), ({"calibration": "spline"}, "calibration"), ({"folds": 1}, "folds"),
        ({"c": 0.0}, "c must"),
        ({"positive": "sad"}, "no label 'sad'"), ({"depth": 3}, "depth"), ({"false_alarm_rate": 0.0001}, "negative rows"),
        ({"calibration": "isotonic"}, "two labels"), ({"penalty": -1.0}, "penalty"),
    ],
)  # fmt: skip
def test_options_that_are_wrong(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        fit_rows(ArraySource({2: LAYERS[2]}, NAMES), **{"method": "ridge", **change})


def test_data_that_are_too_small_or_broken(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="1 different labels"):
        ArraySource({2: LAYERS[2]}, ["a"] * N)
    with pytest.raises(InvalidRequest, match="null"):
        ArraySource({2: LAYERS[2]}, [None, *NAMES[1:]])
    with pytest.raises(InvalidRequest, match="3 labels for 900"):
        ArraySource({2: LAYERS[2]}, ["a", "b", "c"])
    with pytest.raises(InvalidRequest, match="no row of label 'b'"):
        fit_rows(ArraySource({2: LAYERS[2][:9]}, ["a"] * 8 + ["b"]))
    bad = LAYERS[2].copy()
    bad[700, 3] = np.nan
    with pytest.raises(InvalidRequest, match="row 700 of layer 2"):
        fit_rows(ArraySource({2: bad}, NAMES))
    few = fit_rows(ArraySource({2: LAYERS[2][:60]}, NAMES[:60]), method="ridge")
    assert few.head.calibration is None and "held-out rows" in few.report["calibration"]["why"]
    path = write(tmp_path / "x.parquet")
    for arguments, says in (
        ((["label"], [7]), "no column of layer 7"), ((["mood"],), "no column 'mood'"),
    ):  # fmt: skip
        with pytest.raises(InputFileError, match=says):
            ParquetSource([path], arguments[0][0], *arguments[1:])
    pq.write_table(pa.table({"label": ["a"], "vector": pa.array([[[1.0]]])}), tmp_path / "full.parquet")
    with pytest.raises(InputFileError, match="mode full"):
        ParquetSource([tmp_path / "full.parquet"], "label")
    (tmp_path / "torn.parquet").write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputFileError, match="torn"):
        ParquetSource([tmp_path / "torn.parquet"], "label")
    assert main(["fit", "--input", str(path), "--label-column", "label", "--output", str(tmp_path / "x.bin")]) == 2
    assert main(["fit", "--input", str(path), "--label-column", "label", "--output", str(tmp_path / "absent" / "x.head")]) == 2
    assert (
        main(["fit", "--input", str(path), "--label-column", "label", "--output", str(tmp_path / "x.head"), "--dtype", "auto"])
        == 2
    )


def test_from_texts_and_an_engine(engine: Callable[..., Any], tmp_path: Path) -> None:
    """Token ids whose last token says the label: any layer's last row has it."""
    one = engine("llama", capture_layers=(0, 1, -1))
    ids = [[int(v) for v in RNG.integers(5, 60, 6)] + [7 + i % 2] for i in range(120)]
    head = wellhead.fit(one, ids, [i % 2 for i in range(120)], name="parity", method="ridge", layers=[1, -1])
    assert head.labels == ("0", "1") and head.layers[0] in (1, one.assembled.config.layers)
    assert head.metrics["accuracy"] == 1.0 and head.provenance["engine"]["architecture"]
    rows = one.extract(ids[:5], layers=[head.layers[0]])[head.layers[0]]
    assert head.winners(head.scores(rows)) == ["0", "1", "0", "1", "0"]
    with pytest.raises(InvalidRequest, match="rows"):
        wellhead.fit(one, ids, [0] * 120, rows={"last": 3})
    with pytest.raises(InvalidRequest, match="text 3"):
        wellhead.fit(one, [*ids[:3], [], *ids[4:]], [i % 2 for i in range(120)])


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Texts whose last letter is their label."""
    rows = [{"text": f"number {i * 7919 % 1000} {'ab'[i % 2]}", "label": ("no", "yes")[i % 2]} for i in range(120)]
    return write_jsonl(tmp_path / "in.jsonl", rows)


def test_the_head_knows_which_rows_extract_took(reviews: Path, family: Callable[..., Path], tmp_path: Path) -> None:
    more = ("--carry", "label", "--rows", '{"last": 3}', "--reduce", "mean")
    assert extract(family("llama"), reviews, tmp_path / "OUT", *more) == 0
    out = str(tmp_path / "mood.head")
    assert main(["fit", "--input", str(tmp_path / "OUT"), "--label-column", "label", "--method", "ridge", "--output", out]) == 0
    assert (Head.load(Path(out)).rows, Head.load(Path(out)).reduce) == ({"last": 3}, "mean")


@pytest.mark.parametrize("target", ["OUT", "rows.parquet"])
def test_what_extract_wrote_is_fitted_and_the_head_knows_its_model(
    target: str, reviews: Path, family: Callable[..., Path], tmp_path: Path
) -> None:
    model, out = family("llama"), tmp_path / "mood.head"
    more = ("--layers", "1", "-1", "--carry", "label", "--mode", "mean") if target == "OUT" else ("--carry", "label")
    assert extract(model, reviews, tmp_path / target, *more) == 0
    assert (
        main(["fit", "--input", str(tmp_path / target), "--label-column", "label", "--method", "ridge", "--output", str(out)])
        == 0
    )
    head = Head.load(out)
    assert (head.rows, head.reduce) == (("all", "mean") if target == "OUT" else ("last", "rows"))
    assert head.provenance["model"] == file_facts([str(model)])
    head.check_model(file_facts([str(model)]), head.width, 4)
    other = family("qwen3")
    with pytest.raises(InvalidHead, match="another model"):
        head.check_model(file_facts([str(other)]), head.width, 4)


def test_rows_of_two_models_are_not_mixed(
    reviews: Path, family: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("llama", "qwen3"):
        assert extract(family(name), reviews, tmp_path / name, "--carry", "label") == 0
    both = [str(tmp_path / name) for name in ("llama", "qwen3")]
    assert main(["fit", "--input", *both, "--label-column", "label", "--output", str(tmp_path / "x.head")]) == 2
    assert "another model" in capsys.readouterr().err and not (tmp_path / "x.head").exists()


def test_from_texts_by_the_command(
    reviews: Path, family: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = family("llama"), tmp_path / "mood.head"
    command = ["fit", "--input", str(reviews), "--label-column", "label", "--model-path", str(model), "--output", str(out)]
    command += ["--max-total-tokens", "4096"]
    assert main(command) == 2 and "--text-column" in capsys.readouterr().err
    assert main([*command, "--text-column", "text", "--method", "ridge"]) == 0
    head = Head.load(out)
    assert head.metrics["accuracy"] == 1.0 and head.provenance["model"] == file_facts([str(model)])
    report = json.loads((tmp_path / "mood.report.json").read_text())
    assert [s["layer"] for s in report["sweep"]] == list(range(len(report["sweep"]))) and len(report["sweep"]) > 2
    write_jsonl(reviews, [{"text": "a", "label": 1}, {"text": "b"}])
    assert main([*command, "--text-column", "text"]) == 2 and "row 1" in capsys.readouterr().err


def test_memory_does_not_grow_with_the_row_groups(tmp_path: Path) -> None:
    schema = pa.schema([("label", pa.string()), ("vector", pa.list_(pa.float32(), 256))])
    with pq.ParquetWriter(tmp_path / "x.parquet", schema, compression="none", use_dictionary=False) as file:
        for _ in range(64):  # of 512 KiB each
            x = pa.FixedSizeListArray.from_arrays(pa.array(RNG.normal(size=512 * 256).astype(np.float32)), 256)
            file.write_table(pa.Table.from_arrays([pa.array(["a", "b"] * 256), x], schema=schema))
    source = ParquetSource([tmp_path / "x.parquet"], "label", chunk=256)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in source.chunks([-1])]
    assert len(held) == 128 and max(held) < 8 << 20, "of 32 MiB"
