"""``--rows`` and ``--reduce``: the rows of ``Engine.extract``, labelled, in every shape of output."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from support.bulk import TEXTS, arguments, contents, extract, killed_at, write_jsonl
from wellhead.errors import InvalidConfig
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.wish import Wish
from wellhead.frontends.bulk.work import sources
from wellhead.frontends.cli import build_parser, main
from wellhead.frontends.engine import Engine
from wellhead.reads import Rows

PARTS = ("--rows-per-part", "25")
LAYERS = (2, "L:pre_norm")
#: An option, and the words of ``Engine.extract`` for the same.
WISHES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--rows", "last"), {"rows": "last"}),
    (("--rows", "-1"), {"rows": -1}),
    (("--rows", "all"), {"rows": "all"}),
    (("--rows", "prompt", "--reduce", "max"), {"rows": "prompt", "reduce": "max"}),
    (("--rows", "-8:"), {"rows": slice(-8, None)}),
    (("--rows", "0,5,11", "--reduce", "sum"), {"rows": [0, 5, 11], "reduce": "sum"}),
    (("--rows", "[0, 5, -1]"), {"rows": [0, 5, -1]}),
    (("--rows", '{"last": 8, "exclude": {"positions": [-1]}}', "--reduce", "mean"), {
        "rows": {"last": 8, "exclude": {"positions": [-1]}}, "reduce": "mean"}),
    (("--reduce", "weighted_mean"), {"reduce": "weighted_mean"}),
]  # fmt: skip

Read = tuple[list[Any], list[list[int]], list[list[int]] | None]


def read_parquet(table: Any, name: str) -> Read:
    tokens = table["token_ids"].to_pylist() if "token_ids" in table.column_names else None
    return table[name].to_pylist(), table["positions"].to_pylist(), tokens


def read_safetensors(folder: Path, name: str) -> Read:
    """Every part's texts one after another."""
    vectors, positions, tokens = [], [], []
    for path in sorted((folder / "data").glob("*.safetensors")):
        part = load_file(path)
        ends = part["position_offsets"].tolist()
        rows = part[f"{name}.offsets"].tolist() if f"{name}.offsets" in part else None
        for i in range(len(ends) - 1):
            vectors.append(part[name][rows[i] : rows[i + 1]] if rows else part[name][i])
            positions.append(part["positions"][ends[i] : ends[i + 1]].tolist())
            tokens.append(part["token_ids"][ends[i] : ends[i + 1]].tolist())
    return vectors, positions, tokens


@pytest.mark.parametrize(
    ("kind", "flags", "words"),
    [(kind, *wish) for wish, kind in zip(WISHES, itertools.cycle(["folder", "out.parquet", "safetensors"]), strict=False)],
)
def test_the_rows_are_the_engines_and_say_which_they_are(
    model: Path, source: Path, reference: Engine, tmp_path: Path, kind: str, flags: tuple[str, ...], words: dict[str, Any]
) -> None:
    more = ("--format", kind, *PARTS) if kind == "safetensors" else PARTS if kind == "folder" else ()
    layers = ("--layers", "2", "L:pre_norm", "--token-ids")
    assert extract(model, source, tmp_path / kind, *more, *layers, *flags) == 0
    want, at = reference.extract(TEXTS, layers=list(LAYERS), return_positions=True, **words)
    prompts = [reference.tokenizer.encode(t) for t in TEXTS]  # type: ignore[union-attr]
    for layer in LAYERS:
        if kind == "safetensors":
            got, positions, tokens = read_safetensors(tmp_path / kind, f"layer_{layer}")
        else:
            data = tmp_path / kind / "data" if kind == "folder" else tmp_path / kind
            got, positions, tokens = read_parquet(pq.read_table(data), f"layer_{layer}")
        assert positions == [p.tolist() for p in at]
        assert tokens == [[ids[p] for p in one] for ids, one in zip(prompts, positions, strict=True)]
        for mine, theirs in zip(got, want[layer], strict=True):
            np.testing.assert_array_equal(np.asarray(mine, np.float32).reshape(theirs.shape), theirs)
    assert main(["verify", str(tmp_path / kind), "--sample", "4"]) == 0


