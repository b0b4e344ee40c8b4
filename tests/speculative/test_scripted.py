"""Speculation without a model: scripted drafts, exact rows, and what a stop in the middle of an accepted run leaves."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support.tags import EOS, Drafts, Script, TagCore, next_token, rows_for
from wellhead.speculation import Algorithm, Speculation
from wellhead.types import CaptureMode, Pooling

NULL, LAST, FULL = CaptureMode
K = 4


def core(drafts: Drafts, **changes: Any) -> TagCore:
    """A tagged core whose runner proposes these drafts."""
    tags = TagCore(speculation=Speculation(algorithm=Algorithm.STANDALONE, drafts=K), **changes)
    tags.runner.drafts = drafts
    return tags


def right(known: list[int], script: Script, count: int) -> list[int]:
    """What will follow, ``count`` tokens of it."""
    tokens = list(known)
    for _ in range(count):
        tokens.append(script(tokens))
    return tokens[len(known) :]


def accepting(*counts: int) -> Drafts:
    """Drafts of which the first so many are right, in turn, and the next one wrong."""
    turns: dict[str, itertools.cycle[int]] = {}

    def drafts(key: str, known: list[int], script: Script) -> list[int]:
        good = next(turns.setdefault(key, itertools.cycle(counts)))
        following = right(known, script, K)
        return [t if i < good else (t + 1) % 500 for i, t in enumerate(following)]

    return drafts


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng([seed, length]).integers(0, 500, length)]


@pytest.mark.parametrize("counts", [(0,), (1,), (2,), (K,), (0, 1, K), (K, 0), (1, 0, 2, 3)])
@pytest.mark.parametrize("modes", list(itertools.product((NULL, LAST, FULL), repeat=3)))
def test_batches_of_three_in_every_mix_of_modes(counts: tuple[int, ...], modes: tuple[CaptureMode, ...]) -> None:
    tags = core(accepting(*counts))
    keys = [tags.submit(prompt(5 + 3 * i, i), mode, 13 - i) for i, mode in enumerate(modes)]
    tags.finish()
    tags.verify()
    for key in keys:
        usage = tags.last(key).usage
        assert usage.verify_steps + 1 <= usage.completion_tokens
        if counts == (K,):
            assert usage.accepted == usage.proposed > 0
        if counts == (0,):
            assert usage.accepted == 0 < usage.proposed
            assert usage.verify_steps == usage.completion_tokens - 1


def test_a_step_yields_the_accepted_run_and_one_more() -> None:
    tags = core(accepting(K))
    key = tags.submit(prompt(6), FULL, 1 + 2 * (K + 1))
    tags.finish()
    assert [plan.tokens for plan in tags.runner.plans] == [6, K + 1, K + 1]
    assert tags.last(key).usage.verify_steps == 2
    tags.verify()


@pytest.mark.parametrize("new", range(1, 14))
@pytest.mark.parametrize("mode", [LAST, FULL])
def test_max_new_tokens_is_met_exactly_and_nothing_is_proposed_beyond(new: int, mode: CaptureMode) -> None:
    tags = core(accepting(K))
    key = tags.submit(prompt(5), mode, new)
    tags.finish()
    tags.verify()
    assert len(tags.last(key).token_ids) == new
    assert max(row.end for plan in tags.runner.plans for row in plan.rows) <= 5 + new - 1


@pytest.mark.parametrize("good", range(K + 1))
@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize("mode", [NULL, LAST, FULL])
def test_an_eos_in_the_middle_of_an_accepted_run_ends_tokens_and_rows_there(mode: CaptureMode, at: int, good: int) -> None:
    """The eos is the ``at``-th new token; drafts go on beyond it and would be accepted."""
    start = prompt(5)

    def script(tokens: list[int]) -> int:
        return EOS if len(tokens) == len(start) + at - 1 else next_token(tokens)

    tags = core(accepting(good))
    keys = [tags.submit(prompt(7, 1), FULL, 9), tags.submit(start, mode, 30, script=script), tags.submit(prompt(3, 2), LAST, 9)]
    tags.finish()
    tags.verify()
    output = tags.last(keys[1])
    assert output.token_ids[-1] == EOS and len(output.token_ids) == at
    assert output.finish is not None and output.finish.matched == EOS
    lookup = tags.core.space.lookup(np.array([*start, *output.token_ids, 1, 2, 3], np.int32), 10_000)
    assert lookup <= len(start) + at - 1, "a token past the stop is in the prefix tree"


@pytest.mark.parametrize("mode", [LAST, FULL])
@pytest.mark.parametrize("pooling", Pooling)
def test_a_stop_token_of_the_request_cuts_pooled_rows_too(mode: CaptureMode, pooling: Pooling) -> None:
    if mode is FULL and pooling is Pooling.MEAN:
        mode = LAST
    tags = core(accepting(K))
    stop = right(prompt(5), next_token, 4)[3]
    key = tags.submit(prompt(5), mode, 30, pooling=pooling, sampling={"stop_token_ids": (stop,)})
    tags.finish()
    tags.verify()
    assert tags.last(key).token_ids[-1] == stop and len(tags.last(key).token_ids) == 4


def test_a_rejected_draft_is_never_in_the_prefix_tree() -> None:
    tags = core(accepting(0, 2), pages=64)
    wrong: list[list[int]] = []
    inner = tags.runner.drafts
    assert inner is not None

    def spy(key: str, known: list[int], script: Script) -> list[int]:
        drafts = inner(key, known, script)
        good = right(known, script, K)
        for i, (draft, real) in enumerate(zip(drafts, good, strict=True)):
            if draft != real:
                wrong.append([*known, *drafts[: i + 1]])
                break
        return drafts

    tags.runner.drafts = spy
    for i in range(3):
        tags.submit(prompt(6, i), FULL, 20)
    while not tags.core.idle:
        tags.step()
        for tokens in wrong:
            assert tags.core.space.lookup(np.array(tokens, np.int32), len(tokens)) < len(tokens)
    assert len(wrong) > 8
    tags.verify()


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
@pytest.mark.parametrize("pages", [9, 12, 64])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_chunks_prefix_hits_and_preemption(chunk: int, pages: int, prefix_cache: bool) -> None:
    tags = core(accepting(1, K, 0), chunk=chunk, pages=pages, prefix_cache=prefix_cache)
    stem = prompt(9)
    for i, mode in enumerate((FULL, LAST, NULL, FULL, LAST, FULL)):
        tags.submit([*stem, *prompt(1 + i % 3, i)], mode, 18)
    tags.finish()
    tags.verify()
    if pages != 12:  # then it depends on the chunks
        assert (tags.core.scheduler.preemptions > 0) == (pages == 9)


def test_nobody_is_preempted_for_a_draft() -> None:
    """Pages for what each sequence needs in the end, and none to spare."""
    tags = core(accepting(0), pages=8, page_size=4)
    for i in range(2):
        tags.submit(prompt(6, i), FULL, 10)  # 15 rows at the end: four pages each
    tags.finish()
    tags.verify()
    assert tags.core.scheduler.preemptions == 0


@pytest.mark.parametrize("steps", range(1, 9))
def test_aborts_leave_nothing_behind(steps: int) -> None:
    tags = core(accepting(2), pages=24)
    keys = [tags.submit(prompt(6 + i, i), FULL, 25) for i in range(3)]
    for _ in range(steps):
        tags.step()
    tags.core.abort(keys[1])
    tags.finish()
    tags.verify(keys[0], keys[2])
    assert tags.core.flush_cache()
    assert tags.core.space.counts()["free"] == 24


def test_a_stream_gives_every_token_and_row_once() -> None:
    tags = core(accepting(2, 0, K))
    key = tags.submit(prompt(6), FULL, 20, stream=True, incremental=True)
    tags.finish()
    pieces = tags.outputs[key]
    tokens = [t for piece in pieces for t in piece.token_ids]
    assert tokens == right(prompt(6), next_token, 20)
    rows = np.concatenate([p.hidden_states.numpy() for p in pieces if p.hidden_states is not None])
    np.testing.assert_array_equal(rows, rows_for([*prompt(6), *tokens[:-1]]))
    assert max(len(piece.token_ids) for piece in pieces) == K + 1


def test_last_holds_one_row_over_any_number_of_steps() -> None:
    tags = core(accepting(1, 3), pages=100)
    key = tags.submit(prompt(6), LAST, 300)
    held = set()
    while not tags.core.idle:
        seq = tags.core.scheduler.get(key)
        if seq is not None and seq.readers[0].next:
            held.add(seq.readers[0].nbytes)
        tags.step()
    assert held == {4 * 4}
    tags.verify()
