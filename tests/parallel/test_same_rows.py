"""Two processes give the rows and the greedy tokens of one; and among themselves the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.checks import all_same, check_shape, head_check, rows_of
from support.company import MODES, company
from support.direct import Direct
from support.reference import furthest
from support.wishes import WISHES
from wellhead.frontends.native import Reply

Make = Callable[..., Direct]
Family = Callable[..., Path]
#: Of a row's distance over its norm, in float32.
CLOSE = 1e-5
GREEDY = {"temperature": 0, "ignore_eos": True}


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    stem = rng.integers(0, 250, 40).tolist()
    return [[7], stem, stem + rng.integers(0, 250, 9).tolist(), rng.integers(0, 250, 70).tolist()]


def payloads(layers: list[int]) -> list[dict[str, Any]]:
    """Every prompt in every mode, and with all layers."""
    more = {**MODES, "layers": {"return_hidden_states": True, "hidden_states_layers": layers}}
    params = {"max_new_tokens": 8, **GREEDY}
    return [{"input_ids": ids, "sampling_params": params, **mode} for ids in prompts() for mode in more.values()]


def close(ours: list[Reply], theirs: list[Reply]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.output_ids == other.output_ids
        assert (mine.hidden_states is None) == (other.hidden_states is None)
        if mine.hidden_states is not None and other.hidden_states is not None:
            assert mine.hidden_states.layers == other.hidden_states.layers
            for layer in mine.hidden_states.layers:
                rows, wanted = (np.atleast_2d(rows_of(reply, layer)) for reply in (mine, other))
                assert furthest(rows, wanted) < CLOSE, f"layer {layer}"


MODELS: dict[str, dict[str, Any]] = {
    "llama-biased": {},
    "llama-tied": {"vocab_size": 271},
    "llama": {"vocab_size": 257},
    "gemma3": {},
    "qwen2-window": {},
    "qwen3": {},
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_all_modes_and_greedy_tokens(name: str, family: Family, direct: Make) -> None:
    folder = family(name, **MODELS[name])
    layers = [0, 1, 2, -1]
    options = {"capture_layers": layers, "chunked_prefill_size": 24}
    one, two = direct(folder, **options), direct(folder, tp_size=2, **options)
    replies = two.run(payloads(layers))
    close(replies, one.run(payloads(layers)))
    for reply in replies:
        check_shape(reply, two.hidden_size)
    assert two.made.info()["tp_size"] == 2


def test_any_rows_of_any_layer_in_any_company(direct: Make) -> None:
    """Close to one process's, and among themselves the same bits alone, together, in chunks and from the prefix cache."""
    layers = [0, -1, "L:pre_norm"]
    reads = {f"w{i}": {"rows": words, "layers": layers} for i, (words, _, _) in enumerate(WISHES)}
    reads["mean"] = {"rows": {"last": 8}, "reduce": "mean", "layers": layers}
    params = {"max_new_tokens": 8, **GREEDY}
    wishes = [{"input_ids": ids, "sampling_params": params, "reads": reads} for ids in prompts() if len(ids) > 8]
    one, two = (direct("gemma3", capture_layers=layers, **more) for more in ({}, {"tp_size": 2, "chunked_prefill_size": 24}))
    right, alone = one.run(wishes), two.alone(wishes)
    for mine, other in zip(alone, right, strict=True):
        assert mine.output_ids == other.output_ids
        for name, states in mine.reads.items():
            assert states.positions.tolist() == other.reads[name].positions.tolist()
            for layer in layers if len(states.positions) else []:
                rows, wanted = (np.atleast_2d(reply.reads[name].numpy(layer)) for reply in (mine, other))
                assert furthest(rows, wanted) < CLOSE, f"{name}, layer {layer}"
    for _ in range(2):
        all_same(two.run(wishes), alone)


@pytest.mark.parametrize("name", ["llama-biased", "gemma3"])
def test_on_torch_operators(name: str, direct: Make) -> None:
    one, two = direct(name, native_kernels=False), direct(name, native_kernels=False, tp_size=2)
    close(two.run(payloads([-1])), one.run(payloads([-1])))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "changes"), [
    (4, {}),
    (3, {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 271}),
], ids=["more ranks than key-value heads", "three ranks"])  # fmt: skip
def test_more_ranks(size: int, changes: dict[str, int], family: Family, direct: Make) -> None:
    folder = family("llama", **changes)
    one, more = direct(folder), direct(folder, tp_size=size)
    close(more.run(payloads([-1])), one.run(payloads([-1])))
    wanted = more.alone(payloads([-1]))
    for _ in range(2):
        all_same(more.run(payloads([-1])), wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_its_company(dtype: str, direct: Make) -> None:
    """Prompts around page borders, shared prefixes, all modes, drawn tokens, logprobs: alone, together, from the cache."""
    two = direct("llama", tp_size=2, dtype=dtype, chunked_prefill_size=24)
    mixed = company(["full", "off", "last", "mean", "last"])
    wanted = two.alone(mixed)
    for turn in range(2):
        replies = two.run(mixed)
        all_same(replies, wanted)
        cached = [reply.to_dict()["meta_info"]["cached_tokens"] for reply in replies]
        assert not turn or sum(c > 0 for c in cached) > len(cached) // 2


@pytest.mark.slow
def test_preemption_and_whole_prompts(direct: Make) -> None:
    mixed = company(["full", "off", "last", "mean", "last"])
    for payload in mixed:
        payload["sampling_params"] = {**payload["sampling_params"], "max_new_tokens": 40}
    wanted = direct("llama", tp_size=2, chunked_prefill_size=-1, disable_radix_cache=True).alone(mixed)
    small = direct("llama", tp_size=2, chunked_prefill_size=7, max_total_tokens=14 * 16)
    all_same(small.run(mixed), wanted)
    assert small.core.scheduler.preemptions > 2


def test_the_head_is_the_one_of_the_rows(direct: Make) -> None:
    """The whole head, on rows that came from two processes, gives each token's logprob."""
    one, two = direct("gemma3"), direct("gemma3", tp_size=2)
    for reply in two.run([{**p, "return_logprob": True} for p in payloads([-1]) if p.get("return_hidden_states") is True]):
        head_check(reply, two)
    close(two.run(payloads([-1])), one.run(payloads([-1])))


def test_steps_that_overlap(direct: Make) -> None:
    mixed = company(["full", "off", "last", "mean", "last"])
    wanted = direct("llama", tp_size=2).run(mixed)
    all_same(direct("llama", tp_size=2, disable_overlap_schedule=False).run(mixed), wanted)


def test_n_gram_drafts_go_with_it(direct: Make) -> None:
    repeating = {"input_ids": [5, 6, 7, 8] * 10, "sampling_params": {"max_new_tokens": 30, **GREEDY}, **MODES["full"]}
    plain = direct("llama-tied", tp_size=2).run([repeating])
    drafted = direct("llama-tied", tp_size=2, speculative_algorithm="NGRAM")
    all_same(drafted.run([repeating]), plain)
    assert drafted.core.counters.proposed_tokens > 0


def test_float16_and_a_ceiling_of_last(direct: Make) -> None:
    options = {"dtype": "float16", "return_hidden_states_mode": "last"}
    one, two = direct("llama", **options), direct("llama", tp_size=2, **options)
    ask = [{"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, **MODES["last"]} for ids in prompts()]
    for mine, other in zip(two.run(ask), one.run(ask), strict=True):
        assert furthest(np.atleast_2d(rows_of(mine)), np.atleast_2d(rows_of(other))) < 5e-3
