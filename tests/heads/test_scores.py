"""A row's score is the same bits whatever stands beside it, in whatever kind of head."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.heads import KINDS, RNG, W, make, normal
from wellhead.errors import InvalidHead, NonFinite
from wellhead.heads.head import Head
from wellhead.heads.together import Together


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_does_not_depend_on_its_company(kind: str) -> None:
    head = make(kind)
    rows = normal(200, W).astype(np.float32)
    alone = np.concatenate([head.features(rows[i : i + 1]) for i in range(200)])
    likely = np.concatenate([head.probabilities(head.scores(rows[i : i + 1])) for i in range(200)])
    for k in range(1, 201):
        assert np.array_equal(head.features(rows[:k]), alone[:k]), k
    for step in (1, 3, 64):
        pieces = [head.features(rows[at : at + step]) for at in range(0, 200, step)]
        assert np.array_equal(np.concatenate(pieces), alone)
    order = RNG.permutation(200)
    assert np.array_equal(head.features(rows[order]), alone[order])
    assert np.array_equal(head.features(np.asfortranarray(rows)), alone)
    assert np.array_equal(head.probabilities(head.scores(rows)), likely)


def test_wide_rows_keep_their_bits_too() -> None:
    """Wider than what a BLAS may share among its threads, and not a multiple of anything."""
    width = 3 * 4099
    head = make("linear", width, layers=(1, 2, 3))
    rows = normal(7, width).astype(np.float32)
    assert np.array_equal(head.scores(rows), np.concatenate([head.scores(rows[i : i + 1]) for i in range(7)]))
    assert np.allclose(head.logits(rows), rows.astype(np.float64) @ head.tensors["weight"].T + head.tensors["bias"], atol=1e-9)


def test_more_rows_than_one_block() -> None:
    head = make("linear")
    rows = normal(2500, W).astype(np.float32)
    assert np.array_equal(head.scores(rows)[1020:1030], head.scores(rows[1020:1030]))
    assert head.scores(rows[:0]).shape == (0, 3)


def test_heads_together_have_the_bits_that_they_have_alone() -> None:
    heads = [make(kind, name=f"h{i}") for i, kind in enumerate((*KINDS, *KINDS))]
    rows = normal(33, W).astype(np.float32)
    for chosen in (heads, heads[:1], heads[3:9], heads[::-1]):
        for head, found in zip(chosen, Together(chosen).features(rows), strict=True):
            assert found is not None and np.array_equal(found, head.features(rows)), head.kind


def test_a_head_that_overflows_does_not_concern_the_others() -> None:
    loud = Head("loud", "linear", (5,), W, ("a",), {"weight": np.full((1, W), 1e300)})
    first, second = Together([loud, make("linear")]).features(np.full((2, W), 1e30, np.float32))
    assert first is None and second is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("kind", KINDS[:4])
def test_a_bad_row_is_named(kind: str, bad: float) -> None:
    rows = normal(3, W).astype(np.float32)
    rows[1, 4] = bad
    with pytest.raises(NonFinite, match="'h'"):
        make(kind).features(rows)


def test_each_kind_is_what_its_formula_says() -> None:
    x = normal(6, W)
    head = make("steps")
    t = head.tensors
    y = (x - t["steps.0.mean"]) / t["steps.0.scale"]
    y = (y - t["steps.1.mean"]) @ t["steps.1.matrix"].T
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    assert np.allclose(head.logits(x), y @ t["weight"].T, atol=1e-10)
    head = make("quadratic")
    t = head.tensors
    expected = [
        t["prior"] - 0.5 * (np.log(2 * np.pi * t["variance"]) + (row - t["mean"]) ** 2 / t["variance"]).sum(1) for row in x
    ]
    assert np.allclose(head.logits(x), expected, atol=1e-9)
    head = make("multimax")
    assert np.allclose(head.logits(x), (x @ head.tensors["value"].T).reshape(6, 4, 3).sum(1))


def test_a_wide_layer_over_a_projection_is_not_folded_into_something_larger() -> None:
    head = Head(
        "h", "mlp", (1,), 64, ("a",), steps=({"do": "project"},), body={"stack": [{"do": "linear"}, {"do": "relu"}, {"do":
        "linear"}]},
        tensors={
            "steps.0.mean": normal(64), "steps.0.matrix": normal(2, 64), "stack.0.weight": normal(50, 2), "stack.2.weight":
            normal(1, 50),
        },
    )  # fmt: skip
    x = normal(3, 64)
    y = (x - head.tensors["steps.0.mean"]) @ head.tensors["steps.0.matrix"].T
    y = np.maximum(y @ head.tensors["stack.0.weight"].T, 0)
    assert np.allclose(head.logits(x), y @ head.tensors["stack.2.weight"].T)
    assert head.evaluator.program is not None and len(head.evaluator.program.ops) == 4


@pytest.mark.parametrize(
    ("activation", "columns", "labels", "expected"),
    [
        ("softmax", [[1.0, 2.0]], 2, [0.26894142, 0.73105858]),
        ("sigmoid", [[1.0]], 1, [0.73105858]),
        ("sigmoid", [[1.0]], 2, [0.26894142, 0.73105858]),
        ("sigmoid", [[1.0, -1.0]], 2, [0.73105858, 0.26894142]),
        ("ovr", [[0.0, 0.0, 0.0]], 3, [1 / 3, 1 / 3, 1 / 3]),
        ("identity", [[-3.0]], 2, [-3.0]),
        ("sigmoid", [[1000.0]], 2, [0.0, 1.0]),
        ("softmax", [[-1000.0, 1000.0]], 2, [0.0, 1.0]),
    ],
)
def test_probabilities(activation: str, columns: list[list[float]], labels: int, expected: list[float]) -> None:
    count = len(columns[0])
    head = Head("h", "linear", (0,), W, tuple("abc"[:labels]), {"weight": normal(count, W)}, activation=activation)
    with np.errstate(all="raise", under="ignore"):
        assert np.allclose(head.probabilities(np.array(columns)), [expected], atol=1e-7)


def test_the_winner_of_a_margin_is_its_sign() -> None:
    head = Head("h", "linear", (0,), W, ("no", "yes"), {"weight": normal(1, W)})
    assert head.winners(np.array([[-0.1], [0.2]])) == ["no", "yes"]


@pytest.mark.parametrize("activation", ["softmax", "ovr"])
def test_one_score_under_softmax_is_refused(activation: str) -> None:
    with pytest.raises(InvalidHead, match="always 1"):
        Head("h", "linear", (0,), W, ("a", "b"), {"weight": normal(1, W)}, activation=activation)


def test_calibrations() -> None:
    base: dict[str, Any] = {"name": "h", "kind": "linear", "layers": (0,), "width": W, "activation": "sigmoid"}
    weight = {"weight": normal(1, W)}
    z = np.array([[-2.0], [0.0], [5.0]])
    cool = Head(**base, labels=("a",), tensors=weight, calibration={"kind": "temperature", "t": 2.0})
    assert np.allclose(cool.probabilities(z)[:, 0], 1 / (1 + np.exp(-z[:, 0] / 2)))
    platt = Head(**base, labels=("a", "b"), tensors=weight, calibration={"kind": "platt", "a": 0.5, "b": -1})
    assert np.allclose(platt.probabilities(z)[:, 1], 1 / (1 + np.exp(-(0.5 * z[:, 0] - 1))))
    table = {"calibration.0.x": np.array([-1.0, 1.0]), "calibration.0.y": np.array([0.25, 0.75])}
    stairs = Head(**base, labels=("a", "b"), tensors={**weight, **table}, calibration={"kind": "isotonic"})
    assert np.allclose(stairs.probabilities(z)[:, 1], [0.25, 0.5, 0.75])
    for wrong in ({"kind": "temperature", "t": 0}, {"kind": "temperature"}, {"kind": "isotonic"}, {"kind": "spline"}, "platt"):
        with pytest.raises(InvalidHead):
            Head(**base, labels=("a",), tensors=weight, calibration=wrong)


def test_a_token_difference_is_the_two_logits_of_the_lm_head() -> None:
    lm_head = normal(50, W).astype(np.float32)
    ids = {" yes": 7, "no": 9}

    def row(token: int | str) -> NDArray[np.float32]:
        if isinstance(token, str) and token not in ids:
            raise InvalidHead(f"{token!r} is not one token")
        return lm_head[ids[token] if isinstance(token, str) else token]

    base: dict[str, Any] = {
        "kind": "token_difference",
        "layers": (-1,),
        "width": W,
        "labels": ("no", "yes"),
        "activation": "sigmoid",
    }
    head = Head("judge", **base, body={"positive": " yes", "negative": 9})
    x = normal(4, W).astype(np.float32)
    with pytest.raises(InvalidHead, match="before the model"):
        head.scores(x)
    logits = x.astype(np.float64) @ lm_head.T.astype(np.float64)
    assert np.allclose(head.resolve(row).logits(x)[:, 0], logits[:, 7] - logits[:, 9])
    pair = np.exp(logits[:, [9, 7]])
    assert np.allclose(head.resolve(row).probabilities(head.resolve(row).scores(x)), pair / pair.sum(1, keepdims=True), atol=1e-6)
    alone = Head("judge", **{**base, "labels": ("yes",)}, body={"positive": 7}).resolve(row)
    assert np.allclose(alone.logits(x)[:, 0], logits[:, 7])
    with pytest.raises(InvalidHead, match="not one token"):
        Head("judge", **base, body={"positive": "yes please", "negative": "no"}).resolve(row)
    with pytest.raises(InvalidHead, match="positive"):
        Head("judge", **base, body={"negative": "no"})


def test_a_head_of_another_model_is_refused_by_name() -> None:
    head = make("linear", name="mood", provenance={"model": {"name": "SmolLM2", "digest": "1"}})
    other = {"name": "Qwen3", "digest": "2"}
    head.check_model({"name": "SmolLM2", "digest": "1"}, W, 12)
    head.check_model(other, W, 12, force=True)
    with pytest.raises(InvalidHead, match=r"'mood'.*SmolLM2.*Qwen3"):
        head.check_model(other, W, 12)
    with pytest.raises(InvalidHead, match=r"'mood'.*width 40.*64 wide"):
        head.check_model(other, 64, 12, force=True)
    with pytest.raises(InvalidHead, match=r"'mood'.*layer 5.*0 to 4"):
        head.check_model(other, W, 4, force=True)
    with pytest.raises(InvalidHead, match=r"\[2, 41\] instead of \[k, 40\]"):
        head.scores(np.zeros((2, 41), np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_travels_to_another_process(kind: str) -> None:
    head, rows = make(kind, thresholds={"a": 0.5}), normal(3, W).astype(np.float32)
    for again in (pickle.loads(pickle.dumps(head)), copy.deepcopy(head)):
        assert np.array_equal(again.features(rows), head.features(rows)) and again.thresholds == head.thresholds
