"""Where the server differs from SGLang 0.5.23 on purpose, as it shows over HTTP; and SGLang's shapes where it does not."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.families import HIDDEN
from support.live import LiveServer

GREEDY = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}
PROMPT = "a prompt of 22 letters"
P = len(PROMPT)


def rows(entries: Any) -> np.ndarray:
    return np.concatenate([np.atleast_2d(np.array(e, np.float32)) for e in entries])


def states(reply: dict[str, Any]) -> Any:
    return reply["meta_info"]["hidden_states"]


def truth(server: LiveServer, text: str = PROMPT) -> Any:
    """The same through Python."""
    return server.engine.generate(text, GREEDY, return_hidden_states=True)["meta_info"]["hidden_states"]


def test_shape_of_a_reply(shared: LiveServer) -> None:
    reply = shared.ok("/generate", text=PROMPT, sampling_params=GREEDY, return_logprob=True, rid="mine")
    assert set(reply) == {"text", "output_ids", "meta_info"}
    meta = reply["meta_info"]
    assert {
        "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "e2e_latency", "num_retractions",
        "weight_version", "input_token_logprobs", "output_token_logprobs",
    } <= set(meta)  # fmt: skip
    assert meta["finish_reason"] == {"type": "length", "length": 5} and meta["id"] == "mine"
    assert "hidden_states" not in meta
    assert [t for _, t, _ in meta["output_token_logprobs"]] == reply["output_ids"]


@pytest.mark.parametrize("mode", ["last", True, False, None])
def test_1_every_mode_is_taken_over_http(shared: LiveServer, mode: Any) -> None:
    reply = shared.ok("/generate", text=PROMPT, sampling_params=GREEDY, return_hidden_states=mode)
    entries = truth(shared)
    if mode == "last":
        np.testing.assert_array_equal(np.array(states(reply), np.float32), entries[-1])
    elif mode is True:
        assert [np.shape(e) for e in states(reply)] == [(P, HIDDEN)] + [(HIDDEN,)] * 4
        np.testing.assert_array_equal(rows(states(reply)), rows(entries))
    else:
        assert "hidden_states" not in reply["meta_info"]


@pytest.mark.parametrize("mode", [1, 0, "full", "LAST", "true", [], {}, [True, True]])
def test_1_anything_else_is_refused(shared: LiveServer, mode: Any) -> None:
    assert shared.refused("/generate", text=PROMPT, return_hidden_states=mode)["param"] == "return_hidden_states"


def test_2_a_prefix_hit_gives_all_rows(shared: LiveServer) -> None:
    text = "x" * 40 + PROMPT
    first, second = (shared.ok("/generate", text=text, sampling_params=GREEDY, return_hidden_states=True) for _ in range(2))
    assert second["meta_info"]["cached_tokens"] > 0
    assert np.shape(states(second)[0]) == (len(text), HIDDEN) and states(first) == states(second)


def test_3_chunked_prefill_gives_all_rows(live: Callable[..., LiveServer], shared: LiveServer) -> None:
    chunked = live(chunked_prefill_size=7)
    reply = chunked.ok("/generate", text=PROMPT, sampling_params=GREEDY, return_hidden_states=True)
    np.testing.assert_array_equal(rows(states(reply)), rows(truth(shared)))


def test_4_no_new_tokens_gives_the_prompt(shared: LiveServer) -> None:
    reply = shared.ok("/generate", text=PROMPT, sampling_params={"max_new_tokens": 0}, return_hidden_states=True)
    assert [np.shape(e) for e in states(reply)] == [(P, HIDDEN)]
    assert reply["meta_info"]["completion_tokens"] == 0


def test_5_every_sample_has_all_rows(shared: LiveServer) -> None:
    params = {**GREEDY, "n": 3, "temperature": 1, "sampling_seed": 3}
    replies = shared.ok("/generate", text=[PROMPT, "another"], sampling_params=params, return_hidden_states=True)
    assert [np.shape(states(r)[0]) for r in replies] == [(P, HIDDEN)] * 3 + [(7, HIDDEN)] * 3
    assert len({tuple(r["output_ids"]) for r in replies[:3]}) > 1


def test_6_preemption_does_not_show(live: Callable[..., LiveServer]) -> None:
    server = live(max_total_tokens=160, disable_radix_cache=True)
    params = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
    texts = [f"{i} letters of a prompt" for i in range(4)]
    together = server.ok("/generate", text=texts, sampling_params=params, return_hidden_states=True)
    assert sum(r["meta_info"]["num_retractions"] for r in together) > 0
    for text, reply in zip(texts, together, strict=True):
        assert [np.shape(e) for e in states(reply)] == [(len(text), HIDDEN)] + [(HIDDEN,)] * 39
        alone = server.ok("/generate", text=text, sampling_params=params, return_hidden_states=True)
        assert states(alone) == states(reply)


def test_8_lists_of_one_for_one_prompt(shared: LiveServer) -> None:
    scalar = shared.ok("/generate", text=PROMPT, sampling_params=GREEDY, return_hidden_states="last")
    for one in ({"return_hidden_states": ["last"]}, {"return_hidden_states": ["last"], "sampling_params": [GREEDY]}):
        reply = shared.ok("/generate", **{"text": PROMPT, "sampling_params": GREEDY, **one})
        assert isinstance(reply, dict) and states(reply) == states(scalar)
    (reply,) = shared.ok("/generate", text=[PROMPT], sampling_params=GREEDY, return_hidden_states="last")
    assert states(reply) == states(scalar)


def test_9_a_stream_carries_the_list_once_in_its_last_event(shared: LiveServer) -> None:
    events = shared.events("/generate", text=PROMPT, sampling_params=GREEDY, return_hidden_states=True)
    assert all("hidden_states" not in e["meta_info"] for e in events[:-1])
    np.testing.assert_array_equal(rows(states(events[-1])), rows(truth(shared)))
    for before, after in itertools.pairwise(events):
        assert (
            after["text"].startswith(before["text"]) and after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        )
    whole = shared.ok("/generate", text=PROMPT, sampling_params=GREEDY)
    assert events[-1]["text"] == whole["text"] and events[-1]["output_ids"] == whole["output_ids"]
    assert [e["meta_info"]["finish_reason"] for e in events[:-1]] == [None] * (len(events) - 1)


def test_9_incremental_rows_add_up(shared: LiveServer) -> None:
    events = shared.events(
        "/generate", text=PROMPT, sampling_params=GREEDY, return_hidden_states=True, incremental_hidden_states=True
    )
    entries = [entry for event in events for entry in event["meta_info"].get("hidden_states", [])]
    assert events[-1]["meta_info"]["hidden_states_total"] == len(entries) == 5
    np.testing.assert_array_equal(rows(entries), rows(truth(shared)))


def test_a_batch_stream_carries_the_index(shared: LiveServer) -> None:
    texts = ["one", "two!", "three"]
    events = shared.events("/generate", text=texts, sampling_params=GREEDY, return_hidden_states=["last", False, True])
    assert {e["index"] for e in events} == {0, 1, 2}
    for i, text in enumerate(texts):
        mine = [e for e in events if e["index"] == i]
        assert [e["meta_info"]["finish_reason"] is None for e in mine] == [True] * (len(mine) - 1) + [False]
        assert mine[-1]["text"] == shared.ok("/generate", text=text, sampling_params=GREEDY)["text"]
    last = {e["index"]: e["meta_info"] for e in events}
    assert np.shape(last[0]["hidden_states"]) == (HIDDEN,) and "hidden_states" not in last[1]
    assert np.shape(last[2]["hidden_states"][0]) == (5, HIDDEN)


def test_13_base64_carries_the_same_rows(shared: LiveServer) -> None:
    reply = shared.ok("/generate", text=PROMPT, sampling_params=GREEDY, return_hidden_states=True, hidden_states_format="base64")
    shown = states(reply)
    pieces = shown if isinstance(shown, list) else [shown]
    arrays = []
    for piece in pieces:
        assert piece["dtype"] == "float32"
        arrays.append(np.frombuffer(base64.b64decode(piece["data"]), "<f4").reshape(piece["shape"]))
    np.testing.assert_array_equal(rows(arrays), rows(truth(shared)))


def test_list_and_float_name_the_default_form(shared: LiveServer) -> None:
    shown = [
        states(shared.ok("/generate", text=PROMPT, sampling_params=GREEDY, return_hidden_states="last", **form))
        for form in ({}, {"hidden_states_format": "list"}, {"hidden_states_format": "float"})
    ]
    assert shown[0] == shown[1] == shown[2] and len(shown[0]) == HIDDEN


def test_layers_by_number(shared: LiveServer) -> None:
    reply = shared.post("/generate", text=PROMPT, sampling_params=GREEDY, return_hidden_states="last", hidden_states_layers=[-1])
    assert reply.status_code == 200
    ((name, vector),) = states(reply.json()).items()
    assert name == "-1" and np.shape(vector) == (HIDDEN,)


@pytest.mark.parametrize(("ceiling", "mode", "code"), [
    ("off", "last", "capture_disabled"), ("off", True, "capture_disabled"), ("last", True, "capture_above_ceiling"),
])  # fmt: skip
def test_above_the_ceiling_names_the_flags(live: Callable[..., LiveServer], ceiling: str, mode: Any, code: str) -> None:
    server = live(return_hidden_states_mode=ceiling)
    for path, prompt in (("/generate", "text"), ("/v1/completions", "prompt")):
        error = server.refused(path, **{prompt: "a"}, return_hidden_states=mode)
        assert error["code"] == code and "--return-hidden-states-mode" in error["message"]
        assert code != "capture_disabled" or "--enable-return-hidden-states" in error["message"]
    assert server.ok("/generate", text="a", sampling_params=GREEDY, return_hidden_states=False)["output_ids"]


def test_put_is_post(shared: LiveServer) -> None:
    assert shared.http.put("/generate", json={"text": "a", "sampling_params": GREEDY}).status_code == 200


def test_abort_by_rid_ends_that_request_with_finish_reason_abort(live: Callable[..., LiveServer]) -> None:
    import threading

    from support.live import wait_for

    server = live()
    answers: list[Any] = []
    body = {"text": "abc", "rid": "victim", "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
    thread = threading.Thread(target=lambda: answers.append(server.post("/generate", **body)))
    thread.start()
    wait_for(lambda: server.engine.assembled.core.counters.requests == 1)
    assert server.post("/abort_request", rid="victim").status_code == 200
    thread.join(60)
    assert answers[0].json()["meta_info"]["finish_reason"]["type"] == "abort"
    server.check_all_given_back()


def test_flush_is_refused_while_requests_run(live: Callable[..., LiveServer]) -> None:
    server = live()
    with server.http.stream(
        "POST", "/generate", json={"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
    ) as answer:
        lines = answer.iter_lines()  # must stay alive: httpx closes the connection with it, which would abort the request
        next(lines)
        busy = server.http.post("/flush_cache")
        assert busy.status_code == 400 or server.idle()
    server.check_all_given_back()


def test_facts(shared: LiveServer) -> None:
    for path in ("/model_info", "/get_model_info"):
        assert shared.http.get(path).json()["is_generation"] is True
    for path in ("/server_info", "/get_server_info"):
        info = shared.http.get(path).json()
        assert info["return_hidden_states_mode"] == "full" and info["batch_invariant"] in (True, False)
    assert shared.http.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert shared.http.get("/health").status_code == shared.http.get("/health_generate").status_code == 200
