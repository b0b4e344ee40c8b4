"""Any rows over HTTP: every spelling on every endpoint and in every format has the engine's own arrays, rightly labelled."""

from __future__ import annotations

import asyncio
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from support.families import EOS, HIDDEN, VOCAB, byte_ids
from support.live import LiveServer, add_chat_template
from support.tags import reduced
from support.wishes import WISHES
from wellhead.client import AsyncClient, Client
from wellhead.encoding import base64
from wellhead.encoding.registry import FORMATS
from wellhead.errors import InvalidRequest, RowOutOfRange
from wellhead.frontends.http.hidden import MOST_POSITIONS, POSITIONS_HEADER
from wellhead.reductions import REDUCTIONS

PROMPT = "A text of some words, so long that all of the positions which are named exist in it."
NEW = 6
LAYERS: list[int | str] = [0, -1, "L:pre_norm"]
SAFETENSORS, NPY, ARROW = "application/vnd.safetensors", "application/x-npy", "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, family: Callable[..., Path]) -> Iterator[LiveServer]:
    """A server whose tokenizer puts ``<s>`` before each text, and whose ceiling and layers allow everything."""
    folder = add_chat_template(Path(shutil.copytree(family("llama"), tmp_path_factory.mktemp("reads") / "tiny")))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([tokenizers.AddedToken("<s>", special=True, normalized=False)])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    tokenizer.save(str(folder / "tokenizer.json"))
    made = LiveServer(folder, capture_layers=LAYERS)
    yield made
    made.check_all_given_back()
    made.stop()


class Whole:
    """All rows of one prompt and its greedy answer, by layer, from the engine; and the tokens that have rows."""

    def __init__(self, server: LiveServer, new: int = NEW, **prompt: Any) -> None:
        params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        read = {"rows": "all", "layers": LAYERS}
        out = server.engine.generate(
            sampling_params=params, return_hidden_states=read, hidden_states_token_ids=True, **(prompt or {"prompt": PROMPT})
        )
        self.rows = out["meta_info"]["hidden_states"]
        self.tokens = out["meta_info"]["hidden_states_token_ids"].tolist()
        self.prompt = out["meta_info"]["prompt_tokens"]

    def check(self, shown: Any, words: Any, reduce: str | None = None) -> None:
        """``shown``: ``hidden_states`` by layer, ``hidden_states_positions`` and ``hidden_states_token_ids``."""
        one, meaning = next((one, meaning) for w, one, meaning in WISHES if w == words and type(w) is type(words))
        at = meaning(self.prompt, self.tokens)
        reduce = reduce or ("first" if one else "rows")
        kept = at[:1] if reduce == "first" else at
        assert list(shown["hidden_states_positions"]) == kept, words
        assert list(shown["hidden_states_token_ids"]) == [self.tokens[p] for p in kept], words
        assert sorted(shown["hidden_states"]) == sorted(map(str, LAYERS))
        for layer in LAYERS:
            got = array(shown["hidden_states"][str(layer)])
            right = reduced(self.rows[layer][at], reduce)
            assert np.array_equal(got.reshape(right.shape), right, equal_nan=True), f"{words}, layer {layer}"


def array(value: Any) -> np.ndarray[Any, Any]:
    """Lists, or base64's object, as float32."""
    if isinstance(value, dict):
        got = base64.decode(value)
        assert list(got.shape) == value["shape"] and value["dtype"] == "float32"
        return got
    return np.array(value, np.float32)


# --- the endpoints that generate ----------------------------------------------------------------------------------------

