"""Aggregates: each against its formula over all rows, and the same bits in whatever chunks the rows came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.heads import W, make, normal
from wellhead.errors import InvalidHead, NonFinite
from wellhead.heads.aggregate import Aggregate, checked, plain
from wellhead.heads.head import Head

S = normal(57, 3).astype(np.float32)
Rows = NDArray[Any]


def soft(q: Rows) -> Rows:
    e = np.exp(q - q.max(axis=0))
    return np.asarray(e / e.sum(axis=0))


def ema(s: Rows, a: float, e: Rows) -> list[Rows]:
    found = []
    for row in s:
        e = a * row + (1 - a) * e
        found.append(e)
    return found


WIDE = S.astype(np.float64)
#: What is said, and what that is over the whole of S.
FORMULAS: list[tuple[Any, Rows]] = [
    ("mean", WIDE.mean(0)),
    ("max", WIDE.max(0)),
    ("last", WIDE[-1]),
    ("first", WIDE[0]),
    ("ema", np.max(ema(WIDE, 0.5, np.zeros(3)), axis=0)),
    ({"kind": "ema", "a": 0.1, "take": "last"}, ema(WIDE, 0.1, np.zeros(3))[-1]),
    ({"kind": "ema", "a": 0.1, "start": "first"}, np.max(ema(WIDE, 0.1, WIDE[0]), axis=0)),
    ("window", WIDE[-16:].mean(0)),
    ({"kind": "window", "size": 5, "take": "max"}, np.max([WIDE[max(0, i - 4) : i + 1].mean(0) for i in range(57)], axis=0)),
    ("softmax", (soft(WIDE) * WIDE).sum(0)),
    ({"kind": "softmax", "tau": 0.2}, (soft(WIDE / 0.2) * WIDE).sum(0)),
    ("k_in_a_row", np.max([WIDE[i : i + 2].min(0) for i in range(56)], axis=0)),
    ({"kind": "k_in_a_row", "k": 3}, np.max([WIDE[i : i + 3].min(0) for i in range(55)], axis=0)),
]


def running(made: Aggregate, features: Rows, *sizes: int) -> Rows:
    out, at = [], 0
    for size in sizes:
        out.append(made.update(features[at : at + size]))
        at += size
    assert at == len(features)
    return np.concatenate(out)


@pytest.mark.parametrize(("said", "expected"), FORMULAS, ids=[str(said) for said, _ in FORMULAS])
def test_against_the_formula_and_in_any_chunks(said: Any, expected: Rows) -> None:
    whole = plain(said, 3)
    steps = running(whole, S, 57)
    assert np.allclose(whole.value(), expected, atol=1e-6)
    assert np.array_equal(steps[-1], whole.value())
    for sizes in ([1] * 57, [3] * 19, [16, 0, 16, 25], [56, 1]):
        other = plain(said, 3)
        assert np.array_equal(running(other, S, *sizes), steps)
        assert np.array_equal(other.value(), whole.value())
    for k in (1, 2, 15, 16, 17):
        short = plain(said, 3)
        short.update(S[:k])
        assert np.array_equal(short.value(), steps[k - 1])


def pooled_head(kind: str, window: int = 0) -> Head:
    return make(kind, aggregate={"kind": kind, "window": window} if window else kind)


@pytest.mark.parametrize("window", [0, 10])
def test_attention_online_is_attention_in_two_passes(window: int) -> None:
    head, x = pooled_head("attention", window), normal(57, W)
    made = head.accumulator()
    features = head.features(x)
    steps = running(made, features, 57)
    q, v = features[:, :4].astype(np.float64), features[:, 4:].reshape(57, 4, 3).astype(np.float64)

    def over(a: int, b: int) -> Rows:
        return np.einsum("jm,jmc->c", soft(q[a:b]), v[a:b]) + head.tensors["bias"]

    expected = np.max([over(max(0, i - 9), i + 1) for i in range(57)], axis=0) if window else over(0, 57)
    assert np.allclose(made.value(), expected, rtol=1e-6, atol=1e-6)
    assert np.array_equal(running(head.accumulator(), features, *[1] * 57), steps)
    assert np.allclose(q, x @ head.tensors["query"].T, atol=1e-5)
    only = head.accumulator()
    only.update(features[:1])
    assert np.allclose(only.value(), head.scores(x[:1])[0], atol=1e-6)


def test_attention_holds_far_apart_queries() -> None:
    """Sums of plain exponentials would overflow."""
    head = Head("h", "attention", (0,), 2, ("a",), {"query": np.array([[1.0, 0]]), "value": np.array([[0, 1.0]])})
    made = head.accumulator()
    made.update(head.features(np.array([[-1e4, 5.0], [1e4, 7.0], [0.0, 9.0]])))
    assert made.value() == np.float32(7.0)


def test_multimax() -> None:
    head, x = pooled_head("multimax"), normal(57, W)
    made = head.accumulator()
    steps = running(made, head.features(x), 57)
    assert np.allclose(made.value(), (x @ head.tensors["value"].T).reshape(57, 4, 3).max(0).sum(0), atol=1e-5)
    assert np.array_equal(running(head.accumulator(), head.features(x), *[19] * 3), steps)


def test_two_in_a_row_by_the_highest_score() -> None:
    made = plain({"kind": "k_in_a_row", "of": "argmax"}, 3)
    rows = np.array([[3, 2, 1], [1, 2, 0], [0, 5, 4], [0, 1, 9]], np.float32)
    assert (made.update(rows) >= 1).tolist() == [[False] * 3, [False] * 3, [False, True, False], [False, True, False]]


def test_before_k_rows_nothing_is_in_a_row() -> None:
    assert np.isneginf(plain("k_in_a_row", 3).update(S[:1])).all()


def test_ema_from_zero_is_low_at_first_and_from_the_first_row_is_not() -> None:
    high = np.full((3, 1), 10, np.float32)
    assert plain({"kind": "ema", "a": 0.1}, 1).update(high)[:, 0].tolist() == pytest.approx([1.0, 1.9, 2.71])
    assert plain({"kind": "ema", "a": 0.1, "start": "first"}, 1).update(high)[:, 0].tolist() == pytest.approx([10] * 3)


def test_no_rows_is_no_verdict() -> None:
    made = plain("max", 3)
    assert made.value() is None and made.update(S[:0]).shape == (0, 3) and made.value() is None


@pytest.mark.parametrize("said", [said for said, _ in FORMULAS], ids=str)
def test_a_bad_row_poisons_nothing_and_a_copy_is_independent(said: Any) -> None:
    made, other = plain(said, 3), plain(said, 3)
    made.update(S[:20])
    other.update(S[:20])
    bad = S[20:23].copy()
    bad[1, 1] = np.nan
    with pytest.raises(NonFinite):
        made.update(bad)
    rejected = made.copy()
    rejected.update(S[40:])
    made.update(S[20:])
    other.update(S[20:])
    assert made.rows == 57 and np.array_equal(made.value(), other.value())


@pytest.mark.parametrize(
    "said",
    [
        "median", None, 3, {"kind": "ema", "a": 0}, {"kind": "ema", "a": 1.5}, {"kind": "ema", "a": True}, {"kind": "ema", "b":
        1},
        {"kind": "window", "size": 0}, {"kind": "window", "size": 10**9}, {"kind": "window", "size": 2.5}, {"kind": "softmax",
        "tau": -1},
        {"kind": "k_in_a_row", "k": 0}, {"kind": "ema", "start": "middle"}, {"kind": ["ema"]},
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(said: Any) -> None:
    with pytest.raises(InvalidHead):
        checked(said)


def test_aggregates_and_kinds_must_fit() -> None:
    for kind, said in (("linear", "attention"), ("attention", "mean"), ("multimax", "attention")):
        with pytest.raises(InvalidHead, match=r"aggregate|kind"):
            make(kind, aggregate=said)
    with pytest.raises(InvalidHead):
        make("attention").accumulator("mean")
