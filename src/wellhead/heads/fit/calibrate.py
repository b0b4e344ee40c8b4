"""Calibrations fitted on rows that the weights have not seen. Refused where there are too few rows for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest
from wellhead.heads.fit.iterative import loss_and_slope
from wellhead.heads.fit.moments import Array

#: Rows that each kind needs, and how many of them of every label.
NEEDED = {"temperature": (20, 5), "platt": (50, 10), "isotonic": (200, 50)}


def calibrate(kind: str, scores: Array, codes: NDArray[np.int32], classes: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """``Head.calibration`` and its tensors, from scores ``[n, outputs]``. ``InvalidRequest``: unknown, or too few rows."""
    if kind not in NEEDED:
        raise InvalidRequest(f"calibration must be one of {', '.join(NEEDED)}, or 'none', not {kind!r}", param="calibration")
    if kind != "temperature" and scores.shape[1] != 1:
        raise InvalidRequest(f"calibration {kind!r} is for two labels; use 'temperature'", param="calibration")
    rows, each = NEEDED[kind]
    least = int(np.bincount(codes, minlength=classes).min())
    if len(codes) < rows or least < each:
        needs = f"calibration {kind!r} needs {rows} held-out rows with {each} of every label"
        raise InvalidRequest(f"{needs}; there are {len(codes)} with {least} of the rarest", param="calibration")
    if kind == "temperature":
        return {"kind": "temperature", "t": temperature(scores, codes), "rows": len(codes)}, {}
    if kind == "platt":
        a, b = platt(scores[:, 0], codes == 1)
        return {"kind": "platt", "a": a, "b": b, "rows": len(codes)}, {}
    x, y = isotonic(scores[:, 0], codes == 1)
    return {"kind": "isotonic", "rows": len(codes)}, {"calibration.0.x": x, "calibration.0.y": y}


def temperature(scores: Array, codes: NDArray[np.int32]) -> float:
    """T of least log loss of scores / T, within 1e-3 and 1e3: by golden section, the loss has one valley in 1 / T."""
    ratio = (np.sqrt(5) - 1) / 2
    low, high = np.log(1e-3), np.log(1e3)
    while high - low > 1e-7:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss_and_slope(scores * np.exp(-left), codes)[0] <= loss_and_slope(scores * np.exp(-right), codes)[0]:
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))


def platt(z: Array, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """a and b of ``sigmoid(a z + b)``, with Platt's targets (a little inside 0 and 1), by damped Newton steps."""
    ones, zeros = positive.sum(), (~positive).sum()
    t = np.where(positive, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    middle, spread = z.mean(), max(float(z.std()), 1e-12)
    x = np.stack([(z - middle) / spread, np.ones(len(z))], axis=1)

    def loss(w: Array) -> float:
        s = x @ w
        return float((np.logaddexp(0, s) - t * s).sum())

    w = np.array([0.0, np.log((ones + 1) / (zeros + 1))])
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -500, 500)))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + 1e-12 * np.eye(2), x.T @ (p - t))
        rate = 1.0
        while loss(w - rate * step) > loss(w) and rate > 1e-10:
            rate /= 2
        w = w - rate * step
        if np.abs(rate * step).max() < 1e-10:
            break
    return float(w[0] / spread), float(w[1] - w[0] * middle / spread)


def isotonic(z: Array, positive: NDArray[np.bool_]) -> tuple[Array, Array]:
    """The rising steps of least squared error (pool adjacent violators), as points to go through in straight lines."""
    x, inverse, counts = np.unique(z, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=positive.astype(np.float64)) / counts
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many x
    for mean, weight in zip(means.tolist(), counts.tolist(), strict=True):
        pool = (mean, float(weight), 1)
        while pools and pools[-1][0] >= pool[0]:
            last = pools.pop()
            total = last[1] + pool[1]
            pool = ((last[0] * last[1] + pool[0] * pool[1]) / total, total, last[2] + pool[2])
        pools.append(pool)
    y = np.repeat([p[0] for p in pools], [p[2] for p in pools])
    kept = np.ones(len(y), bool)
    kept[1:-1] = (y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])
    return x[kept].astype(np.float64), np.clip(y[kept], 0, 1)
