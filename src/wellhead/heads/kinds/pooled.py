"""Heads that look at all rows at once: attention and multimax.

With y = the row after its steps and its ``stack``, M attention heads, C scores: attention is
``sum_m sum_j softmax_j(query_m . y_j) (value_m . y_j)``, multimax ``sum_m max_j (value_m . y_j)``; ``bias`` ``[C]`` is added to
either.
Tensors: ``query`` ``[M, D]``, ``value`` ``[M * C, D]`` with the C rows of one m together. Features: the M queries' products,
then the values'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from wellhead.errors import InvalidHead
from wellhead.heads.kinds.evaluator import Evaluator, Plan
from wellhead.heads.products import Array
from wellhead.heads.program import Program, tensor


@dataclass(frozen=True, slots=True)
class Pooled:
    program: Program
    streams: Literal["attention", "multimax"]
    heads: int
    columns: int
    bias: Array

    def features(self, rows: Array) -> Array:
        return self.program(rows)

    def scores(self, features: Array) -> Array:
        """Of each row as if it were the only one: its attention is 1."""
        values = features[:, features.shape[1] - self.heads * self.columns :].reshape(len(features), self.heads, self.columns)
        total = np.array(values[:, 0])
        for m in range(1, self.heads):
            total += values[:, m]
        return total + self.bias


def attention(plan: Plan) -> Evaluator:
    program = plan.program(stack=True)
    query = tensor(plan.tensors, "query", None, program.out)
    return _pooled(plan, program, "attention", query.astype(np.float64))


def multimax(plan: Plan) -> Evaluator:
    program = plan.program(stack=True)
    return _pooled(plan, program, "multimax", np.zeros((0, program.out)))


def _pooled(plan: Plan, program: Program, streams: Literal["attention", "multimax"], query: Array) -> Evaluator:
    value = tensor(plan.tensors, "value", None, program.out).astype(np.float64)
    heads = len(query) if streams == "attention" else plan.body.get("heads")
    if not isinstance(heads, int) or heads < 1 or not len(value) or len(value) % heads:
        raise InvalidHead(f"{streams}: {len(value)} rows of values do not divide among {heads!r:.40} heads")
    columns = len(value) // heads
    bias = tensor(plan.tensors, "bias", columns).astype(np.float64) if "bias" in plan.tensors else np.zeros(columns)
    return Pooled(program.then(np.concatenate([query, value])), streams, heads, columns, bias)
