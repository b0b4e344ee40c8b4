"""The whole of a fit: split, sweep over layers, weights, calibration, thresholds, figures. Memory does not grow with the rows.

Kept for each row: its label, its group, and during the sweep one score per layer and output (float32).
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest
from wellhead.heads.fit.baselines import baselines
from wellhead.heads.fit.calibrate import NEEDED, calibrate
from wellhead.heads.fit.closed import Ridge, Weights, check_counts, lda, mean_difference, squared_error
from wellhead.heads.fit.iterative import logistic, mlp
from wellhead.heads.fit.judge import alarm_threshold, auroc, figures, macro_auroc, roc
from wellhead.heads.fit.moments import Array, Moments, merged
from wellhead.heads.fit.sources import Source
from wellhead.heads.fit.split import deal
from wellhead.heads.head import Head

METHODS = ("logistic", "ridge", "lda", "mean_difference", "mlp")
PENALTIES = tuple(10.0**e for e in range(-2, 7))
#: Shares of the rows that are learned from, calibrate, and judge.
SHARES = (0.7, 0.15, 0.15)
_BUDGET = 512 << 20
_HARDEST = 20
_BARS = 40


@dataclass(frozen=True, slots=True)
class Options:
    """``method``; ``c`` of logistic and ``penalty`` of ridge (``None``: the best of nine by cross-validation), ``shrinkage`` of
    LDA;
    ``folds`` of the sweep; ``calibration`` a kind, "auto" (temperature where there are rows enough) or "none";
    ``false_alarm_rate``
    and ``positive`` (a label; default the last) ask for a threshold."""

    method: str = "logistic"
    c: float = 1.0
    penalty: float | None = None
    shrinkage: float = 0.1
    folds: int = 5
    calibration: str = "auto"
    false_alarm_rate: float | None = None
    positive: str | None = None
    seed: int = 0

    def check(self, labels: tuple[str, ...]) -> None:
        if self.method not in METHODS:
            raise InvalidRequest(f"method must be one of {', '.join(METHODS)}, not {self.method!r}", param="method")
        if self.calibration not in ("auto", "none", *NEEDED):
            known = ", ".join(("auto", "none", *NEEDED))
            raise InvalidRequest(f"calibration must be one of {known}, not {self.calibration!r}", param="calibration")
        if self.positive is not None and self.positive not in labels:
            raise InvalidRequest(f"positive: no label {self.positive!r}; there are {', '.join(labels)}", param="positive")
        for name, good, range_ in (
            ("c", self.c > 0, "above 0"), ("penalty", self.penalty is None or self.penalty >= 0, "at least 0"),
            ("shrinkage", 0 <= self.shrinkage <= 1, "in [0, 1]"), ("folds", 2 <= self.folds <= 20, "2 to 20"),
        ):  # fmt: skip
            if not good:
                raise InvalidRequest(f"{name} must be {range_}, not {getattr(self, name)!r}", param=name)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The head, and the report's figures (JSON)."""

    head: Head
    report: dict[str, Any]


def fit_rows(
    source: Source, *, name: str = "head", rows: Any = "last", reduce: str = "rows", provenance: Any = None, **options: Any
) -> Fitted:
    """Fit a head on rows with labels.

    ``options``: the fields of ``Options``. ``rows`` and ``reduce`` say how the rows were taken and go into the file.
    Raises ``InvalidRequest`` for options that are wrong, or data too small for what was asked.
    """
    try:
        opts = Options(**options)
    except TypeError as error:
        raise InvalidRequest(f"fit: {error}") from error
    opts.check(source.labels)
    part = deal(source.groups, source.codes, SHARES, opts.seed)
    learn, held, test = part == 0, part == 1, part == 2
    sweep = _sweep(source, ~test, opts)
    best = max(sweep, key=lambda s: (s["auroc"] if s["auroc"] is not None else -1.0, -s["layer"]))
    layer, penalty = int(best["layer"]), float(best["penalty"]) if opts.penalty is None else opts.penalty
    head = _head(source, layer, learn, name, rows, reduce, penalty, opts)
    codes = source.codes
    scores = _scores(head, source, layer)
    head, calibration = _calibrated(head, scores[held], codes[held], opts)
    p = head.probabilities(scores)
    head, alarm = _threshold(head, p[held], codes[held], opts)
    judged = figures(codes[test], scores[test], p[test]) if test.any() else {"rows": 0}
    report = {
        "name": name, "method": opts.method, "labels": list(source.labels), "layer": layer, "penalty": penalty,
        "rows": {"learned": int(learn.sum()), "calibrated": int(held.sum()), "judged": int(test.sum())},
        "groups": len(np.unique(source.groups)), "sweep": sweep, "test": judged,
        "calibration": calibration, "threshold": alarm,
        "roc": _rocs(head, p[test], codes[test]), "histograms": _histograms(head, p[test], codes[test]),
        "hardest": _hardest(source, p, test), "baselines": baselines(source, learn, test),
    }  # fmt: skip
    kept = {k: judged[k] for k in ("rows", "accuracy", "auroc", "log_loss", "brier", "ece") if k in judged}
    made = {
        "library": "wellhead",
        "method": opts.method,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "seed": opts.seed,
    }
    said = {"made_by": made, "data": source.facts(), **(provenance or {})}
    return Fitted(replace(head, metrics={**kept, "calibration_rows": int(held.sum())}, provenance=said), report)