#: Endpoint -> fields of the request, and where the hidden states are in an answer and in an event.
PLACES: dict[str, tuple[dict[str, Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "/generate": (
        {"text": PROMPT, "sampling_params": {"max_new_tokens": NEW, "temperature": 0, "ignore_eos": True}},
        lambda answer: answer["meta_info"],
        lambda events: events[-1]["meta_info"],
    ),
    "/v1/completions": (
        {"prompt": PROMPT, "max_tokens": NEW, "temperature": 0, "ignore_eos": True},
        lambda answer: answer["choices"][0],
        lambda events: events[-1]["choices"][0],
    ),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": NEW, "temperature": 0, "ignore_eos": True},
        lambda answer: answer["choices"][0],
        lambda events: events[-1]["choices"][0]["delta"],
    ),
}


def whole_of(server: LiveServer, path: str) -> Whole:
    if path != "/v1/chat/completions":
        return Whole(server)
    return Whole(server, input_ids=server.ok("/tokenize", messages=PLACES[path][0]["messages"])["tokens"])


@pytest.mark.parametrize("form", ["float", "base64"])
@pytest.mark.parametrize("path", PLACES)
def test_every_spelling_on_every_endpoint_whole_and_streamed(server: LiveServer, path: str, form: str) -> None:
    fields, of_answer, of_events = PLACES[path]
    whole = whole_of(server, path)
    more = {"hidden_states_layers": LAYERS, "hidden_states_token_ids": True, "hidden_states_format": form}
    for i, (words, _, _) in enumerate(WISHES):
        body = {**fields, **more, "hidden_states_rows": words}
        whole.check(of_answer(server.ok(path, **body)), words)
        if i % 4 == 0:
            whole.check(of_events(server.events(path, **body)), words)


@pytest.mark.parametrize("path", PLACES)
def test_every_reduction_and_several_reads_by_name(server: LiveServer, path: str) -> None:
    fields, of_answer, of_events = PLACES[path]
    whole = whole_of(server, path)
    picked = {f"{reduce}:{i}": (WISHES[i][0], reduce) for i in (0, 6, 9, 16, 26) for reduce in REDUCTIONS}
    reads = {name: {"rows": words, "reduce": reduce, "layers": LAYERS} for name, (words, reduce) in picked.items()}
    body = {**fields, "reads": reads, "hidden_states_token_ids": True}
    for shown in (of_answer(server.ok(path, **body)), of_events(server.events(path, **body))):
        assert "hidden_states" not in shown and list(shown["reads"]) == list(reads)
        for name, (words, reduce) in picked.items():
            whole.check(shown["reads"][name], words, reduce)


@pytest.mark.parametrize("path", PLACES)
def test_an_object_in_return_hidden_states_says_the_same(server: LiveServer, path: str) -> None:
    fields, of_answer, _ = PLACES[path]
    read = {"rows": "-8:", "reduce": "mean", "layers": LAYERS}
    shown = of_answer(server.ok(path, **fields, return_hidden_states=read, hidden_states_token_ids=True))
    whole_of(server, path).check(shown, "-8:", "mean")


def test_a_prompt_of_a_batch_has_its_own_wish(server: LiveServer) -> None:
    """Objects, older words and none, side by side."""
    wishes = [{"rows": {"last": 2}}, False, "last", {"rows": "prompt", "reduce": "max"}, True]
    params = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    got = server.ok("/generate", text=[PROMPT] * 5, sampling_params=params, return_hidden_states=wishes)
    metas = [one["meta_info"] for one in got]
    whole = Whole(server, 3)
    final, count = whole.rows[LAYERS[1]], whole.prompt
    np.testing.assert_array_equal(np.array(metas[0]["hidden_states"], np.float32), final[-2:])
    assert "hidden_states" not in metas[1] and "hidden_states_positions" not in metas[1]
    np.testing.assert_array_equal(np.array(metas[2]["hidden_states"], np.float32), final[-1])
    np.testing.assert_array_equal(np.array(metas[3]["hidden_states"], np.float32), final[:count].max(0))
    assert [np.shape(e) for e in metas[4]["hidden_states"]] == [(count, HIDDEN), (HIDDEN,), (HIDDEN,)]
    assert [len(m.get("hidden_states_positions", [])) for m in metas] == [2, 0, 1, count, count + 2]


@pytest.mark.parametrize(("words", "first"), [("output", None), ("all", 0), ("2:", 2), ({"part": "output", "start": 1}, None)])
def test_rows_that_go_out_with_the_text(server: LiveServer, words: Any, first: int | None) -> None:
    """Each event has the rows since the one before it; together they are those of one answer, and the end says how many."""
    fields = PLACES["/generate"][0]
    body = {**fields, "hidden_states_rows": words, "hidden_states_token_ids": True}
    right = server.ok("/generate", **body)["meta_info"]
    events = [e["meta_info"] for e in server.events("/generate", **body, incremental_hidden_states=True)]
    carrying = [e for e in events if e.get("hidden_states_positions")]
    assert len(carrying) >= 2 and all(len(e["hidden_states_positions"]) < len(right["hidden_states_positions"]) for e in carrying)
    for name in ("hidden_states", "hidden_states_positions", "hidden_states_token_ids"):
        assert [one for e in carrying for one in e[name]] == right[name], name
    assert events[-1]["hidden_states_total"] == len(right["hidden_states_positions"])
    client = [e["meta_info"] for e in Client(server.url).stream(
        PROMPT, fields["sampling_params"], hidden_states_rows=words, incremental_hidden_states=True,
    )]  # fmt: skip
    rows = np.concatenate([e["hidden_states"] for e in client if "hidden_states" in e])
    np.testing.assert_array_equal(rows, np.array(right["hidden_states"], np.float32))


# --- /v1/hidden_states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [0, NEW])
@pytest.mark.parametrize("accept", ["application/json", SAFETENSORS, ARROW])
def test_every_spelling_in_every_format_that_has_room_for_labels(server: LiveServer, accept: str, new: int) -> None:
    ids = byte_ids(PROMPT)
    params = {"sampling_params": {"temperature": 0, "ignore_eos": True}} if new else {}
    wholes = [Whole(server, new, input_ids=list(ids)), Whole(server, new, input_ids=list(ids[:20]))]
    for words, one, meaning in WISHES:
        if not new and isinstance(words, dict) and words.get("part") == "output":
            continue
        body = {
            "input": [list(ids), list(ids[:20])], "rows": words, "layers": LAYERS, "return_token_ids": True,
            "max_new_tokens": new, "dtype": "float32", **params,
        }  # fmt: skip
        answer = server.http.post("/v1/hidden_states", json=body, headers={"Accept": accept})
        assert answer.status_code == 200, answer.text
        got = FORMATS[accept].decode(answer.content)
        assert got.full is not one and got.layers == tuple(LAYERS)
        for whole, states in zip(wholes, got.states, strict=True):
            at = meaning(whole.prompt, whole.tokens)
            assert states.positions.tolist() == at, words
            assert states.token_ids is not None and states.token_ids.tolist() == [whole.tokens[p] for p in at], words
            for layer in LAYERS:
                right = whole.rows[layer][at]
                np.testing.assert_array_equal(states.numpy(layer).reshape(-1, HIDDEN), right.reshape(-1, HIDDEN))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("accept", ["application/json", SAFETENSORS, ARROW, NPY])
def test_every_reduction_in_every_format(server: LiveServer, accept: str, reduce: str) -> None:
    rows = server.engine.extract([PROMPT], "full")[0]
    body = {"input": PROMPT, "rows": {"last": 8}, "reduce": reduce, "dtype": "float32"}
    answer = server.http.post("/v1/hidden_states", json=body, headers={"Accept": accept})
    right = reduced(rows[-8:], reduce)
    if accept == NPY:
        np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)).reshape(right.shape), right)
        first = len(rows) - 8
        assert answer.headers[POSITIONS_HEADER] == (str(first) if reduce == "first" else f"{first}:{first + 8}")
        return
    got = FORMATS[accept].decode(answer.content)
    assert got.facts["reduce"] == reduce
    np.testing.assert_array_equal(got.states[0].numpy(), right)
    count = 1 if reduce == "first" else 8
    assert got.states[0].positions.tolist() == list(range(len(rows) - 8, len(rows) - 8 + count))


