"""Engines that speculate, each beside a plain one, and the payloads on which they are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from support.checks import all_same, check_shape
from support.company import MODES
from support.direct import Direct
from support.eagles import Eagle
from support.families import EOS

Family = Callable[..., Path]
Payload = dict[str, Any]

#: Long enough for several verify steps, short enough to stay quick.
MOST_NEW = 24
#: A bias under which a tiny model writes few different tokens, and so repeats itself.
REPEATING = {"65": 20.0, "66": 20.0, "67": 20.0}


def options_for(algorithm: str, family: Family, target: str) -> dict[str, Any]:
    """The engine options of an algorithm, with the draft that these tests give it."""
    if algorithm == "NGRAM":
        return {"speculative_algorithm": "NGRAM", "speculative_ngram_min_match_window_size": 1}
    if algorithm.startswith("EAGLE"):
        three = algorithm == "EAGLE3"
        path = Eagle.random(three=three).write(family(target).parent / algorithm)
        return {"speculative_algorithm": algorithm, "speculative_draft_model_path": str(path)}
    path = family(target) if algorithm == "SELF" else family("llama", num_hidden_layers=1)
    return {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(path)}


@functools.cache
def pair(
    family: Family, algorithm: str, target: str, pages: int, chunk: int, dtype: str, *, overlap: bool = False
) -> tuple[Direct, Direct]:
    """A plain engine with room for everything, and one that speculates in ``pages`` pages."""
    more = {**options_for(algorithm, family, target), "disable_overlap_schedule": not overlap}
    speculating = Direct(family(target), dtype=dtype, chunked_prefill_size=chunk, max_total_tokens=pages * 16, **more)
    return Direct(family(target), dtype=dtype), speculating


def texts() -> st.SearchStrategy[list[int]]:
    """Token ids with and without repetition, some with a common stem."""
    ids = st.integers(0, 255)
    plain = st.lists(ids, min_size=1, max_size=40)
    repeating = st.builds(lambda unit, times: unit * times, st.lists(ids, min_size=1, max_size=5), st.integers(2, 8))
    stem = [11, 12, 13, 14] * 5
    return st.one_of(plain, repeating, repeating.map(lambda tail: stem + tail))


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    """One request: any mode, stops, sampling, penalties, logprobs, several samples, streaming or not."""
    params: dict[str, Any] = {
        "max_new_tokens": draw(st.integers(0, MOST_NEW)),
        "temperature": draw(st.sampled_from([0, 0, 0.3, 1.0])),
        "sampling_seed": draw(st.integers(0, 5)),
        "n": draw(st.sampled_from([1, 1, 1, 2])),
        "ignore_eos": draw(st.booleans()),
        "min_new_tokens": 0,
    }
    if not params["max_new_tokens"]:
        params["n"] = 1
    extras: dict[str, st.SearchStrategy[Any]] = {
        "top_p": st.sampled_from([0.5, 0.9]),
        "top_k": st.sampled_from([1, 5]),
        "repetition_penalty": st.sampled_from([1.2]),
        "frequency_penalty": st.sampled_from([0.7]),
        "stop_token_ids": st.lists(st.integers(0, EOS), max_size=12),
        "stop": st.lists(st.text("abcdefgh ", min_size=1, max_size=2), max_size=4),
        "logit_bias": st.sampled_from([REPEATING]),
    }
    for name in draw(st.sets(st.sampled_from(sorted(extras)), max_size=3)):
        params[name] = draw(extras[name])
    if params["max_new_tokens"] and draw(st.booleans()):
        params["min_new_tokens"] = draw(st.integers(0, params["max_new_tokens"]))
    ids = draw(texts())
    logprobs = draw(st.sampled_from([{}, {}, {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}]))
    return {
        "input_ids": ids,
        "sampling_params": params,
        "stream": draw(st.booleans()),
        **draw(st.sampled_from(list(MODES.values()))),
        **logprobs,
    }


def check_equal(plain: Direct, speculating: Direct, requests: list[Payload]) -> None:
    """The same tokens, text, rows and logprobs, bit for bit, and nothing left behind."""
    wanted, got = plain.run(requests), speculating.run(requests)
    all_same(got, wanted)
    for reply in got:
        check_shape(reply, speculating.hidden_size)
