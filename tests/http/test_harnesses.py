"""Log-likelihoods as evaluation harnesses read them: their bodies, their reading of the answer, transformers' numbers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tokenizers
from tokenizers import decoders, models

from support.families import EOS, VOCAB, byte_ids
from support.live import LiveServer
from support.reference import truth
from wellhead.frontends.cli import build_parser
from wellhead.frontends.http.openai_choice import CompletionLogprobs
from wellhead.requests.tokenizer import Tokenizer
from wellhead.types import Logprobs, LogprobSpec

TEXT = "häll€ \N{GRINNING FACE}�wörld"
#: Words in ASCII, parts of characters, the special token, and ids that the tokenizer does not know: their text is empty.
CONTEXT, CONTINUATION = [*byte_ids("question: "), EOS], [*byte_ids(TEXT), EOS, VOCAB - 1, VOCAB - 2, VOCAB - 1]


@pytest.fixture
def client(shared: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared.url + "/v1", api_key="any", max_retries=0, timeout=60) as one:
        yield one


def loglikelihoods(answer: Any, contexts: list[int]) -> list[tuple[float, bool]]:
    """As lm-eval reads them: the sum over the continuation, and whether it is what the model would have said.

    The last entry is that of the one new token for which it had to ask.
    """
    found = []
    for choice, context in zip(sorted(answer["choices"], key=lambda c: c["index"]), contexts, strict=True):
        shown = choice["logprobs"]
        values, tops = shown["token_logprobs"][context:-1], shown["top_logprobs"][context:-1]
        found.append((sum(values), all(value == max(top.values()) for value, top in zip(values, tops, strict=True))))
    return found


def asked(prompts: list[list[int]]) -> dict[str, Any]:
    return {
        "model": "tiny", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True,
    }  # fmt: skip


def expected(folder: Path, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    ids = [*context, *continuation]
    logprobs = truth(folder, ids).logprobs.numpy()[len(context) - 1 : -1]
    return float(logprobs[range(len(continuation)), continuation].sum()), bool((logprobs.argmax(-1) == continuation).all())


def greedy(folder: Path, ids: list[int], count: int) -> list[int]:
    for _ in range(count):
        ids = [*ids, int(truth(folder, ids).logits[-1].argmax())]
    return ids[-count:]


def test_loglikelihoods_are_those_of_transformers(shared: LiveServer, chat_model: Path) -> None:
    """One request for several pairs of different lengths, with a pair of one token each and one that is greedy."""
    start = list(byte_ids("ab"))
    pairs = [(CONTEXT, CONTINUATION), ([EOS], [5]), (start, greedy(chat_model, start, 3)), (start, CONTINUATION[:1])]
    answer = shared.ok("/v1/completions", **asked([[*a, *b] for a, b in pairs]))
    found = loglikelihoods(answer, [len(a) for a, _ in pairs])
    wanted = [expected(chat_model, a, b) for a, b in pairs]
    assert [same for _, same in found] == [same for _, same in wanted] == [False, False, True, False]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in wanted], rel=1e-4)
    for choice, (a, b) in zip(answer["choices"], pairs, strict=True):
        assert {len(values) for values in choice["logprobs"].values()} == {len(a) + len(b) + 1}


def test_the_new_token_counts_also_if_it_ends_the_text(shared: LiveServer) -> None:
    """The harness leaves out the last entry unseen: were there none for an end-of-text token, it would lose one of its own."""
    answer = shared.ok("/v1/completions", **asked([CONTINUATION]), logit_bias={str(EOS): 100})
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop" and len(choice["logprobs"]["tokens"]) == len(CONTINUATION) + 1
    assert choice["logprobs"]["tokens"][-1] == "</s>"


@pytest.mark.parametrize("top", [1, 2, 5, 20])
@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 3.0, "seed": 7}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_chosen_token_is_among_its_alternatives(
    shared: LiveServer, client: openai.OpenAI, top: int, fields: dict[str, Any], stream: bool
) -> None:
    whole = client.completions.create(
        model="tiny", prompt=CONTINUATION, max_tokens=20, echo=True, logprobs=top, extra_body={"ignore_eos": True},
        stream=stream, **fields,
    )  # fmt: skip
    parts = [c.choices[0].logprobs for c in whole if c.choices] if stream else [whole.choices[0].logprobs]  # type: ignore[union-attr]
    tokens = [t for p in parts if p is not None for t in p.tokens or []]
    values = [v for p in parts if p is not None for v in p.token_logprobs or []]
    tops = [t for p in parts if p is not None for t in p.top_logprobs or []]
    assert len(tokens) == len(values) == len(tops) == len(CONTINUATION) + 20
    assert tops[0] is None and values[0] is None  # nothing predicts the first token
    beside = 0
    for token, value, map_ in zip(tokens[1:], values[1:], tops[1:], strict=True):
        assert map_[token] == value and len(map_) in (top, top + 1)
        assert len(map_) == top or value == min(map_.values())
        beside += len(map_) > top
    assert beside > 0 or top == 20


def test_parts_of_characters_have_texts_of_their_own(shared: LiveServer) -> None:
    ids = list(byte_ids("é a\\"))
    answer = shared.ok("/v1/completions", **asked([ids]))
    tokens = answer["choices"][0]["logprobs"]["tokens"]
    assert tokens[: len(ids)] == ["bytes:\\xc3", "bytes:\\xa9", " ", "a", "\\"]
    every = shared.ok("/v1/completions", **asked([list(range(256))]))["choices"][0]["logprobs"]["tokens"][:256]
    assert len(set(every)) == 256


def test_parts_of_characters_in_a_chat(shared: LiveServer, client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a"}], max_tokens=20, logprobs=True, top_logprobs=20,
        temperature=3.0, seed=5, extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert done.choices[0].logprobs is not None
    content = done.choices[0].logprobs.content or []
    seen = [one for token in content for one in (token, *token.top_logprobs)]
    broken = [one for one in seen if one.token.startswith("\\x")]
    assert broken and all(bytes(one.bytes or []) == bytes.fromhex(one.token[2:]) for one in broken)
    assert all(bytes(one.bytes or []).decode() == one.token for one in seen if one not in broken)
    text = b"".join(bytes(token.bytes or []) for token in content).replace(b"</s>", b"")
    assert done.choices[0].message.content == text.decode("utf-8", "replace")
    assert all(len(token.top_logprobs) == 20 for token in content)  # never one more: the chosen one has an entry of its own


def twins() -> Tokenizer:
    """Ids 1 and 2 have one text, as SentencePiece words with and without a space have at the start; 3 and 4 are bytes."""
    backend = tokenizers.Tokenizer(
        models.BPE({"<unk>": 0, "a": 1, "▁a": 2, "<0xC3>": 3, "<0xA9>": 4, "b": 5}, [], unk_token="<unk>")
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend, {}, "twins")


def shown(token: int, value: float, tops: dict[int, float]) -> dict[str, Any]:
    spec = LogprobSpec(top=len(tops))
    one = Logprobs(
        np.array([token]), np.array([value], np.float32), np.array([list(tops)]), np.array([list(tops.values())], np.float32),
        np.empty((1, len(spec.token_ids)), np.float32),
    )  # fmt: skip
    found: dict[str, Any] = CompletionLogprobs(twins(), len(tops), True).add(one)["top_logprobs"][0]
    return found


@pytest.mark.parametrize(
    ("token", "value", "tops", "wanted"),
    [
        (1, -1.0, {1: -1.0, 2: -2.0}, {"a": -1.0, "token_id:2": -2.0}),
        (2, -2.0, {1: -1.0, 2: -2.0}, {"token_id:1": -1.0, "a": -2.0}),
        (2, -3.0, {1: -1.0}, {"token_id:1": -1.0, "a": -3.0}),
        (5, -3.0, {1: -1.0, 2: -2.0}, {"a": -1.0, "token_id:2": -2.0, "b": -3.0}),
        (3, -3.0, {4: -1.0}, {"bytes:\\xa9": -1.0, "bytes:\\xc3": -3.0}),
        (5, float("-inf"), {1: -1.0}, {"a": -1.0, "b": -9999.0}),
    ],
)
def test_of_two_tokens_with_one_text_the_chosen_one_keeps_it(
    token: int, value: float, tops: dict[int, float], wanted: dict[str, float]
) -> None:
    assert shown(token, value, tops) == wanted


@pytest.mark.parametrize("prompt", [CONTEXT, [CONTEXT, CONTINUATION[:4]]], ids=["one", "two"])
def test_generation_until_a_stop(shared: LiveServer, chat_model: Path, prompt: Any) -> None:
    """The body of ``generate_until``."""
    body = {"prompt": prompt, "model": "tiny", "max_tokens": 8, "temperature": 0, "stop": ["\n\n", "</s>", "Q:"], "seed": 1234}
    prompts = prompt if isinstance(prompt[0], list) else [prompt]
    for choice, ids in zip(shared.ok("/v1/completions", **body)["choices"], prompts, strict=True):
        new = greedy(chat_model, list(ids), 8)
        new = new[: new.index(EOS)] if EOS in new else new
        text = shared.engine.assembled.tokenizer.decode(new)  # type: ignore[union-attr]
        assert choice["text"] == min((text.split(stop)[0] for stop in body["stop"]), key=len)


def test_the_page_says_what_is_asked(shared: LiveServer) -> None:
    """Its bodies, with ids that the tiny model has, and its flags."""
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    score, write = (json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert {**score, "model": "tiny", "prompt": []} == asked([])
    scored = shared.ok("/v1/completions", **{**score, "prompt": [[1, 2, 3], [1, 2, 4]]})
    assert len(scored["choices"]) == 2 and all(len(c["logprobs"]["token_logprobs"]) == 4 for c in scored["choices"])
    assert shared.ok("/v1/completions", **{**write, "prompt": [1, 2, 3]})["choices"][0]["finish_reason"] in ("stop", "length")
    (line,) = re.findall(r"^wellhead (serve .*)$", page, re.MULTILINE)
    assert build_parser().parse_args(shlex.split(line)).dtype == "float32"


def test_streams_have_the_prompts_logprobs_from_the_first_event_on(shared: LiveServer) -> None:
    """SGLang's streams are cumulative: what is known of the prompt does not come with the last event only."""
    wish = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    body = {"input_ids": CONTINUATION, "sampling_params": {"max_new_tokens": 200, "temperature": 0, "ignore_eos": True}, **wish}
    whole = shared.ok("/generate", **body)["meta_info"]
    events = [event["meta_info"] for event in shared.events("/generate", **body)]
    assert len(events) > 1
    for name in ("input_token_logprobs", "input_top_logprobs"):
        assert len(whole[name]) == len(CONTINUATION) and all(event[name] == whole[name] for event in events)