def test_a_file_of_npy_holds_any_one_vector(model: Path, source: Path, reference: Engine, tmp_path: Path) -> None:
    assert extract(model, source, tmp_path / "out.npy", "--strict", "--rows", "-3:", "--reduce", "mean") == 0
    want = reference.extract(TEXTS, rows="-3:", reduce="mean")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), want)
    assert main(["verify", str(tmp_path / "out.npy"), "--sample", "2"]) == 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_of_no_rows_there_is_no_vector(model: Path, source: Path, reference: Engine, tmp_path: Path, dtype: Any) -> None:
    seven = reference.tokenizer.encode("7")[-1]  # type: ignore[union-attr]
    words = json.dumps({"token_ids": [seven]})
    some = [seven in reference.tokenizer.encode(t) for t in TEXTS]  # type: ignore[union-attr]
    assert 0 < sum(some) < len(some)
    more = ("--rows", words, "--output-dtype", dtype)
    for name, kind in (("one.parquet", ()), ("many", PARTS), ("st", ("--format", "safetensors")), ("n.npy", ("--strict",))):
        if dtype == "bfloat16" and name == "n.npy":
            continue
        assert extract(model, source, tmp_path / name, *more, "--reduce", "mean", *kind) == 0
        assert main(["verify", str(tmp_path / name), "--sample", "60"]) == 0
    for data in (tmp_path / "one.parquet", tmp_path / "many" / "data"):
        table = pq.read_table(data)
        assert (
            [v is not None for v in table["vector"].to_pylist()] == some == [len(p) > 0 for p in table["positions"].to_pylist()]
        )
    tensors = load_file(tmp_path / "st" / "data" / "part-000000.safetensors")
    want = reference.extract(TEXTS, rows={"token_ids": [seven]}, reduce="mean", dtype=dtype)
    assert torch.equal(tensors["vector"].isnan(), torch.as_tensor(want).isnan())
    assert torch.equal(tensors["vector"][some], torch.as_tensor(want)[some])
    if dtype != "bfloat16":
        np.testing.assert_array_equal(np.load(tmp_path / "n.npy"), want)
    assert extract(model, source, tmp_path / "rows", *more) == 0
    table = pq.read_table(tmp_path / "rows" / "data")
    assert [len(v) for v in table["vector"].to_pylist()] == [len(p) for p in table["positions"].to_pylist()]
    assert not table.schema.field("vector").nullable and [len(p) > 0 for p in table["positions"].to_pylist()] == some


def test_templates_have_labels_of_their_own(model: Path, source: Path, reference: Engine, tmp_path: Path) -> None:
    templates = ["{text}", "Say: {text}"]
    more = [arg for t in templates for arg in ("--template", t)]
    for kind in ("parquet", "safetensors"):
        assert extract(model, source, tmp_path / kind, *more, "--rows", "-2:", "--format", kind) == 0
        assert main(["verify", str(tmp_path / kind), "--sample", "2"]) == 0
    table, tensors = (
        pq.read_table(tmp_path / "parquet" / "data"),
        load_file(tmp_path / "safetensors/data/part-000000.safetensors"),
    )
    for k, template in enumerate(templates):
        _, at = reference.extract([template.replace("{text}", t) for t in TEXTS], rows="-2:", return_positions=True)
        assert table[f"positions_{k}"].to_pylist() == [p.tolist() for p in at]
        np.testing.assert_array_equal(tensors[f"positions_{k}"], np.concatenate(at))
        np.testing.assert_array_equal(tensors[f"position_offsets_{k}"], np.arange(0, 121, 2))


def options(model: Path, *more: str) -> Options:
    return Options.from_args(build_parser().parse_args(arguments(model, "in.jsonl", Path("out"), *more)))


