"""CASES, "Streaming text" and "Tokens", as they show over HTTP: what was sent is always a prefix of the final text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.families import EOS, VOCAB, byte_ids
from support.live import LiveServer
from support.runners import put_around
from wellhead.step import Plan, Runner, StepResult

TEXTS = ["naïve café", "日本語のテキスト", "🙂👩‍👩‍👧‍👦 e\u0301", "ab\u0301\u0302c", "a\u200db\n\n  c"]


Force = Callable[[list[int], LiveServer], None]


@pytest.fixture
def forced() -> Iterator[Force]:
    """Make the model write these tokens, one after the other, for the next requests."""
    undo: list[Callable[[], Any]] = []

    def force(ids: list[int], server: LiveServer) -> None:
        core = server.engine.assembled.core

        def run(inner: Runner, plan: Plan) -> StepResult:
            result = inner.run(plan)
            for row, got in zip(plan.rows, result.rows, strict=True):
                seq = core.scheduler.get(row.key)
                if row.samples and seq is not None:
                    at = seq.length - seq.prompt_length
                    object.__setattr__(got, "tokens", (ids[at] if at < len(ids) else EOS,))
            return result

        undo.append(put_around(server.engine, run))

    yield force
    for one in reversed(undo):
        one()


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_sent_is_a_prefix_and_in_the_end_the_whole(shared: LiveServer, forced: Force, text: str) -> None:
    forced(list(byte_ids(text)), shared)
    events = shared.events("/generate", text="a", sampling_params={"max_new_tokens": 100})
    assert events[-1]["text"] == text and events[-1]["meta_info"]["finish_reason"]["matched"] == EOS
    for before, after in itertools.pairwise(events):
        assert after["text"].startswith(before["text"])
    assert all("\ufffd" not in e["text"] for e in events)
    chunks = shared.events("/v1/completions", model="tiny", prompt="a", max_tokens=100)
    assert "".join(c["choices"][0]["text"] for c in chunks) == text
    chat = shared.events("/v1/chat/completions", model="tiny", messages=[{"role": "user", "content": "a"}], max_tokens=100)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chat) == text


def test_the_text_is_held_back_by_a_few_tokens_only(shared: LiveServer, forced: Force) -> None:
    text = "plain words and more of them"
    forced(list(byte_ids(text)), shared)
    for event in shared.events("/generate", text="a", sampling_params={"max_new_tokens": 100}):
        assert len(event["output_ids"]) - len(event["text"]) <= 4


@pytest.mark.parametrize("stop", ["XYZ", ["no", "YZ"], "Z"])
def test_the_start_of_a_stop_string_never_leaks(shared: LiveServer, forced: Force, stop: Any) -> None:
    forced(list(byte_ids("abXYcXYZdef")), shared)
    stops = [stop] if isinstance(stop, str) else stop
    expected = min(("abXYcXYZdef".split(s)[0] for s in stops), key=len)
    events = shared.events("/generate", text="a", sampling_params={"max_new_tokens": 100, "stop": stop})
    assert events[-1]["text"] == expected and all(expected.startswith(e["text"]) for e in events)
    chunks = shared.events("/v1/completions", model="tiny", prompt="a", max_tokens=100, stop=stop)
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["stop"]


def test_text_that_looks_like_a_stop_is_not_lost_at_the_end(shared: LiveServer, forced: Force) -> None:
    forced(list(byte_ids("abXY")), shared)
    events = shared.events("/generate", text="a", sampling_params={"max_new_tokens": 100, "stop": "XYZ"})
    assert events[-1]["text"] == "abXY"
    forced(list(byte_ids("ab日")[:-1]), shared)
    cut = shared.events("/generate", text="a", sampling_params={"max_new_tokens": 4})
    assert cut[-1]["text"] == shared.ok("/generate", text="a", sampling_params={"max_new_tokens": 4})["text"]


# --- tokens ---------------------------------------------------------------------------------------------------------------


def test_chat_ids_are_the_templates_own(shared: LiveServer, chat_model: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(chat_model))
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo"}]
    ids = reference.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert shared.ok("/tokenize", messages=messages)["tokens"] == ids
    usage = shared.ok("/v1/chat/completions", model="tiny", messages=messages, max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == len(ids)
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    assert shared.ok("/tokenize", messages=parts)["tokens"] == ids


def test_ids_are_taken_verbatim_and_come_back(shared: LiveServer) -> None:
    ids = [EOS, 5, EOS, VOCAB - 1]
    reply = shared.ok("/generate", input_ids=ids, sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0)
    assert [t for _, t, _ in reply["meta_info"]["input_token_logprobs"]] == ids
    echoed = shared.ok("/v1/hidden_states", input=[ids, [1]], return_input_ids=True)
    assert echoed["input_ids"] == [ids, [1]]


@pytest.mark.parametrize("text", TEXTS)
def test_there_and_back(shared: LiveServer, text: str) -> None:
    answer = shared.ok("/tokenize", prompt=text)
    assert answer["tokens"] == list(byte_ids(text)) and answer["count"] == len(answer["tokens"])
    assert shared.ok("/detokenize", tokens=answer["tokens"])["text"] == text
    many = shared.ok("/tokenize", prompt=[text, "a"])
    assert many["tokens"] == [answer["tokens"], list(byte_ids("a"))]


def test_nothing_is_truncated_in_silence(shared: LiveServer) -> None:
    most = shared.engine.assembled.config.context_length
    assert shared.refused("/v1/embeddings", model="tiny", input="a" * (most + 1))["code"] == "prompt_too_long"
    assert shared.ok("/v1/embeddings", model="tiny", input="a" * most)["usage"]["prompt_tokens"] == most


def test_threads_share_the_tokenizer(shared: LiveServer) -> None:
    def ask(i: int) -> bool:
        text = f"{i} " * (i + 1)
        ids = shared.ok("/tokenize", prompt=text)["tokens"]
        return bool(ids == list(byte_ids(text)) and shared.ok("/detokenize", tokens=ids)["text"] == text)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(100)))
