"""Steps that overlap give what steps in turn give, request for request; nothing is lost when one fails or is abandoned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.checks import all_same
from support.company import MODES, company, prompt, sampling
from support.direct import Direct
from support.speculating import check_equal, pair, payloads
from wellhead.config import EngineConfig
from wellhead.errors import InternalError
from wellhead.frontends.engine import Engine
from wellhead.step import UNKNOWN, Plan, StepResult

AHEAD = {"disable_overlap_schedule": False}
OPTIONS: list[dict[str, Any]] = [
    {}, {"chunked_prefill_size": 7}, {"max_total_tokens": 256}, {"max_running_requests": 3}, {"disable_radix_cache": True},
]  # fmt: skip


class Ahead:
    """Counts the plans of an engine that were made before a token of theirs was known."""

    def __init__(self, direct: Direct) -> None:
        self.plans = 0
        self._plan = direct.core.scheduler.plan_ahead
        direct.core.scheduler.plan_ahead = self  # type: ignore[assignment, method-assign]

    def __call__(self, running: Plan) -> Plan | None:
        plan = self._plan(running)
        self.plans += plan is not None and any(UNKNOWN in row.tokens for row in plan.rows)
        return plan


def foreseeable(payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same requests without what needs the last token before the next can be planned."""
    free = []
    for payload in payloads:
        params = {k: v for k, v in payload["sampling_params"].items() if k != "repetition_penalty"}
        free.append(
            {**payload, "sampling_params": params, "logprob_start_len": -1}
            if "return_logprob" in payload
            else {**payload, "sampling_params": params}
        )
    return free


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_overlap_is_the_simple_loop(name: str, dtype: str, options: dict[str, Any], direct: Callable[..., Direct]) -> None:
    mixed = company(["off", "last", "full", "mean"])
    simple, overlapped = direct(name, dtype=dtype, **options), direct(name, dtype=dtype, **options, **AHEAD)
    ahead = Ahead(overlapped)
    for some in (foreseeable(mixed), mixed, foreseeable(mixed)):
        all_same(overlapped.run(some), simple.run(some))
    assert ahead.plans > 0


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_company(data: st.DataObject, direct: Callable[..., Direct]) -> None:
    """Random requests that arrive between steps, with stops and aborts, in little room."""
    room = data.draw(st.sampled_from([160, 256, 4096]))
    chunk = data.draw(st.sampled_from([5, 16, 512]))
    options = {"max_total_tokens": room, "chunked_prefill_size": chunk, "max_running_requests": data.draw(st.integers(1, 4))}
    simple, overlapped = direct("llama", **options), direct("llama", **options, **AHEAD)
    count = data.draw(st.integers(1, 6))
    stem = prompt(40, seed=1)
    payloads: list[dict[str, Any]] = []
    for i in range(count):
        ids = stem[: data.draw(st.integers(0, 40))] + prompt(data.draw(st.integers(1, 30)), seed=i)
        params = sampling(i, data.draw(st.sampled_from([0, 1, 2, 9, 20])))
        if data.draw(st.booleans()):
            params.pop("repetition_penalty", None)
        if data.draw(st.booleans()):
            params |= {"stop_token_ids": data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=20)), "ignore_eos": False}
        payloads.append({"input_ids": ids, "sampling_params": params, **MODES[data.draw(st.sampled_from(list(MODES)))]})
    late = data.draw(st.integers(0, 12))
    abort = data.draw(st.one_of(st.none(), st.integers(0, count - 1)))
    wanted = simple.run(payloads)
    first, second = payloads[: count // 2], payloads[count // 2 :]
    batches = [overlapped.submit(payload) for payload in first]
    for _ in range(late):
        overlapped.step()
    batches += [overlapped.submit(payload) for payload in second]
    if abort is not None:
        overlapped.step()
        overlapped.core.abort(batches[abort].requests[0].rid)
    overlapped.finish()
    for i, (batch, reply) in enumerate(zip(batches, wanted, strict=True)):
        if i != abort:
            all_same(overlapped.replies(batch), [reply])


def test_a_failed_step_ends_its_own_and_the_next_goes_on(direct: Callable[..., Direct]) -> None:
    overlapped = direct("llama", **AHEAD)
    payloads = foreseeable(company(["last"]))[:6]
    wanted = direct("llama").run(payloads)
    run, calls = overlapped.runner.whole.run, iter(range(1000))

    def fail_once(plan: Plan) -> StepResult:
        if next(calls) == 3:
            raise RuntimeError("out of order")
        return run(plan)

    overlapped.runner.whole.run = fail_once  # type: ignore[method-assign]
    batches = [overlapped.submit(payload) for payload in payloads]
    late = None
    for i in range(3):
        overlapped.step()
        if i == 2:
            late = overlapped.submit(payloads[0])
    overlapped.finish()
    assert overlapped.errors and all(isinstance(error, InternalError) for error in overlapped.errors.values())
    for batch, reply in zip(batches, wanted, strict=True):
        if batch.requests[0].key not in overlapped.errors:
            all_same(overlapped.replies(batch), [reply])
    assert late is not None
    all_same(overlapped.run(payloads), wanted)


def test_who_is_planned_with_a_failed_step_is_not_lost(direct: Callable[..., Direct]) -> None:
    """A request that arrives while a step runs is in the plan that is made ahead; if that is given up, it waits again."""
    overlapped = direct("llama", **AHEAD)
    wanted = direct("llama").run([{"input_ids": prompt(20), "sampling_params": sampling(0, 5)}])
    go, run, calls = threading.Event(), overlapped.runner.whole.run, iter(range(1000))

    def fail_second(plan: Plan) -> StepResult:
        if next(calls) == 1:
            go.wait(30)
            raise RuntimeError("out of order")
        return run(plan)

    overlapped.runner.whole.run = fail_second  # type: ignore[method-assign]
    doomed = overlapped.submit({"input_ids": prompt(30), "sampling_params": sampling(0, 9)})
    overlapped.step()  # the first starts
    overlapped.step()  # and the second, which will fail
    late = overlapped.submit({"input_ids": prompt(20), "sampling_params": sampling(0, 5)})
    go.set()
    overlapped.finish()
    assert list(overlapped.errors) == [doomed.requests[0].key]
    all_same(overlapped.replies(late), wanted)
    assert overlapped.replies(late)[0].to_dict()["meta_info"]["num_retractions"] == 1


def test_closing_waits_for_the_step_that_runs(family: Callable[..., Path]) -> None:
    for _ in range(3):
        engine = Engine(model_path=str(family("llama")), max_total_tokens=4096, **AHEAD)
        answers = engine.generate(input_ids=prompt(50), sampling_params=sampling(0, 400), stream=True)
        next(answers)
        engine.shutdown()
        assert not engine.loop.healthy


@pytest.mark.parametrize("algorithm", ["NGRAM", "SELF", "STANDALONE", "EAGLE", "EAGLE3"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests=st.lists(payloads(), min_size=1, max_size=5), pages=st.sampled_from([14, 256]), chunk=st.sampled_from([5, 64]))
def test_speculation_overlapped(
    algorithm: str, requests: list[dict[str, Any]], pages: int, chunk: int, family: Callable[..., Path]
) -> None:
    check_equal(*pair(family, algorithm, "llama", pages, chunk, "float32", overlap=True), requests)


def test_a_step_that_judges_drafts_is_waited_for(family: Callable[..., Path]) -> None:
    """Chunks of prompts overlap; once there is something to accept, the next step is planned after it."""
    overlapped = Direct(family("llama"), speculative_algorithm="NGRAM", chunked_prefill_size=8, **AHEAD)
    planned: list[tuple[bool, bool]] = []
    plan_ahead = overlapped.core.scheduler.plan_ahead

    def watch(running: Plan) -> Plan | None:
        plan = plan_ahead(running)
        planned.append((any(row.samples for row in running.rows), plan is not None))
        return plan

    overlapped.core.scheduler.plan_ahead = watch  # type: ignore[method-assign]
    overlapped.run([{"input_ids": prompt(40), "sampling_params": sampling(0, 12)}])
    assert {(True, False), (False, True)} == set(planned)


def test_overlap_is_for_devices_that_leave_the_processor_idle() -> None:
    assert EngineConfig(model_path="m").overlaps("cuda") and not EngineConfig(model_path="m").overlaps("cpu")
    assert EngineConfig(model_path="m", disable_overlap_schedule=False).overlaps("cpu")
