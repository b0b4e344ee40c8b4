"""What went wrong in other servers, row by row, and must not here."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from support.families import HIDDEN, VOCAB, byte_ids
from support.live import LiveServer, read_events, wait_for
from support.runners import put_around
from wellhead.step import Plan, Runner, StepResult

GREEDY = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
NONE = {"max_new_tokens": 0}


def floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")


# --- embeddings: formats and shapes of input --------------------------------------------------------------------------


def test_base64_when_asked_is_little_endian_float32_and_the_same_numbers(shared: LiveServer) -> None:
    plain = shared.ok("/v1/embeddings", model="tiny", input="a text", encoding_format="float")["data"][0]["embedding"]
    packed = shared.ok("/v1/embeddings", model="tiny", input="a text", encoding_format="base64")["data"][0]["embedding"]
    assert isinstance(packed, str) and isinstance(plain, list)
    np.testing.assert_array_equal(floats(packed), np.array(plain, np.float32))


def test_an_unknown_encoding_is_refused_by_name(shared: LiveServer) -> None:
    for wrong in ("hex", "", 1, ["float"]):
        error = shared.refused("/v1/embeddings", model="tiny", input="a", encoding_format=wrong)
        assert error["param"] == "encoding_format"


def test_null_encoding_is_the_default(shared: LiveServer) -> None:
    assert isinstance(shared.ok("/v1/embeddings", model="tiny", input="a", encoding_format=None)["data"][0]["embedding"], list)


@pytest.mark.parametrize("value", ["hello", ["hello", "you"], list(byte_ids("hello")), [list(byte_ids("hello")), [1, 2]]])
def test_all_four_shapes_of_input(shared: LiveServer, value: Any) -> None:
    count = len(value) if isinstance(value, list) and not isinstance(value[0], int) else 1
    answer = shared.ok("/v1/embeddings", model="tiny", input=value)
    assert [d["index"] for d in answer["data"]] == list(range(count))
    assert len({len(d["embedding"]) for d in answer["data"]} | {HIDDEN}) == 1
    texts = shared.ok("/v1/completions", model="tiny", prompt=value, max_tokens=1)
    assert [c["index"] for c in texts["choices"]] == list(range(count))


def test_ids_and_their_text_are_the_same_input(shared: LiveServer) -> None:
    ids = shared.ok("/tokenize", prompt="hello")["tokens"]
    assert ids == list(byte_ids("hello"))
    a, b = (shared.ok("/v1/embeddings", model="tiny", input=value)["data"][0]["embedding"] for value in ("hello", ids))
    assert a == b


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/generate"])
@pytest.mark.parametrize("value", [[], "", [""], [[]], ["a", ""], [[1], []]])
def test_empty_input_is_refused_with_400(shared: LiveServer, path: str, value: Any) -> None:
    name = {"/v1/embeddings": "input", "/v1/completions": "prompt", "/generate": "text"}[path]
    if path == "/generate" and value and isinstance(value[0], list):
        name = "input_ids"
    assert shared.refused(path, **{name: value})["param"] == name


def test_blank_text_is_answered(shared: LiveServer) -> None:
    for blank in (" ", "\n", "\t  \n"):
        assert len(shared.ok("/v1/embeddings", model="tiny", input=blank)["data"][0]["embedding"]) == HIDDEN
        assert shared.ok("/generate", text=blank, sampling_params=GREEDY)["meta_info"]["completion_tokens"] == 4


# --- the OpenAI routes give what the native one gives ------------------------------------------------------------------


def test_true_gives_the_same_entries_on_all_routes(shared: LiveServer) -> None:
    native = shared.ok("/generate", text="a prompt", sampling_params=GREEDY, return_hidden_states=True)
    entries = native["meta_info"]["hidden_states"]
    assert len(entries) == 4 and np.shape(entries[0]) == (8, HIDDEN) and np.shape(entries[1]) == (HIDDEN,)
    body = {"model": "tiny", "temperature": 0, "ignore_eos": True, "max_tokens": 4, "return_hidden_states": True}
    whole = shared.ok("/v1/completions", prompt="a prompt", **body)
    assert whole["choices"][0]["hidden_states"] == entries
    chat = shared.ok("/v1/chat/completions", messages=[{"role": "user", "content": "a prompt"}], **body)
    prompt = shared.ok("/tokenize", messages=[{"role": "user", "content": "a prompt"}])["tokens"]
    same = shared.ok("/generate", input_ids=prompt, sampling_params=GREEDY, return_hidden_states=True)
    assert chat["choices"][0]["hidden_states"] == same["meta_info"]["hidden_states"]


def test_one_bad_prompt_refuses_the_batch_and_names_it(shared: LiveServer) -> None:
    error = shared.refused("/generate", input_ids=[[1, 2], [3, VOCAB], [4]], sampling_params=GREEDY)
    assert error["code"] == "token_out_of_range" and "[1]" in error["message"]
    assert "[1]" in shared.refused("/v1/embeddings", model="tiny", input=[[1], [-1], [2]])["message"]


def test_each_of_a_batch_has_its_own_options(shared: LiveServer) -> None:
    results = shared.ok(
        "/generate",
        text=["one", "two", "three"],
        sampling_params=[{**GREEDY, "max_new_tokens": n} for n in (1, 3, 2)],
        return_hidden_states=[True, False, "last"],
        rid=["a", "b", "c"],
    )
    assert [r["meta_info"]["completion_tokens"] for r in results] == [1, 3, 2]
    assert [r["meta_info"]["id"] for r in results] == ["a", "b", "c"]
    assert ["hidden_states" in r["meta_info"] for r in results] == [True, False, True]
    assert np.shape(results[2]["meta_info"]["hidden_states"]) == (HIDDEN,)


def test_a_logprob_that_is_not_finite_does_not_break_the_json(shared: LiveServer) -> None:
    """The eos is forbidden by ``min_new_tokens``: asked for by id, its logprob may be minus infinity."""
    answer = shared.post(
        "/generate", text="abc", return_logprob=True, logprob_start_len=0, token_ids_logprob=[256], top_logprobs_num=3,
        sampling_params={"max_new_tokens": 2, "min_new_tokens": 2, "temperature": 0},
    )  # fmt: skip
    assert answer.status_code == 200

    def no_constants(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    meta = json.loads(answer.content, parse_constant=no_constants)["meta_info"]
    assert meta["input_token_logprobs"][0][0] is None
    assert all(isinstance(v, float) for v, _, _ in meta["input_token_logprobs"][1:])


# --- nonsense is a 400 that names the field ----------------------------------------------------------------------------

BAD: list[tuple[str, bytes, str]] = [
    ("/generate", b'{"text": "\\ud800"}', "text"),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a\\udfff"}', "prompt"),
    ("/v1/embeddings", b'{"model": "tiny", "input": ["ok", "\\ud83d"]}', "input"),
    ("/v1/chat/completions", b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', "messages"),
    ("/generate", b'{"text": "a", "sampling_params": {"logit_bias": {"99999": 1}}}', "sampling_params.logit_bias"),
    ("/generate", b'{"text": "a", "sampling_params": {"stop_token_ids": [-1]}}', "sampling_params.stop_token_ids"),
    ("/generate", b'{"text": "a", "sampling_params": {"temperature": -1}}', "sampling_params.temperature"),
    ("/generate", b'{"text": "a", "sampling_params": {"max_new_tokens": 1e99}}', "sampling_params.max_new_tokens"),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a", "logit_bias": {"1": 1000}}', "logit_bias"),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a", "logit_bias": {"272": 1}}', "logit_bias"),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a", "temperature": "hot"}', "temperature"),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a", "n": 0}', "n"),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a", "return_hidden_states": ["last"]}', "return_hidden_states"),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a", "suffix": "b"}', "suffix"),
    ("/v1/chat/completions", b'{"model": "tiny", "messages": []}', "messages"),
    ("/v1/chat/completions", b'{"model": "tiny", "messages": [{"content": "a"}]}', "messages"),
    ("/v1/chat/completions", b'{"model": "tiny", "messages": [{"role": "user", "content": 3}]}', "messages"),
    (
        "/v1/chat/completions",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}',
        "top_logprobs",
    ),
    ("/generate", b'{"text": "a", "timeout": "soon"}', "timeout"),
    ("/generate", b'{"text": "a", "timeout": -3}', "timeout"),
    ("/generate", b'{"text": "a", "rid": 7}', "rid"),
    ("/generate", b'{"text": "a", "stream": "yes"}', "stream"),
    ("/generate", b'{"text": "a", "hidden_states_format": "hex", "return_hidden_states": "last"}', "hidden_states_format"),
    ("/generate", b'{"text": "a", "wish": 1}', "wish"),
    ("/generate", b'{"text": "a", "lora_path": "x"}', "lora_path"),
    ("/generate", b'{"text": "a", "sampling_params": {"json_schema": "{}"}}', "sampling_params.json_schema"),
    ("/generate", b'{"text": "a", "input_ids": [1]}', "text"),
    ("/detokenize", b'{"tokens": [-1]}', "tokens"),
    ("/detokenize", b'{"tokens": ["a"]}', "tokens"),
    ("/tokenize", b'{"prompt": 3}', "prompt"),
    ("/tokenize", b'{"prompt": "\\ud800"}', "prompt"),
    ("/abort_request", b"{}", "rid"),
    ("/generate", b'{"text": "a", "rid": "\\ud800"}', "rid"),
    ("/generate", b'{"text": "a", "rid": "\\ud800", "stream": true}', "rid"),
    ("/generate", b'{"text": "a", "sampling_params": {"stop": ["\\ud800"]}}', "sampling_params"),
    ("/generate", b'{"text": "a", "sampling_params": {"\\ud800": 1}}', "sampling_params"),
    ("/v1/completions", b'{"prompt": "a", "stream": true, "stream_options": {"\\ud800": 1}}', "stream_options"),
    ("/generate", b'{"text": "a", "sampling_params": {"logit_bias": {"' + b"1" * 5000 + b'": 1}}}', "sampling_params.logit_bias"),
    ("/tokenize", b'{"messages": [{"content": "no role"}]}', "messages"),
    ("/tokenize", b'{"messages": [{"role": "user", "content": "a"}], "add_special_tokens": true}', "add_special_tokens"),
    ("/tokenize", b'{"prompt": "a", "add_generation_prompt": true}', "add_generation_prompt"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), BAD)
def test_nonsense_is_a_400_that_names_the_field(shared: LiveServer, path: str, body: bytes, param: str) -> None:
    answer = shared.http.post(path, content=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert ("type" in error) is path.startswith("/v1/")


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/hidden_states", "/tokenize"])
def test_a_field_whose_name_is_no_text_is_a_400_and_the_connection_lives(shared: LiveServer, path: str) -> None:
    answer = shared.http.post(path, content=b'{"\\ud800": 1}')
    assert answer.status_code == 400 and answer.json()["error"]["param"] is None
    assert "surrogate" in answer.json()["error"]["message"]


def test_numbers_that_no_float_holds_are_a_400(shared: LiveServer) -> None:
    digits = b"9" * 400
    for field in (b'"timeout": ' + digits, b'"sampling_params": {"logit_bias": {"5": ' + digits + b"}}"):
        answer = shared.http.post("/generate", content=b'{"text": "\\u0061", ' + field + b"}")
        assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", b"null", b'"a"', b"\xff\xfe", b"{'text': 'a'}", b"[" * 100_000, b'{"text": NaN}']
)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize"])
def test_what_is_not_a_json_object_is_refused(shared: LiveServer, path: str, body: bytes) -> None:
    answer = shared.http.post(path, content=body)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_request"


def test_a_template_that_refuses_is_a_400(live: Callable[..., LiveServer], chat_model: Any, tmp_path: Any) -> None:
    import shutil

    folder = shutil.copytree(chat_model, tmp_path / "strict")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ raise_exception('roles must alternate') }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    server = LiveServer(folder)
    try:
        error = server.refused("/v1/chat/completions", model="tiny", messages=[{"role": "user", "content": "a"}])
        assert "roles must alternate" in error["message"] and error["param"] == "messages"
    finally:
        server.stop()


@pytest.mark.parametrize("field", ["chat_template", "tools", "functions", "response_format"])
def test_templates_tools_and_grammars_of_a_request_are_not_accepted(shared: LiveServer, field: str) -> None:
    value: Any = {
        "chat_template": "{% for i in range(10**9) %}{% endfor %}",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "functions": [{"name": "f"}],
        "response_format": {"type": "json_object"},
    }[field]
    error = shared.refused("/v1/chat/completions", model="tiny", messages=[{"role": "user", "content": "a"}], **{field: value})
    assert error["code"] == "unsupported_field" and error["param"] == field


def test_tensors_from_clients_are_not_accepted(shared: LiveServer) -> None:
    assert shared.refused("/generate", input_embeds=[[0.0]])["param"] == "input_embeds"


# --- keys, health -------------------------------------------------------------------------------------------------------


def test_a_key_guards_everything_but_health(live: Callable[..., LiveServer]) -> None:
    server = live({"api_key": "secret"})
    paths = sorted(server.server.application.api.openapi()["paths"])
    assert "/generate" in paths and "/v1/completions" in paths and len(paths) > 12
    with httpx.Client(base_url=server.url, timeout=60) as bare:
        assert bare.get("/health").status_code == 200
        for path in [*paths, "/docs", "/openapi.json", "/nowhere"]:
            if path == "/health":
                continue
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "secret"},
                {"Authorization": "Basic secret"},
            ):
                for method in ("GET", "POST"):
                    answer = bare.request(method, path, headers=headers)
                    assert answer.status_code == 401, (method, path)
                    assert answer.json()["error"]["code"] == "unauthorized"
    assert server.http.get("/v1/models").status_code == 200
    assert server.ok("/generate", text="a", sampling_params=NONE)["text"] == ""


def test_health_turns_red_when_the_engine_dies_and_everybody_is_told(live: Callable[..., LiveServer]) -> None:
    server = live()
    answers: list[Any] = []

    def ask(stream: bool) -> None:
        body = {"text": "abc", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}, "stream": stream}
        with httpx.stream("POST", server.url + "/generate", json=body, timeout=60) as answer:
            answers.append(
                (answer.status_code, list(read_events(answer)) if stream and answer.status_code == 200 else answer.read())
            )

    def die(core: Any) -> None:
        def step() -> None:
            raise SystemExit("the thread dies")

        core.step = step

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True, False)]
    for thread in threads:
        thread.start()
    wait_for(lambda: server.engine.assembled.core.counters.requests == 3)
    server.engine.loop.call(die).result()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 3
    for status, content in answers:
        if isinstance(content, list):
            assert content[-1] == "[DONE]" and json.loads(content[-2])["error"]["code"] == "engine_closed"
        else:
            assert status == 503 and json.loads(content)["error"]["code"] == "engine_closed"
    assert server.http.get("/health").status_code == 503
    assert server.http.get("/health_generate").status_code == 503
    assert server.refused("/generate", 503, text="a")["code"] == "engine_closed"
    assert server.http.get("/metrics").status_code == 200
    assert "wellhead_up 0.0" in server.http.get("/metrics").text


def test_health_answers_while_a_huge_body_is_tokenised(live: Callable[..., LiveServer]) -> None:
    server = live()
    done = threading.Event()
    result: list[int] = []

    def huge() -> None:
        result.append(httpx.post(server.url + "/tokenize", json={"prompt": "a lot of words " * 400_000}, timeout=300).status_code)
        done.set()

    thread = threading.Thread(target=huge)
    thread.start()
    answered = 0
    while not done.is_set():
        assert server.http.get("/health").status_code == 200
        answered += not done.is_set()
    thread.join()
    assert result == [200] and answered >= 3


# --- usage, finish reasons, failures in mid-stream -----------------------------------------------------------------------


def test_usage_counts_prompts_once_and_tokens_of_all_samples(shared: LiveServer) -> None:
    answer = shared.ok("/v1/completions", model="tiny", prompt=["abc", "defgh"], n=2, max_tokens=3, ignore_eos=True, seed=1)
    assert len(answer["choices"]) == 4
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (8, 12, 20)
    assert shared.ok("/v1/embeddings", model="tiny", input=["abc", "de"])["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("asked", [True, False, None])
def test_the_usage_chunk_comes_if_asked_and_with_empty_choices(shared: LiveServer, path: str, asked: bool | None) -> None:
    prompt: dict[str, Any] = {"prompt": "abc"} if path.endswith("/completions") and "chat" not in path else {}
    prompt = prompt or {"messages": [{"role": "user", "content": "abc"}]}
    options = {} if asked is None else {"stream_options": {"include_usage": asked}}
    events = shared.events(path, model="tiny", max_tokens=3, ignore_eos=True, temperature=0, n=2, **prompt, **options)
    with_usage = [e for e in events if e.get("usage") is not None]
    if asked:
        assert with_usage == [events[-1]] and events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 6
    else:
        assert not with_usage and all(e["choices"] for e in events)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_exactly_one_finish_reason_per_index_then_hidden_states_then_usage(shared: LiveServer, path: str) -> None:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}]} if "chat" in path else {"prompt": "abc"}
    events = shared.events(
        path, model="tiny", max_tokens=4, ignore_eos=True, n=3, seed=5, return_hidden_states="last",
        stream_options={"include_usage": True}, **prompt,
    )  # fmt: skip
    for index in range(3):
        mine = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == index]
        reasons = [c["finish_reason"] for c in mine if c["finish_reason"] is not None]
        assert reasons == ["length"]
        at = next(i for i, c in enumerate(mine) if c["finish_reason"])
        rows = [c.get("hidden_states", c.get("delta", {}).get("hidden_states")) for c in mine]
        assert [r is not None for r in rows] == [False] * (at + 1) + [True]
        assert np.shape(rows[-1]) == (HIDDEN,)
    assert events[-1]["choices"] == []


def test_a_failure_before_the_first_event_has_its_status_and_one_in_mid_stream_is_an_event(
    live: Callable[..., LiveServer],
) -> None:
    server = live()
    error = server.refused("/generate", text="a", stream=True, sampling_params={"max_new_tokens": 100_000})
    assert error["code"] == "prompt_too_long"
    error = server.refused("/v1/completions", model="tiny", prompt="a", stream=True, max_tokens=100_000)
    assert error["type"] == "invalid_request_error"

    count = itertools.count()

    def fail_later(inner: Runner, plan: Plan) -> StepResult:
        if next(count) >= 5:
            raise RuntimeError("the model broke")
        time.sleep(0.05)  # slower than the way of the first event to the client
        return inner.run(plan)

    put_around(server.engine, fail_later)
    events = server.events("/generate", text="a", sampling_params={"max_new_tokens": 50, "ignore_eos": True})
    assert events[0]["meta_info"]["finish_reason"] is None
    assert [("error" in e) for e in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["error"]["code"] == "internal_error"
    # the other family, whose error events have OpenAI's shape; the runner still fails, now before the first event
    assert server.refused("/v1/completions", 500, model="tiny", prompt="a", stream=True)["type"] == "server_error"


# --- limits ---------------------------------------------------------------------------------------------------------------


def test_bodies_batches_and_tokens_have_limits(live: Callable[..., LiveServer]) -> None:
    server = live({"max_body_bytes": 10_000, "max_batch_size": 4, "max_request_tokens": 60})
    assert server.refused("/generate", 413, text="a" * 20_000)["code"] == "body_too_large"
    assert server.refused("/v1/embeddings", 413, input="a" * 20_000)["type"] == "invalid_request_error"

    def endless() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    assert server.http.post("/generate", content=endless()).status_code == 413

    def limit(path: str, **body: Any) -> tuple[str, str]:
        error = server.refused(path, **body)
        assert error["message"].endswith(")"), error  # the flag
        return error["code"], error["param"]

    assert limit("/generate", text=["a"] * 5, sampling_params=NONE) == ("batch_too_large", "text")
    assert limit("/generate", text="a", sampling_params={"n": 5}) == ("batch_too_large", "sampling_params.n")
    assert limit("/v1/completions", model="tiny", prompt="a", n=5) == ("batch_too_large", "n")
    long = "a" * 40
    assert limit("/generate", text=long, sampling_params={"max_new_tokens": 30}) == ("request_too_large", "text")
    assert limit("/generate", input_ids=[1] * 61, sampling_params=NONE) == ("request_too_large", "input_ids")
    assert limit("/v1/completions", model="tiny", prompt=long, max_tokens=30) == ("request_too_large", "prompt")
    assert limit("/v1/hidden_states", input=[long, long]) == ("request_too_large", "input")
    assert server.ok("/generate", text="a" * 40, sampling_params={"max_new_tokens": 3})["meta_info"]["prompt_tokens"] == 40


@pytest.mark.parametrize(
    "asked",
    [{"top_logprobs_num": 11}, {"token_ids_logprob": list(range(11))}, {"top_logprobs_num": 6, "token_ids_logprob": [1] * 5}],
)
def test_alternatives_have_a_limit(live: Callable[..., LiveServer], asked: dict[str, Any]) -> None:
    """A short body could ask for the whole vocabulary at every position: gigabytes."""
    server = live({"max_request_logprobs": 100})
    few = {"input_ids": [1] * 9, "return_logprob": True, "sampling_params": {"max_new_tokens": 1}}
    assert server.ok("/generate", **few, **asked)
    refused = server.refused("/generate", **few, **asked, logprob_start_len=0)
    assert "--max-request-logprobs" in refused["message"]
    assert (refused["code"], refused["param"]) == ("too_many_logprobs", next(iter(asked)))
    many = {**few, "input_ids": [[1], [2]], "sampling_params": {"max_new_tokens": 1, "n": 5}}
    assert "--max-request-logprobs" in server.refused("/generate", **many, **asked)["message"]
    assert server.ok("/generate", **many, top_logprobs_num=10)


def test_a_full_queue_is_a_503_with_retry_after(live: Callable[..., LiveServer]) -> None:
    server = live({"max_batch_size": 2}, max_queued_requests=2, max_running_requests=1)
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    threads = [threading.Thread(target=lambda: httpx.post(server.url + "/generate", json=body, timeout=120)) for _ in range(3)]
    for i, thread in enumerate(threads):
        thread.start()
        wait_for(lambda i=i: server.engine.assembled.core.counters.requests == i + 1)
        wait_for(lambda: server.engine.loop.call(lambda core: len(core.scheduler.running)).result() == 1)
    answer = server.post("/generate", **body)
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "overloaded"
    assert server.ok("/abort_request", abort_all=True)["aborted"] == 3
    for thread in threads:
        thread.join(60)
    server.check_all_given_back()


def test_a_request_timeout_ends_it_alone(live: Callable[..., LiveServer]) -> None:
    server = live({"request_timeout": 0.05}, max_running_requests=1)
    slow = {"text": "abc", "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
    answer = server.post("/generate", **slow)
    assert answer.status_code in (408, 504) and answer.json()["error"]["code"] == "timeout"
    server.check_all_given_back()


def test_paths_and_methods_that_are_not_served(shared: LiveServer) -> None:
    assert shared.http.get("/nowhere").status_code == 404
    assert shared.http.get("/v1/nowhere").json()["error"]["type"]
    assert shared.http.get("/generate").status_code == 405
    assert shared.http.delete("/v1/completions").json()["error"]["code"] == "method_not_allowed"


def test_a_model_of_another_name(shared: LiveServer) -> None:
    assert shared.post("/v1/completions", model="tiny", prompt="a", max_tokens=1).status_code == 200
    assert shared.post("/v1/completions", prompt="a", max_tokens=1).status_code == 200
    assert shared.refused("/v1/completions", 404, model="gpt-9", prompt="a")["code"] == "model_not_found"
