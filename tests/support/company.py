"""The requests with which companies are compared: lengths at fence posts, shared prefixes, every mode, greedy and drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.families import VOCAB

Payload = dict[str, Any]
PAGE = 16
MODES: dict[str, dict[str, Any]] = {
    "off": {"return_hidden_states": False},
    "last": {"return_hidden_states": "last"},
    "full": {"return_hidden_states": True},
    "mean": {"return_hidden_states": "last", "hidden_states_pooling": "mean"},
}
LENGTHS = (1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 70, 131)
NEW = (0, 1, 5, 18)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random ids."""
    return [int(t) for t in np.random.default_rng([seed, length]).integers(0, VOCAB, length)]


def sampling(i: int, new: int) -> dict[str, Any]:
    """Greedy and drawn in turn."""
    drawn = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "sampling_seed": 100 + i, "repetition_penalty": 1.1}
    return {"max_new_tokens": new, "ignore_eos": True, **(drawn if i % 2 else {"temperature": 0})}


def company(modes: list[str]) -> list[Payload]:
    """Prompts of all lengths, some with a common beginning; modes, output lengths and sampling go round."""
    stem = prompt(3 * PAGE + 5, seed=99)
    prompts = [prompt(n) for n in LENGTHS]
    prompts += [stem + prompt(7, seed=k) for k in range(3)] + [stem, stem[: 2 * PAGE], stem + prompt(40, seed=9)]
    payloads = []
    for i, ids in enumerate(prompts):
        new = NEW[i % len(NEW)]
        logprobs = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": len(ids) // 2} if i % 3 == 0 else {}
        payloads.append({"input_ids": ids, "sampling_params": sampling(i, new), **MODES[modes[i % len(modes)]], **logprobs})
    return payloads
