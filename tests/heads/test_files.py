"""The head file: what is written is what is read, and what is hostile or torn is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as packed

from support.heads import KINDS, W, make, normal
from wellhead.errors import InvalidHead, OutputFileError
from wellhead.heads.file import KEY, MOST_HEADER, decode, encode, load_all
from wellhead.heads.head import MOST_LABELS, Head


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, tmp_path: Path) -> None:
    head = make(
        kind, rows={"last": 8}, reduce="mean", thresholds={"b": 0.8}, metrics={"auroc": 0.93}, provenance={"model": {"name": "m"}}
    )
    path = head.save(tmp_path / "x.head")
    again = Head.load(path)
    x = normal(5, W).astype(np.float32)
    assert np.array_equal(again.features(x), head.features(x))
    assert again.rows == {"last": 8} and again.layers == (5,) and again.labels == ("a", "b", "c")
    assert again.thresholds == {"b": 0.8} and again.metrics == {"auroc": 0.93} and again.provenance == {"model": {"name": "m"}}
    assert all(again.tensors[name].dtype == t.dtype for name, t in head.tensors.items()), "float64 weights stay float64"
    assert again.version and encode(again) == path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["x.head"]


def test_the_version_follows_the_bytes() -> None:
    assert decode(encode(make("linear"))).version != decode(encode(make("linear"))).version
    head = make("mlp")
    assert decode(encode(head)).version == decode(encode(head)).version


def test_a_file_of_safetensors_is_open_to_others(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = make("linear").save(tmp_path / "x.head")
    with safe_open(path, "np") as file:
        assert json.loads(file.metadata()[KEY])["kind"] == "linear"
        assert file.get_tensor("weight").shape == (3, W)


def test_bfloat16_weights_are_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    weight = torch.randn(3, W).to(torch.bfloat16)
    facts = json.loads(json.dumps({**facts_of(make("linear"))}))
    save_file({"weight": weight}, tmp_path / "x.head", metadata={KEY: json.dumps(facts)})
    assert np.array_equal(Head.load(tmp_path / "x.head").tensors["weight"], weight.float().numpy())


def facts_of(head: Head) -> dict[str, Any]:
    body = encode(head)
    size = int.from_bytes(body[:8], "little")
    return dict(json.loads(json.loads(body[8 : 8 + size])["__metadata__"][KEY]))


def file_of(facts: Any, tensors: dict[str, Any] | None = None) -> bytes:
    text = facts if isinstance(facts, str) else json.dumps(facts)
    return bytes(packed(tensors if tensors is not None else dict(make("linear").tensors), metadata={KEY: text}))


def test_every_prefix_of_a_file_is_refused() -> None:
    body = encode(make("linear"))
    for size in (*range(0, 64), *range(64, len(body), 97), len(body) - 1):
        with pytest.raises(InvalidHead):
            decode(body[:size])
    with pytest.raises(InvalidHead):
        decode(body + b"x")


def test_every_flipped_byte_of_the_header_gives_a_head_or_a_typed_error() -> None:
    body = encode(make("linear"))
    size = int.from_bytes(body[:8], "little")
    for at in range(8 + size):
        try:
            decode(body[:at] + bytes([body[at] ^ 0x11]) + body[at + 1 :])
        except InvalidHead:
            continue


def test_metadata_of_a_hundred_megabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.head"
    with path.open("wb") as file:
        file.write((100 << 20).to_bytes(8, "little"))
        file.truncate(101 << 20)
    with pytest.raises(InvalidHead, match=f"{100 << 20} bytes.*at most {MOST_HEADER}"):
        Head.load(path)
    with pytest.raises(InvalidHead, match="holds at most"):
        make("linear", metrics={"x": "y" * MOST_HEADER}).save(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "../../etc/passwd"}, "name"), ({"name": ".."}, "name"), ({"name": "a/b"}, "name"), ({"name": ""}, "name"),
        ({"name": 5}, "name"), ({"labels": [f"l{i}" for i in range(10_000)]}, f"10000 labels.*{MOST_LABELS}"),
        ({"labels": ["a", "a", "b"]}, "twice"), ({"labels": []}, "labels"), ({"labels": "abc"}, "list"), ({"labels": ["a",
        "b"]}, "3 scores"),
        ({"labels": [["a"], "b", "c"]}, "label"), ({"format": 2}, "format 2"), ({"kind": "sae"}, "unknown kind"), ({"kind":
        ["linear"]}, "kind|facts"),
        ({"surprise": 1}, "unknown field 'surprise'"), ({"layers": []}, "layers"), ({"layers": [1, 1]}, "layers"), ({"layers":
        [-7]}, "layer"),
        ({"layers": ["L"]}, "layer"), ({"width": 41}, "shape"), ({"width": -1}, "width"), ({"width": 1 << 60}, "width"),
        ({"width": "40"}, "width"),
        ({"activation": "os.system"}, "activation"), ({"steps": [{"do": "exec"}]}, "unknown operation"), ({"steps": [[]]},
        "unknown operation"),
        ({"steps": [{"do": "standardise"}]}, "missing"), ({"reduce": "median"}, "reduce"), ({"rows": ""}, "rows"), ({"rows":
        None}, "rows"),
        ({"thresholds": {"z": 0.5}}, "threshold"), ({"thresholds": {"a": "high"}}, "threshold"), ({"thresholds": []}, "object"),
        ({"aggregate": "median"}, "aggregate"), ({"calibration": {"kind": "isotonic"}}, "missing"), ({"body": 3}, "object"),
    ],
)  # fmt: skip
def test_hostile_facts(change: dict[str, Any], says: str) -> None:
    body = file_of({**facts_of(make("linear")), **change})
    with pytest.raises(InvalidHead, match=says) as caught:
        decode(body, "evil.head")
    assert caught.value.code == "invalid_head" and "evil.head" in caught.value.message


def test_facts_that_are_not_facts() -> None:
    text = json.dumps(facts_of(make("linear")))
    for bad in (
        "[]",
        "7",
        "{",
        text.replace("{", '{"format": 1, ', 1),
        text.replace('"metrics": {}', '"metrics": {"x": NaN}'),
        "[" * 100_000,
    ):
        with pytest.raises(InvalidHead):
            decode(file_of(bad))
    with pytest.raises(InvalidHead, match="not a head file"):
        decode(bytes(packed({"weight": np.zeros(3)})))
    with pytest.raises(InvalidHead):
        decode(b"PK\x03\x04 a zip, or \x80\x04 a pickle" * 10)
    with pytest.raises(InvalidHead, match="missing"):
        decode(file_of({"format": 1, "name": "x"}))


def test_weights_that_are_not_numbers() -> None:
    facts = facts_of(make("linear"))
    good = dict(make("linear").tensors)
    for bad in (np.nan, np.inf):
        weight = good["weight"].copy()
        weight[1, 3] = bad
        with pytest.raises(InvalidHead, match=r"'weight' holds NaN"):
            decode(file_of(facts, {**good, "weight": weight}))
    with pytest.raises(InvalidHead, match="I64"):
        decode(file_of(facts, {**good, "weight": np.zeros((3, W), np.int64)}))
    with pytest.raises(InvalidHead, match="missing"):
        decode(file_of(facts, {"bias": good["bias"]}))


def test_folders_and_names_that_are_there_twice(tmp_path: Path) -> None:
    for name in ("mood", "safety"):
        make("linear", name=name).save(tmp_path / f"{name}.head")
    (tmp_path / "notes.txt").write_text("not a head")
    assert list(load_all([tmp_path])) == ["mood", "safety"]
    with pytest.raises(InvalidHead, match="two heads are named 'mood'"):
        load_all([tmp_path, tmp_path / "mood.head"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidHead, match=r"no \*.head file"):
        load_all([tmp_path / "empty"])
    with pytest.raises(InvalidHead, match="No such file"):
        load_all([tmp_path / "absent.head"])


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = make("linear").save(tmp_path / "x.head")
    before = path.read_bytes()
    with pytest.raises(InvalidHead):
        make("mlp", metrics={"x": object()}).save(path)
    assert path.read_bytes() == before
    with pytest.raises(OutputFileError):
        make("mlp").save(tmp_path / "absent" / "x.head")
