"""The official client of OpenAI's API, unchanged, against ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openai
import pytest

from support.families import HIDDEN, byte_ids
from support.live import LiveServer
from support.runners import put_around
from wellhead.step import Plan, Runner, StepResult

ROWS = {"return_hidden_states": "last"}
GREEDY: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "temperature": 0}
IGNORE_EOS = {"ignore_eos": True}
CHAT: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(shared: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared.url + "/v1", api_key="any", max_retries=0, timeout=60) as one:
        yield one


def native(shared: LiveServer, text: str = "hello", **fields: Any) -> Any:
    params = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}
    return shared.ok("/generate", text=text, sampling_params=params, **fields)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny" and client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_completion_is_the_native_text_with_its_usage(shared: LiveServer, client: openai.OpenAI) -> None:
    done = client.completions.create(prompt="hello", extra_body={**IGNORE_EOS, **ROWS}, **GREEDY)
    same = native(shared, return_hidden_states="last")
    choice = done.choices[0]
    assert choice.text == same["text"] and choice.finish_reason == "length" and choice.index == 0
    assert done.usage is not None and (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (
        5,
        5,
        10,
    )
    assert choice.model_extra is not None and choice.model_extra["hidden_states"] == same["meta_info"]["hidden_states"]


def test_without_asking_there_are_no_hidden_states(client: openai.OpenAI) -> None:
    done = client.completions.create(prompt="hello", **GREEDY)
    assert "hidden_states" not in (done.choices[0].model_extra or {})
    chat = client.chat.completions.create(messages=CHAT, **GREEDY)
    assert "hidden_states" not in (chat.choices[0].model_extra or {})


def test_default_of_max_tokens_is_sixteen(client: openai.OpenAI) -> None:
    done = client.completions.create(model="tiny", prompt="hello", extra_body=IGNORE_EOS)
    assert done.usage is not None and done.usage.completion_tokens == 16


def test_streamed_completion_adds_up(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt="hello", extra_body={**IGNORE_EOS, "return_hidden_states": True}, **GREEDY)
    chunks = list(
        client.completions.create(
            prompt="hello", stream=True, stream_options={"include_usage": True},
            extra_body={**IGNORE_EOS, "return_hidden_states": True}, **GREEDY,
        )
    )  # fmt: skip
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert len({c.id for c in chunks}) == 1
    extra = [(c.choices[0].model_extra or {}).get("hidden_states") for c in chunks if c.choices]
    assert extra[-1] == (whole.choices[0].model_extra or {})["hidden_states"] and not any(extra[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (5, 5)
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_same_seed_same_text_and_samples_differ(client: openai.OpenAI) -> None:
    def draw(seed: int) -> list[str]:
        done = client.completions.create(
            model="tiny", prompt="hello", max_tokens=12, n=3, seed=seed, temperature=1.2, extra_body=IGNORE_EOS
        )
        assert [c.index for c in done.choices] == [0, 1, 2]
        return [c.text for c in done.choices]

    first = draw(7)
    assert draw(7) == first and len(set(first)) == 3 and draw(8) != first


def test_stop_cuts_the_text(shared: LiveServer, client: openai.OpenAI) -> None:
    text = client.completions.create(prompt="hello", extra_body=IGNORE_EOS, **{**GREEDY, "max_tokens": 20}).choices[0].text
    plain = [c for c in text if c.isascii() and c.isprintable()]
    if not plain:
        pytest.skip("the random model wrote no plain character")
    stop = plain[-1]
    done = client.completions.create(prompt="hello", stop=[stop], extra_body=IGNORE_EOS, **{**GREEDY, "max_tokens": 20})
    assert done.choices[0].text == text[: text.index(stop)] and done.choices[0].finish_reason == "stop"
    pieces = client.completions.create(
        prompt="hello", stop=stop, stream=True, extra_body=IGNORE_EOS, **{**GREEDY, "max_tokens": 20}
    )
    assert "".join(c.choices[0].text for c in pieces) == done.choices[0].text


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    done = client.completions.create(prompt="hello", logprobs=3, extra_body=IGNORE_EOS, **GREEDY)
    found = done.choices[0].logprobs
    assert found is not None and found.tokens is not None and found.token_logprobs is not None
    assert found.top_logprobs is not None and found.text_offset is not None
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 5
    assert all(value <= 0 for value in found.token_logprobs) and found.text_offset[0] == 0
    for value, top in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert max(top.values()) == pytest.approx(value)  # greedy: the token drawn is the likeliest


def test_echo_puts_the_prompt_in_front_with_its_logprobs(shared: LiveServer, client: openai.OpenAI) -> None:
    done = client.completions.create(prompt="hello", echo=True, logprobs=1, extra_body=IGNORE_EOS, **GREEDY)
    found = done.choices[0].logprobs
    assert done.choices[0].text.startswith("hello") and found is not None
    assert found.tokens is not None and found.token_logprobs is not None
    assert len(found.tokens) == 10 and found.token_logprobs[0] is None and found.tokens[:5] == list("hello")
    reference = native(shared, return_logprob=True, logprob_start_len=0)["meta_info"]["input_token_logprobs"]
    assert found.token_logprobs[1:5] == pytest.approx([v for v, _, _ in reference[1:]])


def test_token_ids_as_prompt(shared: LiveServer, client: openai.OpenAI) -> None:
    done = client.completions.create(prompt=list(byte_ids("hello")), extra_body=IGNORE_EOS, **GREEDY)
    assert done.choices[0].text == native(shared)["text"]
    many = client.completions.create(prompt=[list(byte_ids("hello")), [1, 2]], extra_body=IGNORE_EOS, **GREEDY)
    assert [c.index for c in many.choices] == [0, 1] and many.choices[0].text == done.choices[0].text


def test_chat_prompt_is_the_models_own_template(shared: LiveServer, client: openai.OpenAI) -> None:
    prompt = "<user>hello\n<assistant>"
    done = client.chat.completions.create(messages=CHAT, extra_body={**IGNORE_EOS, **ROWS}, **GREEDY)
    same = native(shared, prompt, return_hidden_states="last")
    choice = done.choices[0]
    assert choice.message.content == same["text"] and choice.message.role == "assistant"
    assert done.usage is not None and done.usage.prompt_tokens == len(prompt)
    assert (choice.model_extra or {})["hidden_states"] == same["meta_info"]["hidden_states"]
    parts: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert (
        client.chat.completions.create(messages=parts, extra_body=IGNORE_EOS, **GREEDY).choices[0].message.content == same["text"]
    )


def test_streamed_chat_adds_up_and_ends_with_its_rows(shared: LiveServer, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=CHAT, extra_body={**IGNORE_EOS, **ROWS}, **GREEDY)
    chunks = list(client.chat.completions.create(messages=CHAT, stream=True, extra_body={**IGNORE_EOS, **ROWS}, **GREEDY))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (chunks[-1].choices[0].delta.model_extra or {})["hidden_states"] == (whole.choices[0].model_extra or {})[
        "hidden_states"
    ]
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]


def test_logprobs_of_a_chat(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=2, extra_body=IGNORE_EOS, **GREEDY)
    found = done.choices[0].logprobs
    assert found is not None and found.content is not None and len(found.content) == 5
    for token in found.content:
        assert len(token.top_logprobs) == 2 and token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert token.bytes is not None
        assert bytes(token.bytes).decode("utf-8", "backslashreplace") == token.token  # the text of a part of a character


def test_a_chat_without_max_tokens_gets_what_the_context_leaves(shared: LiveServer, client: openai.OpenAI) -> None:
    done = client.chat.completions.create(model="tiny", messages=CHAT, temperature=0, extra_body=IGNORE_EOS)
    assert done.usage is not None
    assert done.usage.total_tokens == shared.engine.assembled.config.context_length


def test_max_completion_tokens(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(model="tiny", messages=CHAT, max_completion_tokens=3, extra_body=IGNORE_EOS)
    assert done.usage is not None and done.usage.completion_tokens == 3


@pytest.mark.parametrize("form", ["float", "base64", openai.omit])
def test_embeddings_in_each_encoding(shared: LiveServer, client: openai.OpenAI, form: Any) -> None:
    """Left open, the client asks for base64 and decodes it by itself."""
    found = client.embeddings.create(model="tiny", input=["hello", "you"], encoding_format=form)
    assert [d.index for d in found.data] == [0, 1] and found.usage.prompt_tokens == 8
    vector = found.data[0].embedding
    if isinstance(vector, str):
        import base64

        vector = np.frombuffer(base64.b64decode(vector), "<f4").tolist()
    row = np.array(shared.engine.extract(["hello"])[0], np.float64)
    np.testing.assert_allclose(vector, row / np.linalg.norm(row), rtol=1e-5)


def test_dimensions_shorten_and_keep_the_length_at_one(client: openai.OpenAI) -> None:
    whole = client.embeddings.create(model="tiny", input="hello", encoding_format="float").data[0].embedding
    short = client.embeddings.create(model="tiny", input="hello", dimensions=8).data[0].embedding
    assert len(whole) == HIDDEN and len(short) == 8
    np.testing.assert_allclose(short, np.array(whole[:8]) / np.linalg.norm(whole[:8]), rtol=1e-5)
    for wrong in (0, HIDDEN + 1, -1):
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            client.embeddings.create(model="tiny", input="hello", dimensions=wrong)


def test_mean_pooling_and_raw_vectors(shared: LiveServer, client: openai.OpenAI) -> None:
    raw = client.embeddings.create(model="tiny", input="hello", extra_body={"pooling": "mean", "normalize": False})
    np.testing.assert_allclose(raw.data[0].embedding, shared.engine.extract(["hello"], "mean")[0], rtol=1e-6)


def test_token_ids_as_input(client: openai.OpenAI) -> None:
    a = client.embeddings.create(model="tiny", input="hello").data[0].embedding
    assert client.embeddings.create(model="tiny", input=list(byte_ids("hello"))).data[0].embedding == a
    assert client.embeddings.create(model="tiny", input=[list(byte_ids("hello")), [3]]).data[0].embedding == a


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a", max_tokens=100_000)
    assert caught.value.param == "max_tokens" and caught.value.code == "prompt_too_long"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-9", prompt="a")


def test_a_wrong_key(live: Callable[..., LiveServer]) -> None:
    server = live({"api_key": "secret"})
    with openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0) as client:
        assert client.completions.create(prompt="a", **GREEDY).choices
    with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.completions.create(prompt="a", **GREEDY)


def test_an_error_in_mid_stream_reaches_the_client(live: Callable[..., LiveServer]) -> None:
    server = live()

    count = itertools.count()

    def fail_later(inner: Runner, plan: Plan) -> StepResult:
        if next(count) >= 4:
            raise RuntimeError("the model broke")
        return inner.run(plan)

    put_around(server.engine, fail_later)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="the model broke"):
            list(client.completions.create(model="tiny", prompt="a", max_tokens=50, stream=True, extra_body=IGNORE_EOS))
