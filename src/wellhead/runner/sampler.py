"""Logits -> tokens and logprobs. Each row is its own: its draw depends on its logits, its seed and its position alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from wellhead.kernels.ops import Peak
from wellhead.speculative.accept import accept
from wellhead.step import RowResult, SampleSpec
from wellhead.types import Logprobs, LogprobSpec, SamplingParams

#: Candidates that are sorted first; only a distribution whose top_p lies beyond them is sorted whole.
FIRST_CANDIDATES = 1024
#: Within these bounds float32 holds a temperature, and the largest logit divided by it, with room to spare.
COLDEST, LARGEST = 1e-30, 1e38


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One row's outcome; ``token`` is -1 if its logits were not finite, or none is left after bias, penalties and bans."""

    token: int
    finite: bool
    logprobs: Logprobs | None


class Draws:
    """The draws of rows of ``logits`` (float32 ``[R, V]``; rows with penalties are changed in place), each made when asked for.

    Logprobs are those of the distribution that is drawn from before truncation: after bias and penalties, at the given
    temperature (greedy: at 1), as SGLang reports them.
    """

    def __init__(self, logits: torch.Tensor, specs: list[SampleSpec], find: Callable[[torch.Tensor], Peak]) -> None:
        """``find``: ``Ops.peak``."""
        self._logits, self._specs = logits, specs
        self._peak = find(logits)
        for i, spec in enumerate(specs):
            if self._peak.finite[i] and adjust_(logits[i], spec):
                changed = find(logits[i : i + 1])
                self._peak.most[i], self._peak.at[i] = changed.most[0], changed.at[0]

    def __getitem__(self, i: int) -> Drawn:
        """What is drawn from row ``i``."""
        most = self._peak.most[i]
        if not self._peak.finite[i] or not math.isfinite(most):
            return Drawn(-1, False, None)
        spec, params = self._specs[i], self._specs[i].params
        row = tempered(self._logits[i], most, params.temperature)
        token = self._peak.at[i] if params.greedy else sample(row, params, uniform(spec.seed, spec.position))
        logprobs = None
        if spec.logprobs is not None:
            logprobs = token_logprobs(torch.log_softmax(row, dim=-1)[None], np.array([token]), spec.logprobs)
        return Drawn(token, True, logprobs)


def draw(draws: Draws, first: int, drafts: list[int], spec: LogprobSpec | None) -> RowResult:
    """What one sequence gets of its ``len(drafts) + 1`` draws, which start at row ``first``."""
    made: list[Drawn] = []

    def tokens() -> Iterator[int]:
        for i in range(first, first + len(drafts) + 1):
            made.append(draws[i])
            if not made[-1].finite:
                return
            yield made[-1].token

    accepted = accept(drafts, tokens())
    parts = [d.logprobs for d in made if d.logprobs is not None]
    return RowResult(accepted, finite=made[-1].finite, logprobs=Logprobs.join(parts, spec) if spec is not None else None)


def tempered(row: torch.Tensor, most: float, temperature: float) -> torch.Tensor:
    """Logits at a temperature (0: as they are). ``most``: the largest of them."""
    if temperature in (0.0, 1.0):
        return row
    if temperature >= COLDEST and abs(most) < temperature * LARGEST:
        return row / temperature
    return torch.where(row == most, 0.0, -torch.inf)  # the quotients are beyond float32: only the best has a chance


def adjust_(row: torch.Tensor, spec: SampleSpec) -> bool:
    """Bias, penalties and bans on one row ``[V]``, in place; False if there are none."""
    params = spec.params
    if not (params.logit_bias or params.penalised or spec.banned):
        return False
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        row[list(ids)] += torch.tensor(values, dtype=row.dtype, device=row.device)
    if params.penalised:
        if params.repetition_penalty != 1.0:
            seen = _ids(np.unique(np.concatenate([spec.prompt, spec.output])), row)
            old, factor = row[seen], params.repetition_penalty
            row[seen] = torch.where(old > 0, old / factor, old * factor)
        if len(spec.output) and (params.frequency_penalty != 0.0 or params.presence_penalty != 0.0):
            out, counts = np.unique(spec.output, return_counts=True)
            cost = counts * params.frequency_penalty + params.presence_penalty
            row[_ids(out, row)] -= torch.from_numpy(cost.astype(np.float32)).to(row.device)
    if spec.banned:
        row[list(spec.banned)] = -torch.inf
    return True


def _ids(ids: NDArray[np.int32], row: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64)).to(row.device)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that only the seed and the position decide (Philox 4x64, Salmon et al. 2011)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


def sample(row: torch.Tensor, params: SamplingParams, u: float) -> int:
    """Invert the cumulative distribution of ``softmax(row)`` at ``u``, after top_k, top_p and min_p.

    A token stays if fewer than ``top_k`` are more likely, if those more likely hold at most ``top_p`` of the whole
    probability, and if it has at least ``min_p`` of the most likely one's.
    """
    probs = torch.softmax(row, dim=-1)
    if params.top_k == -1 and params.top_p == 1.0 and params.min_p == 0.0:
        return _invert(probs.double(), u)
    count = len(probs) if params.top_k == -1 else min(params.top_k, len(probs))
    values, ids = torch.topk(probs, min(count, FIRST_CANDIDATES))
    if count > FIRST_CANDIDATES and not _cut_within(values, params):
        values, ids = torch.topk(probs, count)
    values = values.double()
    before = values.cumsum(0) - values
    stays = (before <= params.top_p) & (values >= params.min_p * values[0])
    stays[0] = True
    return int(ids[_invert(torch.where(stays, values, 0.0), u)])


def _cut_within(values: torch.Tensor, params: SamplingParams) -> bool:
    """Do top_p or min_p end the candidates before these do?"""
    return bool(values.double().sum() > params.top_p) or bool(values[-1] < params.min_p * values[0])


def _invert(weights: torch.Tensor, u: float) -> int:
    total = weights.cumsum(0)
    at = int(torch.searchsorted(total, u * float(total[-1]), right=True))
    return min(at, int(torch.nonzero(weights)[-1]))


def token_logprobs(logprobs: torch.Tensor, ids: NDArray[np.int64], spec: LogprobSpec) -> Logprobs:
    """What a request wants to know of ``k`` tokens, of their distributions ``logprobs`` float32 ``[k, V]``."""
    at = torch.from_numpy(ids).to(logprobs.device)
    values = logprobs.gather(1, at[:, None])[:, 0]
    top_values, top_ids = torch.topk(logprobs, spec.top, dim=-1)
    picked = logprobs[:, list(spec.token_ids)]
    return Logprobs(ids, values.cpu().numpy(), top_ids.cpu().numpy(), top_values.cpu().numpy(), picked.cpu().numpy())
