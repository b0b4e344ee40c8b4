"""Several heads of the same labels whose probabilities are averaged, as scikit-learn's calibrated folds are.

``members``: the JSON of each (kind, steps, body, activation, calibration); its tensors begin with ``members.i.``. The score is
the
logarithm of the mean probability (with two labels: its log-odds), so that softmax (sigmoid) gives the mean back.
Probabilities are kept within 1e-12 of 0 and 1: a score is finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wellhead.errors import InvalidHead
from wellhead.heads.kinds.evaluator import Evaluator, Plan
from wellhead.heads.link import Link
from wellhead.heads.products import Array

_LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class Ensemble:
    members: tuple[tuple[Evaluator, Link], ...]
    columns: int
    program: None = None
    streams: None = None

    def features(self, rows: Array) -> Array:
        total = np.zeros((len(rows), 2 if self.columns == 1 else self.columns))
        for head, link in self.members:
            total += link(head.scores(head.features(rows)))
        p = np.clip(total / len(self.members), _LEAST, 1 - _LEAST)
        return np.log(p[:, 1:] / p[:, :1]) if self.columns == 1 else np.log(p)

    def scores(self, features: Array) -> Array:
        return features


def ensemble(plan: Plan) -> Evaluator:
    from wellhead.heads.kinds.registry import evaluator

    members = plan.body.get("members")
    if not isinstance(members, (list, tuple)) or not 0 < len(members) <= 64:
        raise InvalidHead("an ensemble has 1 to 64 members")
    made: list[tuple[Evaluator, Link]] = []
    for i, member in enumerate(members):
        if not isinstance(member, Mapping) or member.get("kind") == "ensemble":
            raise InvalidHead(f"members.{i} is not a head of one piece")
        made.append(_member(plan, i, member, evaluator))
    columns = {head.columns for head, _ in made}
    if len(columns) != 1 or (columns == {1} and len(plan.labels) != 2):
        raise InvalidHead(f"members of {sorted(columns)} scores for {len(plan.labels)} labels")
    return Ensemble(tuple(made), columns.pop())


def _member(plan: Plan, i: int, member: Mapping[str, Any], evaluator: Any) -> tuple[Evaluator, Link]:
    prefix = f"members.{i}."
    tensors = {name.removeprefix(prefix): t for name, t in plan.tensors.items() if name.startswith(prefix)}
    steps, body = member.get("steps", ()), member.get("body", {})
    if not isinstance(steps, (list, tuple)) or not isinstance(body, Mapping):
        raise InvalidHead(f"members.{i}: steps must be a list and body an object")
    head = evaluator(str(member.get("kind")), Plan(plan.width, plan.labels, tuple(steps), body, tensors))
    return head, Link.of(member.get("activation", "identity"), member.get("calibration"), head.columns, plan.labels, tensors)
