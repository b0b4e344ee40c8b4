"""The engine's thread: whoever waits is answered, whatever happens to it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from support.tags import TagCore, rows_for
from wellhead.core.job import Job
from wellhead.core.loop import EngineLoop
from wellhead.errors import EngineClosed, InternalError, Overloaded
from wellhead.halving import Halving
from wellhead.step import Plan
from wellhead.types import Output, Read, Request, Rows, SamplingParams

WAIT = 20.0


def request(key: str, new: int = 0, length: int = 5) -> Request:
    return Request(
        key=f"{key}#0", rid=key, input_ids=np.arange(1, length + 1, dtype=np.int32) + 7 * len(key),
        sampling=SamplingParams(max_new_tokens=new), reads=(Read(Rows(), (1,)),),
    )  # fmt: skip


class Gate:
    """Holds the runner in a step until it is opened."""

    def __init__(self, tags: TagCore) -> None:
        self.inside, self.open = threading.Event(), threading.Event()
        tags.runner.before = self

    def __call__(self, plan: Plan) -> None:
        self.inside.set()
        assert self.open.wait(WAIT)


@pytest.fixture
def looped() -> Iterator[Callable[..., tuple[TagCore, EngineLoop]]]:
    made: list[tuple[TagCore, EngineLoop]] = []

    def make(**changes: Any) -> tuple[TagCore, EngineLoop]:
        tags = TagCore(**changes)
        made.append((tags, EngineLoop(tags.core)))
        return made[-1]

    yield make
    for tags, loop in made:
        loop.close()
        assert not loop.healthy
        tags.core.check_integrity()
        assert tags.core.space.leases == 0


def collect(count: int, pieces: queue.SimpleQueue[Output]) -> list[Output]:
    return [pieces.get(timeout=WAIT) for _ in range(count)]


def test_many_threads_get_their_own_rows(looped: Callable[..., tuple[TagCore, EngineLoop]]) -> None:
    _, loop = looped(chunk=8)
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            mine = request(f"{number}-{turn}", length=3 + (number * turn) % 20)
            pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()
            loop.submit((mine,), pieces.put).result(WAIT)
            output = pieces.get(timeout=WAIT)
            states = output.hidden_states
            if states is None or not np.array_equal(states.numpy(), rows_for(mine.input_ids.tolist())):
                wrong.append(mine.key)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not wrong
    assert loop.healthy


def test_a_batch_that_does_not_fit_the_queue_is_refused_whole(looped: Callable[..., tuple[TagCore, EngineLoop]]) -> None:
    tags, loop = looped(max_queued=3)
    gate = Gate(tags)
    pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop.submit((request("first"),), pieces.put).result(WAIT)
    gate.inside.wait(WAIT)
    strangers: queue.SimpleQueue[Output] = queue.SimpleQueue()
    refused = loop.submit(tuple(request(f"b{i}") for i in range(5)), strangers.put)
    gate.open.set()
    with pytest.raises(Overloaded):
        refused.result(WAIT)
    assert pieces.get(timeout=WAIT).hidden_states is not None
    loop.submit((request("later"),), pieces.put).result(WAIT)
    assert pieces.get(timeout=WAIT).rid == "later"
    assert strangers.empty()


def test_shutdown_in_mid_run_answers_everybody(looped: Callable[..., tuple[TagCore, EngineLoop]]) -> None:
    tags, loop = looped(max_running=2, chunk=4)
    gate = Gate(tags)
    pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop.submit(tuple(request(f"r{i}", new=50, length=20) for i in range(6)), pieces.put).result(WAIT)
    assert gate.inside.wait(WAIT)
    late = loop.submit((request("late"),), pieces.put)
    closer = threading.Thread(target=loop.close)
    closer.start()
    gate.open.set()
    closer.join(WAIT)
    outputs = collect(6, pieces)
    assert sorted(o.rid for o in outputs) == [f"r{i}" for i in range(6)]
    assert all(isinstance(o.error, EngineClosed) and o.hidden_states is None for o in outputs)
    try:
        late.result(WAIT)
    except EngineClosed:
        pass
    else:
        assert isinstance(pieces.get(timeout=WAIT).error, EngineClosed)
    loop.close()
    with pytest.raises(EngineClosed):
        loop.submit((request("too late"),), pieces.put).result(WAIT)
    with pytest.raises(EngineClosed):
        loop.abort("r0").result(WAIT)


def test_death_of_the_thread_answers_everybody_even_if_a_reply_function_fails(
    looped: Callable[..., tuple[TagCore, EngineLoop]],
) -> None:
    tags, loop = looped()
    gate = Gate(tags)
    pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()

    def broken(output: Output) -> None:
        raise RuntimeError("the caller's event loop is closed")

    loop.submit((request("broken", new=9),), broken).result(WAIT)
    loop.submit((request("a", new=9), request("bb", new=9)), pieces.put)
    assert gate.inside.wait(WAIT)

    def die(*args: Any) -> Any:
        raise MemoryError("no more")

    tags.core.scheduler.plan = die  # type: ignore[method-assign]
    tags.core.fail_all = die  # type: ignore[method-assign]
    gate.open.set()
    outputs = collect(2, pieces)
    assert {o.rid for o in outputs} == {"a", "bb"}
    for output in outputs:
        assert isinstance(output.error, EngineClosed)
        assert "no more" in str(output.error)
    with pytest.raises(EngineClosed, match="died"):
        loop.submit((request("after"),), pieces.put).result(WAIT)
    assert not loop.healthy
    assert isinstance(loop.error, EngineClosed)
    del tags.core.fail_all, tags.core.scheduler.plan
    tags.core.fail_all(EngineClosed("for the fixture"))


def test_a_request_that_cannot_be_set_up_is_refused_and_the_engine_lives(
    looped: Callable[..., tuple[TagCore, EngineLoop]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tags, loop = looped()
    submit = tags.core.submit

    def no_memory(one: Request) -> None:
        if one.rid == "big":
            raise MemoryError("no room for the rows")
        submit(one)

    monkeypatch.setattr(tags.core, "submit", no_memory)
    pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()
    with pytest.raises(InternalError, match="no room"):
        loop.submit((request("small"), request("big")), pieces.put).result(WAIT)
    loop.submit((request("next"),), pieces.put).result(WAIT)
    assert pieces.get(timeout=WAIT).rid == "next"
    assert loop.healthy


def test_abort_from_another_thread_returns_and_the_waiter_too(looped: Callable[..., tuple[TagCore, EngineLoop]]) -> None:
    tags, loop = looped(max_running=1)
    gate = Gate(tags)
    pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop.submit((request("x", new=500), request("y", new=1)), pieces.put).result(WAIT)
    assert gate.inside.wait(WAIT)
    aborted = loop.abort("x")
    gate.open.set()
    assert aborted.result(WAIT) == 1
    outputs = {o.rid: o for o in collect(2, pieces)}
    assert outputs["x"].finish is not None
    assert outputs["x"].finish.kind == "abort"
    assert outputs["y"].hidden_states is not None


def test_flush_is_refused_while_something_runs(looped: Callable[..., tuple[TagCore, EngineLoop]]) -> None:
    tags, loop = looped()
    gate = Gate(tags)
    pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop.submit((request("x", new=30),), pieces.put).result(WAIT)
    assert gate.inside.wait(WAIT)
    refused = loop.call(lambda core: core.flush_cache())
    gate.open.set()
    assert refused.result(WAIT) is False
    pieces.get(timeout=WAIT)
    assert loop.call(lambda core: core.flush_cache()).result(WAIT) is True


def test_patient_requests_wait_for_room_in_order_and_can_be_aborted(looped: Callable[..., tuple[TagCore, EngineLoop]]) -> None:
    tags, loop = looped(max_queued=2)
    gate = Gate(tags)
    others: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop.submit((request("first"),), others.put).result(WAIT)
    assert gate.inside.wait(WAIT)
    with Job(loop) as job:
        loop.submit((request("w1"), request("w2")), others.put)  # they fill the queue
        waiting = threading.Thread(target=job.submit, args=(tuple(request(f"p{i}") for i in range(7)),), kwargs={"patient": True})
        waiting.start()
        refused, aborted = loop.submit((request("impatient"),), others.put), loop.abort("p3")
        gate.open.set()
        waiting.join(WAIT)
        assert isinstance(refused.exception(WAIT), Overloaded)
        assert aborted.result(WAIT) == 1
        outputs = list(job.outputs())
    assert job.open == 0
    ended = {o.rid: o.finish.kind for o in outputs if o.finish is not None}
    assert [rid for rid, kind in ended.items() if kind == "abort"] == ["p3"]
    assert [rid for rid, kind in ended.items() if kind != "abort"] == [f"p{i}" for i in range(7) if i != 3]
    assert {o.rid for o in collect(3, others)} == {"first", "w1", "w2"}


@pytest.mark.parametrize("how", ["abort", "close"])
def test_patient_requests_end_with_whoever_closes(looped: Callable[..., tuple[TagCore, EngineLoop]], how: str) -> None:
    tags, loop = looped(max_queued=1)
    gate = Gate(tags)
    others: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop.submit((request("first"),), others.put).result(WAIT)
    assert gate.inside.wait(WAIT)
    pieces: queue.SimpleQueue[Output] = queue.SimpleQueue()
    done = loop.submit(tuple(request(f"p{i}") for i in range(5)), pieces.put, patient=True)
    if how == "abort":
        ended = loop.abort_keys(f"p{i}#0" for i in range(5))
    else:
        closing = threading.Thread(target=loop.close)
        closing.start()
    gate.open.set()
    if how == "abort":
        done.result(WAIT)
        assert ended.result(WAIT) == 5
    else:
        closing.join(WAIT)
    outputs = collect(5, pieces)
    assert all(o.terminal for o in outputs)
    if how == "abort":
        assert [o.finish.kind for o in outputs if o.finish is not None] == ["abort"] * 5
    else:
        assert {type(o.error) for o in outputs} == {EngineClosed}


def test_a_job_that_is_let_go_of_before_its_first_output_aborts(looped: Callable[..., tuple[TagCore, EngineLoop]]) -> None:
    tags, loop = looped()
    gate = Gate(tags)
    job = Job(loop)
    outputs = job.outputs()
    job.submit((request("a", new=500, length=4),))
    assert gate.inside.wait(WAIT)
    del outputs
    gate.open.set()
    assert job.closed
    job.submit((request("late"),))  # does nothing
    assert loop.call(lambda core: core.counters.requests).result(WAIT) == 1
    assert loop.call(lambda core: core.counters.aborted).result(WAIT) == 1


def test_halving_ends_with_what_is_wrong() -> None:
    halving, good, bad = Halving(list(range(11))), list[int](), list[int]()
    for batch in halving:
        if not {0, 7, 10} & set(batch):
            good += batch
        elif not halving.halve(batch):
            bad += batch
    assert (good, bad) == ([1, 2, 3, 4, 5, 6, 8, 9], [0, 7, 10])
    assert list(Halving([])) == []
