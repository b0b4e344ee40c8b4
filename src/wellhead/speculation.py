"""How this engine speculates: the algorithm, its sizes, and what it needs captured. No torch, no model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from wellhead.errors import InvalidConfig
from wellhead.types import CaptureMode

#: Drafts of a chain if nothing is said.
DEFAULT_STEPS = 3
#: NGRAM's tokens per step, drafts and the one before them, and the shortest and longest run that it looks up.
DEFAULT_NGRAM_TOKENS = 8
DEFAULT_WINDOWS = (2, 12)

_SIZES = ("num_steps", "num_draft_tokens", "eagle_topk")
_WINDOWS = ("ngram_min_match_window_size", "ngram_max_match_window_size")


class Algorithm(StrEnum):
    """Where drafts come from, by SGLang's names. ``NONE``: plain decoding."""

    NONE = ""
    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE3"
    STANDALONE = "STANDALONE"
    NGRAM = "NGRAM"

    @property
    def has_model(self) -> bool:
        """Does it run a draft model?"""
        return self in (Algorithm.EAGLE, Algorithm.EAGLE3, Algorithm.STANDALONE)

    @property
    def reads_target(self) -> bool:
        """Does the draft model read the target's hidden states?"""
        return self in (Algorithm.EAGLE, Algorithm.EAGLE3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculation as it holds. ``drafts``: tokens proposed per sequence and step at most (SGLang's number of draft tokens
    counts the token before them too, and is one more). Windows: lengths of the runs of tokens that NGRAM looks up."""

    algorithm: Algorithm = Algorithm.NONE
    drafts: int = 0
    min_window: int = 0
    max_window: int = 0


PLAIN = Speculation()


def effective_capture(ceiling: CaptureMode, algorithm: Algorithm, is_draft: bool) -> CaptureMode:
    """The mode at which a model's forward pass (and its graphs) must be able to capture.

    The target of a draft that reads hidden states shows all its rows, whatever users may ask for; a draft model captures
    nothing for anybody. What a request may ask for is decided by the ceiling alone.
    """
    if is_draft:
        return CaptureMode.NULL
    return CaptureMode.FULL if algorithm.reads_target else ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeOptions:
    """What the user says, as in ``EngineConfig``'s fields ``speculative_...``; ``None``: not said."""

    algorithm: str | None
    draft_model_path: str | None
    num_steps: int | None
    num_draft_tokens: int | None
    eagle_topk: int | None
    ngram_min_match_window_size: int | None
    ngram_max_match_window_size: int | None

    def resolve(self) -> Speculation:
        """What holds. Raises ``InvalidConfig`` for what is unknown, contradictory, or would be ignored."""
        algorithm = self._algorithm()
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("algorithm", "draft_model_path") or value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _refuse(field.name, f"must be a whole number of at least 1, not {value!r}")
        if algorithm is Algorithm.NONE:
            self._refuse_given("speculative_algorithm is not set", "draft_model_path", *_SIZES, *_WINDOWS)
            return PLAIN
        if self.eagle_topk not in (None, 1):
            raise _refuse("eagle_topk", f"{self.eagle_topk} asks for a tree of drafts; only chains are there, which is 1")
        if algorithm is Algorithm.NGRAM:
            self._refuse_given("NGRAM has no draft model", "draft_model_path", "num_steps")
            return self._ngram()
        self._refuse_given(f"{algorithm} looks nothing up", *_WINDOWS)
        if not isinstance(self.draft_model_path, str) or not self.draft_model_path:
            raise _refuse("draft_model_path", f"must name the draft model: {algorithm} needs one")
        return Speculation(algorithm=algorithm, drafts=self._steps())

    def _algorithm(self) -> Algorithm:
        if self.algorithm is None:
            return Algorithm.NONE
        for known in Algorithm:
            if known and isinstance(self.algorithm, str) and self.algorithm.upper() == known:
                return known
        names = ", ".join(known for known in Algorithm if known)
        raise _refuse("algorithm", f"must be one of {names}, not {self.algorithm!r}")

    def _steps(self) -> int:
        """Drafts of a chain: one per step; SGLang's number of draft tokens is one more."""
        steps, tokens = self.num_steps, self.num_draft_tokens
        if steps is not None and tokens is not None and tokens != steps + 1:
            raise _refuse(
                "num_draft_tokens", f"{tokens} does not go with speculative_num_steps {steps}: a chain of {steps} has {steps + 1}"
            )
        if tokens == 1:
            raise _refuse("num_draft_tokens", "must be at least 2: it counts the token before the drafts too")
        if steps is None:
            return tokens - 1 if tokens is not None else DEFAULT_STEPS
        return steps

    def _ngram(self) -> Speculation:
        tokens = self.num_draft_tokens if self.num_draft_tokens is not None else DEFAULT_NGRAM_TOKENS
        if tokens == 1:
            raise _refuse("num_draft_tokens", "must be at least 2: it counts the token before the drafts too")
        low = self.ngram_min_match_window_size
        high = self.ngram_max_match_window_size
        low = low if low is not None else min(DEFAULT_WINDOWS[0], high or DEFAULT_WINDOWS[0])
        high = high if high is not None else max(DEFAULT_WINDOWS[1], low)
        if low > high:
            raise _refuse("ngram_min_match_window_size", f"{low} exceeds speculative_ngram_max_match_window_size {high}")
        return Speculation(algorithm=Algorithm.NGRAM, drafts=tokens - 1, min_window=low, max_window=high)

    def _refuse_given(self, why: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise _refuse(name, f"is given, but {why}")


def _refuse(name: str, what: str) -> InvalidConfig:
    return InvalidConfig(f"speculative_{name} {what}", param=f"speculative_{name}")
