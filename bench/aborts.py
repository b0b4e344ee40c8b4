"""What the engine's thread spends on requests that wait: aborts, deadlines. No model: a runner that computes nothing.

    python bench/aborts.py [--waiting 4096]

Each line is the median of ``--rounds`` fresh cores, with that many requests in the queue and one that decodes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from wellhead.config import Resolved
from wellhead.core.engine import Core
from wellhead.step import Plan, RowResult, StepResult
from wellhead.types import CaptureMode, Request, SamplingParams

STEPS = 200


class Idle:
    """Draws token 7 wherever one is asked for."""

    def run(self, plan: Plan) -> StepResult:
        return StepResult(tuple(RowResult((7,) if row.samples else ()) for row in plan.rows), 0)


def waiting(count: int, timeout: float | None) -> Core:
    """A core whose only slot is taken by a long generation; ``count`` more requests wait."""
    config = Resolved(
        model_path="none", served_model_name="none", dtype="float32", device="cpu", context_length=4096,
        ceiling=CaptureMode.NULL, capture_layers=(1,), layers=1, pages=512, page_size=16, chunk=64, max_running=1,
        max_queued=count + 1, policy="fcfs", prefix_cache=True, random_seed=0,
    )  # fmt: skip
    core = Core(config, Idle(), 8, (), None)
    for i in range(count + 1):
        prompt, sampling = np.arange(1, 9, dtype=np.int32), SamplingParams(max_new_tokens=4000)
        core.submit(Request(key=f"r{i}#0", rid=f"r{i}", input_ids=prompt, sampling=sampling, timeout=timeout))
    core.step()
    return core


def steps(core: Core) -> None:
    for _ in range(STEPS):
        core.step()


def by_rid(core: Core) -> None:
    for i in range(core.config.max_queued):
        core.abort(f"r{i}")


CASES: tuple[tuple[str, float | None, int, Callable[[Core], object]], ...] = (
    ("a step, no deadlines", None, STEPS, steps),
    ("a step, all with a deadline that is far", 3600.0, STEPS, steps),
    ("abort by rid, each in turn", None, 0, by_rid),
    ("abort_all", None, 0, lambda core: core.abort_all()),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for name, timeout, parts, act in CASES:
        times = []
        for _ in range(args.rounds):
            core = waiting(args.waiting, timeout)
            started = time.perf_counter()
            act(core)
            times.append((time.perf_counter() - started) / (parts or args.waiting + 1))
            core.close()
        each = statistics.median(times) * 1e6
        print(f"{name:42} {each:9.1f} us each" + ("" if parts else f", {each * (args.waiting + 1) / 1e3:9.1f} ms in all"))


if __name__ == "__main__":
    main()