@pytest.mark.parametrize(
    ("flags", "ceiling"),
    [
        ((), "last"), (("--mode", "mean"), "full"), (("--mode", "full"), "full"), (("--reduce", "mean"), "full"),
        (("--rows", "-8:"), "last"), (("--rows", '{"last": 8}', "--reduce", "mean"), "last"), (("--rows", "0,-1"), "full"),
        (("--rows", "-2,-1"), "last"), (("--rows", ":8"), "full"),
    ],
)  # fmt: skip
def test_the_ceiling_is_what_the_rows_cost(model: Path, flags: tuple[str, ...], ceiling: str) -> None:
    asked = sources._engine_options(options(model, *flags, "--layers", "-2", "-1:pre_norm"))
    assert (asked["return_hidden_states_mode"], asked["capture_layers"]) == (ceiling, [-2, "-1:pre_norm"])


def test_a_ceiling_of_last_is_enough_for_the_last_rows(
    model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = ("--return-hidden-states-mode", "last")
    assert extract(model, source, tmp_path / "a", "--rows", "-8:", *last) == 0
    assert extract(model, source, tmp_path / "b", "--rows", "-8:", "--return-hidden-states-mode", "full") == 0
    assert contents(tmp_path / "a") == {**contents(tmp_path / "b"), "manifest.jsonl": contents(tmp_path / "a")["manifest.jsonl"]}
    assert extract(model, source, tmp_path / "c", "--rows", ":8", *last) == 2
    assert "above the server's maximum" in capsys.readouterr().err


def test_a_row_that_a_text_lacks_fails_that_text_alone(
    model: Path, reference: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["long enough", "no", "also long enough"]
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": t} for t in texts])
    assert extract(model, source, tmp_path / "out", "--rows", "0,5,7", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "3, of which 1 would fail (1 row_out_of_range)" in told and f"{2 * 3 * 256 / 1024:.1f} KiB" in told
    assert extract(model, source, tmp_path / "out", "--rows", "0,5,7") == 1
    table = pq.read_table(tmp_path / "out" / "data")
    assert table["row"].to_pylist() == [0, 2] and table["positions"].to_pylist() == [[0, 5, 7]] * 2
    (failed,) = pq.read_table(tmp_path / "out" / "errors.parquet").to_pylist()
    assert (failed["row"], failed["code"]) == (1, "row_out_of_range") and "row 5 does not exist" in failed["message"]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--mode", "last", "--rows", "all"), "--mode last is short for --rows and --reduce"),
        (("--mode", "mean", "--reduce", "mean"), "--mode mean is short"),
        (("--token-ids",), "give one of them"),
        (("--token-ids", "--mode", "full"), "give one of them"),
        (("--token-ids", "--rows", "all", "--save-token-ids"), "token_ids[positions]"),
        (("--rows", '{"chars": [0, 4]}'), "--rows: chars are of a prompt's text"),
        (("--rows", "output"), "none are generated"),
        (("--rows", '{"part": "output", "last": 2}'), "none are generated"),
        (("--rows", '{"last": 8'), "is not JSON"),
        (("--rows", '{"first": 8}'), "unknown key 'first'"),
        (("--rows", "::-1"), "--rows"),
        (("--rows", "0;5"), "not '0;5'"),
        (("--rows", "-8:", "--output", "out.npy", "--strict"), "one float32 or float16 vector per text"),
        (("--rows", "-1", "--token-ids", "--output", "out.npy", "--strict"), "no place for other columns"),
        (("--rows", "-1", "--carry", "positions"), "column 'positions' of its own"),
        (("--layers", "L:postnorm"), "L:postnorm"),
    ],
)
def test_what_cannot_be_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...],
    word: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "fine", "positions": 1}])
    assert extract(model, source, tmp_path / "out", *more) == 2
    assert word in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_words_of_python_are_words_of_json() -> None:
    def words(rows: Any) -> Any:
        return Wish.of(None, rows, None, None, False).words

    assert words(slice(-8, None)) == {"start": -8} and words((0, 5)) == [0, 5] and words(range(2)) == [0, 1]
    assert words(Rows(last=3, exclude_token_ids=(7,))) == {"part": "all", "step": 1, "last": 3, "exclude": {"token_ids": [7]}}
    for given in (slice(1, 9, 2), (0, 5), Rows(last=3, exclude_positions=(0,)), "-8:", {"last": 2}):
        wish = Wish.of(None, given, None, None, False)
        assert Wish.of(None, json.loads(json.dumps(wish.words)), None, None, False).rows == wish.rows
    with pytest.raises(InvalidConfig, match="say chars"):
        words(Rows(spans=((0, 2),)))


