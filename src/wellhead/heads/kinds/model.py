"""A whole model as a head, by reference (``reference``: a folder or hub id). Declared here; who has the model evaluates it."""

from __future__ import annotations

from wellhead.errors import InvalidHead
from wellhead.heads.kinds.evaluator import Evaluator, Plan
from wellhead.heads.kinds.token_difference import Unresolved


def model(plan: Plan) -> Evaluator:
    reference = plan.body.get("reference")
    if not isinstance(reference, str) or not 0 < len(reference) <= 512:
        raise InvalidHead("a head that is a whole model says which in 'reference'")
    return Unresolved(f"the head is the model {reference!r}: it does not read rows of this one", len(plan.labels))