def npy(server: LiveServer, **body: Any) -> Any:
    return server.http.post("/v1/hidden_states", json=body, headers={"Accept": NPY})


def test_positions_go_beside_npy_in_a_header_unless_it_would_be_long(server: LiveServer) -> None:
    assert npy(server, input=[PROMPT, "3"]).headers[POSITIONS_HEADER] == f"{len(PROMPT)};1"
    assert npy(server, input=PROMPT, rows=[0, 1, 2, 5, -1]).headers[POSITIONS_HEADER] == f"0:3,5,{len(PROMPT)}"
    assert npy(server, input=PROMPT, rows={"token_ids": []}).headers[POSITIONS_HEADER] == ""
    fewer = MOST_POSITIONS // len("0,2,4;")
    for count in (fewer, fewer + 1):
        answer = npy(server, input=[[1, 2, 3, 4, 5]] * count, rows=[0, 2, 4], reduce="mean")
        assert np.load(io.BytesIO(answer.content)).shape == (count, HIDDEN)
        assert answer.headers.get(POSITIONS_HEADER) == (";".join(["0,2,4"] * count) if count == fewer else None)


def test_token_ids_have_no_place_in_npy(server: LiveServer) -> None:
    answer = npy(server, input=PROMPT, return_token_ids=True)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "return_token_ids"


