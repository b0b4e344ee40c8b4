"""Speculative decoding is plain decoding: tokens, text, rows and logprobs, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.company import MODES, company, prompt
from support.direct import Direct
from support.speculating import REPEATING, Family, Payload, check_equal, options_for, pair, payloads

ALGORITHMS = ("NGRAM", "SELF", "STANDALONE", "EAGLE", "EAGLE3")
RELAXED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=40, deadline=None, suppress_health_check=RELAXED)
@given(
    requests=st.lists(payloads(), min_size=1, max_size=5),
    pages=st.sampled_from([14, 256]),
    chunk=st.sampled_from([5, 64]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_any_requests(algorithm: str, requests: list[Payload], pages: int, chunk: int, dtype: str, family: Family) -> None:
    check_equal(*pair(family, algorithm, "llama", pages, chunk, dtype), requests)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("target", ["gemma3", "qwen3", "mistral"])
def test_a_company_of_all_modes_twice(algorithm: str, target: str, family: Family) -> None:
    """The second time with prefix hits."""
    plain, speculating = pair(family, algorithm, target, 256, 32, "float32")
    requests = company(["full", "off", "last", "mean", "last"])
    for _ in range(2):
        check_equal(plain, speculating, requests)


def test_a_target_as_its_own_draft_accepts_everything(family: Family) -> None:
    direct = Direct(family("llama"), **options_for("SELF", family, "llama"), speculative_num_steps=4)
    params = {"max_new_tokens": 21, "temperature": 0, "ignore_eos": True}
    for reply in direct.run([{"input_ids": prompt(n), "sampling_params": params, **MODES["full"]} for n in (3, 16, 40)]):
        meta = reply.to_dict()["meta_info"]
        assert meta["spec_verify_ct"] == 4
        assert meta["spec_accept_length"] == 21 / 4


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_ngram_finds_what_repeats(temperature: float, family: Family) -> None:
    plain, speculating = pair(family, "NGRAM", "llama", 256, 64, "float32")
    params = {"max_new_tokens": 120, "temperature": temperature, "sampling_seed": 3, "logit_bias": REPEATING}
    request = {"input_ids": prompt(20), "sampling_params": {**params, "ignore_eos": True}, **MODES["full"]}
    check_equal(plain, speculating, [request])
    (reply,) = speculating.run([request])
    usage = reply.to_dict()["meta_info"]
    assert usage["spec_verify_ct"] < 100
    assert usage["spec_accept_length"] == 120 / usage["spec_verify_ct"]


def test_plain_replies_say_nothing_of_speculation(family: Family) -> None:
    (reply,) = Direct(family("llama")).run([{"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 4}}])
    assert not [name for name in reply.to_dict()["meta_info"] if name.startswith("spec_")]


def test_a_last_server_still_refuses_full(family: Family) -> None:
    from wellhead.errors import CaptureAboveCeiling

    direct = Direct(family("llama"), speculative_algorithm="NGRAM", return_hidden_states_mode="last")
    with pytest.raises(CaptureAboveCeiling):
        direct.submit({"input_ids": [1, 2], **MODES["full"]})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"speculative_algorithm": "MEDUSA"}, r"must be one of EAGLE, EAGLE3, STANDALONE, NGRAM, not 'MEDUSA'"),
    ({"speculative_num_steps": 3}, "speculative_algorithm is not set"),
    ({"speculative_algorithm": "NGRAM", "speculative_eagle_topk": 4}, "speculative_eagle_topk 4 asks for a tree"),
    ({"speculative_algorithm": "NGRAM", "speculative_num_steps": 4}, "speculative_num_steps is given"),
    ({"speculative_algorithm": "NGRAM", "speculative_draft_model_path": "x"}, "draft_model_path is given"),
    ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 600}, "600 exceeds the context of 512"),
    ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 1}, "at least 2"),
    ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": True}, "whole number"),
    (
        {
            "speculative_algorithm": "NGRAM",
            "speculative_ngram_min_match_window_size": 5,
            "speculative_ngram_max_match_window_size": 3,
        },
        "5 exceeds .* 3",
    ),
    ({"speculative_algorithm": "STANDALONE"}, "must name the draft model"),
    (
        {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "x", "speculative_ngram_max_match_window_size": 3},
        "looks nothing up",
    ),
    (
        {
            "speculative_algorithm": "STANDALONE",
            "speculative_draft_model_path": "x",
            "speculative_num_steps": 3,
            "speculative_num_draft_tokens": 8,
        },
        "8 does not go with speculative_num_steps 3",
    ),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_bad_options_are_refused_with_both_numbers(options: dict[str, Any], said: str, family: Family) -> None:
    from wellhead.errors import InvalidConfig

    with pytest.raises(InvalidConfig, match=said) as caught:
        Direct(family("llama"), **options)
    assert caught.value.param in options or caught.value.param == "speculative_draft_model_path"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 300}, "vocab_size 300, the target has vocab_size 272"),
        ({"max_position_embeddings": 256}, "context of 256 tokens, the target runs with 512"),
    ],
)
def test_a_draft_that_does_not_go_with_its_target_is_refused(changes: dict[str, int], said: str, family: Family) -> None:
    from wellhead.errors import InvalidConfig

    options = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(family("llama", **changes))}
    with pytest.raises(InvalidConfig, match=said):
        Direct(family("llama"), **options)
