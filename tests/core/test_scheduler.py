"""Who runs when: budget, running limit, order, sharing, fairness, preemption."""

from __future__ import annotations

from support.tags import TagCore
from wellhead.scheduler.scheduler import PATIENCE
from wellhead.types import CaptureMode

NULL, LAST, FULL = CaptureMode


def tokens(length: int, first: int = 0) -> list[int]:
    return [500 + first, *range(1, length)]


def planned(tags: TagCore, step: int) -> dict[str, int]:
    """Key -> tokens computed in this step."""
    return {row.key: len(row.tokens) for row in tags.runner.plans[step].rows}


def test_prompt_chunks_fill_the_budget_oldest_first_and_decodes_run_beside_them() -> None:
    tags = TagCore(chunk=10)
    a = tags.submit(tokens(4, 1), FULL, 6)
    b, c = tags.submit(tokens(13, 2), FULL), tags.submit(tokens(5, 3), LAST)
    tags.finish()
    assert [planned(tags, i) for i in range(3)] == [{a: 4, b: 6}, {a: 1, b: 7, c: 3}, {a: 1, c: 2}]
    for plan in tags.runner.plans:
        assert sum(len(row.tokens) for row in plan.rows if row.start < len(tags.requests[row.key].input_ids)) <= 10
    tags.verify()


def test_a_decode_progresses_in_every_step_beside_a_stream_of_long_prompts() -> None:
    tags = TagCore(chunk=8, pages=256, max_running=4)
    decode = tags.submit(tokens(3), FULL, 40)
    tags.step()
    for i in range(39):
        tags.submit(tokens(50, 1 + i))
        tags.step()
        assert planned(tags, len(tags.runner.plans) - 1)[decode] == 1
    assert tags.last(decode).finish is not None
    tags.finish()
    tags.verify()


def test_a_short_prompt_behind_a_stream_of_long_ones_is_not_starved() -> None:
    for policy in ("fcfs", "lpm"):
        tags = TagCore(chunk=8, pages=256, max_running=4, policy=policy)
        for i in range(4):
            tags.submit(tokens(40, i))
        short = tags.submit(tokens(3, 90))
        steps = 0
        while short not in tags.outputs:
            tags.submit(tokens(40, 100 + steps))
            tags.step()
            steps += 1
            assert steps <= 25, policy
        tags.finish()
        tags.verify()


def test_never_more_than_the_running_limit() -> None:
    tags = TagCore(max_running=3, chunk=100)
    for i in range(10):
        tags.submit(tokens(3, i), LAST, 5)
    while not tags.core.idle:
        tags.step()
        assert len(tags.core.scheduler.running) <= 3
    assert max(len(plan.rows) for plan in tags.runner.plans) == 3
    tags.verify()


def test_two_hundred_requests_through_four_slots() -> None:
    tags = TagCore(max_running=4, pages=24)
    for i in range(200):
        tags.submit(tokens(1 + i % 13, i), FULL if i % 2 else LAST, i % 5)
    tags.finish()
    tags.verify()
    assert len(tags.outputs) == 200


def test_fcfs_starts_in_order_of_arrival_and_lpm_the_longest_prefix_first() -> None:
    for policy, order in (("fcfs", [1, 2, 3]), ("lpm", [3, 2, 1])):
        tags = TagCore(policy=policy, max_running=1, chunk=64)
        tags.submit(tokens(16))
        tags.finish()
        for shared in (4, 8, 12):
            tags.submit([*tokens(shared), 7, 7, 7], FULL)
        tags.finish()
        assert [row.key for plan in tags.runner.plans[1:] for row in plan.rows] == [f"k{i}" for i in order]
        tags.verify()


def test_lpm_ages_so_that_a_request_without_a_prefix_runs_in_the_end() -> None:
    tags = TagCore(policy="lpm", max_running=1, chunk=64)
    tags.submit(tokens(16))
    tags.finish()
    poor, steps = tags.submit(tokens(9, 50)), 0
    while poor not in tags.outputs:
        for _ in range(2):
            tags.submit([*tokens(16), 7, steps % 450])
        tags.step()
        steps += 1
        assert steps <= PATIENCE + 2
    assert steps > PATIENCE
    tags.finish()
    tags.verify()


def test_requests_that_share_a_prefix_and_arrive_together_compute_it_once() -> None:
    stem = tokens(40)
    for chunk in (8, 100):
        tags = TagCore(chunk=chunk)
        for i in range(6):
            tags.submit([*stem, 600 + i, 1, 2], FULL if i % 2 else LAST)
        tags.finish()
        tags.verify()
        assert tags.runner.computed == len(stem) + 6 * 3


def test_who_waits_for_a_shared_prefix_does_not_hold_up_others() -> None:
    tags = TagCore(chunk=100)
    a, b = tags.submit(tokens(40)), tags.submit([*tokens(40), 3])
    c = tags.submit(tokens(9, 9))
    tags.step()
    assert set(planned(tags, 0)) == {a, c}
    tags.finish()
    assert planned(tags, 1) == {b: 1}
    tags.verify()


def test_without_the_prefix_cache_everybody_computes_for_themselves() -> None:
    tags = TagCore(prefix_cache=False, chunk=200)
    for _ in range(3):
        tags.submit(tokens(20), FULL, 2)
    tags.finish()
    tags.verify()
    assert tags.runner.computed == 3 * 21
    assert len(tags.runner.plans) == 2


def test_the_youngest_is_preempted_keeps_its_rows_and_goes_on() -> None:
    tags = TagCore(pages=8, chunk=100, max_running=3)
    a, b = tags.submit(tokens(8, 1), FULL, 14), tags.submit(tokens(8, 2), FULL, 14)
    tags.finish()
    tags.verify()
    assert tags.last(a).usage.retractions == 0
    assert tags.last(b).usage.retractions > 0
    assert tags.core.scheduler.preemptions > 0


def test_preempted_in_mid_prefill_and_after_k_decode_steps_with_every_mode() -> None:
    for mode in (NULL, LAST, FULL):
        for chunk in (3, 100):
            for cache in (True, False):
                tags = TagCore(pages=12, chunk=chunk, prefix_cache=cache)
                tags.submit(tokens(7, 1), mode, 30)
                for _ in range(2):
                    tags.step()
                for i in range(2, 5):
                    tags.submit(tokens(9, i), mode, 20)
                tags.finish()
                tags.verify()
                assert tags.core.scheduler.preemptions > 1
                assert sum(tags.last(key).usage.retractions for key in tags.requests) == tags.core.scheduler.preemptions


def test_the_head_of_the_queue_is_not_overtaken_for_want_of_room() -> None:
    tags = TagCore(pages=10, chunk=100)
    tags.submit(tokens(28, 1), LAST, 5)
    tags.step()
    big, small = tags.submit(tokens(30, 2)), tags.submit(tokens(2, 3))
    tags.step()
    assert set(planned(tags, 1)) == {"k0"}
    tags.finish()
    order = list(tags.outputs)
    assert order.index(big) <= order.index(small)
    tags.verify()


def test_a_request_that_fills_the_whole_pool_runs() -> None:
    tags = TagCore(pages=8, chunk=7)
    tags.submit(tokens(20, 1), FULL, 13)
    tags.submit(tokens(32, 2), FULL)
    tags.finish()
    tags.verify()