# --- the sweep ---------------------------------------------------------------------------------------------------------


def _sweep(source: Source, mine: NDArray[np.bool_], opts: Options) -> list[dict[str, Any]]:
    """Ridge on every layer, cross-validated by group: from one pass of moments, and one that scores the rows held out."""
    fold = np.full(len(mine), -1, np.int8)
    at = np.flatnonzero(mine)
    fold[at] = deal(source.groups[at], source.codes[at], [1 / opts.folds] * opts.folds, opts.seed + 1)
    each = (opts.folds + 4) * source.width**2 * 8
    size = max(1, _BUDGET // each)
    found = []
    for start in range(0, len(source.layers), size):
        found += _sweep_some(source, source.layers[start : start + size], fold, opts)
    return found


def _sweep_some(source: Source, layers: Sequence[int], fold: NDArray[np.int8], opts: Options) -> list[dict[str, Any]]:
    classes, codes = len(source.labels), source.codes
    moments = {la: [Moments(source.width, classes) for _ in range(opts.folds)] for la in layers}
    for start, rows in source.chunks(layers):
        for la in layers:
            where, x = fold[start : start + len(rows[la])], rows[la]
            _check_finite(x, start, la)
            for f in range(opts.folds):
                moments[la][f].update(x[where == f], codes[start : start + len(x)][where == f])
    chosen = {la: _fold_weights(moments[la], source.labels, opts) for la in layers}
    outputs = 1 if classes == 2 else classes
    scores = {la: np.zeros((len(codes), outputs), np.float32) for la in layers}
    for start, rows in source.chunks(layers):
        for la in layers:
            x, where = rows[la].astype(np.float64), fold[start : start + len(rows[la])]
            for f, (w, b) in enumerate(chosen[la][1]):
                scores[la][start : start + len(x)][where == f] = x[where == f] @ w.T + b
    return [_sweep_line(la, chosen[la][0], scores[la], codes, fold) for la in layers]


def _sweep_line(
    layer: int, penalty: float, scores: NDArray[np.float32], codes: NDArray[np.int32], fold: NDArray[np.int8]
) -> dict[str, Any]:
    folds = [macro_auroc(codes[fold == f], scores[fold == f]) for f in range(int(fold.max()) + 1)]
    known = [a for a in folds if a is not None]
    mine = fold >= 0
    best = (scores[mine][:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores[mine].argmax(axis=1)
    return {
        "layer": layer, "penalty": penalty, "auroc": float(np.mean(known)) if known else None,
        "spread": float(np.std(known)) if known else None, "accuracy": float((best == codes[mine]).mean()),
    }  # fmt: skip


def _fold_weights(folds: list[Moments], labels: tuple[str, ...], opts: Options) -> tuple[float, list[Weights]]:
    """The penalty of least squared error on what each fold's fit has not seen, and the folds' weights at it."""
    fits = []
    for f in range(len(folds)):
        rest = merged([m for i, m in enumerate(folds) if i != f])
        check_counts(rest, labels)
        fits.append(Ridge(rest))
    penalties = PENALTIES if opts.penalty is None else (opts.penalty,)
    errors = [
        sum(squared_error(m, fit.weights(penalty)) * m.count for m, fit in zip(folds, fits, strict=True)) for penalty in penalties
    ]
    penalty = penalties[int(np.argmin(errors))]
    return penalty, [fit.weights(penalty) for fit in fits]


def _check_finite(x: NDArray[np.float32], start: int, layer: int) -> None:
    if not np.isfinite(x).all():
        bad = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
        raise InvalidRequest(f"row {start + bad} of layer {layer} holds NaN or infinity", param="rows")


# --- the head ----------------------------------------------------------------------------------------------------------


def _head(
    source: Source, layer: int, learn: NDArray[np.bool_], name: str, rows: Any, reduce: str, penalty: float, opts: Options
) -> Head:
    moments = Moments(source.width, len(source.labels))
    for x, y in _picked(source, layer, learn):
        moments.update(x, y)
    check_counts(moments, source.labels)
    classes = len(source.labels)
    base: dict[str, Any] = {
        "name": name, "kind": "linear", "layers": (layer,), "width": source.width, "labels": source.labels,
        "rows": rows, "reduce": reduce,
        "activation": "sigmoid" if classes == 2 else "softmax",
    }  # fmt: skip
    if opts.method in ("logistic", "mlp"):
        mean, scale = moments.mean, moments.scale()
        base["steps"] = ({"do": "standardise"},)
        tensors: dict[str, Any] = {"steps.0.mean": mean, "steps.0.scale": scale}

        def standard() -> Iterator[tuple[Array, NDArray[np.int32]]]:
            for x, y in _picked(source, layer, learn):
                yield (x.astype(np.float64) - mean) / scale, y

        if opts.method == "mlp":
            tensors |= mlp(standard, source.width, classes, int(moments.count), seed=opts.seed)
            stack = [{"do": "linear"}, {"do": "relu"}, {"do": "linear"}]
            return Head(**{**base, "kind": "mlp", "body": {"stack": stack}, "tensors": tensors})
        weights = logistic(standard, source.width, classes, int(moments.count), opts.c)
    else:
        tensors = {}
        fits = {"ridge": lambda: Ridge(moments).weights(penalty), "lda": lambda: lda(moments, opts.shrinkage)}
        weights = fits.get(opts.method, lambda: mean_difference(moments))()
    return Head(**base, tensors={**tensors, "weight": weights[0], "bias": weights[1]})


def _picked(source: Source, layer: int, mine: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
    for start, rows in source.chunks([layer]):
        x = rows[layer]
        kept = mine[start : start + len(x)]
        if kept.any():
            yield x[kept], source.codes[start : start + len(x)][kept]


def _scores(head: Head, source: Source, layer: int) -> NDArray[np.float32]:
    found = np.zeros((len(source.codes), head.columns), np.float32)
    for start, rows in source.chunks([layer]):
        found[start : start + len(rows[layer])] = head.scores(rows[layer])
    return found


def _calibrated(
    head: Head, scores: Array | NDArray[np.float32], codes: NDArray[np.int32], opts: Options
) -> tuple[Head, dict[str, Any]]:
    if opts.calibration == "none":
        return head, {"kind": None, "why": "not asked for"}
    kind = "temperature" if opts.calibration == "auto" else opts.calibration
    try:
        said, tensors = calibrate(kind, scores.astype(np.float64), codes, len(head.labels))
    except InvalidRequest as error:
        if opts.calibration != "auto":
            raise
        return head, {"kind": None, "why": error.message}
    return replace(head, calibration=said, tensors={**head.tensors, **tensors}), said


def _threshold(head: Head, p: NDArray[np.float32], codes: NDArray[np.int32], opts: Options) -> tuple[Head, dict[str, Any]]:
    if opts.false_alarm_rate is None:
        return head, {"why": "not asked for (false_alarm_rate)"}
    at = head.labels.index(opts.positive) if opts.positive is not None else len(head.labels) - 1
    negatives = p[codes != at, at]
    threshold = alarm_threshold(negatives, opts.false_alarm_rate)
    caught = float((p[codes == at, at] >= threshold).mean()) if (codes == at).any() else None
    said = {
        "label": head.labels[at], "threshold": threshold, "false_alarm_rate": opts.false_alarm_rate, "negatives": len(negatives),
        "detected": caught,
    }  # fmt: skip
    return replace(head, thresholds={head.labels[at]: threshold}), said


# --- the report's lists ------------------------------------------------------------------------------------------------


def _watched(head: Head) -> list[int]:
    """Labels that get a curve: the second of two, each of a few."""
    return [1] if len(head.labels) == 2 else list(range(min(len(head.labels), 12)))


def _rocs(head: Head, p: NDArray[np.float32], codes: NDArray[np.int32]) -> list[dict[str, Any]]:
    return [
        {"label": head.labels[c], "auroc": auroc(codes == c, p[:, c]), "points": roc(codes == c, p[:, c])}
        for c in _watched(head) if len(codes)
    ]  # fmt: skip


def _histograms(head: Head, p: NDArray[np.float32], codes: NDArray[np.int32]) -> list[dict[str, Any]]:
    edges = np.linspace(0, 1, _BARS + 1)
    return [
        {
            "label": head.labels[c],
            "of_it": np.histogram(p[codes == c, c], edges)[0].tolist(),
            "of_others": np.histogram(p[codes != c, c], edges)[0].tolist(),
        }
        for c in _watched(head)
    ]


def _hardest(source: Source, p: NDArray[np.float32], test: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """The judged rows whose own label was given the least probability, with the beginnings of their texts."""
    at = np.flatnonzero(test)
    own = p[at, source.codes[at]]
    worst = at[np.argsort(own, kind="stable")[:_HARDEST]]
    found = {
        int(i): {
            "row": int(i), "label": source.labels[source.codes[i]], "said": source.labels[int(p[i].argmax())],
            "probability": float(p[i, source.codes[i]]), "text": None,
        }
        for i in worst
    }  # fmt: skip
    for start, texts in source.texts() or ():
        for i in (i for i in found if start <= i < start + len(texts)):
            found[i]["text"] = texts[i - start][:400]
    return list(found.values())
