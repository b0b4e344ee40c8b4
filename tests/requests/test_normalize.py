"""The door: every value, every list length, every clause of bad input, with a stable code and the field's name."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support.tags import config
from wellhead.config import EngineConfig
from wellhead.errors import InvalidConfig, InvalidRequest, PromptTooLong
from wellhead.requests.limits import Limits
from wellhead.requests.normalize import NOT_SERVED, Batch, normalize, parse_mode
from wellhead.types import CaptureMode

NULL, LAST, FULL = CaptureMode
VOCAB = 100


def door(payload: dict[str, Any], *, tokenizer: bool = True, **changes: Any) -> Batch:
    limits = Limits(config(**{"context_length": 64, "pages": 10, "page_size": 4, **changes}), VOCAB, tokenizer)
    counter = itertools.count(1000)
    return normalize(payload, limits, lambda texts: [[len(word) for word in t.split()] for t in texts], lambda: next(counter))


def ids(**more: Any) -> dict[str, Any]:
    return {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}, **more}


def batch(count: int, **more: Any) -> dict[str, Any]:
    return {"input_ids": [[1, 2, 3 + i] for i in range(count)], "sampling_params": {"max_new_tokens": 2}, **more}


def modes(payload: dict[str, Any], **changes: Any) -> list[CaptureMode]:
    return [r.mode for r in door(payload, **changes).requests]


# --- modes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "mode"), [(False, NULL), ("last", LAST), (True, FULL)])
def test_the_three_values(value: Any, mode: CaptureMode) -> None:
    assert parse_mode(value) is mode
    assert modes(ids(return_hidden_states=value)) == [mode]
    assert modes(ids(return_hidden_states=[value])) == [mode]
    assert modes(batch(3, return_hidden_states=value)) == [mode] * 3


@pytest.mark.parametrize("value", [None, 0, 1, 1.0, "full", "LAST", "Last", "true", "", "off", {}, np.True_, b"last", [True, 1]])
def test_anything_else_is_refused_and_the_message_says_what_is_allowed(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door(batch(2, return_hidden_states=value))
    assert caught.value.param == "return_hidden_states"
    assert caught.value.code == "invalid_request"
    assert 'true, false or "last"' in str(caught.value)


def test_an_absent_field_means_not_asked() -> None:
    assert modes(ids()) == [NULL]
    assert modes(batch(2)) == [NULL, NULL]


def test_one_entry_per_prompt() -> None:
    assert modes(batch(3, return_hidden_states=[True, False, "last"])) == [FULL, NULL, LAST]


@pytest.mark.parametrize(("count", "length"), [(1, 0), (1, 2), (3, 1), (3, 2), (3, 4), (3, 0)])
def test_another_number_of_entries_is_refused_naming_both(count: int, length: int) -> None:
    payload = batch(count, return_hidden_states=["last"] * length)
    with pytest.raises(InvalidRequest, match=rf"{length} entries for {count} prompt") as caught:
        door(payload)
    assert caught.value.param == "return_hidden_states"


def test_samples_are_prompt_major_and_inherit_their_prompts_mode() -> None:
    made = door(batch(2, sampling_params={"n": 3, "max_new_tokens": 2}, return_hidden_states=["last", True]))
    assert [(r.prompt_index, r.sample_index, r.mode) for r in made.requests] == [
        (p, s, mode) for p, mode in ((0, LAST), (1, FULL)) for s in range(3)
    ]
    assert len({r.key for r in made.requests}) == 6
    assert len({r.rid for r in made.requests}) == 2
    assert not made.single


@pytest.mark.parametrize(("payload", "single"), [(ids(), True), (batch(1), False), (batch(2), False)])
def test_one_dict_for_one_prompt_and_a_list_for_a_list(payload: dict[str, Any], single: bool) -> None:
    assert door(payload).single is single


# --- ceiling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ceiling", CaptureMode)
@pytest.mark.parametrize("value", [False, "last", True])
def test_a_request_above_the_ceiling_is_refused_a_weaker_one_is_fine(ceiling: CaptureMode, value: Any) -> None:
    if parse_mode(value) <= ceiling:
        assert modes(ids(return_hidden_states=value), ceiling=ceiling) == [parse_mode(value)]
        return
    for payload in (ids(return_hidden_states=value), batch(2, return_hidden_states=[False, value])):
        with pytest.raises(InvalidRequest) as caught:
            door(payload, ceiling=ceiling)
        message = str(caught.value)
        if ceiling is NULL:
            assert caught.value.code == "capture_disabled"
            assert "--return-hidden-states-mode" in message
            assert "--enable-return-hidden-states" in message
        else:
            assert caught.value.code == "capture_above_ceiling"
            assert "'last'" in message
            assert "--return-hidden-states-mode full" in message


def option(**options: Any) -> CaptureMode:
    return EngineConfig.from_options({"model_path": "m", **options}).ceiling()


def test_the_ceiling_from_options() -> None:
    assert option() is LAST
    assert [option(return_hidden_states_mode=m) for m in ("off", "last", "full")] == [NULL, LAST, FULL]
    assert option(enable_return_hidden_states=True) is FULL
    assert option(enable_return_hidden_states=True, return_hidden_states_mode="last") is LAST
    assert option(enable_return_hidden_states=False, return_hidden_states_mode="full") is FULL


@pytest.mark.parametrize("value", ["", "FULL", "none", "true", True, False, 1, 2, ["full"]])
def test_another_ceiling_is_refused_from_python_too(value: Any) -> None:
    with pytest.raises(InvalidConfig) as caught:
        option(return_hidden_states_mode=value)
    assert caught.value.param == "return_hidden_states_mode"


def test_unknown_and_malformed_options_are_refused() -> None:
    bad: list[dict[str, Any]] = [
        {"return_hidden_state_mode": "full"}, {"enable_return_hidden_states": "yes"}, {"enable_return_hidden_states": 1},
        {"dtype": "int8"}, {"page_size": 48}, {"page_size": True}, {"chunked_prefill_size": 0}, {"chunked_prefill_size": -2},
        {"max_running_requests": 0}, {"mem_fraction_static": 1.5}, {"mem_fraction_static": "0.5"}, {"capture_layers": []},
        {"capture_layers": "all"}, {"schedule_policy": "random"}, {"random_seed": -1}, {"random_seed": 2**63},
        {"page_size": 16.0}, {"native_kernels": "no"}, {"native_kernels": 1}, {"tokenizer_path": 5}, {"served_model_name": 5},
        {"tokenizer_path": "a", "skip_tokenizer_init": True},
        {"schedule_policy": "lpm", "disable_radix_cache": True}, {"max_total_tokens": 0}, {"device": "tpu"},
        {"model_path": ""}, {"model_path": None},
    ]  # fmt: skip
    for options in bad:
        with pytest.raises(InvalidConfig) as caught:
            option(**options)
        assert caught.value.param == next(iter(options))


# --- layers and pooling -----------------------------------------------------------------------------------------


def test_layers_are_numbered_as_in_hugging_face_and_kept_as_asked() -> None:
    made = door(ids(return_hidden_states=True, hidden_states_layers=[0, -1, 1]), layers=2, capture_layers=(0, 1, 2))
    assert made.requests[0].reads[0].layers == (0, 2, 1)
    assert made.requests[0].reads[0].asked == (0, -1, 1)
    assert door(ids(return_hidden_states=True), layers=2, capture_layers=(0, 2)).requests[0].reads[0].layers == (2,)


@pytest.mark.parametrize(
    ("layers", "code"),
    [([], "invalid_request"), ([3], "invalid_request"), ([-4], "invalid_request"), ([True], "invalid_request"),
     ([1.0], "invalid_request"), (1, "invalid_request"), ([2, -1], "invalid_request"), ([1], "capture_above_ceiling")],
)  # fmt: skip
def test_layers_that_are_none_or_not_captured_are_refused(layers: Any, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door(ids(return_hidden_states=True, hidden_states_layers=layers), layers=2, capture_layers=(0, 2))
    assert (caught.value.code, caught.value.param) == (code, "hidden_states_layers")


def test_mean_is_an_option_of_either_mode_and_needs_the_ceiling_full() -> None:
    for mode in ("last", True):
        (request,) = door(ids(return_hidden_states=mode, hidden_states_pooling="mean")).requests
        assert request.reads[0].reduce == "mean"
        assert request.mode is FULL
    with pytest.raises(InvalidRequest) as caught:
        door(ids(return_hidden_states="last", hidden_states_pooling="mean"), ceiling=LAST)
    assert caught.value.code == "capture_above_ceiling"


@pytest.mark.parametrize(
    "more",
    [{"hidden_states_layers": [0]}, {"hidden_states_pooling": "mean"}, {"incremental_hidden_states": True, "stream": True}],
)
def test_options_of_a_capture_that_was_not_asked_for_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door(ids(**more))
    assert caught.value.param == next(iter(more))


def test_pieces_need_a_stream() -> None:
    with pytest.raises(InvalidRequest, match="needs stream"):
        door(ids(return_hidden_states=True, incremental_hidden_states=True))


# --- prompts ----------------------------------------------------------------------------------------------------

BAD_PROMPTS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "invalid_request", "text"),
    ({"text": "a", "input_ids": [1]}, "invalid_request", "text"),
    ({"text": ""}, "empty_prompt", "text"),
    ({"text": []}, "empty_prompt", "text"),
    ({"text": ["a", ""]}, "empty_prompt", "text"),
    ({"text": "  "}, "empty_prompt", "text"),
    ({"text": 5}, "invalid_request", "text"),
    ({"text": ["a", 5]}, "invalid_request", "text"),
    ({"text": "x" * 100}, "token_out_of_range", "text"),
    ({"input_ids": []}, "empty_prompt", "input_ids"),
    ({"input_ids": [[]]}, "empty_prompt", "input_ids"),
    ({"input_ids": [[1], []]}, "empty_prompt", "input_ids"),
    ({"input_ids": np.zeros((0,), np.int64)}, "empty_prompt", "input_ids"),
    ({"input_ids": [VOCAB]}, "token_out_of_range", "input_ids"),
    ({"input_ids": [-1]}, "token_out_of_range", "input_ids"),
    ({"input_ids": [2**70]}, "token_out_of_range", "input_ids"),
    ({"input_ids": [[1], [VOCAB]]}, "token_out_of_range", "input_ids"),
    ({"input_ids": [1.0]}, "invalid_request", "input_ids"),
    ({"input_ids": [True]}, "invalid_request", "input_ids"),
    ({"input_ids": ["1"]}, "invalid_request", "input_ids"),
    ({"input_ids": [None]}, "invalid_request", "input_ids"),
    ({"input_ids": [[1], 2]}, "invalid_request", "input_ids"),
    ({"input_ids": [1, [2]]}, "invalid_request", "input_ids"),
    ({"input_ids": [[[1]]]}, "invalid_request", "input_ids"),
    ({"input_ids": "12"}, "invalid_request", "input_ids"),
    ({"input_ids": 7}, "invalid_request", "input_ids"),
    ({"input_ids": np.ones(3)}, "invalid_request", "input_ids"),
]


@pytest.mark.parametrize(("payload", "code", "param"), BAD_PROMPTS)
def test_bad_prompts(payload: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door({"sampling_params": {"max_new_tokens": 0}, **payload})
    assert (caught.value.code, caught.value.param) == (code, param)


def test_prompts_that_do_not_fit_the_context_or_the_pool() -> None:
    for length, new, fits in [(40, 0, True), (40, 1, True), (41, 0, False), (40, 2, False), (30, 11, True), (30, 12, False)]:
        payload = {"input_ids": [1] * length, "sampling_params": {"max_new_tokens": new}}
        if fits:
            door(payload)
        else:
            with pytest.raises(InvalidRequest, match="40") as caught:
                door(payload)
            assert caught.value.code == "prompt_too_long"
    for length, new in [(65, 0), (60, 5), (1, 64)]:
        with pytest.raises(InvalidRequest, match="64") as caught:
            door({"input_ids": [1] * length, "sampling_params": {"max_new_tokens": new}}, pages=1000)
        assert caught.value.code == "prompt_too_long"


def test_numpy_ids_are_taken_verbatim() -> None:
    made = door({"input_ids": np.array([5, 6]), "sampling_params": {"max_new_tokens": 0}})
    assert made.requests[0].input_ids.tolist() == [5, 6]
    assert made.requests[0].input_ids.dtype == np.int32
    made = door({"input_ids": [np.array([5, 6]), [7]], "sampling_params": {"max_new_tokens": 0}})
    assert [r.input_ids.tolist() for r in made.requests] == [[5, 6], [7]]


def test_an_engine_without_a_tokenizer_takes_ids_alone() -> None:
    for payload in ({"text": "a"}, ids(sampling_params={"stop": "x", "max_new_tokens": 1})):
        with pytest.raises(InvalidRequest, match="tokenizer"):
            door(payload, tokenizer=False)


# --- the rest ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOT_SERVED)
def test_fields_that_are_not_served_are_refused_by_name_unless_they_ask_for_nothing(name: str) -> None:
    door(ids(**{name: None}))
    with pytest.raises(InvalidRequest, match=name) as caught:
        door(ids(**{name: "x"}))
    assert (caught.value.code, caught.value.param) == ("unsupported_field", name)


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"return_hidden_state": True}, "return_hidden_state"),
    ({"return_logprob": 1}, "return_logprob"),
    ({"return_logprob": True, "logprob_start_len": 4}, "logprob_start_len"),
    ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
    ({"return_logprob": True, "logprob_start_len": "0"}, "logprob_start_len"),
    ({"return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
    ({"return_logprob": True, "top_logprobs_num": VOCAB + 1}, "top_logprobs_num"),
    ({"return_logprob": True, "token_ids_logprob": [VOCAB]}, "token_ids_logprob"),
    ({"return_logprob": True, "token_ids_logprob": 3}, "token_ids_logprob"),
    ({"return_logprob": True, "token_ids_logprob": [[1], 2], "input_ids": [[1], [2]]}, "token_ids_logprob"),
    ({"timeout": 10**400}, "timeout"),
    ({"return_logprob": True, "token_ids_logprob": ["x"]}, "token_ids_logprob"),
    ({"stream": "yes"}, "stream"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": "1"}, "timeout"),
    ({"rid": ""}, "rid"),
    ({"rid": 5}, "rid"),
    ({"rid": "x" * 257}, "rid"),
    ({"hidden_states_pooling": "max", "return_hidden_states": True}, "hidden_states_pooling"),
    ({"sampling_params": 3}, "sampling_params"),
    ({"sampling_params": [{}, {}]}, "sampling_params"),
]


@pytest.mark.parametrize(("more", "param"), BAD_FIELDS)
def test_bad_fields(more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door(ids(**more))
    assert caught.value.param == param


def test_a_batch_is_refused_whole_and_the_message_says_which_prompt() -> None:
    with pytest.raises(InvalidRequest, match=r"\[1\]"):
        door({"input_ids": [[1], [VOCAB], [2]], "sampling_params": {"max_new_tokens": 0}})


def test_per_prompt_options_go_to_their_prompts() -> None:
    made = door(
        batch(
            2,
            sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 5}],
            rid=["a", "b"],
            return_logprob=[True, False],
            logprob_start_len=[0, -1],
            token_ids_logprob=[[1], [2, 3]],
        )
    )
    first, second = made.requests
    assert (first.sampling.max_new_tokens, second.sampling.max_new_tokens) == (1, 5)
    assert (first.rid, second.rid) == ("a", "b")
    assert first.logprobs is not None
    assert first.logprobs.start == 0
    assert first.logprobs.token_ids == (1,)
    assert second.logprobs is None
    with pytest.raises(InvalidRequest, match="alike"):
        door(batch(2, rid=["a", "a"]))


def test_seeds_are_the_callers_or_the_engines() -> None:
    made = door(ids(sampling_params={"n": 3, "sampling_seed": 7, "max_new_tokens": 2}))
    assert [r.seed for r in made.requests] == [7, 8, 9]
    made = door(batch(2, sampling_params={"n": 2, "max_new_tokens": 2}))
    assert [r.seed for r in made.requests] == [1000, 1001, 1002, 1003]


@pytest.mark.parametrize(("given", "param"), [({"input_ids": [1] * 5000}, "input_ids"), ({"text": "a " * 5000}, "text")])
def test_a_prompt_that_is_too_long_is_named_as_it_came(given: dict[str, Any], param: str) -> None:
    with pytest.raises(PromptTooLong) as caught:
        door({**given, "sampling_params": {"max_new_tokens": 0}})
    assert caught.value.param == param


@pytest.mark.parametrize(
    "rows",
    [
        {"part": []}, {"part": {}}, {"part": "middle"}, {"exclude": {"special": "no"}}, {"exclude": {"token_ids": False}},
        {"exclude": {"positions": ""}}, {"exclude": {"token_ids": [-4]}}, {"last": 0}, {"step": -1}, "::-1", 1.5, True, [1.5],
    ],
)  # fmt: skip
def test_rows_that_mean_nothing_are_refused_by_name(rows: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door(ids(hidden_states_rows=rows))
    assert caught.value.param == "hidden_states_rows"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"return_hidden_states": "last", "hidden_states_rows": "all"}, "hidden_states_rows"),
        ({"return_hidden_states": {"rows": "last"}, "hidden_states_rows": 0}, "hidden_states_rows"),
        ({"return_hidden_states": {"rows": "last"}, "hidden_states_rows": "none"}, "hidden_states_rows"),
        ({"reads": {"a": {"rows": "last"}}, "hidden_states_rows": 0}, "hidden_states_rows"),
        ({"reads": {"a": {"rows": "last"}}, "return_hidden_states": True}, "reads"),
    ],
)
def test_what_is_said_twice_is_refused(more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door(ids(**more))
    assert caught.value.param == param


def test_a_row_that_is_not_there_names_its_prompt_and_its_read() -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt\[1\]: reads.a: row 4 does not exist") as caught:
        door({"input_ids": [[1, 2, 3, 4, 5], [1, 2, 3]], "reads": {"a": {"rows": [4]}}, "sampling_params": {"max_new_tokens": 0}})
    assert caught.value.code == "row_out_of_range"