def test_another_wish_is_another_job(model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ("--rows", '{"last": 4, "step": 2}', "--reduce", "mean")
    assert extract(model, source, tmp_path / "out", *PARTS, *first) == 0
    whole = contents(tmp_path / "out")
    for more, word in (
        (("--rows", '{"last": 5, "step": 2}', "--reduce", "mean"), "options.rows.last: was 4, is 5"),
        ((*first[:3], "sum"), 'options.reduce: was "mean", is "sum"'),
        ((*first, "--token-ids"), "options.token_ids"),
        (("--mode", "mean"), 'options.mode: was null, is "mean"'),
        ((), "options.rows: was "),
    ):
        assert extract(model, source, tmp_path / "out", *PARTS, *more) == 2
        assert word in capsys.readouterr().err
    assert extract(model, source, tmp_path / "out", *PARTS, "--rows", '{"step":2,"last":4}', "--reduce", "mean") == 0
    assert "it was complete already" in capsys.readouterr().err
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("kind", ["parquet", "safetensors"])
def test_what_is_missing_is_made_again_to_the_byte(model: Path, source: Path, tmp_path: Path, kind: str) -> None:
    more = (*PARTS, "--rows", "-3:", "--token-ids", "--format", kind)
    assert extract(model, source, tmp_path / "out", *more) == 0
    whole = contents(tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:2]))
    assert extract(model, source, tmp_path / "out", *more) == 0
    assert contents(tmp_path / "out") == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "output", "more"),
    [
        ("group", "out", ("--rows", "all", *PARTS)),
        ("data", "out", ("--rows", '{"last": 3}', "--token-ids", "--format", "safetensors", *PARTS)),
        ("merged", "out.parquet", ("--rows", "17:", "--reduce", "mean")),
    ],
)
def test_killed_and_gone_on_with(model: Path, source: Path, tmp_path: Path, point: str, output: str, more: Any) -> None:
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    killed_at(point, 1, arguments(model, source, tmp_path / "broken" / output, *more))
    for folder in ("whole", "broken"):
        assert extract(model, source, tmp_path / folder / output, *more) == 0
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["parquet", "safetensors"])
@pytest.mark.parametrize("name", ["positions", "token_ids"])
def test_verify_notices_labels_that_are_not_the_rows(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str,
    name: str,
) -> None:  # fmt: skip
    from wellhead.frontends.bulk.output import stored

    assert extract(model, source, tmp_path / "out", "--rows", "-3:", "--token-ids", "--format", kind) == 0
    right = stored.StoredPart.label
    monkeypatch.setattr(stored.StoredPart, "label", lambda self, row, n, at: right(self, row, n, at) + (n == name))
    assert main(["verify", str(tmp_path / "out"), "--sample", "2"]) == 1
    assert f"{name} come out otherwise now" in capsys.readouterr().out


def test_a_wish_weighs_no_more_rows_than_it_can_have(model: Path) -> None:
    def most(*flags: str) -> int:
        return options(model, *flags).wish.most_rows(100)

    assert [most(), most("--mode", "mean"), most("--mode", "full"), most("--rows", "all", "--reduce", "sum")] == [0, 0, 100, 0]
    assert [most("--rows", w) for w in ("-8:", "0,5,17", "10:40:3", '{"token_ids": [1]}')] == [8, 3, 10, 100]
    assert [most("--rows", w) for w in ('{"last": 8}', "200:", ":-98", '{"last": 8, "stop": 3}')] == [8, 0, 2, 3]