@pytest.mark.parametrize("form", ["float", "base64"])
def test_several_reads_of_prompts_in_json(server: LiveServer, form: str) -> None:
    reads = {"tail": {"rows": "-3:", "layers": LAYERS}, "mean": {"reduce": "mean"}, "none": {"rows": {"token_ids": []}}}
    body = {"input": [PROMPT, "3"], "reads": reads, "return_token_ids": True, "hidden_states_format": form}
    got = server.ok("/v1/hidden_states", **body)
    result, positions = server.engine.extract([PROMPT, "3"], reads=reads, return_positions=True)
    for i, item in enumerate(got["data"]):
        assert item["index"] == i and list(item["reads"]) == list(reads)
        for name, shown in item["reads"].items():
            assert shown["positions"] == positions[name][i].tolist()
            assert len(shown["token_ids"]) == len(shown["positions"])
            layers = LAYERS if name == "tail" else [None]
            for layer in layers:
                value = shown["hidden_states"] if layer is None else shown["hidden_states"][str(layer)]
                right = result[name][i] if layer is None else result[name][layer][i]
                np.testing.assert_array_equal(array(value).reshape(right.shape), right)
    assert got["data"][0]["reads"]["none"]["positions"] == []


@pytest.mark.parametrize(
    ("accept", "more", "param"),
    [
        (SAFETENSORS, {}, "reads"), (ARROW, {}, "reads"), (NPY, {}, "reads"), (None, {"mode": "full"}, "mode"),
        (None, {"rows": "last"}, "rows"), (None, {"reduce": "mean"}, "reduce"), (None, {"layers": [-1]}, "layers"),
        (None, {"pooling": "mean"}, "pooling"),
    ],
    ids=str,
)  # fmt: skip
def test_what_several_reads_cannot_be_had_with(server: LiveServer, accept: str | None, more: Any, param: str) -> None:
    body = {"input": PROMPT, "reads": {"a": {}}, **more}
    answer = server.http.post("/v1/hidden_states", json=body, headers={"Accept": accept} if accept else {})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


# --- characters, special tokens ------------------------------------------------------------------------------------------

#: Characters of one, two, three and four bytes; the tokenizer has a token per byte, behind ``<s>``.
MIXED = "aé漢🙂b"


@pytest.mark.parametrize(("chars", "positions"), [
    ([0, 1], [1]), ([1, 2], [2, 3]), ([2, 4], [4, 5, 6, 7, 8, 9, 10]), ([3, 5], [7, 8, 9, 10, 11]),
    ([[0, 1], [4, 5]], [1, 11]), ([[3, 4], [3, 5]], [7, 8, 9, 10, 11]), ([0, 5], list(range(1, 12))),
])  # fmt: skip
def test_characters_are_the_tokens_that_touch_them(server: LiveServer, chars: Any, positions: list[int]) -> None:
    rows = server.engine.extract([MIXED], "full")[0]
    assert len(rows) == 12
    item = server.ok("/v1/hidden_states", input=MIXED, rows={"chars": chars})["data"][0]
    assert item["positions"] == positions
    np.testing.assert_array_equal(np.array(item["hidden_states"], np.float32), rows[positions])
    shown = server.ok("/v1/completions", prompt=MIXED, max_tokens=2, hidden_states_rows={"chars": chars})["choices"][0]
    assert shown["hidden_states_positions"] == positions
    both = server.ok("/generate", text=["x", MIXED], sampling_params={"max_new_tokens": 1}, return_hidden_states=[False, {
        "rows": {"chars": chars, "last": 1}, "reduce": "first",
    }])  # fmt: skip
    assert both[1]["meta_info"]["hidden_states_positions"] == positions[-1:]


def test_a_token_over_several_characters_is_meant_by_each_of_them(family: Callable[..., Path], tmp_path: Path) -> None:
    """Merges: ``the`` is one token, and any of its characters names it."""
    from wellhead.frontends.engine import Engine

    folder = Path(shutil.copytree(family("llama"), tmp_path / "merged"))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocab = {**{t: i for t, i in tokenizer.get_vocab().items() if i < 256}, "th": 257, "the": 258, "Ã©": 259}
    merged = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("t", "h"), ("th", "e"), ("Ã", "©")]))
    merged.pre_tokenizer, merged.decoder = tokenizer.pre_tokenizer, tokenizer.decoder
    merged.save(str(folder / "tokenizer.json"))
    with Engine(model_path=str(folder), return_hidden_states_mode="full") as engine:
        text = "of the né"
        for chars, due in (([4, 5], [3]), ([3, 6], [3]), ([5, 7], [3, 4]), ([8, 9], [6]), ([2, 3], [2])):
            rows, positions = engine.extract([text], rows={"chars": chars}, return_positions=True)
            assert positions[0].tolist() == due and rows[0].shape == (len(due), HIDDEN)


