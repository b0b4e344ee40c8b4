"""Logprobs against transformers: of the prompt from any position, of the output, the top ones and chosen ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.checks import check_shape
from support.company import prompt
from support.direct import Direct
from support.reference import truth

Family = Callable[..., Path]
P, NEW = 37, 5


def meta(direct: Direct, **more: Any) -> dict[str, Any]:
    params = {"max_new_tokens": NEW, "temperature": 0, "ignore_eos": True, **more.pop("sampling", {})}
    (reply,) = direct.run([{"input_ids": prompt(P), "sampling_params": params, "return_logprob": True, **more}])
    check_shape(reply, direct.hidden_size)
    return {**reply.to_dict()["meta_info"], "ids": reply.output_ids}


def close(got: float | None, wanted: float) -> bool:
    return got is not None and abs(got - wanted) < 2e-4


@pytest.mark.parametrize("chunk", [5, -1])
@pytest.mark.parametrize("start", [-1, 0, 1, 16, P - 1, P])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_prompt_and_output_logprobs_from_any_start_cold_and_warm(name: str, start: int, chunk: int, family: Family) -> None:
    direct, ids = Direct(family(name), chunked_prefill_size=chunk), prompt(P)
    for warm in (False, True, True):
        found = meta(direct, logprob_start_len=start)
        logprobs = truth(family(name), ids + found["ids"]).logprobs
        wanted = range(start, P) if start >= 0 else range(0)
        triples = found["input_token_logprobs"]
        assert [t[1] for t in triples] == [ids[p] for p in wanted]
        for position, (value, token, text) in zip(wanted, triples, strict=True):
            assert text is None
            assert value is None if position == 0 else close(value, float(logprobs[position - 1, token]))
        outputs = found["output_token_logprobs"]
        assert [t[1] for t in outputs] == found["ids"]
        for k, (value, token, _) in enumerate(outputs):
            assert close(value, float(logprobs[P - 1 + k, token]))
        cached = found["cached_tokens"]
        assert cached == (min(P, max(start, 1) if start >= 0 else P) - 1 if warm else 0)


def test_the_top_and_chosen_ids_at_each_position(family: Family) -> None:
    direct, ids, chosen = Direct(family("llama")), prompt(P), [3, 250, 7]
    found = meta(direct, logprob_start_len=0, top_logprobs_num=4, token_ids_logprob=chosen)
    logprobs = truth(family("llama"), ids + found["ids"]).logprobs
    for field, first in (("input", 0), ("output", P)):
        tops, picked = found[f"{field}_top_logprobs"], found[f"{field}_token_ids_logprobs"]
        assert len(tops) == len(picked) == len(found[f"{field}_token_logprobs"])
        for position, (top, pick) in enumerate(zip(tops, picked, strict=True), start=first):
            if position == 0:
                assert top is None
                assert pick is None
                continue
            row = logprobs[position - 1]
            assert [t[1] for t in top] == torch.topk(row, 4).indices.tolist()
            assert all(close(t[0], float(row[t[1]])) for t in top)
            assert [t[1] for t in pick] == chosen
            assert all(close(t[0], float(row[t[1]])) for t in pick)


def test_output_logprobs_are_at_the_given_temperature_after_penalties(family: Family) -> None:
    direct = Direct(family("llama"))
    sampling = {"temperature": 0.6, "sampling_seed": 3, "top_k": 5, "frequency_penalty": 0.5}
    found = meta(direct, sampling=sampling)
    logits = truth(family("llama"), prompt(P) + found["ids"]).logits
    for k, (value, token, _) in enumerate(found["output_token_logprobs"]):
        row = logits[P - 1 + k].clone()
        for earlier in found["ids"][:k]:
            row[earlier] -= 0.5
        assert close(value, float(torch.log_softmax(row / 0.6, dim=-1)[token]))


def test_prompt_logprobs_without_any_output(family: Family) -> None:
    direct, ids = Direct(family("llama")), prompt(P)
    for _ in range(2):
        found = meta(direct, logprob_start_len=0, sampling={"max_new_tokens": 0}, return_hidden_states="last")
        logprobs = truth(family("llama"), ids).logprobs
        assert len(found["input_token_logprobs"]) == P
        assert all(close(v, float(logprobs[p - 1, t])) for p, (v, t, _) in enumerate(found["input_token_logprobs"]) if p)
        assert found["output_token_logprobs"] == []


def test_text_of_tokens_on_request(family: Family) -> None:
    direct = Direct(family("llama"))
    found = meta(direct, logprob_start_len=0, return_text_in_logprobs=True)
    tokenizer = direct.made.tokenizer
    assert tokenizer is not None
    for _, token, text in found["input_token_logprobs"] + found["output_token_logprobs"]:
        assert text == tokenizer.token_text(token)


def test_logprobs_survive_preemption(family: Family) -> None:
    """Prompt logprobs are kept, not doubled, when their request is computed again."""
    payloads = [
        {"input_ids": prompt(30, seed=i), "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True},
         "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1, "return_hidden_states": "last"}
        for i in range(4)
    ]  # fmt: skip
    small, large = Direct(family("llama"), max_total_tokens=160), Direct(family("llama"))
    for mine, other in zip(small.run(payloads), large.alone(payloads), strict=True):
        a, b = mine.to_dict()["meta_info"], other.to_dict()["meta_info"]
        assert a["input_token_logprobs"] == b["input_token_logprobs"]
        assert a["output_token_logprobs"] == b["output_token_logprobs"]
    assert small.core.scheduler.preemptions


def test_not_asked_means_no_keys(family: Family) -> None:
    (reply,) = Direct(family("llama")).run([{"input_ids": prompt(5), "sampling_params": {"max_new_tokens": 1}}])
    assert not [key for key in reply.to_dict()["meta_info"] if "logprob" in key]
