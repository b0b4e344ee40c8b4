"""All kinds of head. A new one is a small file beside this and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from wellhead.errors import InvalidHead
from wellhead.heads.kinds.ensemble import ensemble
from wellhead.heads.kinds.evaluator import Evaluator, Plan
from wellhead.heads.kinds.linear import linear
from wellhead.heads.kinds.mlp import mlp
from wellhead.heads.kinds.model import model
from wellhead.heads.kinds.pooled import attention, multimax
from wellhead.heads.kinds.quadratic import quadratic
from wellhead.heads.kinds.token_difference import token_difference

KINDS: Mapping[str, Callable[[Plan], Evaluator]] = MappingProxyType(
    {
        "linear": linear,
        "mlp": mlp,
        "attention": attention,
        "multimax": multimax,
        "quadratic": quadratic,
        "ensemble": ensemble,
        "token_difference": token_difference,
        "model": model,
    }
)


def evaluator(kind: str, plan: Plan) -> Evaluator:
    """Raises ``InvalidHead`` for a kind that is not known, or a plan that does not fit it."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidHead(f"unknown kind {kind!r:.80}; known are {', '.join(KINDS)}")
    return KINDS[kind](plan)
