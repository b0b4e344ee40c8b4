"""Fitted scikit-learn objects -> ``Head``. By class name and fitted attributes: scikit-learn itself is not imported, nothing is
unpickled.

Weights stay float64. Logits are the source's ``decision_function`` (``predict`` of a regressor, the joint log-likelihood of
``GaussianNB``), and
probabilities its ``predict_proba`` where it has one; a calibrated classifier is an ensemble, whose probabilities agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidHead
from wellhead.heads.head import Head, Layer


@dataclass(slots=True)
class Parts:
    """What one estimator becomes."""

    kind: str = "linear"
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    activation: str = "identity"
    calibration: dict[str, Any] | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)


def convert(fitted: Any, *, layers: tuple[Layer, ...], rows: Any, name: str, fields: Mapping[str, Any]) -> Head:
    """``InvalidHead`` for a class that is not known, or an object that was not fitted."""
    try:
        parts = _parts(fitted)
        width = _width(fitted)
    except AttributeError as error:
        raise InvalidHead(f"{type(fitted).__name__} has not been fitted ({error})") from error
    said: dict[str, Any] = {
        "name": name, "kind": parts.kind, "layers": layers, "width": width, "labels": parts.labels, "tensors": parts.tensors,
        "rows": rows, "steps": tuple(parts.steps), "body": parts.body, "activation": parts.activation, "calibration":
        parts.calibration,
    }  # fmt: skip
    provenance = {"made_by": {"library": "scikit-learn", "class": type(fitted).__name__}, **fields.get("provenance", {})}
    return Head(**{**said, **fields, "provenance": provenance})


def _width(fitted: Any) -> int:
    for part in (fitted, *(step for _, step in getattr(fitted, "steps", ()))):
        if hasattr(part, "n_features_in_"):
            return int(part.n_features_in_)
    raise InvalidHead(f"{type(fitted).__name__} has not been fitted: it does not say how many features it takes")


def _parts(fitted: Any) -> Parts:
    kind = type(fitted).__name__
    if kind == "Pipeline":
        *before, (_, last) = fitted.steps
        parts = _parts(last)
        if parts.steps:
            raise InvalidHead("a pipeline whose last step is a pipeline: make it one")
        for _, step in before:
            _add_step(step, parts)
        return parts
    if kind not in _ESTIMATORS:
        raise InvalidHead(
            f"{kind} is not among the scikit-learn classes that can become a head: {', '.join(_ESTIMATORS)}, Pipeline"
        )
    return _ESTIMATORS[kind](fitted)


def _add_step(step: Any, parts: Parts) -> None:
    kind, i = type(step).__name__, len(parts.steps)
    if step is None or step == "passthrough":
        return
    if kind == "StandardScaler":
        width = int(step.n_features_in_)
        parts.tensors[f"steps.{i}.mean"] = np.asarray(step.mean_, np.float64) if step.with_mean else np.zeros(width)
        parts.tensors[f"steps.{i}.scale"] = np.asarray(step.scale_, np.float64) if step.with_std else np.ones(width)
        parts.steps.append({"do": "standardise"})
    elif kind == "PCA":
        matrix = np.asarray(step.components_, np.float64)
        if step.whiten:
            spread = np.sqrt(np.asarray(step.explained_variance_, np.float64))
            matrix = matrix / np.maximum(spread, np.finfo(np.float64).eps)[:, None]
        parts.tensors[f"steps.{i}.matrix"], parts.tensors[f"steps.{i}.mean"] = matrix, np.asarray(step.mean_, np.float64)
        parts.steps.append({"do": "whiten" if step.whiten else "project"})
    elif kind == "Normalizer" and step.norm == "l2":
        parts.steps.append({"do": "l2"})
    else:
        norm = f"(norm={step.norm!r})" if kind == "Normalizer" else ""
        raise InvalidHead(f"{kind}{norm} cannot be a step of a head; StandardScaler, PCA and Normalizer (l2) can")


def _named(classes: Any) -> tuple[str, ...]:
    """``classes_`` in their order."""
    if isinstance(classes, list) or getattr(classes, "ndim", 1) != 1:
        raise InvalidHead("a classifier of several outputs is several heads")
    return tuple(str(c) for c in classes.tolist())


def _weights(fitted: Any) -> dict[str, NDArray[Any]]:
    weight = np.atleast_2d(np.asarray(fitted.coef_, np.float64))
    return {"weight": weight, "bias": np.broadcast_to(np.asarray(fitted.intercept_, np.float64), len(weight)).copy()}


def _linear(fitted: Any, activation: Callable[[int], str]) -> Parts:
    tensors = _weights(fitted)
    return Parts(tensors=tensors, labels=_named(fitted.classes_), activation=activation(len(tensors["weight"])))


def _margin(fitted: Any) -> Parts:
    return _linear(fitted, lambda count: "identity")


def _softmax(fitted: Any) -> Parts:
    one_vs_rest = getattr(fitted, "solver", None) == "liblinear" or getattr(fitted, "multi_class", None) == "ovr"
    many = "ovr" if one_vs_rest else "softmax"
    return _linear(fitted, lambda count: "sigmoid" if count == 1 else many)


def _sgd(fitted: Any) -> Parts:
    logistic = fitted.loss == "log_loss"
    return _linear(fitted, lambda count: "identity" if not logistic else "sigmoid" if count == 1 else "ovr")


def _ridge(fitted: Any) -> Parts:
    tensors = _weights(fitted)
    count = len(tensors["weight"])
    return Parts(tensors=tensors, labels=("value",) if count == 1 else tuple(f"value_{i}" for i in range(count)))


def _gaussian(fitted: Any) -> Parts:
    tensors = {"mean": fitted.theta_, "variance": fitted.var_, "prior": np.log(fitted.class_prior_)}
    wide = {name: np.asarray(t, np.float64) for name, t in tensors.items()}
    return Parts("quadratic", wide, _named(fitted.classes_), "softmax")


def _calibrated(fitted: Any) -> Parts:
    parts = Parts("ensemble", labels=_named(fitted.classes_))
    parts.activation = "sigmoid" if len(parts.labels) == 2 else "softmax"
    members = []
    for i, one in enumerate(fitted.calibrated_classifiers_):
        inner = _parts(one.estimator)
        if inner.labels != parts.labels:
            raise InvalidHead(f"fold {i} of the calibration has seen the labels {inner.labels}, not {parts.labels}")
        columns = 1 if len(parts.labels) == 2 else len(parts.labels)
        if inner.kind != "linear" or len(inner.tensors["weight"]) != columns or one.method not in ("sigmoid", "isotonic"):
            raise InvalidHead(
                f"a calibrated {type(one.estimator).__name__} ({one.method}) cannot become a head; linear margins can"
            )
        if one.method == "sigmoid":
            # There p = 1 / (1 + exp(a f + b)): both signs are turned.
            calibration: dict[str, Any] = {
                "kind": "platt", "a": [-float(c.a_) for c in one.calibrators], "b": [-float(c.b_) for c in one.calibrators],
            }  # fmt: skip
        else:
            calibration = {"kind": "isotonic"}
            for j, c in enumerate(one.calibrators):
                inner.tensors[f"calibration.{j}.x"] = np.asarray(c.X_thresholds_, np.float64)
                inner.tensors[f"calibration.{j}.y"] = np.clip(np.asarray(c.y_thresholds_, np.float64), 0, 1)
        members.append({"kind": inner.kind, "steps": inner.steps, "activation": inner.activation, "calibration": calibration})
        parts.tensors |= {f"members.{i}.{name}": t for name, t in inner.tensors.items()}
    parts.body["members"] = members
    return parts


_ESTIMATORS: Mapping[str, Callable[[Any], Parts]] = {
    "LogisticRegression": _softmax,
    "LogisticRegressionCV": _softmax,
    "LinearDiscriminantAnalysis": _softmax,
    "LinearSVC": _margin,
    "RidgeClassifier": _margin,
    "RidgeClassifierCV": _margin,
    "PassiveAggressiveClassifier": _margin,
    "Perceptron": _margin,
    "SGDClassifier": _sgd,
    "Ridge": _ridge,
    "RidgeCV": _ridge,
    "LinearRegression": _ridge,
    "GaussianNB": _gaussian,
    "CalibratedClassifierCV": _calibrated,
}