@pytest.mark.parametrize("body", [
    {"input": [1, 2, 3], "rows": {"chars": [0, 1]}}, {"input": MIXED, "rows": {"chars": [0, 6]}},
    {"input": MIXED, "rows": {"chars": [2, 2]}}, {"input": MIXED, "rows": {"chars": [0, 1], "part": "output"}},
], ids=str)  # fmt: skip
def test_characters_that_are_not_there(server: LiveServer, body: Any) -> None:
    assert server.refused("/v1/hidden_states", **body)["param"] == "rows"


def test_special_tokens_are_left_out(server: LiveServer) -> None:
    ids = server.engine.normalize({"text": MIXED}).requests[0].input_ids.tolist()
    bos = ids[0]
    assert bos not in (EOS, *range(256)) and bos < VOCAB
    for rows, positions in (
        ({"exclude": "special"}, list(range(1, 12))),
        ({"exclude": {"special": True, "positions": [1]}}, list(range(2, 12))),
        ({"exclude": {"token_ids": [bos]}, "stop": 4}, [1, 2, 3]),
        ({"token_ids": [bos]}, [0]),
        ({"last": 8, "exclude": "special"}, list(range(4, 12))),
    ):
        item = server.ok("/v1/hidden_states", input=MIXED, rows=rows)["data"][0]
        assert item["positions"] == positions, rows
    messages = [{"role": "user", "content": "x<s>y</s>z"}]
    shown = server.ok(
        "/v1/chat/completions", messages=messages, max_tokens=1, hidden_states_rows={"part": "prompt", "exclude": "special"}
    )
    prompt = server.ok("/tokenize", messages=messages)["tokens"]
    assert shown["choices"][0]["hidden_states_positions"] == [i for i, t in enumerate(prompt) if t not in (bos, EOS)]


# --- what does not exist, and ceilings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "field", "fields"), [
    ("/generate", "hidden_states_rows", {"text": "abc", "sampling_params": {"max_new_tokens": 0}}),
    ("/v1/completions", "hidden_states_rows", {"prompt": "abc", "max_tokens": 0}),
    ("/v1/hidden_states", "rows", {"input": "abc"}),
])  # fmt: skip
def test_positions_that_cannot_exist_are_refused_at_the_door(server: LiveServer, path: str, field: str, fields: Any) -> None:
    for rows in (4, -5, [0, 9], {"part": "output", "positions": [0]}):
        error = server.refused(path, **fields, **{field: rows})
        assert (error["code"], error["param"]) == ("row_out_of_range", field), error
    ok = server.ok(path, **fields, **{field: "9:"})
    item = ok["data"][0] if "data" in ok else ok["choices"][0] if "choices" in ok else ok["meta_info"]
    assert item["hidden_states"] == [] and item.get("positions", item.get("hidden_states_positions")) == []


def test_a_row_that_an_answer_did_not_come_to(server: LiveServer) -> None:
    """That request alone: 400 if it is the only one, its place in a batch, an event in a stream."""
    params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    free = server.ok("/generate", text="abc", sampling_params=params)
    stop = {**params, "stop_token_ids": [free["output_ids"][0]]}
    rows = {"hidden_states_rows": [4 + 5]}
    error = server.refused("/generate", text="abc", sampling_params=stop, **rows)
    assert error["code"] == "row_out_of_range" and "ended after 4" in error["message"]
    bad, good = server.ok("/generate", text=["abc", "abc"], sampling_params=[stop, params], **rows)
    assert bad["error"]["code"] == "row_out_of_range" and bad["meta_info"]["finish_reason"]["type"] == "abort"
    assert good["meta_info"]["hidden_states_positions"] == [9]
    assert server.refused("/generate", text="abc", sampling_params=stop, stream=True, **rows)["code"] == "row_out_of_range"
    params = {**params, "max_new_tokens": 200}  # so many that not all of them can come in one event
    ids = server.ok("/generate", text="abc", sampling_params=params)["output_ids"]
    end = next(i for i, token in enumerate(ids) if i >= 40 and token not in ids[:i])
    late = {**params, "stop_token_ids": [ids[end]]}
    events = server.events("/generate", text="abc", sampling_params=late, hidden_states_rows=[4 + end + 1])
    assert len(events) > 1 and events[-1]["error"]["code"] == "row_out_of_range"
    chat = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    assert (
        server.ok("/v1/chat/completions", **chat, hidden_states_rows={"part": "output", "start": 7})["choices"][0][
            "hidden_states"
        ]
        == []
    )


