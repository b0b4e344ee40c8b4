"""Steps that fail, rows that do not add up, aborts and timeouts: one terminal output each, and every page back."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from support.tags import TagCore
from wellhead.errors import InternalError, NonFinite, Overloaded, RequestTimeout
from wellhead.metrics.http import COUNTERS
from wellhead.step import Plan, StepResult
from wellhead.types import CaptureMode, Pooling

NULL, LAST, FULL = CaptureMode


def tokens(length: int, first: int = 0) -> list[int]:
    return [500 + first, *range(1, length)]


def all_pages_back(tags: TagCore) -> None:
    assert tags.core.idle
    assert tags.core.space.counts()["held"] == 0
    assert tags.core.flush_cache()
    assert tags.core.space.counts()["free"] == tags.config.pages


@pytest.mark.parametrize("bad_step", range(1, 9))
@pytest.mark.parametrize("before", [True, False], ids=["before the work", "after it"])
def test_a_step_that_raises_fails_its_sequences_alone(bad_step: int, before: bool) -> None:
    tags = TagCore(chunk=6, max_running=2)

    def raise_in(plan: Plan) -> None:
        if plan.number == bad_step:
            raise RuntimeError("the machine says no")

    def raise_after(plan: Plan, result: StepResult) -> StepResult:
        raise_in(plan)
        return result

    if before:
        tags.runner.before = raise_in
    else:
        tags.runner.after = raise_after
    for turn in range(2):
        keys = [tags.submit(tokens(5 + i, i), FULL, 3) for i in range(5)]
        tags.finish()
        failed = {row.key for row in tags.runner.plans[bad_step - 1].rows}
        for key in keys:
            if key in failed and not turn:
                error = tags.last(key).error
                assert isinstance(error, InternalError)
                assert "the machine says no" in str(error)
                assert tags.last(key).hidden_states is None
            else:
                tags.verify(key)
        tags.runner.before, tags.runner.after = lambda plan: None, lambda plan, result: result
    all_pages_back(tags)


def damage(kind: str, result: StepResult) -> StepResult:
    rows = list(result.rows)
    if kind == "a row short":
        rows[0] = dataclasses.replace(rows[0], hidden={1: rows[0].hidden[1][:-1]})  # type: ignore[index]
    elif kind == "a row too many":
        rows[0] = dataclasses.replace(rows[0], hidden={1: np.zeros((9, 4), np.float32)})
    elif kind == "no rows":
        rows[0] = dataclasses.replace(rows[0], hidden=None)
    elif kind == "another layer":
        rows[0] = dataclasses.replace(rows[0], hidden={0: rows[0].hidden[1]})  # type: ignore[index]
    elif kind == "a sequence short":
        rows.pop()
    elif kind == "a token unasked":
        rows[1] = dataclasses.replace(rows[1], token=3)
    elif kind == "no token":
        rows[0] = dataclasses.replace(rows[0], token=-1)
    elif kind == "another count":
        return dataclasses.replace(result, produced=result.produced + 1)
    return dataclasses.replace(result, rows=tuple(rows))


KINDS = [
    "a row short",
    "a row too many",
    "no rows",
    "another layer",
    "a sequence short",
    "a token unasked",
    "no token",
    "another count",
]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_do_not_add_up_are_refused_rather_than_handed_out(kind: str) -> None:
    tags = TagCore(chunk=100)
    tags.runner.after = lambda plan, result: damage(kind, result) if plan.number == 1 else result
    keys = [tags.submit(tokens(5, 1), FULL, 2), tags.submit(tokens(6, 2), FULL)]
    tags.step()
    for key in keys:
        assert isinstance(tags.last(key).error, InternalError)
        assert tags.last(key).hidden_states is None
    key = tags.submit(tokens(5, 3), FULL, 2)
    tags.finish()
    tags.verify(key)
    all_pages_back(tags)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("mode", [LAST, FULL])
def test_a_row_that_is_not_finite_fails_its_own_request_alone(mode: CaptureMode, value: float) -> None:
    tags = TagCore(chunk=100)

    def spoil(plan: Plan, result: StepResult) -> StepResult:
        for row, got in zip(plan.rows, result.rows, strict=True):
            if row.key == "k1" and got.hidden:
                got.hidden[1][-1, 2] = value
        return result

    tags.runner.after = spoil
    keys = [tags.submit(tokens(5 + i, i), mode, 2, rid=f"mine-{i}") for i in range(3)]
    tags.finish()
    assert isinstance(tags.last(keys[1]).error, NonFinite)
    assert "mine-1" in str(tags.last(keys[1]).error)
    assert tags.core.space.lookup(tags.requests[keys[1]].input_ids, 6) == 0, "what failed must not be cached"
    tags.verify(keys[0], keys[2])
    all_pages_back(tags)


def test_nan_logits_fail_their_own_request_alone() -> None:
    tags = TagCore(chunk=100)

    def spoil(plan: Plan, result: StepResult) -> StepResult:
        rows = (
            dataclasses.replace(got, tokens=(), finite=False) if row.key == "k0" and row.start > 3 else got
            for row, got in zip(plan.rows, result.rows, strict=True)
        )
        return dataclasses.replace(result, rows=tuple(rows))

    tags.runner.after = spoil
    bad, good = tags.submit(tokens(4, 1), NULL, 9), tags.submit(tokens(4, 2), FULL, 9)
    tags.finish()
    assert tags.last(bad).error is not None
    assert tags.last(bad).error.code == "non_finite"  # type: ignore[union-attr]
    tags.verify(good)


@pytest.mark.parametrize("steps", range(12))
def test_abort_in_every_phase_ends_every_sample_once_and_gives_all_back(steps: int) -> None:
    """Waiting, mid-prefill, decoding, preempted, waiting for a shared prefix, already done."""
    tags = TagCore(chunk=5, pages=14, max_running=3)
    mine = [tags.submit(tokens(13, 1), FULL, 9, rid="mine") for _ in range(3)]
    others = [tags.submit(tokens(8, 2 + i), FULL, 12) for i in range(3)]
    for _ in range(steps):
        tags.step()
    there = [key for key in mine if key not in tags.outputs]
    assert tags.core.abort("mine") == len(there)
    assert tags.core.abort("mine") == 0
    tags.step()
    for key in there:
        output = tags.last(key)
        assert output.finish is not None
        assert output.finish.kind == "abort"
        assert output.hidden_states is None
        assert output.token_ids == ()
    tags.finish()
    tags.verify(*others, *(key for key in mine if key not in there))
    all_pages_back(tags)


def test_abort_of_a_stranger_does_nothing() -> None:
    tags = TagCore()
    assert tags.core.abort("nobody") == 0
    assert tags.core.idle


def test_half_computed_prompts_leave_only_whole_written_pages_behind() -> None:
    tags = TagCore(chunk=6)
    tags.submit(tokens(30))
    tags.step()
    tags.core.abort("k0")
    tags.step()
    key = tags.submit(tokens(30), FULL)
    tags.finish()
    tags.verify(key)
    assert tags.last(key).usage.cached_tokens == 6


def test_five_hundred_aborted_prefills_leave_nothing() -> None:
    tags = TagCore(chunk=8)
    for i in range(500):
        tags.submit(tokens(20, i), FULL)
        tags.step()
        tags.core.abort(f"k{i}")
        tags.step()
    all_pages_back(tags)
    assert not tags.core.scheduler.waiting
    assert not tags.core.scheduler.running


def test_time_runs_out_for_those_who_wait_and_those_who_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tags = TagCore(max_running=1)
    keys = [tags.submit(tokens(5, i), FULL, 30, timeout=5.0) for i in range(2)]
    patient = tags.submit(tokens(5, 7), FULL, 3)
    tags.step()
    now[0] += 6
    tags.finish()
    for key in keys:
        assert isinstance(tags.last(key).error, RequestTimeout)
        assert tags.last(key).hidden_states is None
    tags.verify(patient)
    all_pages_back(tags)


def test_a_full_queue_refuses_and_takes_nothing() -> None:
    tags = TagCore(max_queued=2, max_running=1)
    tags.submit(tokens(5, 1))
    tags.submit(tokens(5, 2))
    with pytest.raises(Overloaded):
        tags.submit(tokens(5, 3))
    tags.finish()
    tags.verify("k0", "k1")
    assert list(tags.outputs) == ["k0", "k1"]


def test_the_counters_tell_finished_failed_and_aborted_apart() -> None:
    tags = TagCore(chunk=100)
    tags.runner.before = lambda plan: (_ for _ in ()).throw(RuntimeError()) if plan.number == 3 else None
    tags.submit(tokens(5, 1), FULL, 2)
    tags.finish()
    tags.submit(tokens(5, 2), FULL, 2)
    tags.finish()
    tags.submit(tokens(5, 3), FULL, 2)
    tags.core.abort("k2")
    tags.finish()
    counters = tags.core.counters
    assert (counters.requests, counters.finished, counters.failed, counters.aborted) == (3, 1, 1, 1)
    assert counters.output_tokens == 2


def test_a_mean_of_nothing_but_finite_rows_is_exact() -> None:
    tags = TagCore(chunk=3)
    key = tags.submit(tokens(11), LAST, 4, pooling=Pooling.MEAN)
    tags.finish()
    tags.verify(key)


def test_a_snapshot_says_everything_that_metrics_show_and_does_not_change() -> None:
    tags = TagCore(max_running=1)
    for i in range(3):
        tags.submit(tokens(5, i), FULL, 2)
    tags.step()
    before = tags.core.snapshot()
    assert set(before.counters) == set(COUNTERS)
    assert (before.running, before.waiting, before.counters["requests"]) == (1, 2, 3)
    tags.finish()
    after = tags.core.snapshot()
    assert (before.running, before.waiting, before.counters["finished"]) == (1, 2, 0)
    assert (after.running, after.waiting, after.counters["finished"]) == (0, 0, 3)
    assert sum(before.latencies["total"].counts) == 0
    assert sum(after.latencies["total"].counts) == 3
