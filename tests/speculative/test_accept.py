"""The accept rule: a table, its laziness, and the distribution that comes out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from wellhead.kernels.plain import PlainOps
from wellhead.runner.sampler import Draws, draw, uniform
from wellhead.speculation import Algorithm, effective_capture
from wellhead.speculative.accept import accept
from wellhead.step import SampleSpec
from wellhead.types import CaptureMode, SamplingParams

NONE = np.empty(0, np.int32)
PEAK = PlainOps(torch.float32).peak
NULL, LAST, FULL = CaptureMode


@pytest.mark.parametrize(
    ("drafts", "draws", "tokens"),
    [
        ([], [7], (7,)),
        ([5], [7, 8], (7,)),
        ([5], [5, 8], (5, 8)),
        ([5, 6, 7], [9, 6, 7, 8], (9,)),
        ([5, 6, 7], [5, 9, 7, 8], (5, 9)),
        ([5, 6, 7], [5, 6, 9, 8], (5, 6, 9)),
        ([5, 6, 7], [5, 6, 7, 8], (5, 6, 7, 8)),
        ([5, 6, 7], [5, 6], (5, 6)),  # the target could not draw
        ([5, 6, 7], [], ()),
        ([5, 5], [5, 5, 5, 5], (5, 5, 5)),  # never more than the drafts and one
    ],
)
def test_the_longest_agreeing_run_and_one_more(drafts: list[int], draws: list[int], tokens: tuple[int, ...]) -> None:
    assert accept(drafts, draws) == tokens


def test_no_draw_is_made_beyond_the_first_that_differs() -> None:
    made = []

    def draws() -> Iterator[int]:
        for token in (5, 9, 7, 8):
            made.append(token)
            yield token

    assert accept([5, 6, 7], draws()) == (5, 9)
    assert made == [5, 9]


def test_the_distribution_is_the_targets_whatever_the_drafts() -> None:
    """Tokens at two positions over many seeds against the target's own probabilities (chi-square, 99.9 %)."""
    vocab, runs = 6, 6000
    logits = torch.tensor([[1.0, 0.2, -0.5, 0.0, 2.0, -1.0], [0.0, 1.0, 1.5, -2.0, 0.3, 0.1]])
    params = SamplingParams(temperature=0.8)
    for drafts in ([4], [3], [5]):  # the likeliest, a middling one, an unlikely one
        first, second, reached = np.zeros(vocab), np.zeros(vocab), 0
        for seed in range(runs):
            specs = [SampleSpec(params, seed, position, (), NONE, NONE, None) for position in (10, 11)]
            got = draw(Draws(logits.clone(), specs, PEAK), 0, drafts, None)
            first[got.tokens[0]] += 1
            if len(got.tokens) == 2:
                second[got.tokens[1]] += 1
                reached += 1
        probs = torch.softmax(logits.double() / 0.8, -1).numpy()
        assert chi_square(first, probs[0] * runs) < 20.5
        assert chi_square(second, probs[1] * reached) < 20.5
        assert abs(reached / runs - probs[0][drafts[0]]) < 4 * (0.25 / runs) ** 0.5


def chi_square(seen: np.ndarray, expected: np.ndarray) -> float:
    return float(((seen - expected) ** 2 / expected).sum())


def test_the_chi_square_would_notice_a_draft_that_is_always_taken() -> None:
    probs = torch.softmax(torch.tensor([1.0, 0.2, -0.5, 0.0, 2.0, -1.0]).double() / 0.8, -1).numpy()
    assert chi_square(np.array([0.0, 0, 0, 0, 6000, 0]), probs * 6000) > 20.5


def test_draws_of_neighbouring_positions_do_not_depend_on_each_other() -> None:
    u = np.array([[uniform(seed, 10), uniform(seed, 11)] for seed in range(4000)])
    assert abs(np.corrcoef(u.T)[0, 1]) < 0.05


@pytest.mark.parametrize("ceiling", CaptureMode)
@pytest.mark.parametrize("algorithm", Algorithm)
def test_what_a_model_must_be_able_to_capture(ceiling: CaptureMode, algorithm: Algorithm) -> None:
    assert effective_capture(ceiling, algorithm, is_draft=True) is NULL
    needs_rows = algorithm in (Algorithm.EAGLE, Algorithm.EAGLE3)
    assert effective_capture(ceiling, algorithm, is_draft=False) is (FULL if needs_rows else ceiling)
