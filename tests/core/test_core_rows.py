"""Whose rows are whose: every pattern of modes, chunk sizes and prefix hits, exactly, on a runner that tags its rows."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from support.tags import TagCore, rows_for
from wellhead.step import Plan
from wellhead.types import CaptureMode, Pooling

NULL, LAST, FULL = CaptureMode
B = 4


def tokens(length: int, first: int = 0) -> list[int]:
    """A prompt that nobody else has: ``first`` marks it."""
    return [500 + first, *range(1, length)]


@pytest.mark.parametrize("new", [0, 1, 3])
@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
@pytest.mark.parametrize("modes", list(itertools.product(CaptureMode, repeat=3)), ids=lambda m: "-".join(x.word for x in m))
def test_every_pattern_of_modes_over_three_requests_cold_and_warm(modes: tuple[CaptureMode, ...], chunk: int, new: int) -> None:
    tags = TagCore(chunk=chunk)
    for turn in range(2):
        keys = [tags.submit(tokens(5 + 3 * i, i), mode, new) for i, mode in enumerate(modes)]
        tags.finish()
        tags.verify(*keys)
        if turn:
            assert all(tags.last(key).usage.cached_tokens > 0 for key in keys)


@pytest.mark.parametrize("prompt", [B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 3 * B])
@pytest.mark.parametrize("chunk", [1, B - 1, B, B + 1, 2 * B, 50])
@pytest.mark.parametrize("ceiling", [LAST, FULL])
def test_fence_posts_of_chunk_and_page(prompt: int, chunk: int, ceiling: CaptureMode) -> None:
    tags = TagCore(chunk=chunk, ceiling=ceiling)
    for new in (0, 1, 2, B, B + 1):
        for mode in (LAST, FULL) if ceiling is FULL else (LAST,):
            tags.submit(tokens(prompt, new), mode, new)
    tags.finish()
    tags.verify()


@pytest.mark.parametrize("hit", [0, 1, B - 1, B, B + 1, 2 * B, 2 * B + 1, 3 * B - 1, 3 * B])
@pytest.mark.parametrize("neighbour_first", [True, False])
def test_last_beside_a_full_neighbour_at_every_length_of_hit(hit: int, neighbour_first: bool) -> None:
    prompt = tokens(3 * B, 1)
    tags = TagCore(chunk=100)
    if hit:
        tags.submit(prompt[:hit])
        tags.finish()
    submits = [lambda: tags.submit(tokens(9, 7), FULL, 2), lambda: tags.submit(prompt, LAST, 2)]
    keys = [submit() for submit in (submits if neighbour_first else submits[::-1])]
    tags.finish()
    tags.verify()
    assert tags.last(keys[1 if neighbour_first else 0]).usage.cached_tokens == min(hit, 3 * B - 1)


@pytest.mark.parametrize("first", [LAST, FULL, NULL])
def test_a_middle_chunk_beside_a_decode_and_before_a_new_last_request(first: CaptureMode) -> None:
    tags = TagCore(chunk=10)
    tags.submit(tokens(3, 2), LAST, 12)
    tags.step()
    tags.submit(tokens(26, 1), first)
    tags.submit(tokens(2, 3), LAST, 2)
    tags.finish()
    tags.verify()
    assert [len(row.tokens) for row in tags.runner.plans[1].rows] == [1, 10]
    assert [len(row.tokens) for row in tags.runner.plans[3].rows] == [1, 6, 2]


@pytest.mark.parametrize("chunk", [97, 512, 1000])
def test_sixteen_long_prompts_give_all_their_rows(chunk: int) -> None:
    tags = TagCore(chunk=chunk, pages=2048, page_size=16)
    for i in range(16):
        tags.submit(tokens(1500, i))
    tags.finish()
    tags.verify()


def test_one_four_and_no_tokens_in_one_step() -> None:
    tags = TagCore(chunk=100)
    tags.submit(tokens(8, 9))
    tags.finish()
    keys = [tags.submit(tokens(1, 1)), tags.submit(tokens(4, 2)), tags.submit(tokens(8, 9))]
    tags.step()
    assert [len(row.tokens) for row in tags.runner.plans[-1].rows] == [1, 4, 0]
    tags.verify(*keys)


def test_fully_cached_with_no_token_wanted_needs_no_forward_pass() -> None:
    tags = TagCore()
    for mode in (FULL, LAST):
        tags.submit(tokens(13), mode)
        tags.finish()
    tags.submit(tokens(13), FULL, pooling=Pooling.MEAN)
    tags.finish()
    tags.verify()
    assert tags.runner.computed == 13


@pytest.mark.parametrize("mode", [LAST, FULL])
def test_last_holds_one_row_over_any_number_of_steps_and_full_is_sized_up_front(mode: CaptureMode) -> None:
    tags = TagCore()
    key = tags.submit(tokens(6), mode, 60)
    held = set()
    while not tags.core.idle:
        tags.step()
        seq = tags.core.scheduler.get(key)
        if seq is not None and seq.sink is not None:
            held.add(sum(rows.nbytes for rows in seq.sink._rows.values()))  # type: ignore[attr-defined]
    assert held == {4 * 4 * (1 if mode is LAST else 6 + 59)}
    tags.verify()


def test_what_is_kept_after_a_short_reply_does_not_keep_the_long_buffer() -> None:
    tags = TagCore()
    key = tags.submit(tokens(6), FULL, 50, script=lambda seen: 999 if len(seen) > 8 else 5)
    tags.finish()
    tags.verify()
    (array,) = tags.states(key).arrays
    assert array.base is None
    assert array.nbytes == 9 * 4 * 4


def random_core(rng: random.Random) -> TagCore:
    return TagCore(
        ceiling=rng.choice([LAST, FULL]),
        chunk=rng.choice([1, 2, 3, 8, 40]),
        pages=rng.choice([10, 14, 24, 64]),
        page_size=rng.choice([4, 4, 5, 16]),
        max_running=rng.choice([1, 3, 8]),
        policy=rng.choice(["fcfs", "lpm"]),
        prefix_cache=rng.random() < 0.8,
    )


def submit_random(rng: random.Random, tags: TagCore, stems: list[list[int]]) -> None:
    stem = rng.choice(stems)[: rng.randrange(1, 13)]
    mode = rng.choice([mode for mode in CaptureMode if mode <= tags.config.ceiling])
    mean = Pooling.MEAN if mode is LAST and tags.config.ceiling is FULL and rng.random() < 0.3 else Pooling.NONE
    tags.submit(stem + [rng.randrange(3) for _ in range(rng.randrange(10))], mode, rng.choice([0, 0, 1, 2, 9, 18]), pooling=mean)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_crowd_with_common_prefixes_aborts_and_failing_steps(seed: int) -> None:
    rng = random.Random(seed)
    tags, stems = random_core(rng), [[rng.randrange(3) for _ in range(12)] for _ in range(3)]
    failing, aborted = seed % 3 == 0, set()

    def fail_sometimes(plan: Plan) -> None:
        if failing and rng.random() < 0.05:
            raise RuntimeError("the machine says no")

    tags.runner.before = fail_sometimes
    for _ in range(25):
        submit_random(rng, tags, stems)
        for _ in range(rng.randrange(3)):
            tags.step()
        key = rng.choice(list(tags.requests))
        if rng.random() < 0.1 and tags.core.abort(key):
            aborted.add(key)
    tags.finish()
    for key in tags.requests:
        if key in aborted:
            assert tags.last(key).finish is not None
        elif not failing or tags.last(key).error is None:
            tags.verify(key)
    assert tags.core.flush_cache()


def test_rows_are_the_tags_that_were_expected() -> None:
    """The tags themselves tell sequences, positions and ids apart."""
    a, b = rows_for([1, 2, 3]), rows_for([1, 3, 3])
    assert np.array_equal(a[0], b[0])
    assert not np.array_equal(a[2], b[2])
