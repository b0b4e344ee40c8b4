"""The Python engine: shapes of replies, streams, coroutines, threads, and its end."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wellhead as wh
from support.checks import wait_until_idle
from support.company import prompt
from wellhead.errors import EngineClosed, InvalidRequest, Overloaded, PromptTooLong, RequestTimeout, TokenOutOfRange
from wellhead.frontends.engine import Engine

MakeEngine = Callable[..., Engine]
Family = Callable[..., Path]
GREEDY = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
LONG = {"max_new_tokens": 400, "temperature": 0, "ignore_eos": True}
META = {
    "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "num_retractions", "e2e_latency",
    "weight_version",
}  # fmt: skip


def last(replies: Any) -> dict[str, Any]:
    """The final event of a stream."""
    *_, final = replies
    found: dict[str, Any] = final
    return found


def test_a_reply_has_sglangs_keys_and_nothing_more(engine: MakeEngine) -> None:
    reply = engine().generate(input_ids=prompt(9), sampling_params=GREEDY, rid="mine")
    assert set(reply) == {"text", "output_ids", "meta_info"}
    meta = reply["meta_info"]
    assert set(meta) == META
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == ("mine", 9, 6, 0)
    assert meta["finish_reason"] == {"type": "length", "length": 6}


def test_text_and_ids_of_it_give_the_same(engine: MakeEngine) -> None:
    made = engine()
    tokenizer = made.assembled.tokenizer
    assert tokenizer is not None
    text = "Hello, wörld"
    one = made.generate(text, GREEDY, return_hidden_states=True)
    other = made.generate(input_ids=tokenizer.encode(text), sampling_params=GREEDY, return_hidden_states=True)
    assert one["output_ids"] == other["output_ids"]
    assert one["text"] == other["text"] == tokenizer.decode(one["output_ids"])
    np.testing.assert_array_equal(one["meta_info"]["hidden_states"][0], other["meta_info"]["hidden_states"][0])


def test_a_stream_is_cumulative_and_ends_in_the_whole_reply(engine: MakeEngine) -> None:
    made = engine()
    whole = made.generate(input_ids=prompt(9), sampling_params=GREEDY, return_logprob=True)
    events = list(made.generate(input_ids=prompt(9), sampling_params=GREEDY, return_logprob=True, stream=True))
    assert len(events) == 6
    for i, event in enumerate(events):
        assert event["output_ids"] == whole["output_ids"][: i + 1]
        assert whole["text"].startswith(event["text"])
        assert (event["meta_info"]["finish_reason"] is None) is (i < 5)
    for key in ("output_ids", "text"):
        assert events[-1][key] == whole[key]
    assert events[-1]["meta_info"]["output_token_logprobs"] == whole["meta_info"]["output_token_logprobs"]


def test_a_batch_stream_says_which_prompt_and_sample(engine: MakeEngine) -> None:
    made = engine()
    params = {**GREEDY, "n": 2, "temperature": 1, "sampling_seed": 1}
    whole = made.generate(input_ids=[prompt(5), prompt(8)], sampling_params=params)
    final: dict[int, dict[str, Any]] = {}
    for event in made.generate(input_ids=[prompt(5), prompt(8)], sampling_params=params, stream=True):
        final[event["index"]] = event
    assert [final[i]["output_ids"] for i in range(4)] == [reply["output_ids"] for reply in whole]


def test_closing_a_stream_aborts_it(engine: MakeEngine) -> None:
    made = engine()
    events = made.generate(input_ids=prompt(9), sampling_params=LONG, stream=True)
    next(events)
    events.close()
    wait_until_idle(made)
    assert made.assembled.core.counters.aborted == 1


def test_a_batch_of_requests_in_both_forms(engine: MakeEngine) -> None:
    made = engine()
    prompts = [prompt(n, n) for n in (3, 20, 1, 33)]
    together = made.generate(input_ids=prompts, sampling_params=GREEDY, return_hidden_states=["last", True, False, "last"])
    for ids, reply in zip(prompts, together, strict=True):
        assert reply["output_ids"] == made.generate(input_ids=ids, sampling_params=GREEDY)["output_ids"]
    assert [("hidden_states" in r["meta_info"]) for r in together] == [True, True, False, True]


def test_seeds_reproduce_and_do_not_depend_on_company(engine: MakeEngine) -> None:
    made = engine()
    params = {"max_new_tokens": 12, "temperature": 1.2, "top_p": 0.95, "sampling_seed": 42}
    alone = made.generate(input_ids=prompt(9), sampling_params=params)["output_ids"]
    crowd = made.generate(
        input_ids=[prompt(4), prompt(9), prompt(30)], sampling_params=[{"max_new_tokens": 9}, params, {"max_new_tokens": 3}]
    )
    assert crowd[1]["output_ids"] == alone
    other = made.generate(input_ids=prompt(9), sampling_params={**params, "sampling_seed": 43})["output_ids"]
    assert other != alone
    assert engine().generate(input_ids=prompt(9), sampling_params=params)["output_ids"] == alone


def test_requests_without_a_seed_get_theirs_from_the_engines(engine: MakeEngine) -> None:
    params = {"max_new_tokens": 12, "temperature": 1.0, "n": 2}
    runs = [engine(random_seed=seed).generate(input_ids=prompt(9), sampling_params=params) for seed in (1, 1, 2)]
    ids = [[reply["output_ids"] for reply in run] for run in runs]
    assert ids[0] == ids[1]
    assert ids[0] != ids[2]
    assert ids[0][0] != ids[0][1]


def test_min_new_tokens_keeps_eos_and_stop_ids_away_until_then(engine: MakeEngine) -> None:
    params = {"max_new_tokens": 20, "temperature": 0, "logit_bias": {"256": 100, "7": 90}, "stop_token_ids": [7]}
    assert len(engine().generate(input_ids=prompt(9), sampling_params=params)["output_ids"]) == 1
    reply = engine().generate(input_ids=prompt(9), sampling_params={**params, "min_new_tokens": 5})
    assert len(reply["output_ids"]) == 6
    assert set(reply["output_ids"][:5]).isdisjoint({256, 7})
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": 256}


def test_coroutines_stream_and_gather(engine: MakeEngine) -> None:
    made = engine()
    wanted = [made.generate(input_ids=prompt(n), sampling_params=GREEDY)["output_ids"] for n in (5, 6, 7)]

    async def ask() -> tuple[list[Any], list[Any]]:
        replies = await asyncio.gather(*(made.async_generate(input_ids=prompt(n), sampling_params=GREEDY) for n in (5, 6, 7)))
        stream = await made.async_generate(input_ids=prompt(5), sampling_params=GREEDY, stream=True)
        return replies, [event async for event in stream]

    replies, events = asyncio.run(ask())
    assert [reply["output_ids"] for reply in replies] == wanted
    assert "index" not in replies[0]
    assert "_key" not in replies[0]
    assert events[-1]["output_ids"] == wanted[0]


def test_cancelling_a_coroutine_aborts_its_request(engine: MakeEngine) -> None:
    made = engine()

    async def give_up() -> None:
        task = asyncio.create_task(made.async_generate(input_ids=prompt(9), sampling_params=LONG))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    wait_until_idle(made)
    assert made.generate(input_ids=prompt(9), sampling_params=GREEDY)["output_ids"]


def test_abort_ends_all_samples_and_the_waiter_returns(engine: MakeEngine) -> None:
    made = engine()
    replies: list[Any] = []
    params = {**LONG, "n": 3, "temperature": 1}
    waiter = threading.Thread(
        target=lambda: replies.append(made.generate(input_ids=prompt(9), sampling_params=params, rid="three"))
    )
    waiter.start()
    while not made.abort("three"):
        time.sleep(0.002)
    waiter.join(20)
    assert [reply["meta_info"]["finish_reason"]["type"] for reply in replies[0]] == ["abort"] * 3
    assert not any("hidden_states" in reply["meta_info"] for reply in replies[0])


def test_time_runs_out(engine: MakeEngine) -> None:
    made = engine()
    with pytest.raises(RequestTimeout):
        made.generate(input_ids=prompt(9), sampling_params=LONG, timeout=1e-4)
    assert made.generate(input_ids=prompt(9), sampling_params=GREEDY)


def test_shutdown_in_mid_run_answers_the_waiter_and_later_calls_are_refused(engine: MakeEngine) -> None:
    made = engine()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            made.generate(input_ids=[prompt(9), prompt(10)], sampling_params=LONG)
        except EngineClosed as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while made.loop.call(lambda core: core.idle).result():
        time.sleep(0.001)
    made.shutdown()
    waiter.join(20)
    assert len(errors) == 1
    for call in (lambda: made.generate("a"), made.flush_cache, lambda: made.abort("x"), lambda: made.extract(["a"])):
        with pytest.raises(EngineClosed):
            call()
    made.shutdown()


def test_a_context_manager_shuts_down(family: Family) -> None:
    with wh.Engine(model_path=str(family("llama")), max_total_tokens=256) as made:
        assert made.hidden_size == 64
    assert not made.loop.healthy


def test_flush_forgets_prefixes(engine: MakeEngine) -> None:
    made = engine()
    for wanted in (0, 8):
        assert made.generate(input_ids=prompt(9), sampling_params=GREEDY)["meta_info"]["cached_tokens"] == wanted
    assert made.flush_cache()
    assert made.generate(input_ids=prompt(9), sampling_params=GREEDY)["meta_info"]["cached_tokens"] == 0


def test_the_start_says_what_it_is(engine: MakeEngine) -> None:
    info = engine(capture_layers=[0, -1]).info()
    assert info["return_hidden_states_mode"] == "full"
    assert info["capture_layers"] == [0, 3]
    assert info["batch_invariant"] is True
    assert engine(native_kernels=False, dtype="float32").info()["batch_invariant"] is False


# --- bad input among good ---------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"input_ids": [[1, 2], [9999]]}, TokenOutOfRange),
    ({"input_ids": [[1, 2], [1] * 600]}, PromptTooLong),
    ({"input_ids": [[1, 2]], "return_hidden_states": ["last", True]}, InvalidRequest),
    ({"input_ids": [1, 2], "return_hidden_states": "LAST"}, InvalidRequest),
    ({"input_ids": [1, 2], "lora_path": "x"}, InvalidRequest),
    ({"input_ids": [1, 2], "sampling_params": {"temperature": -1}}, InvalidRequest),
    ({"input_ids": [1, 2], "sampling_params": {"stop_regex": "("}}, InvalidRequest),
    ({"prompt": "lone \ud800 surrogate"}, InvalidRequest),
    ({"prompt": ""}, InvalidRequest),
]


@pytest.mark.parametrize(("call", "kind"), BAD)
def test_bad_requests_are_refused_while_neighbours_run_unharmed(
    call: dict[str, Any], kind: type[Exception], engine: MakeEngine
) -> None:
    made = engine()
    wanted = made.generate(input_ids=prompt(9), sampling_params=GREEDY)["output_ids"]
    stream = made.generate(input_ids=prompt(9), sampling_params=GREEDY, stream=True)
    with pytest.raises(kind):
        made.generate(**call)
    assert last(stream)["output_ids"] == wanted
    assert made.assembled.core.counters.failed == 0


def test_a_full_queue_says_so_and_takes_nothing_of_the_batch(engine: MakeEngine) -> None:
    made = engine(max_queued_requests=2)
    with pytest.raises(Overloaded):
        made.generate(input_ids=[prompt(5, i) for i in range(9)], sampling_params=GREEDY)
    assert made.generate(input_ids=prompt(9), sampling_params=GREEDY)["output_ids"]


# --- leaving early ----------------------------------------------------------------------------------------------


def test_a_stream_that_nobody_reads_is_aborted(engine: MakeEngine) -> None:
    made = engine()
    for read in (0, 1):
        stream = made.generate(input_ids=[prompt(9), prompt(9, 1)], sampling_params=LONG, stream=True)
        for _ in range(read):
            next(stream)
        del stream
    wait_until_idle(made)
    assert made.assembled.core.counters.aborted == 4


def test_an_interrupted_call_aborts_its_requests(engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes out of the wait for the next output."""
    made = engine()

    class Interrupted(queue.SimpleQueue[Any]):
        def get(self, *options: Any) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr("wellhead.core.job.queue.SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.generate(input_ids=[prompt(9), prompt(9, 1)], sampling_params=LONG)
    wait_until_idle(made)
    assert made.assembled.core.counters.aborted == 2


def test_a_child_of_fork_is_told_and_does_not_hang(engine: MakeEngine) -> None:
    made = engine()

    def ask(answers: Any) -> None:
        try:
            made.generate(input_ids=prompt(9), sampling_params=GREEDY)
        except EngineClosed as error:
            answers.put(str(error))
        made.shutdown()
        answers.put("closed")

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=ask, args=(answers,), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert "fork" in answers.get() and answers.get() == "closed"
    assert made.generate(input_ids=prompt(9), sampling_params=GREEDY)["output_ids"]
