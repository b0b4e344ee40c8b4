"""A target with a draft model at its side: one plan for both, one result with the drafts for the next plan.

The draft keeps its keys in pages of its own with the target's page numbers, and follows the target token by token. So
prefix hits, copies, preemption and release need no second book. Draft keys may be worse than they could be (a draft that
reads the target's rows knows the *next* token too, and the one after a shared page need not be this sequence's): that
costs accepted drafts, never a token or a row, which are the target's alone.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from wellhead.config import Resolved
from wellhead.kernels.ops import KVPages, Ops, Packing
from wellhead.models.spec import ModelSpec
from wellhead.runner import inputs as packer
from wellhead.step import Plan, PlanRow, RowResult, StepResult


class Target(Protocol):
    """The runner of the large model."""

    @property
    def features(self) -> dict[int, torch.Tensor]:
        """After a step: layer -> rows ``[T, H]`` of all its tokens, of the layers that the draft reads."""
        ...

    def run(self, plan: Plan) -> StepResult: ...


class Draft(Protocol):
    """The small model."""

    spec: ModelSpec
    ops: Ops

    @property
    def draws_on(self) -> tuple[int, ...]:
        """The target's layers that it reads, in the order in which ``fuse`` takes them; none: it reads tokens alone."""
        ...

    def fuse(self, features: list[torch.Tensor]) -> torch.Tensor | None:
        """The target's rows ``[T, H]`` of each of these layers -> what ``forward`` takes, ``[T, H]``; of none: ``None``."""
        ...

    def forward(
        self, ids: torch.Tensor, features: torch.Tensor | None, packing: Packing, kv: KVPages, out: torch.Tensor
    ) -> torch.Tensor:
        """Run packed tokens. Returns the states of those at ``out``, from which the next token is drafted."""
        ...

    def best(self, state: torch.Tensor) -> torch.Tensor:
        """States -> the target's ids of the likeliest next tokens, int64 ``[k]``."""
        ...

    def as_features(self, state: torch.Tensor) -> torch.Tensor | None:
        """States -> what ``forward`` takes in the place of the target's rows while there are none yet."""
        ...


@dataclasses.dataclass(slots=True)
class _Chain:
    """Drafts of one plan row as they grow. ``last``: position of the token that was read last."""

    row: int
    pages: NDArray[np.int32]
    last: int
    count: int
    drafts: list[int] = dataclasses.field(default_factory=list)


class SpeculativeRunner:
    """Runs the target, lets the draft follow, and asks it for as many drafts as the plan wants."""

    def __init__(self, target: Target, draft: Draft, config: Resolved) -> None:
        self.target = target
        self.draft = draft
        self._size = config.page_size
        self._most = config.speculation.drafts
        spec = draft.spec
        self.kv: KVPages = draft.ops.new_kv(
            pages=config.pages, page_size=self._size, layers=spec.layers, kv_heads=spec.kv_heads, head_dim=spec.head_dim
        )

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        """One step of both. An exception of the draft's fails the step as the target's does."""
        result = self.target.run(plan)
        started = time.perf_counter()
        for source, copy in plan.copies:
            self.draft.ops.copy_page(self.kv, source, copy)
        chains = self._follow(plan, result)
        proposals = {chain.row: np.array(chain.drafts, np.int32) for chain in chains}
        rows = tuple(dataclasses.replace(got, proposals=proposals.get(i)) for i, got in enumerate(result.rows))
        return dataclasses.replace(result, rows=rows, draft_seconds=time.perf_counter() - started)

    def _follow(self, plan: Plan, result: StepResult) -> list[_Chain]:
        """Read what the target read and what it drew; then draft."""
        spans, chains, places = [], [], []
        at = 0
        read = bool(self.draft.draws_on)
        for i, (row, got) in enumerate(zip(plan.rows, result.rows, strict=True)):
            span = self._beside(row, got) if read else self._same(row, got)
            chain = _Chain(i, row.pages, span.end - 1, self._wanted(row, got, span))
            if len(row.tokens) and read:
                places.append(np.arange(at, at + len(span.tokens), dtype=np.int64))
            at += len(row.tokens)
            if chain.count and len(span.tokens):
                chains.append(chain)
            spans.append(span)
        batch = packer.build(spans, self._size, self.draft.ops.device)
        if not batch.tokens:
            return []
        index = self._put(packer.concat(places))
        features = self.draft.fuse([self.target.features[layer].index_select(0, index) for layer in self.draft.draws_on])
        ends = np.array([batch.first[c.row] + len(spans[c.row].tokens) - 1 for c in chains], np.int64)
        state = self.draft.forward(batch.ids, features, batch.packing, self.kv, self._put(ends))
        self._propose(chains, state)
        return chains

    def _same(self, row: PlanRow, got: RowResult) -> packer.Span:
        """The target's tokens at their positions, and the one just drawn if drafts are wanted after it.

        The first was read in the step before, if that step drafted."""
        skip = 1 if row.drafts else 0
        tokens = row.tokens[skip : row.valid_end(len(got.tokens)) - row.start]
        last = row.start + skip + len(tokens)
        if row.useful_drafts(len(got.tokens)) and got.finite and last < len(row.pages) * self._size:
            tokens = np.append(tokens, np.int32(got.tokens[-1]))
        return packer.Span(tokens, row.start + skip, row.pages)

    def _beside(self, row: PlanRow, got: RowResult) -> packer.Span:
        """Each token's successor, at the token's position, where its row is read too."""
        count = row.valid_end(len(got.tokens)) - row.start if len(row.tokens) else 0
        if not count:
            return packer.Span(row.tokens, row.start, row.pages)
        following = got.tokens[-1] if got.tokens and got.finite else row.following
        # A text that ends here has no next token; its own stands in.
        successor = following if following >= 0 else int(row.tokens[count - 1])
        return packer.Span(np.append(row.tokens[1:count], np.int32(successor)), row.start, row.pages)

    def _wanted(self, row: PlanRow, got: RowResult, span: packer.Span) -> int:
        """How many drafts to make: all that can still be generated and whose keys find room in the pages at hand."""
        drawn = len(got.tokens)
        useful = row.useful_drafts(drawn)
        if not useful or not got.finite:
            return 0
        last = row.valid_end(drawn) - (1 if self.draft.draws_on else 0)
        if span.end - 1 < last:
            return 0
        return max(0, min(useful, self._most, len(row.pages) * self._size - last))

    def _propose(self, chains: list[_Chain], state: torch.Tensor) -> None:
        """Draft from the states after the last tokens, one of each chain, and go on until every chain is long enough."""
        while chains:
            for chain, token in zip(chains, self.draft.best(state).tolist(), strict=True):
                chain.drafts.append(token)
            more = [i for i, chain in enumerate(chains) if len(chain.drafts) < chain.count]
            if not more:
                return
            chains = [chains[i] for i in more]
            features = self.draft.as_features(state.index_select(0, self._put(np.array(more, np.int64))))
            spans = []
            for chain in chains:
                chain.last += 1
                spans.append(packer.Span(np.array(chain.drafts[-1:], np.int32), chain.last, chain.pages))
            batch = packer.build(spans, self._size, self.draft.ops.device)
            every = self._put(np.arange(len(chains), dtype=np.int64))
            state = self.draft.forward(batch.ids, features, batch.packing, self.kv, every)

    def _put(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.draft.ops.device, non_blocking=True)
