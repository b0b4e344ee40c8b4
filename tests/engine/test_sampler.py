"""The sampler against distributions written down directly, and the formulas that change logits before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from wellhead.kernels.plain import PlainOps
from wellhead.runner.sampler import Draws, adjust_, sample, uniform
from wellhead.step import SampleSpec
from wellhead.types import LogprobSpec, SamplingParams

VOCAB, DRAWS = 60, 20_000
NONE = np.empty(0, np.int32)
PEAK = PlainOps(torch.float32).peak


def logits(seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 2


def spec(
    position: int = 0, seed: int = 0, banned: tuple[int, ...] = (), prompt: Any = NONE, output: Any = NONE, **fields: Any
) -> SampleSpec:
    ids = [np.array(x, np.int32) for x in (prompt, output)]
    return SampleSpec(SamplingParams(**fields), seed, position, banned, ids[0], ids[1], LogprobSpec(top=3))


def by_definition(row: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """Probabilities after top_k, top_p and min_p, each of the whole distribution."""
    p = torch.softmax(row.double(), dim=-1).numpy()
    order = np.argsort(-p, kind="stable")
    kept = np.zeros(len(p), bool)
    more_likely = 0.0
    for rank, token in enumerate(order):
        fits = (
            (params.top_k == -1 or rank < params.top_k) and more_likely <= params.top_p and p[token] >= params.min_p * p[order[0]]
        )
        kept[token] = fits
        more_likely += p[token]
    q = np.where(kept, p, 0)
    found: np.ndarray = q / q.sum()
    return found


LIMITS: list[dict[str, Any]] = [
    {}, {"top_k": 1}, {"top_k": 5}, {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 1e-6}, {"min_p": 0.2}, {"min_p": 1.0},
    {"top_k": 10, "top_p": 0.7, "min_p": 0.05}, {"top_k": 1000},
]  # fmt: skip


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_frequencies_are_those_of_the_definition(limits: dict[str, Any]) -> None:
    row, params = logits(), SamplingParams(**limits)
    wanted = by_definition(row, params)
    rng = np.random.default_rng(1)
    counts = np.bincount([sample(row, params, u) for u in rng.random(DRAWS)], minlength=VOCAB)
    assert not counts[wanted == 0].any()
    expected = wanted[wanted > 0] * DRAWS
    chi2 = float(((counts[wanted > 0] - expected) ** 2 / expected).sum())
    freedom = max(1, int((wanted > 0).sum()) - 1)
    assert chi2 < freedom + 5 * (2 * freedom) ** 0.5


def test_a_long_tail_beyond_the_first_candidates_can_be_drawn() -> None:
    row = torch.zeros(5000)
    params = SamplingParams(top_p=0.999)
    drawn = {sample(row, params, u) for u in np.linspace(0, 1, 4000, endpoint=False)}
    assert len(drawn) > 3500
    assert len({sample(row, SamplingParams(top_k=7), u) for u in np.linspace(0, 1, 500, endpoint=False)}) == 7


@pytest.mark.parametrize("u", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_a_possible_token(u: float) -> None:
    row = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf])
    for limits in ({}, {"top_k": 4}, {"top_p": 0.99}):
        assert sample(row, SamplingParams(**limits), u) in (1, 3)


def test_draws_depend_on_seed_and_position_alone() -> None:
    table = {(s, p): uniform(s, p) for s in range(40) for p in range(40)}
    assert len(set(table.values())) == 1600
    assert all(0 <= u < 1 for u in table.values())
    assert abs(np.mean(list(table.values())) - 0.5) < 0.03
    assert table[3, 7] == uniform(3, 7)
    assert uniform(2**63 - 1, 2**31) != uniform(2**63 - 2, 2**31)


def test_a_row_draws_the_same_in_any_company() -> None:
    rows = torch.stack([logits(i) for i in range(70)])
    specs = [
        spec(seed=i, position=i, temperature=0.7, top_p=0.9, repetition_penalty=1.3, prompt=[1, 2], output=[3]) for i in range(70)
    ]
    together = Draws(rows.clone(), specs, PEAK)
    for i in range(70):
        alone = Draws(rows[i : i + 1].clone(), specs[i : i + 1], PEAK)[0]
        assert alone.token == together[i].token
        one, other = alone.logprobs, together[i].logprobs
        assert one is not None
        assert other is not None
        assert one.values == other.values
        assert one.top_ids.tolist() == other.top_ids.tolist()


def test_frequency_and_presence_count_output_tokens_alone() -> None:
    row, base = logits(), logits()
    adjust_(row, spec(frequency_penalty=0.5, presence_penalty=0.25, prompt=[9, 9], output=[1, 2, 2, 2]))
    wanted = base.clone()
    wanted[1] -= 0.5 + 0.25
    wanted[2] -= 3 * 0.5 + 0.25
    torch.testing.assert_close(row, wanted)


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    row, base = logits(), logits()
    adjust_(row, spec(repetition_penalty=1.5, prompt=[3, 4, 4], output=[5, 3]))
    wanted = base.clone()
    for token in (3, 4, 5):
        wanted[token] = base[token] / 1.5 if base[token] > 0 else base[token] * 1.5
    assert any(base[t] > 0 for t in (3, 4, 5))
    assert any(base[t] < 0 for t in (3, 4, 5))
    torch.testing.assert_close(row, wanted)


def test_bias_comes_first_and_bans_last() -> None:
    row, base = logits(), logits()
    adjust_(row, spec(logit_bias=((7, 5.0), (8, -100.0), (9, 3.0)), banned=(9, 10)))
    assert row[7] == base[7] + 5
    assert row[8] == base[8] - 100
    assert torch.isinf(row[9])
    assert torch.isinf(row[10])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_row_is_told_and_its_neighbours_are_not_touched(bad: float) -> None:
    rows = torch.stack([logits(i) for i in range(3)])
    rows[1, 5] = bad
    draws = Draws(rows.clone(), [spec(seed=i) for i in range(3)], PEAK)
    drawn = [draws[i] for i in range(3)]
    assert [(d.finite, d.token >= 0) for d in drawn] == [(True, True), (False, False), (True, True)]
    for i in (0, 2):
        assert drawn[i].token == Draws(rows[i : i + 1].clone(), [spec(seed=i)], PEAK)[0].token


def test_greedy_is_the_largest_and_its_logprob_is_at_temperature_one() -> None:
    drawn = Draws(logits()[None].clone(), [spec(temperature=0.0)], PEAK)[0]
    assert drawn.token == int(logits().argmax())
    assert drawn.logprobs is not None
    assert drawn.logprobs.values[0] == pytest.approx(float(torch.log_softmax(logits(), -1).max()))


@pytest.mark.parametrize("temperature", [1e-5, 1e-37, 1e-40, 1e-45, 5e-324])
def test_the_colder_the_surer(temperature: float) -> None:
    for shift in (0.0, -1e4, 3e38):
        row = logits() * (1 if shift < 1e30 else 0) + shift
        row[7] = row.max() + 1 if shift < 1e30 else row.max() * 1.1
        drawn = Draws(row[None].clone(), [spec(temperature=temperature, top_p=0.9)], PEAK)[0]
        assert drawn.token == 7
        assert drawn.logprobs is not None and drawn.logprobs.values[0] == 0.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_no_token_is_left_none_is_drawn(temperature: float) -> None:
    """Everything banned, or pushed beyond float32: whatever came out would be made up."""
    broken = [
        spec(temperature=temperature, banned=tuple(range(VOCAB))),
        spec(temperature=temperature, logit_bias=((5, 1e39),)),
        spec(temperature=temperature, repetition_penalty=1e-45, prompt=[int(logits().argmax())]),
    ]
    draws = Draws(torch.stack([logits()] * 4), [*broken, spec(temperature=temperature)], PEAK)
    assert [(draws[i].finite, draws[i].token >= 0) for i in range(4)] == [(False, False)] * 3 + [(True, True)]
