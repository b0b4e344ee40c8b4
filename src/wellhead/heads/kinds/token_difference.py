"""Rows of the model's own LM head: ``z[positive] - z[negative]``, or ``z[positive]`` alone. No weights of its own.

``positive`` and ``negative`` are token ids or texts of one token. ``Head.resolve`` puts the difference in as tensor ``weight``.
"""

from __future__ import annotations

from dataclasses import dataclass

from wellhead.errors import InvalidHead
from wellhead.heads.kinds.evaluator import Evaluator, Plain, Plan
from wellhead.heads.products import Array
from wellhead.heads.program import tensor


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Says what it lacks as soon as it is asked for a score."""

    why: str
    columns: int = 1
    streams: None = None
    program: None = None

    def features(self, rows: Array) -> Array:
        del rows
        raise InvalidHead(self.why)

    scores = features


def token_difference(plan: Plan) -> Evaluator:
    for name in ("positive", "negative"):
        token = plan.body.get(name)
        if isinstance(token, bool) or not isinstance(token, (int, str) if name == "positive" else (int, str, type(None))):
            raise InvalidHead(f"token_difference: {name} must be a token id or the text of one token, not {token!r:.80}")
    if "weight" not in plan.tensors:
        return Unresolved("a head of token differences has no weights before the model it is for has been loaded (Head.resolve)")
    program = plan.program()
    return Plain(program.then(tensor(plan.tensors, "weight", 1, program.out)))
