"""Figures of a classifier: from labels and scores alone, numpy only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest

Array = NDArray[np.floating]
BINS = 10


def auroc(positive: NDArray[np.bool_], scores: Array) -> float | None:
    """Chance that a positive scores above a negative, ties counting half; ``None`` if either is missing."""
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def macro_auroc(codes: NDArray[np.int32], scores: Array) -> float | None:
    """Of ``[n, C]``: the mean over classes, each against the rest; of ``[n, 1]`` that of class 1."""
    if scores.shape[1] == 1:
        return auroc(codes == 1, scores[:, 0])
    each = [auroc(codes == c, scores[:, c]) for c in range(scores.shape[1])]
    known = [a for a in each if a is not None]
    return float(np.mean(known)) if known else None


def roc(positive: NDArray[np.bool_], scores: Array, most: int = 200) -> list[list[float]]:
    """``[false alarms, detections, threshold]`` from the highest threshold down; at most ``most`` points."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    hits = np.cumsum(positive[order])[ends]
    ones, zeros = max(int(positive.sum()), 1), max(int((~positive).sum()), 1)
    points = np.stack([(ends + 1 - hits) / zeros, hits / ones, scores[order][ends]], axis=1)
    kept = np.unique(np.linspace(0, len(points) - 1, min(most, len(points))).round().astype(int))
    return [[float(v) for v in p] for p in points[kept]]


def reliability(positive: NDArray[np.bool_], p: Array) -> list[dict[str, float]]:
    """Ten bins of equal width: how many, their mean probability, and how often it was so. Empty bins are left out."""
    at = np.minimum((p * BINS).astype(int), BINS - 1)
    bins = []
    for b in np.unique(at):
        mine = at == b
        bins.append({"count": int(mine.sum()), "said": float(p[mine].mean()), "true": float(positive[mine].mean())})
    return bins


def calibration_error(bins: list[dict[str, float]]) -> float:
    """ECE: the bins' gaps, weighted by their counts."""
    total = sum(b["count"] for b in bins)
    return float(sum(b["count"] * abs(b["said"] - b["true"]) for b in bins) / max(total, 1))


def figures(codes: NDArray[np.int32], scores: Array, p: Array) -> dict[str, Any]:
    """Accuracy, AUROC, log loss, Brier, ECE (of the winning label's probability; of the second of two), confusion
    ``[true][said]``."""
    classes = p.shape[1]
    at = np.arange(len(codes))
    said = p.argmax(axis=1)
    confusion = np.zeros((classes, classes), int)
    np.add.at(confusion, (codes, said), 1)
    if classes == 2:
        bins, brier = reliability(codes == 1, p[:, 1]), float(((p[:, 1] - (codes == 1)) ** 2).mean())
    else:
        bins = reliability(said == codes, p[at, said])
        brier = float(((p - np.eye(classes)[codes]) ** 2).sum(axis=1).mean())
    return {
        "rows": len(codes),
        "accuracy": float((said == codes).mean()),
        # Scores of several labels may share an offset that differs from row to row; their probabilities do not.
        "auroc": macro_auroc(codes, scores if scores.shape[1] == 1 else p),
        "log_loss": float(-np.log(np.clip(p[at, codes], 1e-15, 1)).mean()),
        "brier": brier,
        "ece": calibration_error(bins),
        "ece_bins": f"{BINS} of equal width, weighted by count",
        "reliability": bins,
        "confusion": confusion.tolist(),
    }


def alarm_threshold(negatives: Array, rate: float) -> float:
    """From which score on to raise an alarm, so that of new negatives at most ``rate`` do (on average over calibration sets).

    ``negatives``: one score for each decision that will be made (the maximum over a stream, if the alarm is on that).
    Just above the ``ceil((n + 1)(1 - rate))``-th smallest. ``InvalidRequest`` where that exceeds n: so few negatives promise
    nothing.
    """
    if not 0 < rate < 1:
        raise InvalidRequest(f"a rate of false alarms is between 0 and 1, not {rate!r}", param="false_alarm_rate")
    count = len(negatives)
    rank = math.ceil(round((count + 1) * (1 - rate), 9))
    if rank > count:
        needed = math.ceil(round(1 / rate, 9)) - 1
        said = f"{count} negative rows to calibrate on cannot promise a rate of false alarms of {rate:g}"
        raise InvalidRequest(f"{said}: it takes at least {needed}", param="false_alarm_rate")
    return float(np.nextafter(np.sort(negatives.astype(np.float32))[rank - 1], np.float32(np.inf)))
