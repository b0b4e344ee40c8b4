"""Where SGLang 0.5.23 loses rows or contradicts itself, and what is right: one named test each, by the list's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.checks import matrix
from support.company import prompt
from support.direct import Direct
from support.reference import furthest, truth
from wellhead.frontends.engine import Engine

Family = Callable[..., Path]
MakeEngine = Callable[..., Engine]
P, NEW = 40, 4
GREEDY = {"max_new_tokens": NEW, "temperature": 0, "ignore_eos": True}


def states(reply: dict[str, Any]) -> Any:
    return reply["meta_info"]["hidden_states"]


def wanted(family: Family, reply: dict[str, Any], ids: list[int]) -> np.ndarray:
    return truth(family("llama"), ids + reply["output_ids"][:-1]).layers[-1]


def test_1_every_value_is_accepted_everywhere(engine: MakeEngine) -> None:
    made = engine()
    for value, shape in ((True, None), ("last", (64,)), (False, None)):
        for stream in (False, True):
            reply = made.generate(input_ids=prompt(P), sampling_params=GREEDY, return_hidden_states=value, stream=stream)
            last = list(reply)[-1] if stream else reply
            if value is False:
                assert "hidden_states" not in last["meta_info"]
            elif value == "last":
                assert states(last).shape == shape
            else:
                assert matrix(states(last)).shape == (P + NEW - 1, 64)


def test_2_a_prefix_hit_returns_all_prompt_rows(engine: MakeEngine, family: Family) -> None:
    made = engine()
    for turn in range(3):
        reply = made.generate(input_ids=prompt(P), sampling_params=GREEDY, return_hidden_states=True)
        assert len(states(reply)) == NEW
        assert furthest(matrix(states(reply)), wanted(family, reply, prompt(P))) < 1e-4
        assert (reply["meta_info"]["cached_tokens"] > 0) is (turn > 0)


@pytest.mark.parametrize("chunk", [1, 16, 39])
def test_3_a_chunked_prompt_returns_all_its_rows(chunk: int, engine: MakeEngine, family: Family) -> None:
    reply = engine(chunked_prefill_size=chunk).generate(input_ids=prompt(P), sampling_params=GREEDY, return_hidden_states=True)
    assert furthest(matrix(states(reply)), wanted(family, reply, prompt(P))) < 1e-4


def test_4_no_new_tokens_gives_one_entry_with_the_prompts_matrix(engine: MakeEngine, family: Family) -> None:
    reply = engine().generate(input_ids=prompt(P), sampling_params={"max_new_tokens": 0}, return_hidden_states=True)
    (only,) = states(reply)
    assert furthest(only, truth(family("llama"), prompt(P)).layers[-1]) < 1e-4


def test_5_every_sample_of_n_has_all_prompt_rows(engine: MakeEngine, family: Family) -> None:
    params = {"max_new_tokens": NEW, "n": 3, "temperature": 1.0, "sampling_seed": 5, "ignore_eos": True}
    replies = engine().generate(input_ids=[prompt(P), prompt(7)], sampling_params=params, return_hidden_states=[True, "last"])
    assert len(replies) == 6
    for reply in replies[:3]:
        assert furthest(matrix(states(reply)), wanted(family, reply, prompt(P))) < 1e-4
        np.testing.assert_array_equal(states(reply)[0], states(replies[0])[0])
    for reply in replies[3:]:
        assert furthest(states(reply), wanted(family, reply, prompt(7))[-1]) < 1e-4
    assert len({tuple(reply["output_ids"]) for reply in replies[:3]}) == 3


def test_6_one_matrix_then_vectors_after_preemption_and_in_mixed_steps(family: Family) -> None:
    direct = Direct(family("llama"), max_total_tokens=144, chunked_prefill_size=9)
    params = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
    replies = direct.run(
        [{"input_ids": prompt(20, i), "sampling_params": params, "return_hidden_states": True} for i in range(4)]
    )
    assert direct.core.scheduler.preemptions
    assert any({1, 9} <= {len(r.tokens) for r in plan.rows} for plan in direct.runner.plans)
    for i, reply in enumerate(replies):
        entries = states(reply.to_dict())
        assert entries[0].shape == (20, 64)
        assert [e.shape for e in entries[1:]] == [(64,)] * 39
        assert furthest(matrix(entries), wanted(family, reply.to_dict(), prompt(20, i))) < 1e-4


def test_7_true_gives_n_entries_however_few(engine: MakeEngine) -> None:
    made = engine()
    for new in (1, 2, 5):
        params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        reply = made.generate(input_ids=prompt(P), sampling_params=params, return_hidden_states=True)
        assert [e.shape for e in states(reply)] == [(P, 64)] + [(64,)] * (new - 1)


def test_8_a_list_of_one_for_a_single_prompt(engine: MakeEngine) -> None:
    made = engine()
    one = made.generate(input_ids=prompt(P), sampling_params=GREEDY, return_hidden_states=["last"])
    other = made.generate(input_ids=prompt(P), sampling_params=GREEDY, return_hidden_states="last")
    assert isinstance(one, dict)
    np.testing.assert_array_equal(states(one), states(other))


def test_9_a_stream_sends_the_rows_once_or_piece_by_piece(engine: MakeEngine) -> None:
    made = engine()
    ask: dict[str, Any] = {"input_ids": prompt(P), "sampling_params": GREEDY, "return_hidden_states": True, "stream": True}
    events = list(made.generate(**ask))
    whole = matrix(states(events[-1]))
    assert [("hidden_states" in e["meta_info"]) for e in events] == [False] * (NEW - 1) + [True]
    pieces = [states(e) for e in made.generate(**ask, incremental_hidden_states=True)]
    assert [len(piece) for piece in pieces] == [1] * NEW
    assert pieces[0][0].shape == (P, 64)
    np.testing.assert_array_equal(matrix([entry for piece in pieces for entry in piece]), whole)
    last = list(made.generate(**ask, incremental_hidden_states=True))[-1]
    assert last["meta_info"]["hidden_states_total"] == NEW


def test_10_last_on_a_full_server_hands_over_only_its_row(family: Family) -> None:
    direct = Direct(family("llama"))
    before = direct.core.counters.rows
    direct.run([{"input_ids": prompt(P), "sampling_params": {"max_new_tokens": 0}, "return_hidden_states": "last"}])
    assert direct.core.counters.rows - before == 1


def test_11_rows_that_do_not_add_up_fail_the_batch_and_nothing_else(family: Family) -> None:
    import dataclasses

    direct = Direct(family("llama"))
    inner = direct.runner.inner.run
    direct.runner.inner.run = lambda plan: dataclasses.replace(inner(plan), produced=99)  # type: ignore[method-assign]
    batch = direct.submit({"input_ids": prompt(P), "sampling_params": GREEDY, "return_hidden_states": True})
    direct.finish()
    assert direct.errors[batch.requests[0].key].code == "internal_error"  # type: ignore[attr-defined]
    direct.runner.inner.run = inner  # type: ignore[method-assign]
    assert direct.run([{"input_ids": prompt(P), "sampling_params": GREEDY, "return_hidden_states": True}])


def test_13_vectors_come_as_views_of_one_contiguous_float32_array(engine: MakeEngine) -> None:
    reply = engine().generate(input_ids=prompt(P), sampling_params=GREEDY, return_hidden_states=True)
    bases = {id(entry.base) for entry in states(reply)}
    assert len(bases) == 1
    assert states(reply)[0].base.shape == (P + NEW - 1, 64)
    assert all(entry.dtype == np.float32 for entry in states(reply))
