"""The draft model of speculative decoding: found, held against its target, and loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wellhead.config import EngineConfig
from wellhead.errors import InvalidConfig
from wellhead.kernels.ops import Ops
from wellhead.models.decoder import Decoder
from wellhead.models.draft import StandaloneDraft
from wellhead.models.eagle import Eagle3Draft, EagleDraft
from wellhead.models.eagle_files import EagleFiles, eagle_spec
from wellhead.models.json_file import read_json
from wellhead.models.locate import load_spec, locate
from wellhead.models.spec import ModelSpec
from wellhead.models.weights import checkpoint_dtype, open_weights
from wellhead.runner.speculative import Draft
from wellhead.speculation import Algorithm
from wellhead.types import DType


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """A draft that was found and goes with its target, but is not loaded yet."""

    path: Path
    model: ModelSpec
    eagle: EagleFiles | None

    @staticmethod
    def find(options: EngineConfig, target: ModelSpec, dtype: DType) -> DraftFiles | None:
        """The draft that the options ask for, if any; before anything large is read.

        Raises ``ModelError`` if it cannot be found or read, ``InvalidConfig`` if it does not go with the target.
        """
        algorithm = options.speculation().algorithm
        if not algorithm.has_model:
            return None
        path = locate(options.speculative_draft_model_path or "")
        eagle = eagle_spec(path, target.layers, three=algorithm is Algorithm.EAGLE3) if algorithm.reads_target else None
        model = load_spec(path) if eagle is None else eagle.model
        if not model.has_head and eagle is None:
            raise _refuse(f"is {model.architecture}, which has no LM head: it cannot propose tokens")
        if eagle is None:
            context = options.context_length or target.context_length
            if model.context_length < context:
                raise _refuse(
                    f"has a context of {model.context_length} tokens, the target runs with {context}; set context_length"
                )
        else:
            wanted = read_json(path / "config.json").get("target_hidden_size", model.hidden_size)
            for hidden in (model.hidden_size, wanted):
                _agree("hidden_size", hidden, target.hidden_size)
        _agree("vocab_size", model.vocab_size, target.vocab_size)
        files = DraftFiles(path, model, EagleFiles(path, eagle) if eagle is not None else None)
        stored = checkpoint_dtype(path) if eagle is not None else model.dtype
        if options.dtype == "auto" and stored != dtype:  # a draft is converted only where the target is too
            raise _refuse(f"is in {stored}, the target in {dtype}; name one with dtype to run both in it")
        return files

    def load(self, target: Decoder, ops: Ops, positions: int) -> Draft:
        """The draft on the target's kernels. ``positions``: the engine's context. Errors: as ``open_weights``."""
        if self.eagle is None:
            with open_weights(self.path, self.model) as weights:
                return StandaloneDraft(Decoder(weights.spec, ops, weights.get, positions))
        if self.eagle.spec.three:
            return Eagle3Draft(self.eagle, ops, positions, target.embedding)
        if target.head is None:  # ``assemble`` refuses this before anything is read
            raise _refuse("shares its target's LM head, and the target has none")
        return EagleDraft(self.eagle, ops, positions, target.embedding, target.head)


def _agree(name: str, draft: int, target: int) -> None:
    if draft != target:
        raise _refuse(f"has {name} {draft}, the target has {name} {target}")


def _refuse(what: str) -> InvalidConfig:
    return InvalidConfig(f"the draft model {what}", param="speculative_draft_model_path")
