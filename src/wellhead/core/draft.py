"""The draft model of speculative decoding: found, held against its target, and loaded."""

from __future__ import annotations

from pathlib import Path

from wellhead.config import EngineConfig
from wellhead.errors import InvalidConfig
from wellhead.kernels.ops import Ops
from wellhead.models.decoder import Decoder
from wellhead.models.draft import StandaloneDraft
from wellhead.models.locate import load_spec, locate
from wellhead.models.spec import ModelSpec
from wellhead.models.weights import open_weights
from wellhead.runner.speculative import Draft
from wellhead.types import DType


def draft_path(options: EngineConfig) -> Path | None:
    """The draft model's folder, if the algorithm has one; ``ModelError`` if it cannot be found."""
    if not options.speculation().algorithm.has_model:
        return None
    return locate(options.speculative_draft_model_path or "")


def draft_spec(path: Path | None, options: EngineConfig, target: ModelSpec, dtype: DType) -> ModelSpec | None:
    """The draft's spec, if it goes with the target; before anything large is read. Raises ``InvalidConfig`` otherwise."""
    if path is None:
        return None
    spec = load_spec(path)
    context = options.context_length or target.context_length
    _agree("vocab_size", spec.vocab_size, target.vocab_size)
    _agree_dtype(options, spec.dtype, dtype)
    if spec.context_length < context:
        raise _refuse(f"has a context of {spec.context_length} tokens, the target runs with {context}; set context_length")
    return spec


def load_draft(path: Path, spec: ModelSpec, target: Decoder, ops: Ops, positions: int) -> Draft:
    """The draft on the target's kernels. ``positions``: the engine's context."""
    with open_weights(path, spec) as weights:
        return StandaloneDraft(Decoder(weights.spec, ops, weights.get, positions))


def _agree(name: str, draft: int, target: int) -> None:
    if draft != target:
        raise _refuse(f"has {name} {draft}, the target has {name} {target}")


def _agree_dtype(options: EngineConfig, draft: DType, dtype: DType) -> None:
    """A draft is converted only if the target is too: if the user named a dtype."""
    if options.dtype == "auto" and draft != dtype:
        raise _refuse(f"is in {draft}, the target in {dtype}; name one with dtype to run both in it")


def _refuse(what: str) -> InvalidConfig:
    return InvalidConfig(f"the draft model {what}", param="speculative_draft_model_path")
