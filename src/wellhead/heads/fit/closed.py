"""Fits that need nothing but moments: ridge, linear discriminant analysis, difference of means. Weights ``[C, W]`` and bias
``[C]``.

With two classes there is one row, whose score speaks for the second class.
"""

from __future__ import annotations

import numpy as np

from wellhead.errors import InvalidRequest
from wellhead.heads.fit.moments import Array, Moments

Weights = tuple[Array, Array]


class Ridge:
    """Least squares on targets -1 and 1 (scikit-learn's ``RidgeClassifier``) for any number of penalties: one
    eigendecomposition."""

    def __init__(self, moments: Moments) -> None:
        self._m = moments
        self._values, self._vectors = np.linalg.eigh(moments.total())
        self._values = np.maximum(self._values, 0.0)
        targets = _targets(len(moments.counts))
        self._centre = moments.counts @ targets / moments.count
        apart = moments.means - moments.mean
        self._towards = self._vectors.T @ (apart.T @ (moments.counts[:, None] * (targets - self._centre)))

    def weights(self, penalty: float) -> Weights:
        below = self._values + penalty
        kept = below > self._values.max(initial=0.0) * len(below) * np.finfo(np.float64).eps
        w = (self._vectors @ (self._towards * np.where(kept, 1 / np.where(kept, below, 1.0), 0.0)[:, None])).T
        return w, self._centre - w @ self._m.mean


def squared_error(moments: Moments, weights: Weights) -> float:
    """Mean squared error of a ridge fit on the rows of these moments, without reading them again."""
    w, b = weights
    off = moments.means @ w.T + b - _targets(len(moments.counts))
    return float(
        (np.einsum("cw,wv,cv->", w, moments.within, w) + (moments.counts[:, None] * off**2).sum()) / max(moments.count, 1.0)
    )


def lda(moments: Moments, shrinkage: float = 0.0) -> Weights:
    """``S = (1 - g) within / n + g tr / W I``; scikit-learn's ``LinearDiscriminantAnalysis(solver="lsqr")``."""
    width = len(moments.within)
    spread = moments.within / moments.count
    spread = (1 - shrinkage) * spread + shrinkage * np.trace(spread) / width * np.eye(width)
    w = np.linalg.lstsq(spread, moments.means.T, rcond=None)[0].T
    b = -0.5 * (moments.means * w).sum(axis=1) + np.log(np.maximum(moments.counts, 1e-300) / moments.count)
    return _paired(w, b)


def mean_difference(moments: Moments) -> Weights:
    """Nearest class mean; with two classes the difference of means, 0 in the middle."""
    w = moments.means
    return _paired(w, -0.5 * (w**2).sum(axis=1)) if len(w) > 2 else _halfway(w)


def _halfway(means: Array) -> Weights:
    w = means[1:] - means[:1]
    return w, -(w @ (means[0] + means[1])) / 2


def _paired(w: Array, b: Array) -> Weights:
    return (w[1:] - w[:1], b[1:] - b[:1]) if len(w) == 2 else (w, b)


def _targets(classes: int) -> Array:
    """Of each class, ``[C, outputs]``."""
    return np.array([[-1.0], [1.0]]) if classes == 2 else 2 * np.eye(classes) - 1


def check_counts(moments: Moments, labels: tuple[str, ...]) -> None:
    """``InvalidRequest`` where a class has no row to learn from."""
    for label, count in zip(labels, moments.counts, strict=True):
        if count < 1:
            said = f"no row of label {label!r} among those to learn from"
            raise InvalidRequest(f"{said}: too few rows, or too few groups", param="labels")