def test_ceilings_over_http(live: Callable[..., LiveServer]) -> None:
    server = live(return_hidden_states_mode="last")
    for rows in ("all", "prompt", 0, {"token_ids": [1]}, "1:"):
        error = server.refused("/v1/hidden_states", input=PROMPT, rows=rows)
        assert error["code"] == "capture_above_ceiling" and "--return-hidden-states-mode full" in error["message"]
    server.ok("/v1/hidden_states", input=PROMPT)
    got = server.ok("/v1/hidden_states", input=PROMPT, rows={"last": 8}, reduce="mean")
    assert got["cached_tokens"] == [len(PROMPT) - 8]
    off = live(return_hidden_states_mode="off")
    assert off.refused("/v1/hidden_states", input=PROMPT, rows="last")["code"] == "capture_disabled"


# --- clients ------------------------------------------------------------------------------------------------------------

PYTHON: list[Any] = [
    "last", "all", 0, -2, slice(-8, None), slice(1, 9, 2), range(3), (0, -1), np.array([0, 5]), np.int64(4), {"last": 3},
    {"last": np.int64(3), "exclude": "special"}, {"chars": (2, 5)}, "prompt",
]  # fmt: skip


@pytest.mark.parametrize("words", PYTHON, ids=str)
def test_clients_extract_what_the_engine_extracts(server: LiveServer, words: Any) -> None:
    texts = [PROMPT, "another text"]
    with Client(server.url) as client:
        for more in ({}, {"reduce": "weighted_mean"}, {"layers": LAYERS}):
            right = server.engine.extract(texts, rows=words, **more)
            equal(client.extract(texts, rows=words, **more), right)
            equal(asyncio.run(aextract(server.url, texts, rows=words, **more)), right)


async def aextract(url: str, texts: list[str], **wish: Any) -> Any:
    async with AsyncClient(url) as client:
        return await client.extract(texts, **wish)


def equal(mine: Any, right: Any) -> None:
    """Arrays, lists and dicts of them, and the same kinds of these."""
    if isinstance(right, dict):
        assert list(mine) == list(right)
        for name, value in right.items():
            equal(mine[name], value)
    elif isinstance(right, list):
        assert len(mine) == len(right)
        for one, other in zip(mine, right, strict=True):
            equal(one, other)
    elif isinstance(right, np.ndarray):
        assert isinstance(mine, np.ndarray) and (mine.dtype, mine.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(mine, right)
    else:
        assert mine == right


@pytest.mark.parametrize("fields", [
    *({"hidden_states_rows": words} for words in PYTHON),
    {"hidden_states_rows": "output", "hidden_states_reduce": "mean", "hidden_states_token_ids": True},
    {"return_hidden_states": {"rows": slice(-3, None), "layers": LAYERS}, "hidden_states_token_ids": True},
    {"return_hidden_states": True}, {"return_hidden_states": "last", "hidden_states_layers": LAYERS},
    {"reads": {"a": {"rows": slice(2, 5)}, "b": {"rows": "output", "reduce": "sum", "layers": [0, "L:pre_norm"]}}},
], ids=str)  # fmt: skip
def test_clients_generate_what_the_engine_generates(server: LiveServer, fields: dict[str, Any]) -> None:
    params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}

    async def agenerate() -> Any:
        async with AsyncClient(server.url) as client:
            return await client.generate(PROMPT, params, **fields)

    def states(out: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in out["meta_info"].items() if k.startswith("hidden_states") or k == "reads"}

    right = states(server.engine.generate(PROMPT, params, **fields))
    assert right
    with Client(server.url) as client:
        equal(states(client.generate(PROMPT, params, **fields)), right)
        *_, last = client.stream(PROMPT, params, **fields)
        equal(states(last), right)
    equal(states(asyncio.run(agenerate())), right)


def test_a_text_without_the_row_is_an_error_in_its_place(server: LiveServer) -> None:
    with Client(server.url) as client:
        for source in (server.engine, client):
            rows, indices = source.extract([PROMPT, "ab", PROMPT], rows=10, on_error="skip")
            assert rows.shape == (2, HIDDEN) and indices.tolist() == [0, 2]
            with pytest.raises(RowOutOfRange) as caught:
                source.extract([PROMPT, "ab"], rows=10)
            assert caught.value.index == 1
            with pytest.raises(InvalidRequest):
                source.extract([PROMPT], rows="lst")
