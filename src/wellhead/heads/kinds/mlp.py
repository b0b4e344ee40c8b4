"""``stack``: linear layers, layer norms and activations in order; tensors ``stack.0.weight``, ``stack.0.bias``, ..."""

from __future__ import annotations

from wellhead.errors import InvalidHead
from wellhead.heads.kinds.evaluator import Evaluator, Plain, Plan


def mlp(plan: Plan) -> Evaluator:
    if not plan.body.get("stack"):
        raise InvalidHead("an mlp has at least one layer in its stack")
    return Plain(plan.program(stack=True))
