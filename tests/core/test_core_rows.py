"""Whose rows are whose: every pattern of modes, chunk sizes and prefix hits, exactly, on a runner that tags its rows."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from support.tags import TagCore, rows_for
from wellhead.errors import InvalidRequest
from wellhead.reads import Part
from wellhead.reductions import REDUCTIONS
from wellhead.speculation import PLAIN, Algorithm, Speculation
from wellhead.step import Plan
from wellhead.types import CaptureMode, Pooling, Read, Rows

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
        if seq is not None and seq.readers[0].next:
            held.add(seq.readers[0].nbytes)
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


# --- any rows -----------------------------------------------------------------------------------------------------

WINDOWS = [
    Rows(start=-8, step=3),
    Rows(start=-9, stop=-3, step=4),
    Rows(start=-7, stop=12, step=2),
    Rows(start=-3),
    Rows(start=1, stop=-1),
    Rows(start=2, stop=9, step=2),
    Rows(start=-6, stop=-2),
    Rows(step=3),
    Rows(stop=4),
]


def random_rows(rng: random.Random, prompt: int) -> Rows:
    """Any wish but for positions that may not come."""
    changes: dict[str, Any] = {"part": rng.choice(list(Part))}
    if rng.random() < 0.4:
        window = rng.choice(WINDOWS)
        changes |= {"start": window.start, "stop": window.stop, "step": window.step}
    if rng.random() < 0.2:
        changes["token_ids"] = tuple(rng.sample(range(500), 250))
    if rng.random() < 0.2:
        changes["exclude_token_ids"] = tuple(range(rng.randrange(3)))
    if rng.random() < 0.2:
        changes["exclude_positions"] = tuple(rng.sample([0, 1, 2, -1, -2], 2))
    if rng.random() < 0.3:
        changes["last"] = rng.choice([1, 2, 5, 40])
    if rng.random() < 0.15:
        changes["spans"] = ((0, 2), (prompt - 1, prompt))
    if rng.random() < 0.15 and changes["part"] != Part.OUTPUT:
        changes["positions"] = tuple(rng.sample(range(-prompt, prompt), min(prompt, 3)))
    return Rows(**changes)


@pytest.mark.parametrize("seed", range(80))
def test_any_rows_reduced_in_any_way_of_any_crowd(seed: int) -> None:
    """Against the plain meaning, at both ceilings, chunked, preempted, from the prefix cache and with drafts."""
    rng = random.Random(seed)
    ceiling = rng.choice([LAST, FULL])
    speculation = Speculation(algorithm=Algorithm.NGRAM, drafts=3, min_window=1, max_window=3) if rng.random() < 0.3 else PLAIN
    tags = TagCore(
        ceiling=ceiling, chunk=rng.choice([1, 3, 8, 40]), pages=rng.choice([14, 24, 64]), page_size=rng.choice([4, 5, 16]),
        max_running=rng.choice([1, 3, 8]), speculation=speculation,
    )  # fmt: skip
    stems = [[rng.randrange(3) for _ in range(12)] for _ in range(2)]
    for _ in range(14):
        prompt = rng.choice(stems)[: rng.randrange(1, 13)] + [rng.randrange(3) for _ in range(rng.randrange(8))]
        reads = []
        for i in range(rng.randrange(1, 4)):
            read = Read(
                random_rows(rng, len(prompt)),
                (1,),
                reduce=rng.choice(list(REDUCTIONS)),
                name=f"r{i}" if i else "",
                token_ids=True,
            )
            if read.cost <= ceiling:
                reads.append(read)
        tags.submit(prompt, new=rng.choice([0, 0, 1, 2, 9, 18]), reads=tuple(reads))
        for _ in range(rng.randrange(3)):
            tags.step()
    tags.finish()
    tags.verify()
    assert tags.core.flush_cache()


def test_rows_near_the_end_take_the_rest_from_the_cache_at_ceiling_last() -> None:
    tags = TagCore(ceiling=LAST, chunk=100)
    tags.submit(tokens(40), LAST)
    tags.finish()
    for rows, due in ((Rows(last=8), 8), (Rows(start=-3, stop=-1), 3), (Rows(part=Part.OUTPUT), 0), (Rows(positions=(-5,)), 5)):
        before = tags.runner.computed
        tags.submit(tokens(40), reads=(Read(rows, (1,), reduce="mean"),))
        tags.finish()
        assert tags.runner.computed - before == due
    tags.verify()


def test_only_wanted_rows_are_asked_for_and_each_layer_has_its_own() -> None:
    tags = TagCore(chunk=7)
    reads = (
        Read(Rows(positions=(2, 9)), (1,), name="a"),
        Read(Rows(start=-2), (0, 1), name="b"),
        Read(Rows(last=1), (0,), name="c"),
    )
    tags.submit(tokens(20), reads=reads)
    tags.finish()
    tags.verify()
    asked = [{layer: at.tolist() for layer, at in row.keep.items()} for plan in tags.runner.plans for row in plan.rows]
    assert asked == [{1: [2]}, {1: [9]}, {0: [18, 19], 1: [18, 19]}]


def test_a_row_that_the_answer_never_came_to_is_an_error_and_neighbours_go_on() -> None:
    tags = TagCore()
    short = tags.submit(tokens(5), new=20, script=lambda seen: 999, reads=(Read(Rows(positions=(7,)), (1,)),))
    other = tags.submit(tokens(6), new=20, reads=(Read(Rows(positions=(-1, 7)), (1,)),))
    tags.finish()
    tags.verify(other)
    error = tags.last(short).error
    assert isinstance(error, InvalidRequest)
    assert "row 7 does not exist" in error.message
