"""Every fit against scikit-learn on the same rows, moments against one pass, thresholds and calibrations against their
definition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import StandardScaler

from wellhead.errors import InvalidRequest
from wellhead.heads.fit.calibrate import calibrate, isotonic, platt, temperature
from wellhead.heads.fit.closed import Ridge, lda, mean_difference, squared_error
from wellhead.heads.fit.iterative import logistic
from wellhead.heads.fit.judge import alarm_threshold, auroc, calibration_error, figures, macro_auroc, reliability, roc
from wellhead.heads.fit.moments import Moments, merged
from wellhead.heads.fit.split import deal

RNG = np.random.default_rng(3)
N, W = 600, 12
Y3 = RNG.integers(0, 3, N).astype(np.int32)
Y2 = (Y3 > 0).astype(np.int32)
X = RNG.normal(size=(N, W)) * np.linspace(0.2, 20, W) + 5
X[:, 2] += Y3 * 2
X[:, 5] -= (Y3 == 1) * 6
BOTH = pytest.mark.parametrize("y", [Y2, Y3], ids=["two", "three"])


def moments(x: Any, y: Any, *cuts: int) -> Moments:
    classes = int(y.max()) + 1
    parts = []
    for a, b in zip((0, *cuts), (*cuts, len(x)), strict=True):
        part = Moments(x.shape[1], classes)
        part.update(x[a:b], y[a:b])
        parts.append(part)
    return merged(parts)


def same(a: NDArray[Any], b: NDArray[Any], tolerance: float = 1e-4) -> None:
    assert a.shape == b.shape and np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max())


@BOTH
@pytest.mark.parametrize("penalty", [1e-2, 1.0, 1e4])
def test_ridge(y: Any, penalty: float) -> None:
    source = RidgeClassifier(alpha=penalty).fit(X, y)
    m = moments(X, y, 100, 250)
    w, b = Ridge(m).weights(penalty)
    same(w, np.atleast_2d(source.coef_))
    same(b, np.atleast_1d(source.intercept_))
    targets = np.where(np.arange(3)[None] == y[:, None], 1.0, -1.0) if y.max() == 2 else 2.0 * y[:, None] - 1
    assert squared_error(m, (w, b)) == pytest.approx(((X @ w.T + b - targets) ** 2).sum(1).mean(), rel=1e-9)


def test_ridge_without_a_penalty_on_fewer_rows_than_columns() -> None:
    w, b = Ridge(moments(X[:8], np.arange(8) % 2)).weights(0.0)
    assert np.abs((X[:8] @ w.T + b)[:, 0] - (2 * (np.arange(8) % 2) - 1)).max() < 1e-6


@BOTH
@pytest.mark.parametrize("shrinkage", [None, 0.3])
def test_lda(y: Any, shrinkage: float | None) -> None:
    source = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, y)
    w, b = lda(moments(X, y, 7), shrinkage or 0.0)
    if shrinkage is None:
        same(w, source.coef_)
        same(b, source.intercept_)
    else:  # scikit-learn shrinks each class after standardising it; the formula here is on the pooled scatter itself
        pooled = sum(np.cov(X[y == c].T, bias=True) * (y == c).mean() for c in range(int(y.max()) + 1))
        pooled = 0.7 * pooled + 0.3 * np.trace(pooled) / W * np.eye(W)
        means = np.stack([X[y == c].mean(0) for c in range(int(y.max()) + 1)])
        full = np.linalg.solve(pooled, means.T).T
        same(w, full if len(means) > 2 else full[1:] - full[:1])


@BOTH
def test_mean_difference_is_the_nearest_mean(y: Any) -> None:
    w, b = mean_difference(moments(X, y))
    z = X @ w.T + b
    said = z.argmax(1) if z.shape[1] > 1 else (z[:, 0] > 0).astype(int)
    assert np.array_equal(said, NearestCentroid().fit(X, y).predict(X))


@BOTH
@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
def test_logistic(y: Any, c: float) -> None:
    z = StandardScaler().fit_transform(X)
    source = LogisticRegression(C=c, tol=1e-10, max_iter=5000).fit(z, y)

    def chunks() -> Iterator[tuple[Any, Any]]:
        yield from ((z[at : at + 97], y[at : at + 97]) for at in range(0, N, 97))

    w, b = logistic(chunks, W, int(y.max()) + 1, N, c)
    same(w, source.coef_)
    same(b - b.mean() * (len(b) > 1), source.intercept_ - source.intercept_.mean() * (len(b) > 1))
    scores = z @ w.T + b
    ours = macro_auroc(y, scores)
    theirs = source.decision_function(z)
    expected = roc_auc_score(y, theirs) if y.max() == 1 else np.mean([roc_auc_score(y == k, theirs[:, k]) for k in range(3)])
    assert ours == pytest.approx(expected, abs=1e-6)


def test_moments_of_any_split_are_those_of_one_pass() -> None:
    whole = moments(X, Y3)
    for cuts in ((1,), (0, 0), (300,), tuple(range(1, N)), (599,)):
        part = moments(X, Y3, *cuts)
        assert np.array_equal(part.counts, whole.counts)
        assert np.abs(part.means - whole.means).max() <= 1e-12 * np.abs(whole.means).max()
        assert np.abs(part.total() - whole.total()).max() <= 1e-12 * np.abs(whole.total()).max()
    order = RNG.permutation(N)
    assert np.allclose(moments(X[order], Y3[order], 50).within, whole.within, rtol=1e-12, atol=1e-9)
    same(whole.total(), (X - X.mean(0)).T @ (X - X.mean(0)), 1e-12)
    same(whole.scale(), StandardScaler().fit(X).scale_, 1e-12)


def test_moments_of_nothing_and_of_one_row() -> None:
    none = Moments(4, 2)
    none.update(np.zeros((0, 4)), np.zeros(0, np.int32))
    none.merge(Moments(4, 2))
    assert none.count == 0 and not none.total().any() and none.scale().tolist() == [1.0] * 4
    none.update(np.full((1, 4), 7.0), np.array([1]))
    assert none.mean.tolist() == [7.0] * 4 and not none.total().any() and none.scale().tolist() == [1.0] * 4


def test_a_spread_of_a_thousandth_on_a_mean_of_a_million() -> None:
    small = RNG.normal(size=(2000, 3)) * 1e-3
    far = small + 1e6
    exact = far - 1e6
    m = moments(far, np.arange(2000) % 2, 1, 700, 701)
    assert np.allclose(np.sqrt(np.diag(m.total()) / 2000), exact.std(0), rtol=1e-3)


def test_rows_sent_twice_count_twice() -> None:
    once, twice = moments(X, Y2), moments(np.concatenate([X, X]), np.concatenate([Y2, Y2]))
    assert twice.count == 2 * once.count and np.allclose(twice.total(), 2 * once.total())


def test_auroc_with_ties_and_its_curve() -> None:
    scores = np.round(RNG.normal(size=500) + 0.7 * Y2[:500], 1)
    positive = Y2[:500] == 1
    assert auroc(positive, scores) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    points = np.array([[0, 0, 0], *roc(positive, scores, 10_000)])
    assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(roc_auc_score(positive, scores), abs=1e-9)
    assert points[-1, :2].tolist() == [1, 1] and len(roc(positive, RNG.normal(size=500), 50)) == 50
    assert auroc(np.ones(3, bool), np.zeros(3)) is None


def test_figures() -> None:
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.45, 0.55]])
    found = figures(np.array([0, 1, 1, 0], np.int32), np.log(p[:, 1:] / p[:, :1]), p)
    assert found["accuracy"] == 0.5 and found["confusion"] == [[1, 1], [1, 1]] and found["auroc"] == 0.75
    assert found["brier"] == pytest.approx(np.mean([0.01, 0.04, 0.36, 0.3025]))
    assert found["log_loss"] == pytest.approx(log_loss([0, 1, 1, 0], p))
    assert found["ece"] == pytest.approx((0.1 + 0.2 + 0.6 + 0.55) / 4)
    assert sum(b["count"] for b in reliability(np.ones(3, bool), np.array([0.0, 0.5, 1.0]))) == 3
    assert calibration_error([]) == 0


def test_temperature_has_the_least_loss() -> None:
    z = RNG.normal(size=(4000, 3)) * 2
    y = np.array([RNG.choice(3, p=e / e.sum()) for e in np.exp(z)], np.int32)
    assert temperature(z * 3, y) == pytest.approx(3.0, rel=0.1)
    assert temperature(z / 3, y) == pytest.approx(1 / 3, rel=0.1)


def test_platt_and_isotonic_are_scikit_learns() -> None:
    from sklearn.calibration import _SigmoidCalibration

    z = RNG.normal(size=800) * 3
    y = RNG.random(800) < 1 / (1 + np.exp(-(0.5 * z - 1)))
    source = _SigmoidCalibration().fit(z, y)
    a, b = platt(z, y)
    assert (a, b) == (pytest.approx(-source.a_, rel=1e-3), pytest.approx(-source.b_, rel=1e-3))
    ties = np.round(z, 1)
    stairs = IsotonicRegression(out_of_bounds="clip").fit(ties, y)
    at = np.linspace(-12, 12, 999)
    assert np.abs(np.interp(at, *isotonic(ties, y)) - stairs.predict(at)).max() < 1e-9


def test_separable_scores_do_not_break_platt() -> None:
    z = np.array([-3.0, -2, -1, 1, 2, 3] * 10)
    a, b = platt(z, z > 0)
    assert math.isfinite(a) and a > 0 and abs(b) < 1e-3


@pytest.mark.parametrize("kind", ["temperature", "platt", "isotonic"])
def test_too_few_rows_calibrate_nothing(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="held-out rows"):
        calibrate(kind, np.zeros((19, 1)), (np.arange(19) % 2).astype(np.int32), 2)
    lonely = np.zeros(1000, np.int32)
    lonely[0] = 1
    with pytest.raises(InvalidRequest, match="1 of the rarest"):
        calibrate(kind, np.zeros((1000, 1)), lonely, 2)


def test_the_alarm_threshold_keeps_its_promise_or_refuses() -> None:
    negatives = np.arange(99, dtype=np.float32)
    threshold = alarm_threshold(negatives, 0.05)  # ceil(100 * 0.95) = 95th smallest = 94
    assert threshold == np.nextafter(np.float32(94), np.float32(np.inf)) and (negatives >= threshold).sum() == 4
    assert alarm_threshold(negatives, 0.01) > 98
    with pytest.raises(InvalidRequest, match=r"98 negative rows.*at least 99"):
        alarm_threshold(negatives[:98], 0.01)
    ties = np.zeros(200, np.float32)
    assert (ties >= alarm_threshold(ties, 0.1)).sum() == 0, "equal scores on both sides of the threshold"
    for rate in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(InvalidRequest):
            alarm_threshold(negatives, rate)
    alarms = [(RNG.random(1000) >= alarm_threshold(RNG.random(99), 0.1)).mean() for _ in range(300)]
    assert np.mean(alarms) < 0.11


def test_groups_never_straddle_a_split_and_every_label_is_everywhere() -> None:
    groups = RNG.integers(0, 120, 2000)
    codes = (groups % 10 == 0).astype(np.int32)
    part = deal(groups, codes, (0.7, 0.15, 0.15), 1)
    for g in np.unique(groups):
        assert len(set(part[groups == g].tolist())) == 1
    for p, share in ((0, 0.7), (1, 0.15), (2, 0.15)):
        assert abs((part == p).mean() - share) < 0.05
        assert {0, 1} == set(codes[part == p].tolist())
    assert np.array_equal(part, deal(groups, codes, (0.7, 0.15, 0.15), 1))
    assert not np.array_equal(part, deal(groups, codes, (0.7, 0.15, 0.15), 2))
