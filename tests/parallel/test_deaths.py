"""Ranks that die, fail or hang: a clear error for every request, in bounded time, and nobody left behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from support.company import prompt
from support.direct import Direct
from support.live import wait_for
from wellhead.errors import EngineClosed, ModelError, RankDied
from wellhead.frontends.engine import Engine
from wellhead.models.locate import load_spec
from wellhead.parallel.leader import lead, start_ranks
from wellhead.parallel.messages import Head, Hello, Ready, Start
from wellhead.parallel.ranks import Ranks

Family = Callable[..., Path]
OPTIONS: dict[str, Any] = {"return_hidden_states_mode": "full", "max_total_tokens": 4096, "page_size": 16, "tp_size": 2}
LONG = {"input_ids": [prompt(60, i) for i in range(4)], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}


@pytest.fixture
def make(family: Family) -> Iterator[Callable[..., Engine]]:
    """``make(**options)``: an engine over two processes, gone with all of them when the test ends."""
    made: list[Engine] = []

    def start(**options: Any) -> Engine:
        made.append(Engine(str(family("llama")), **{**OPTIONS, **options}))
        return made[-1]

    yield start
    for engine in made:
        pids = ranks_of(engine).pids
        engine.shutdown()
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


def ranks_of(engine: Engine) -> Ranks:
    ranks = engine.assembled.ranks
    assert ranks is not None
    return ranks


def under_load(engine: Engine, action: Callable[[], object]) -> list[Any]:
    """Act when tokens come; the errors with which the four requests end, each exactly once."""
    batch = engine.normalize(LONG)
    pieces: queue.SimpleQueue[Any] = queue.SimpleQueue()
    engine.loop.submit(batch.requests, pieces.put).result(20)
    core = engine.assembled.core
    wait_for(lambda: core.counters.computed_tokens > 400)
    action()
    ended = {}
    while len(ended) < len(batch.requests):
        output = pieces.get(timeout=60)
        if output.terminal:
            assert output.key not in ended
            ended[output.key] = output.error
    wait_for(lambda: engine.loop.ended.done())
    assert engine.loop.ended.exception() is engine.loop.error
    with pytest.raises(RankDied):
        engine.generate(input_ids=[1, 2], sampling_params={"max_new_tokens": 1})
    core.check_integrity()
    return list(ended.values())


def test_a_rank_that_is_killed_under_load(make: Callable[..., Engine]) -> None:
    engine = make()
    (pid,) = ranks_of(engine).pids
    for error in under_load(engine, lambda: os.kill(pid, signal.SIGKILL)):
        assert isinstance(error, RankDied) and isinstance(error, EngineClosed)
        assert (error.code, error.message) == ("rank_died", "rank 1 died (signal 9)")


def test_the_one_that_died_is_named_not_those_that_lost_it(make: Callable[..., Engine]) -> None:
    engine = make(tp_size=4)
    pid = ranks_of(engine).pids[1]
    assert {error.message for error in under_load(engine, lambda: os.kill(pid, signal.SIGKILL))} == {"rank 2 died (signal 9)"}


def test_a_rank_that_is_killed_while_nothing_runs(make: Callable[..., Engine]) -> None:
    engine = make()
    assert engine.extract([[1, 2, 3]]).shape == (1, 64)
    os.kill(ranks_of(engine).pids[0], signal.SIGKILL)
    wait_for(lambda: not engine.loop.healthy)
    with pytest.raises(RankDied, match=r"rank 1 died \(signal 9\)"):
        engine.extract([[1, 2, 3]])


def test_a_rank_that_hangs_is_waited_for_so_long_and_no_longer(make: Callable[..., Engine]) -> None:
    engine = make(dist_timeout=2)
    (pid,) = ranks_of(engine).pids
    for error in under_load(engine, lambda: os.kill(pid, signal.SIGSTOP)):
        assert isinstance(error, RankDied)
        assert "lost each other" in error.message or "cannot be told" in error.message


def test_a_rank_that_fails_in_a_step_says_why(make: Callable[..., Engine]) -> None:
    engine = make()
    ranks = ranks_of(engine)
    for error in under_load(engine, lambda: engine.loop.call(lambda core: ranks.tell(Head(-1))).result()):
        assert isinstance(error, RankDied)
        assert error.message.startswith("rank 1 failed: ") and "RuntimeError" in error.message


def test_a_step_that_fails_on_rank_0_ends_the_engine_too(family: Family, direct: Callable[..., Direct]) -> None:
    """The others are in the middle of it: nobody could say what they would take the next message for."""
    two = direct("llama", tp_size=2)
    batch = two.submit({"input_ids": prompt(9), "sampling_params": {"max_new_tokens": 3}, "return_hidden_states": True})
    two.step()
    attend = two.runner.inner.decoder.ops.attend
    two.runner.inner.decoder.ops.attend = fail
    for _ in range(2):
        with pytest.raises(RankDied, match=r"rank 0 failed in a step that 2 ranks share: .*the machine says no"):
            two.core.step()
        two.runner.inner.decoder.ops.attend = attend
    outputs = two.core.fail_all(RankDied("gone"))
    assert [output.key for output in outputs] == [request.key for request in batch.requests]
    ranks = two.made.ranks
    assert ranks is not None
    wait_for(lambda: not [pid for pid in ranks.pids if psutil.pid_exists(pid)])


def fail(*args: Any, **more: Any) -> Any:
    raise RuntimeError("the machine says no")


# --- the start ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ranks(family: Family) -> Iterator[Ranks]:
    made = start_ranks(2, 60, load_spec(family("llama")), torch.device("cpu"))
    yield made
    made.close()
    assert not psutil.pid_exists(made.pids[0])


def test_a_rank_that_cannot_load_its_part_says_so_as_rank_0_would(ranks: Ranks, tmp_path: Path) -> None:
    from wellhead.parallel.group import connect

    store = ranks.folder / "store"
    ranks.wait_for(Hello)
    ranks.start(lambda rank: Start(rank, 2, store, 60, tmp_path / "gone", torch.float32, "cpu", True, 64, 1))
    group = connect(store, 0, 2, torch.device("cpu"), 60)
    with pytest.raises(ModelError, match=r"^rank 1: no such file: .*gone/config.json"):
        ranks.wait_for(Ready)
    group.close()


def test_a_rank_that_dies_while_it_starts(ranks: Ranks, family: Family) -> None:
    from wellhead.kernels import select_ops

    os.kill(ranks.pids[0], signal.SIGKILL)
    with pytest.raises(RankDied, match=r"rank 1 died \(signal 9\)"):
        lead(ranks, family("llama"), select_ops(torch.float32, torch.device("cpu")), 64)


# --- the end ------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time, wellhead as wh
if __name__ != "__main__": raise SystemExit("imported again")
engine = wh.Engine(sys.argv[1], tp_size=2, max_total_tokens=4096, page_size=16)
engine.extract([[1, 2, 3]])
print(*engine.assembled.ranks.pids, flush=True)
if sys.argv[2] == "wait":
    stream = engine.generate(input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 400, "ignore_eos": True}, stream=True)
    while True:
        time.sleep(0.1)
"""


def script(tmp_path: Path, model: Path, what: str) -> tuple[subprocess.Popen[str], list[int]]:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    command = [sys.executable, str(file), str(model), what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, [int(pid) for pid in process.stdout.readline().split()]


def test_ranks_end_with_rank_0_however_it_ends(tmp_path: Path, family: Family) -> None:
    process, pids = script(tmp_path, family("llama"), "wait")
    assert pids and all(psutil.pid_exists(pid) for pid in pids)
    process.kill()
    process.wait(60)
    wait_for(lambda: not [pid for pid in pids if psutil.pid_exists(pid)])


def test_a_program_that_never_shuts_its_engine_down_ends_in_order(tmp_path: Path, family: Family) -> None:
    process, pids = script(tmp_path, family("llama"), "end")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert pids and not [pid for pid in pids if psutil.pid_exists(pid)]


def test_closing_is_harmless_if_repeated(make: Callable[..., Engine]) -> None:
    before = torch.get_num_threads()
    engine = make()
    folder = ranks_of(engine).folder
    for _ in range(2):
        engine.shutdown()
    assert not folder.exists()
    assert torch.get_num_threads() == before
