"""Aborts and deadlines while thousands wait: found without a look at the others, one last word each, every page back."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.tags import TagCore
from wellhead.core.loop import EngineLoop
from wellhead.errors import EngineClosed, Overloaded, RequestTimeout
from wellhead.scheduler.sequence import Sequence
from wellhead.step import Plan
from wellhead.types import CaptureMode, Output, Read, Request, SamplingParams

WAIT = 60.0
MANY = 4096


class Visits:
    """Counts how often anything reads the request or the deadline of a sequence."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("request", "deadline", "order"):
            monkeypatch.setattr(Sequence, name, self._watched(getattr(Sequence, name)))

    def _watched(self, slot: Any) -> property:
        def read(seq: Sequence) -> Any:
            self.count += 1
            return slot.__get__(seq)

        return property(read, slot.__set__)

    def of(self, act: Callable[[], object]) -> int:
        before = self.count
        act()
        return self.count - before


def crowd(waiting: int, timeout: float | None = 3600.0) -> TagCore:
    """One sequence that decodes for long, and ``waiting`` that wait; ``r0``, ``r1``, ... in order."""
    tags = TagCore(max_running=1, max_queued=waiting + 1, pages=128)
    tags.submit([1, 2, 3], CaptureMode.LAST, 200, timeout=timeout)
    tags.step()
    for i in range(waiting):
        tags.submit([i, 2, 3], CaptureMode.LAST, 1, rid=f"r{i}", timeout=timeout)
    tags.step()
    return tags


def cost(monkeypatch: pytest.MonkeyPatch, waiting: int, act: Callable[[TagCore], object]) -> int:
    tags = crowd(waiting)
    with monkeypatch.context() as patch:
        visits = Visits(patch).of(lambda: act(tags))
    tags.core.abort_all()
    tags.core.step()
    tags.core.check_integrity()
    return visits


@pytest.mark.parametrize(
    "act",
    [
        lambda tags: tags.core.step(),
        lambda tags: tags.core.abort("r77"),
        lambda tags: tags.core.abort("nobody"),
        lambda tags: tags.core.abort_keys(["k78"]),
    ],
    ids=["a step without an expired deadline", "an abort", "an abort of a stranger", "an abort by key"],
)
def test_who_waits_costs_nothing(monkeypatch: pytest.MonkeyPatch, act: Callable[[TagCore], object]) -> None:
    few, many = cost(monkeypatch, 200, act), cost(monkeypatch, 3000, act)
    assert few == many < 60


def test_abort_all_passes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(tags: TagCore) -> int:
        return tags.core.abort_all()

    few, many = cost(monkeypatch, 200, act), cost(monkeypatch, 2000, act)
    assert many - few <= 30 * 1800


def test_one_expired_deadline_costs_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def act(tags: TagCore) -> None:
        tags.submit([9, 9], CaptureMode.LAST, 1, rid="hurried", timeout=1.0)
        now[0] += 2
        tags.step()
        (late,) = [o for outputs in tags.outputs.values() for o in outputs]
        assert late.rid == "hurried"
        assert isinstance(late.error, RequestTimeout)

    assert cost(monkeypatch, 200, act) == cost(monkeypatch, 3000, act)


def test_deadlines_end_in_their_own_order_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tags = TagCore(max_running=1)
    tags.submit([1, 2], CaptureMode.LAST, 100)
    tags.step()
    timeouts = [5.0, 2.0, 9.0, 2.0, None]
    keys = [tags.submit([3 + i], CaptureMode.LAST, 1, timeout=timeout) for i, timeout in enumerate(timeouts)]
    ended = []
    for at in (102.0, 102.5, 105.5, 109.0, 109.5):
        now[0] = at
        ended.append([output.key for output in tags.step() if output.key in keys])
    assert ended == [[], [keys[1], keys[3]], [keys[0]], [], [keys[2]]]
    tags.core.abort("k0")
    tags.finish()
    tags.verify(keys[4])


def test_nothing_is_remembered_of_who_is_done() -> None:
    tags = TagCore(max_running=2)
    for i in range(6):
        tags.submit([i, 1], CaptureMode.FULL, 2, rid=f"r{i % 3}", timeout=3600.0)
    tags.core.abort("r1")
    tags.finish()
    assert not tags.core.scheduler.overdue(float("inf"))
    assert not any(tags.core.scheduler.of_request(f"r{i}") for i in range(3))
    assert not tags.core.scheduler.running
    assert not tags.core.scheduler.waiting


