"""``weight`` ``[C, W]``, ``bias`` ``[C]`` if there is one."""

from __future__ import annotations

from wellhead.heads.kinds.evaluator import Evaluator, Plain, Plan
from wellhead.heads.program import tensor


def linear(plan: Plan) -> Evaluator:
    program = plan.program()
    weight = tensor(plan.tensors, "weight", None, program.out)
    bias = tensor(plan.tensors, "bias", len(weight)) if "bias" in plan.tensors else None
    return Plain(program.then(weight, bias))
