"""The team of threads under the kernels: every piece once, from any number of callers, also after a fork."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from wellhead.kernels.native import NativeOps


@pytest.fixture
def ops() -> NativeOps:
    return NativeOps(torch.float32)


def product(ops: NativeOps, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight, x = torch.randn(1000, 64, generator=generator), torch.randn(rows, 64, generator=generator)
    return ops.linear(x, ops.pack(weight)), x @ weight.T


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_any_size_gives_the_same_bits(ops: NativeOps, size: int) -> None:
    before = torch.ops.wellhead.team_size()
    try:
        torch.ops.wellhead.set_team_size(1)
        alone = [product(ops, rows, rows)[0] for rows in (1, 5, 33, 70)]
        torch.ops.wellhead.set_team_size(size)
        assert torch.ops.wellhead.team_size() == size
        for rows, want in zip((1, 5, 33, 70), alone, strict=True):
            for _ in range(20):
                assert torch.equal(product(ops, rows, rows)[0], want)
    finally:
        torch.ops.wellhead.set_team_size(before)


def test_callers_at_the_same_time(ops: NativeOps) -> None:
    wrong: list[int] = []

    def call(seed: int) -> None:
        for i in range(60):
            got, want = product(ops, 1 + (seed + i) % 40, seed * 1000 + i)
            if not torch.allclose(got, want, rtol=1e-4, atol=1e-3):
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_a_child_of_fork_has_a_team_of_its_own(ops: NativeOps) -> None:
    weight, x = ops.pack(torch.randn(1000, 64)), torch.randn(40, 64)
    want = ops.linear(x, weight)
    child = os.fork()
    if child == 0:  # nothing here may reach torch's OpenMP, which does not survive a fork
        os._exit(0 if (ops.linear(x, weight).numpy() == want.numpy()).all() else 1)
    for _ in range(600):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child of a fork hung")
    assert status == 0


def test_an_engine_thread_leaves_other_threads_their_torch(ops: NativeOps) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before)  # which new threads take over when they first use torch
    seen: list[int] = []

    def engine() -> None:
        ops.prepare_thread()
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    assert seen == [1]
    assert torch.get_num_threads() == before
