"""Rows of real forward passes: the head check, fence posts, and plans that the scheduler would not make itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.checks import check_shape, head_check, rows_of, same
from support.company import MODES, company, prompt
from support.direct import Direct
from wellhead.step import PlanRow, SampleSpec
from wellhead.types import CaptureMode, LogprobSpec, SamplingParams

Family = Callable[..., Path]
NULL, LAST, FULL = CaptureMode


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize("options", [{}, {"chunked_prefill_size": 7}, {"max_total_tokens": 256}], ids=str)
def test_the_head_on_each_row_gives_the_logprob_that_was_reported(
    name: str, dtype: str, options: dict[str, Any], family: Family
) -> None:
    direct = Direct(family(name), dtype=dtype, **options)
    payloads = []
    for payload in company(["full", "last"]):
        new = max(1, payload["sampling_params"]["max_new_tokens"])
        payload["sampling_params"] = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        payloads.append({**payload, "return_logprob": True})
    for _ in range(2):
        for reply in direct.run(payloads):
            head_check(reply, direct)
            check_shape(reply, direct.hidden_size)


@pytest.mark.parametrize("modes", list(itertools.product([False, "last", True], repeat=3)), ids=str)
def test_every_pattern_of_modes_over_three_requests_cold_and_warm(modes: tuple[Any, ...], family: Family) -> None:
    direct, alone = Direct(family("llama"), chunked_prefill_size=24), Direct(family("llama"), disable_radix_cache=True)
    payloads = [
        {
            "input_ids": prompt(10 + 9 * i),
            "sampling_params": {"max_new_tokens": 3, "temperature": 0},
            "return_hidden_states": mode,
        }
        for i, mode in enumerate(modes)
    ]
    wanted = alone.alone(payloads)
    for _ in range(2):
        for mine, other in zip(direct.run(payloads), wanted, strict=True):
            same(mine, other)


def test_last_is_the_last_row_of_full_and_mean_is_their_mean(family: Family) -> None:
    direct = Direct(family("llama"))
    for new in (0, 1, 6):
        base = {"input_ids": prompt(21), "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}}
        full, last, mean = direct.run([{**base, **MODES[mode]} for mode in ("full", "last", "mean")])
        np.testing.assert_array_equal(rows_of(last), rows_of(full)[-1])
        np.testing.assert_array_equal(rows_of(mean), rows_of(full).mean(axis=0, dtype=np.float64).astype(np.float32))


def plan_row(tokens: list[int], start: int, pages: list[int], mode: CaptureMode, keep: tuple[int, int], *, draw: bool) -> PlanRow:
    empty = np.empty(0, np.int32)
    sample = SampleSpec(SamplingParams(temperature=0.0), 0, start + len(tokens), (), empty, empty, LogprobSpec())
    return PlanRow(
        key=f"{pages}", tokens=np.array(tokens, np.int32), start=start, pages=np.array(pages, np.int32), mode=mode,
        keep={3: np.arange(*keep, dtype=np.int64)} if keep[1] > keep[0] else {}, samples=(sample,) if draw else (),
    )  # fmt: skip


@pytest.mark.parametrize("first", CaptureMode)
def test_a_middle_chunk_before_a_decode_and_a_new_last_request_in_one_plan(first: CaptureMode, family: Family) -> None:
    """Our scheduler ends a step with a middle chunk; the runner must not rely on it."""
    from wellhead.step import Plan

    direct = Direct(family("llama"))
    long, other, new = prompt(40), prompt(9, 1), prompt(5, 2)
    reference = [
        rows_of(r)
        for r in direct.run(
            [{"input_ids": p, **MODES["full"], "sampling_params": {"max_new_tokens": 0}} for p in (long, other, new)]
        )
    ]
    runner = direct.runner.inner
    runner.run(
        Plan(
            1,
            (
                plan_row(long[:10], 0, [0, 1, 2], NULL, (10, 10), draw=False),
                plan_row(other[:8], 0, [5], NULL, (8, 8), draw=False),
            ),
        )
    )
    keep = {NULL: (30, 30), LAST: (30, 30), FULL: (10, 30)}[first]
    result = runner.run(
        Plan(
            2,
            (
                plan_row(long[10:30], 10, [0, 1, 2], first, keep, draw=False),
                plan_row(other[8:], 8, [5], LAST, (8, 9), draw=True),
                plan_row(new, 0, [7], LAST, (4, 5), draw=True),
                plan_row([], 9, [5], FULL, (2, 6), draw=False),
            ),
        )
    )
    assert result.produced == (keep[1] - keep[0]) + 1 + 1 + 4
    hidden = [row.hidden or {} for row in result.rows]
    if first is FULL:
        np.testing.assert_array_equal(hidden[0][3], reference[0][10:30])
    else:
        assert 3 not in hidden[0]
    np.testing.assert_array_equal(hidden[1][3], reference[1][8:9])
    np.testing.assert_array_equal(hidden[2][3], reference[2][4:5])
    np.testing.assert_array_equal(hidden[3][3], reference[1][2:6])
    assert [len(row.tokens) for row in result.rows] == [0, 1, 1, 0]


@pytest.mark.parametrize("name", ["llama", "gemma3", "smollm3", "qwen3"])
def test_layers_are_separate_arrays_in_hugging_faces_numbering(name: str, family: Family) -> None:
    count = 4 if name == "smollm3" else 3
    everything = list(range(count + 1))
    direct = Direct(family(name), capture_layers=everything)
    base = {"input_ids": prompt(20), "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
    asks = [everything, [-1], [0, -1], [1, -2, 0], [count]]
    first, *others = direct.run([{**base, "return_hidden_states": True, "hidden_states_layers": ask} for ask in asks])
    assert first.hidden_states is not None
    assert len(first.hidden_states.arrays) == count + 1
    for ask, reply in zip(asks[1:], others, strict=True):
        assert reply.hidden_states is not None
        entries = reply.hidden_states.entries()
        assert list(entries) == ask
        for layer in ask:
            np.testing.assert_array_equal(rows_of(reply, layer), rows_of(first, layer % (count + 1)))
            assert entries[layer][0].shape == (20, direct.hidden_size)


def test_a_server_that_captures_one_inner_layer_gives_that(family: Family) -> None:
    base = {"input_ids": prompt(20), "sampling_params": {"max_new_tokens": 0}, "return_hidden_states": "last"}
    everything = Direct(family("llama"), capture_layers=[0, 1, 2, 3]).run([{**base, "hidden_states_layers": [1]}])[0]
    for mode in ("full", "last"):
        only = Direct(family("llama"), capture_layers=[1], return_hidden_states_mode=mode)
        for _ in range(2):
            np.testing.assert_array_equal(rows_of(only.run([base])[0]), rows_of(everything, 1))


@pytest.mark.parametrize("mode", ["off", "last", "full"])
def test_no_token_wanted_means_no_head_and_no_draw(mode: str, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = Direct(family("llama"))
    decoder = direct.runner.inner.decoder
    monkeypatch.setattr(decoder, "logits", lambda rows: pytest.fail("the head was used"))
    payload = {"input_ids": prompt(50), "sampling_params": {"max_new_tokens": 0}, **MODES[mode]}
    (reply,) = direct.run([payload])
    assert (reply.output_ids, reply.text) == ([], "")
    assert reply.to_dict()["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    check_shape(reply, direct.hidden_size)
    if mode != "off":
        monkeypatch.setattr(decoder, "final_rows", lambda *args: pytest.fail("a cached prompt was computed"))
        same(direct.run([payload])[0], reply)


def test_only_the_rows_that_need_it_pass_the_final_norm(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ceiling at last nothing is kept beside the pages, so one row per request is all that is normed."""
    direct = Direct(family("llama"), return_hidden_states_mode="last")
    decoder, counts = direct.runner.inner.decoder, list[int]()
    finish = decoder.finish

    def counted(*args: Any) -> Any:
        final = finish(*args)
        counts.append(len(final))
        return final

    monkeypatch.setattr(decoder, "finish", counted)
    direct.run([{"input_ids": prompt(30 + i), "sampling_params": {"max_new_tokens": 0}, **MODES["last"]} for i in range(4)])
    assert counts == [4]


def test_the_runner_refuses_a_batch_above_its_ceiling(family: Family) -> None:
    direct = Direct(family("llama"), return_hidden_states_mode="last")
    batch = direct.submit({"input_ids": prompt(5), "sampling_params": {"max_new_tokens": 0}, **MODES["last"]})
    seq = direct.core.scheduler.get(batch.requests[0].key)
    assert seq is not None
    seq.mode = FULL
    direct.finish()
    assert "ceiling" in str(direct.errors[batch.requests[0].key])
