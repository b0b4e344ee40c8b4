"""Any rows of any layer on real forward passes: against transformers, and with the same bits however a prompt was computed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from support.checks import all_same, same_states
from support.company import company, prompt, sampling
from support.direct import Direct
from support.reference import furthest, truth
from support.replayed import Replayed
from support.speculating import options_for
from support.wishes import CHEAP, DEAR, WISHES, wished
from wellhead.errors import CaptureAboveCeiling, InvalidRequest, NonFinite, RowOutOfRange
from wellhead.frontends.native import Reply
from wellhead.reductions import REDUCTIONS
from wellhead.types import HiddenStates

Family = Callable[..., Path]
Make = Callable[..., Direct]
PRE_NORM = "L:pre_norm"
LAYERS: list[int | str] = [0, 2, -1, PRE_NORM]
GREEDY = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}


def fed(reply: Reply) -> list[int]:
    """The tokens that have rows."""
    return [*reply.request.input_ids.tolist(), *reply.output_ids[:-1]]


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3", "smollm3", "qwen2-window"])
def test_every_spelling_of_every_layer_against_transformers(name: str, family: Family, direct: Make) -> None:
    """All spellings in one request, of the tokens that it drew, too."""
    made = direct(name, capture_layers=LAYERS, chunked_prefill_size=24)
    reads = {f"w{i}": {"rows": words, "layers": LAYERS} for i, (words, _, _) in enumerate(WISHES)}
    prompts = [prompt(41), prompt(9, 1)]
    payloads = [{"input_ids": ids, "sampling_params": GREEDY, "reads": reads, "hidden_states_token_ids": True} for ids in prompts]
    for reply, ids in zip(made.run(payloads), prompts, strict=True):
        tokens = fed(reply)
        reference = truth(family(name), tokens)
        theirs = [reference.layers[0], reference.layers[2], reference.layers[-1], reference.pre_norm]
        for i, (words, one, meaning) in enumerate(WISHES):
            states, at = reply.reads[f"w{i}"], meaning(len(ids), tokens)
            assert states.positions.tolist() == at, words
            assert states.token_ids is not None and states.token_ids.tolist() == [tokens[p] for p in at], words
            for layer, rows in zip(LAYERS, theirs, strict=True):
                ours, right = states.numpy(layer), wished(rows, one, at, None)
                assert ours.shape == right.shape, words
                assert not len(at) or furthest(ours, right) < 1e-4, f"{words}, layer {layer}"


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_reduction_of_every_layer_against_transformers(name: str, reduce: str, family: Family, direct: Make) -> None:
    made = direct(name, capture_layers=LAYERS)
    chosen = [WISHES[i] for i in (0, 3, 6, 8, 9, 15, 16, 20, 22)]
    reads = {f"w{i}": {"rows": words, "layers": LAYERS, "reduce": reduce} for i, (words, _, _) in enumerate(chosen)}
    (reply,) = made.run([{"input_ids": prompt(41), "sampling_params": GREEDY, "reads": reads}])
    tokens = fed(reply)
    reference = truth(family(name), tokens)
    theirs = [reference.layers[0], reference.layers[2], reference.layers[-1], reference.pre_norm]
    for i, (words, one, meaning) in enumerate(chosen):
        states, at = reply.reads[f"w{i}"], meaning(41, tokens)
        assert len(at) > 0
        assert states.positions.tolist() == (at[:1] if reduce == "first" else at)
        for layer, rows in zip(LAYERS, theirs, strict=True):
            ours = states.numpy(layer)
            assert furthest(ours, wished(rows, one, at, reduce)) < 1e-4, f"{words}, layer {layer}"


def test_before_the_final_norm_is_one_norm_before_the_final_row(family: Family, direct: Make) -> None:
    made = direct("llama", capture_layers=[2, -1, PRE_NORM])
    read = {"layers": [2, -1, PRE_NORM]}
    (reply,) = made.run([{"input_ids": prompt(30), "sampling_params": {"max_new_tokens": 0}, "return_hidden_states": read}])
    states = reply.hidden_states
    assert states is not None
    before, final = states.numpy(PRE_NORM), states.numpy(-1)
    scale = np.sqrt((before.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
    weight = load_file(family("llama") / "model.safetensors")["model.norm.weight"].numpy()
    assert furthest((before / scale * weight).astype(np.float32), final) < 1e-5
    assert furthest(before, states.numpy(2)) > 0.1, "the last block must show"


# --- the same bits --------------------------------------------------------------------------------------------------


def crowd(ceiling: str) -> list[dict[str, Any]]:
    """Prompts of all lengths, greedy and drawn, some with common beginnings; two or three wishes each, and one by itself."""
    found = []
    wishes = WISHES if ceiling == "full" else CHEAP
    names = list(REDUCTIONS)
    writers = [{"input_ids": prompt(30, 70 + k), "sampling_params": {"max_new_tokens": 44}} for k in range(4)]
    for i, payload in enumerate([*writers, *company(["off"])]):
        length, new = len(payload["input_ids"]), payload["sampling_params"]["max_new_tokens"]
        reads: dict[str, Any] = {}
        for k in range(3):
            words = wishes[(3 * i + 7 * k) % len(wishes)][0]
            if _exists(words, length):
                layers = [LAYERS, [PRE_NORM], [0, -1]][(i + k) % 3]
                reads[f"r{k}"] = {"rows": words, "layers": layers, **({"reduce": names[(i + k) % 7]} if k else {})}
        params = sampling(i, new) if i % 4 else {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        base = {"input_ids": payload["input_ids"], "sampling_params": params, "hidden_states_token_ids": True}
        found.append({**base, "reads": reads} if reads else {**base, "return_hidden_states": {"rows": "-8:", "reduce": "mean"}})
    return found


def _exists(words: Any, rows: int) -> bool:
    """Are the positions that are named there in a prompt of so many tokens?"""
    listed = [words] if isinstance(words, int) else words if isinstance(words, list) else []
    return all(-rows <= p < rows for p in listed)


CEILINGS = ["last", "full"]
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunks of 7": {"chunked_prefill_size": 7},
    "preempted": {"max_total_tokens": 160},
    "three at once": {"max_running_requests": 3, "schedule_policy": "lpm"},
    "overlapping": {"disable_overlap_schedule": False},
    "overlapping in chunks": {"disable_overlap_schedule": False, "chunked_prefill_size": 7, "max_total_tokens": 160},
}


def wanted(model: str, ceiling: str, direct: Make, **options: Any) -> list[Reply]:
    """Each request by itself, on an engine that keeps nothing."""
    alone = direct(model, disable_radix_cache=True, capture_layers=LAYERS, return_hidden_states_mode=ceiling, **options)
    return alone.alone(crowd(ceiling))


@pytest.mark.parametrize(("name", "dtype", "ceiling"), [
    ("llama", "float32", "last"), ("llama", "float32", "full"), ("gemma3", "bfloat16", "last"), ("qwen3", "bfloat16", "full"),
])  # fmt: skip
def test_the_same_bits_alone_batched_in_chunks_cached_preempted_and_overlapping(
    name: str, dtype: str, ceiling: str, direct: Make
) -> None:
    right = wanted(name, ceiling, direct, dtype=dtype)
    for way, options in WAYS.items():
        made = direct(name, capture_layers=LAYERS, return_hidden_states_mode=ceiling, dtype=dtype, **options)
        for turn in range(2):
            got = made.run(crowd(ceiling))
            all_same(got, right)
            if turn and "max_total_tokens" not in options:
                assert sum(r.summary()["cached_tokens"] for r in got) > 100, way
            if way == "preempted":
                assert any(r.summary()["num_retractions"] for r in got)


@pytest.mark.parametrize("ceiling", CEILINGS)
@pytest.mark.parametrize("algorithm", ["NGRAM", "SELF", "EAGLE", "EAGLE3"])
def test_the_same_bits_with_drafts(algorithm: str, ceiling: str, direct: Make, family: Family) -> None:
    made = direct("llama", capture_layers=LAYERS, return_hidden_states_mode=ceiling, **options_for(algorithm, family, "llama"))
    got = made.run(crowd(ceiling))
    all_same(got, wanted("llama", ceiling, direct))
    assert sum(r._usage.accepted for r in got) > 0 or algorithm != "SELF"


@pytest.mark.parametrize("ceiling", CEILINGS)
def test_the_same_bits_out_of_graphs(ceiling: str, direct: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellhead.core.assemble.Compiled", Replayed)
    options = {"enable_torch_compile": True, "cuda_graph_max_bs": 4, "piecewise_cuda_graph_max_tokens": 64}
    made = direct("llama", capture_layers=LAYERS, return_hidden_states_mode=ceiling, **options)
    for _ in range(2):
        all_same(made.run(crowd(ceiling)), wanted("llama", ceiling, direct))
    assert made.runner.inner.graphs is not None and made.runner.inner.graphs.replays > 0


@pytest.mark.slow
def test_the_same_bits_out_of_compiled_graphs(direct: Make) -> None:
    options = {"enable_torch_compile": True, "cuda_graph_max_bs": 2, "piecewise_cuda_graph_max_tokens": 64}
    made = direct("llama", capture_layers=LAYERS, **options)
    all_same(made.run(crowd("full")), wanted("llama", "full", direct))
    assert made.runner.inner.graphs is not None and made.runner.inner.graphs.replays > 0


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_several_reads_are_each_alone_and_cost_one_pass(direct: Make) -> None:
    made = direct("llama", capture_layers=LAYERS, disable_radix_cache=True)
    reads = {f"w{i}": {"rows": words, "layers": LAYERS} for i, (words, _, _) in enumerate(WISHES)}
    base = {"input_ids": prompt(50), "sampling_params": {"max_new_tokens": 0}}
    (together,) = made.run([{**base, "reads": reads}])
    assert made.runner.computed == 50
    for name, read in reads.items():
        (alone,) = made.run([{**base, "return_hidden_states": read}])
        assert alone.hidden_states is not None
        same_states(together.reads[name], alone.hidden_states)
    assert made.runner.computed == 50 * (1 + len(reads))


@pytest.mark.parametrize(("rows", "reduce", "due"), [
    ({"last": 8}, "rows", 8), ({"last": 8}, "mean", 8), ("-8:-5", "weighted_mean", 8), (-3, None, 3), ("last", None, 1),
    ("output", "rows", 0), ({"part": "prompt", "start": -20, "step": 4}, "max", 20),
])  # fmt: skip
@pytest.mark.parametrize("layers", [[-1], [PRE_NORM], [1, PRE_NORM]])
def test_at_ceiling_last_rows_near_the_end_take_the_rest_from_the_prefix_cache(
    rows: Any, reduce: str | None, due: int, layers: list[Any], direct: Make
) -> None:
    made = direct("llama", capture_layers=[1, -1, PRE_NORM], return_hidden_states_mode="last")
    whole = direct("llama", capture_layers=[1, -1, PRE_NORM], return_hidden_states_mode="full")
    payload: dict[str, Any] = {"input_ids": prompt(77), "sampling_params": {"max_new_tokens": 0}}
    made.run([payload])
    read = {"rows": rows, "layers": layers, **({"reduce": reduce} if reduce else {})}
    before = made.runner.computed
    (reply,) = made.run([{**payload, "return_hidden_states": read}])
    assert made.runner.computed - before == due
    (right,) = whole.run([{**payload, "return_hidden_states": read}])
    assert reply.hidden_states is not None and right.hidden_states is not None
    same_states(reply.hidden_states, right.hidden_states)


@pytest.mark.parametrize("words", [words for words, _, meaning in DEAR if meaning(9, [0] * 9)], ids=str)
def test_what_needs_all_rows_is_refused_below_the_ceiling_full(words: Any, direct: Make) -> None:
    made = direct("llama", return_hidden_states_mode="last")
    with pytest.raises(CaptureAboveCeiling):
        made.submit({"input_ids": prompt(20), "hidden_states_rows": words})


@pytest.mark.parametrize("layers", [[PRE_NORM], LAYERS])
def test_at_ceiling_full_a_cached_prompt_has_any_rows_without_a_pass(layers: list[Any], direct: Make) -> None:
    made = direct("gemma3", capture_layers=LAYERS)
    reads = {f"w{i}": {"rows": words, "layers": layers} for i, (words, _, _) in enumerate(WISHES)}
    payload = {"input_ids": prompt(70), "sampling_params": {"max_new_tokens": 0}, "reads": reads}
    (first,) = made.run([payload])
    before = made.runner.computed
    (again,) = made.run([payload])
    assert made.runner.computed == before
    all_same([again], [first])


def test_only_rows_that_are_wanted_cross_from_the_model(direct: Make) -> None:
    """Positions that a plan asks for, and rows that come: one of each layer, in which chunk so ever."""
    made = direct("llama", capture_layers=LAYERS, chunked_prefill_size=16)
    reads = {"a": {"rows": [3, 40], "layers": [0]}, "b": {"rows": "last", "layers": [PRE_NORM]}}
    made.run([{"input_ids": prompt(60), "sampling_params": {"max_new_tokens": 0}, "reads": reads}])
    asked = [{layer: at.tolist() for layer, at in row.keep.items()} for plan in made.runner.plans for row in plan.rows]
    assert [one for one in asked if one] == [{0: [3]}, {0: [40]}, {4: [59]}]


# --- NaN, and what does not exist ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ceiling", CEILINGS)
@pytest.mark.parametrize("chunk", [8, 512])
def test_a_nan_in_an_unwanted_row_fails_nobody(chunk: int, ceiling: str, family: Family, tmp_path: Path, direct: Make) -> None:
    """Rows before the broken token are wanted, and are the sound model's; a row after it is that request's error alone."""
    folder = tmp_path / "broken"
    shutil.copytree(family("llama"), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][123] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = [t if t != 123 else 1 for t in prompt(60)]
    ids[50] = 123
    options = {"return_hidden_states_mode": ceiling, "capture_layers": [0, -1, PRE_NORM], "chunked_prefill_size": chunk}
    made, sound = direct(folder, **options), direct("llama", **options)
    near, at = ({"part": "prompt", "start": -20, "stop": -12}, list(range(40, 48)))  # up to the page that the token is in
    base = {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}}
    for _ in range(2):
        good = made.submit({**base, "return_hidden_states": {"rows": near, "layers": [0, -1, PRE_NORM]}})
        bad = made.submit({**base, "return_hidden_states": {"rows": {"part": "prompt", "start": -20}}})
        mean = made.submit({**base, "return_hidden_states": {"rows": near, "reduce": "mean"}})
        made.finish()
        (reply,) = made.replies(good)
        states = reply.hidden_states
        assert states is not None and states.positions.tolist() == at
        (right,) = sound.run([{**base, "return_hidden_states": {"rows": near, "layers": [0, -1, PRE_NORM]}}])
        assert right.hidden_states is not None
        same_states(states, right.hidden_states)
        assert isinstance(made.errors[bad.requests[0].key], NonFinite)
        (average,) = made.replies(mean)
        assert average.hidden_states is not None and np.isfinite(average.hidden_states.numpy()).all()


def test_positions_that_do_not_exist(direct: Make) -> None:
    made = direct("llama")
    base = {"input_ids": prompt(9), "sampling_params": {"max_new_tokens": 0}}
    wrong: list[Any] = [9, -10, [0, 9], {"part": "output", "positions": [0]}, {"part": "prompt", "positions": [-10]}]
    for rows in wrong:
        with pytest.raises(RowOutOfRange, match="does not exist"):
            made.submit({**base, "hidden_states_rows": rows})
    cut: list[Any] = ["9:", "-40:-30", "20:30", {"last": 40, "part": "output"}]
    for rows in cut:
        (reply,) = made.run([{**base, "hidden_states_rows": rows}])
        assert reply.hidden_states is not None
        assert reply.hidden_states.numpy().shape == (0, made.hidden_size) and not len(reply.hidden_states.positions)


def test_a_row_that_the_answer_did_not_come_to_fails_that_request_alone(direct: Make) -> None:
    made = direct("llama")
    (free,) = made.run([{"input_ids": prompt(9), "sampling_params": {**GREEDY, "max_new_tokens": 8}}])
    stop = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True, "stop_token_ids": [free.output_ids[0]]}
    early = made.submit({"input_ids": prompt(9), "sampling_params": stop, "hidden_states_rows": [9 + 5]})
    others = [
        made.submit({"input_ids": prompt(9), "sampling_params": {**stop, "stop_token_ids": []}, "hidden_states_rows": [9 + 5]}),
        made.submit({"input_ids": prompt(9), "sampling_params": stop, "hidden_states_rows": {"part": "output", "start": 5}}),
    ]
    made.finish()
    error = made.errors[early.requests[0].key]
    assert isinstance(error, RowOutOfRange) and error.code == "row_out_of_range"
    assert "14" in error.message and "ended after 9" in error.message
    counts = [[len(s.positions) for s in reply_states(made.replies(batch)[0])] for batch in others]
    assert counts == [[1], [0]]


def reply_states(reply: Reply) -> list[HiddenStates]:
    return [] if reply.hidden_states is None else [reply.hidden_states]


@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "weighted_mean", "mean_sqrt", "first"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_no_rows_every_number_is_nan(reduce: str, dtype: str, direct: Make) -> None:
    made = direct("llama", dtype=dtype)
    for new in (0, 3):
        read = {"rows": {"token_ids": []}, "reduce": reduce}
        payload = {"input_ids": prompt(9), "sampling_params": {**GREEDY, "max_new_tokens": new}, "return_hidden_states": read}
        (reply,) = made.run([payload])
        assert reply.hidden_states is not None
        assert not len(reply.hidden_states.positions) and reply.hidden_states.numpy().shape == (made.hidden_size,)
        assert np.isnan(reply.hidden_states.numpy()).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_states_rows": "first"}, {"hidden_states_rows": "1:2:0"}, {"hidden_states_rows": {"last": 0}},
        {"hidden_states_rows": {"frist": 1}}, {"hidden_states_rows": [1.5]}, {"hidden_states_rows": True},
        {"hidden_states_rows": {"chars": [3, 3]}}, {"hidden_states_rows": {"chars": [0, 3]}}, {"hidden_states_reduce": "median"},
        {"hidden_states_rows": "all", "return_hidden_states": {"rows": "last"}},
        {"reads": {}}, {"reads": {"a b": {}}}, {"reads": {"a": {"row": 1}}}, {"reads": {"a": {}}, "hidden_states_rows": "last"},
        {"reads": {"a": {}}, "return_hidden_states": "last"}, {"hidden_states_rows": "all", "hidden_states_pooling": "mean"},
        {"hidden_states_rows": {"part": "output", "chars": [0, 1]}}, {"hidden_states_rows": {"exclude": "all"}},
    ],
    ids=str,
)  # fmt: skip
def test_words_that_mean_nothing_are_refused(fields: dict[str, Any], direct: Make) -> None:
    with pytest.raises(InvalidRequest) as caught:
        direct("llama").submit({"input_ids": prompt(9), **fields})
    assert caught.value.param in {*fields, "hidden_states_pooling"}
