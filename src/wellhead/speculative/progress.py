"""What one sequence's speculation has come to: the drafts for its next step, and how earlier ones fared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wellhead.speculation import Algorithm, Speculation
from wellhead.speculative.ngram import NO_DRAFTS, NgramDrafter


class Progress:
    """``draws``: steps in which tokens were drawn; ``proposed``, ``accepted``: drafts judged, drafts that stood."""

    __slots__ = ("_drafter", "_proposals", "accepted", "draws", "proposed")

    def __init__(self, speculation: Speculation) -> None:
        self._drafter: NgramDrafter | None = None
        if speculation.algorithm is Algorithm.NGRAM:
            self._drafter = NgramDrafter(speculation.min_window, speculation.max_window)
        self._proposals = NO_DRAFTS
        self.draws = self.proposed = self.accepted = 0

    def propose(self, tokens: NDArray[np.int32], most: int) -> NDArray[np.int32]:
        """Up to ``most`` drafts of what follows ``tokens`` (int32): looked up, or what the draft model left here."""
        if self._drafter is not None:
            return self._drafter.propose(tokens, most)
        return self._proposals[: max(0, most)]

    def judged(self, proposed: int, accepted: int, proposals: NDArray[np.int32] | None) -> None:
        """A step drew tokens. ``proposals``: the draft model's for the next step."""
        self.draws += 1
        self.proposed += proposed
        self.accepted += accepted
        self._proposals = NO_DRAFTS if proposals is None else proposals
        if self._drafter is not None:
            self._drafter.observe(proposed, accepted)

    def forget(self) -> None:
        """Drop the drafts: the draft model's keys behind them are gone."""
        self._proposals = NO_DRAFTS
