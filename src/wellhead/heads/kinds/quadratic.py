"""A Gaussian for each class with a variance of its own for each coordinate (naive Bayes).

``mean`` and ``variance`` ``[C, W]``, ``prior`` ``[C]`` (logarithms). Score c: ``prior_c - sum((y - mean_c)^2 / variance_c +
log(2 pi variance_c)) / 2``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wellhead.errors import InvalidHead
from wellhead.heads.kinds.evaluator import Evaluator, Plan
from wellhead.heads.products import Array, aligned, products, sums
from wellhead.heads.program import Program, tensor


@dataclass(frozen=True, slots=True, eq=False)
class Quadratic:
    steps: Program
    means: Array
    weights: tuple[Array, ...]
    constant: Array
    program: None = None
    streams: None = None

    @property
    def columns(self) -> int:
        return len(self.means)

    def features(self, rows: Array) -> Array:
        y = self.steps(rows)
        squares = [products(aligned((y - mean) ** 2), w) for mean, w in zip(self.means, self.weights, strict=True)]
        return np.concatenate(squares, axis=1) + self.constant

    def scores(self, features: Array) -> Array:
        return features


def quadratic(plan: Plan) -> Evaluator:
    steps = plan.program()
    mean = tensor(plan.tensors, "mean", None, steps.out).astype(np.float64)
    variance = tensor(plan.tensors, "variance", len(mean), steps.out).astype(np.float64)
    prior = tensor(plan.tensors, "prior", len(mean)).astype(np.float64)
    if not np.all(variance > 0):
        raise InvalidHead("a variance that is not positive")
    weights = tuple(aligned(-0.5 / v[None]) for v in variance)
    return Quadratic(steps, mean, weights, prior - 0.5 * sums(np.log(2 * np.pi * variance))[:, 0])