def test_a_request_is_called_by_its_id_and_a_sequence_by_its_key() -> None:
    tags = TagCore(max_running=1)
    keys = [tags.submit([i, 1], CaptureMode.LAST, 3, rid="mine") for i in range(3)]
    assert tags.core.abort(keys[1]) == 0
    assert tags.core.abort_keys(["mine", "stranger"]) == 0
    assert tags.core.abort_keys([keys[1], keys[1], "stranger"]) == 1
    tags.step()
    finish = tags.last(keys[1]).finish
    assert finish is not None
    assert (finish.kind, finish.message) == ("abort", "request 'mine' was aborted")
    assert tags.core.abort("mine") == 2
    tags.finish()


def test_a_full_queue_refuses_one_more_and_gives_all_back() -> None:
    tags = crowd(MANY, timeout=None)
    tags.submit([1], CaptureMode.LAST)
    with pytest.raises(Overloaded):
        tags.submit([2], CaptureMode.LAST)
    assert tags.core.abort_all() == MANY + 2
    assert tags.core.abort_all() == 0
    tags.finish()
    assert Counter(o.finish.kind for key in tags.requests for o in [tags.last(key)] if o.finish) == {"abort": MANY + 2}
    assert tags.core.counters.aborted == MANY + 2
    assert tags.core.space.counts()["held"] == 0
    tags.submit([3], CaptureMode.LAST)
    tags.finish()
    tags.verify(f"k{MANY + 2}")


def request(number: int, rid: str) -> Request:
    return Request(
        key=f"{number:x}", rid=rid, input_ids=np.array([number % 500, 3, 5, 7, 9], np.int32),
        sampling=SamplingParams(max_new_tokens=number % 3), reads=(Read.last((1,)),),
    )  # fmt: skip


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("everything", [False, True], ids=["by rid", "and abort_all"])
def test_a_storm_of_aborts_from_many_threads_ends_each_once(overlap: bool, everything: bool) -> None:
    """4,096 wait while eight threads abort them, some of them twice, and steps go on."""
    tags = TagCore(max_queued=MANY, max_running=4, overlap=overlap)
    inside, go = threading.Event(), threading.Event()

    def hold(plan: Plan) -> None:
        if not go.is_set():
            inside.set()
            assert go.wait(WAIT)

    tags.runner.before = hold
    loop = EngineLoop(tags.core)
    heard: queue.SimpleQueue[Output] = queue.SimpleQueue()
    aborted: list[int] = []
    try:
        requests = tuple(request(i, f"r{i // 2}") for i in range(MANY))
        taken = loop.submit(requests, heard.put)
        assert inside.wait(WAIT)

        def storm(seed: int) -> None:
            rids = [f"r{i}" for i in range(MANY // 2)]
            random.Random(seed).shuffle(rids)
            futures = [loop.abort(rid) for rid in rids[: MANY // 3]]
            if everything and not seed:
                futures.append(loop.abort_all())
            aborted.extend(future.result(WAIT) for future in futures)

        threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        go.set()
        taken.result(WAIT)
        for thread in threads:
            thread.join(WAIT)
        outputs = [heard.get(timeout=WAIT) for _ in requests]
        assert loop.call(lambda core: core.idle).result(WAIT)
    finally:
        go.set()
        loop.close()
    assert heard.empty()
    assert {o.key for o in outputs} == {r.key for r in requests}
    assert all(o.terminal and o.error is None and o.rid == f"r{int(o.key, 16) // 2}" for o in outputs)
    kinds = Counter(o.finish.kind == "abort" for o in outputs if o.finish is not None)
    assert kinds[True] == sum(aborted) == tags.core.counters.aborted
    assert kinds[True] > MANY // 2
    tags.core.check_integrity()
    assert tags.core.space.leases == 0
    assert tags.core.flush_cache()
    assert tags.core.space.counts()["free"] == tags.config.pages


def test_the_last_word_of_a_dead_engine_names_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key says nothing of the request's id."""
    tags = TagCore()

    def die(*arguments: Any) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(tags.core, "step", die)
    monkeypatch.setattr(tags.core, "fail_all", die)
    heard: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop = EngineLoop(tags.core)
    loop.submit((request(1, "a#b#c"),), heard.put)
    output = heard.get(timeout=WAIT)
    loop.close()
    assert output.rid == "a#b#c"
    assert isinstance(output.error, EngineClosed)
