"""Sampling parameters: names, ranges and defaults are SGLang's; everything else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from support.tags import config
from wellhead.errors import InvalidRequest
from wellhead.requests.limits import Limits
from wellhead.requests.sampling import NOT_SERVED, normalize_sampling
from wellhead.types import SamplingParams

LIMITS = Limits(config(), 100, True)


def params(**fields: Any) -> SamplingParams:
    return normalize_sampling(fields, LIMITS)


def test_defaults() -> None:
    assert params() == SamplingParams()
    made = params(temperature=None, stop=None, n=None)
    assert (made.max_new_tokens, made.temperature, made.top_p, made.top_k, made.min_p, made.n) == (128, 1.0, 1.0, -1, 0.0, 1)


GOOD: list[tuple[str, Any, Any]] = [
    ("temperature", 0, 0.0), ("top_p", 1, 1.0), ("top_k", 1, 1), ("top_k", -1, -1), ("min_p", 1, 1.0),
    ("frequency_penalty", -2, -2.0),
    ("presence_penalty", 2, 2.0), ("repetition_penalty", 2, 2.0), ("stop", "a", ("a",)), ("stop", ["a", "b"], ("a", "b")),
    ("stop_regex", "a+", ("a+",)), ("stop_token_ids", [5, 6], (5, 6)), ("logit_bias", {"5": 1, 6: -2.5}, ((5, 1.0), (6, -2.5))),
    ("sampling_seed", 2**63 - 1, 2**63 - 1), ("max_new_tokens", 0, 0), ("ignore_eos", True, True), ("no_stop_trim", True, True),
    ("skip_special_tokens", False, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "kept"), GOOD)
def test_what_is_taken(name: str, given: Any, kept: Any) -> None:
    assert getattr(params(**{name: given}), name) == kept
    assert normalize_sampling(params(**{name: given}), LIMITS) == params(**{name: given})


NAN = float("nan")
BAD: list[tuple[str, Any]] = [
    ("temperature", -0.1), ("temperature", NAN), ("temperature", float("inf")), ("temperature", "1"), ("temperature", True),
    ("top_p", 0), ("top_p", 1.1), ("top_k", 0), ("top_k", -2), ("top_k", 1.5), ("min_p", -0.1), ("min_p", 1.1),
    ("frequency_penalty", 2.1), ("presence_penalty", -2.1), ("repetition_penalty", 0), ("repetition_penalty", 2.1),
    ("max_new_tokens", -1), ("max_new_tokens", 1.0), ("max_new_tokens", True), ("min_new_tokens", -1), ("n", 0), ("n", 129),
    ("stop", ""), ("stop", ["a", ""]), ("stop", [5]), ("stop", ["a"] * 65), ("stop", "a" * 1025), ("stop", {"a": 1}),
    ("stop_token_ids", 5), ("stop_token_ids", [100]), ("stop_token_ids", [-1]), ("stop_token_ids", ["5"]), ("ignore_eos", 1),
    ("logit_bias", {"100": 1}), ("logit_bias", {"x": 1}), ("logit_bias", {"1.5": 1}), ("logit_bias", {1.5: 1}),
    ("logit_bias", {True: 1}), ("logit_bias", {"1": "2"}), ("logit_bias", {"1": NAN}), ("logit_bias", [1]),
    ("logit_bias", {"1" * 5000: 1}), ("logit_bias", {"1": 10**400}), ("temperature", 10**400),
    ("sampling_seed", -1), ("sampling_seed", 2**63), ("sampling_seed", 1.5), ("best_of", 2), ("Temperature", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_what_is_refused_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        params(**{name: value})
    assert caught.value.param == f"sampling_params.{name}"


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_is_not_served_yet_is_refused_by_name(name: str) -> None:
    assert params(**{name: None}) == SamplingParams()
    with pytest.raises(InvalidRequest) as caught:
        params(**{name: "x"})
    assert (caught.value.code, caught.value.param) == ("unsupported_field", f"sampling_params.{name}")


def test_what_contradicts_itself_is_refused() -> None:
    for fields in ({"min_new_tokens": 3, "max_new_tokens": 2}, {"max_new_tokens": 0, "n": 2}):
        with pytest.raises(InvalidRequest):
            params(**fields)


@pytest.mark.parametrize(("fields", "greedy"), [({"temperature": 0}, True), ({"top_k": 1}, True), ({}, False)])
def test_greedy(fields: dict[str, Any], greedy: bool) -> None:
    assert params(**fields).greedy is greedy
