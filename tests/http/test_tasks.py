"""Endpoints of models that label, score and embed: each caller in its own shape, and a clear error for a model without a head."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from support.live import LiveServer
from support.tasks import PROMPTS, add_modules, write_scored

DOCUMENTS = ["a city", "Paris is the capital of France.", "a city", "x" * 40]
SIDES = [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]
LABELS = {0: "bad", 1: "fair", 2: "good"}


def server_of(folder: Path) -> Iterator[LiveServer]:
    server = LiveServer(folder)
    yield server
    server.check_all_given_back()
    server.stop()


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Three labels."""
    more = {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    yield from server_of(write_scored("qwen3", tmp_path_factory.mktemp("labels") / "tiny", **more))


@pytest.fixture(scope="module")
def embedder(family: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Modules of sentence-transformers over a model that generates, too."""
    folder = Path(shutil.copytree(family("qwen3"), tmp_path_factory.mktemp("embedder") / "tiny"))
    yield from server_of(add_modules(folder, {"pooling_mode": "mean"}, ((64, 24, "torch.nn.Tanh"),)))


# --- labels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_labels_as_vllm_shows_them(labels: LiveServer, path: str) -> None:
    texts = ["one text", "another"]
    answer = labels.ok(path, model="tiny", input=texts)
    assert answer["object"] == "list" and answer["id"].startswith("classify-") and answer["model"] == "tiny"
    assert answer["usage"] == {"prompt_tokens": 15, "total_tokens": 15}
    for i, (entry, verdict) in enumerate(zip(answer["data"], labels.engine.classify(texts), strict=True)):
        assert (entry["index"], entry["label"], entry["num_classes"]) == (i, verdict["label"], 3)
        assert entry["probs"] == verdict["values"].tolist() and sum(entry["probs"]) == pytest.approx(1)
    raw = labels.ok(path, input=texts[0], use_activation=False)["data"][0]["probs"]
    assert raw == labels.engine.classify(texts)[0]["scores"].tolist()


def test_scores_as_sglang_shows_them(labels: LiveServer) -> None:
    one = labels.ok("/classify", text="one text")
    assert one["embedding"] == labels.engine.classify(["one text"])[0]["scores"].tolist()
    assert one["meta_info"]["prompt_tokens"] == 8
    many = labels.ok("/classify", text=["one text", "b"])
    assert isinstance(many, list) and many[0]["embedding"] == one["embedding"]
    assert labels.ok("/classify", input_ids=[1, 2, 3])["embedding"] == labels.engine.classify([[1, 2, 3]])[0]["scores"].tolist()


def test_a_chat_is_labelled_by_the_models_template(scoring: LiveServer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    chat = scoring.ok("/classify", messages=messages)["data"][0]
    assert chat["probs"] == scoring.engine.classify(["<user>hello\n"])[0]["values"].tolist()
    assert (chat["label"], chat["num_classes"]) == ("LABEL_0", 1)


# --- pairs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_in_order(scoring: LiveServer, path: str) -> None:
    ranked = scoring.engine.rerank("where?", DOCUMENTS)
    answer = scoring.ok(path, model="tiny", query="where?", documents=DOCUMENTS, top_n=None, max_tokens_per_doc=None)
    assert answer["results"] == [{"index": r["index"], "relevance_score": r["score"]} for r in ranked]
    assert all(0 < r["relevance_score"] < 1 for r in answer["results"])
    assert answer["usage"]["total_tokens"] == sum(len("where?" + d) for d in DOCUMENTS)
    two = scoring.ok(path, query="where?", documents=[{"text": d} for d in DOCUMENTS], top_n=2, return_documents=True)["results"]
    assert [r["document"]["text"] for r in two] == [r["document"] for r in ranked[:2]]
    assert len(scoring.ok(path, query="where?", documents=DOCUMENTS, top_n=99)["results"]) == 4


def test_texts_as_text_embeddings_inference_shows_them(scoring: LiveServer) -> None:
    ranked = scoring.engine.rerank("where?", DOCUMENTS)
    answer = scoring.ok("/rerank", query="where?", texts=DOCUMENTS, return_text=True)
    assert answer == [{"index": r["index"], "score": r["score"], "text": r["document"]} for r in ranked]
    raw = scoring.ok("/rerank", query="where?", texts=DOCUMENTS, raw_scores=True)
    scores = scoring.engine.score("where?", DOCUMENTS, raw=True)
    assert {r["index"]: r["score"] for r in raw} == dict(enumerate(scores))


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("left", "right"), [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]
)
def test_pairs_as_vllm_shows_them(scoring: LiveServer, path: str, left: str, right: str) -> None:
    expected = scoring.engine.score("where?", DOCUMENTS).tolist()
    answer = scoring.ok(path, **{left: "where?", right: DOCUMENTS})
    assert answer["data"] == [{"index": i, "object": "score", "score": s} for i, s in enumerate(expected)]
    each = scoring.ok(path, **{left: ["where?", "who?"], right: DOCUMENTS[:2]})
    assert [d["score"] for d in each["data"]] == scoring.engine.score(["where?", "who?"], DOCUMENTS[:2]).tolist()
    raw = scoring.ok(path, **{left: "where?", right: DOCUMENTS[0]}, use_activation=False)["data"][0]["score"]
    assert raw == scoring.engine.score("where?", DOCUMENTS[:1], raw=True)[0]
    assert scoring.refused(path, **{left: ["a", "b"], right: DOCUMENTS})["param"] == left


def test_documents_and_queries_are_cut_on_request(scoring: LiveServer) -> None:
    cut = scoring.ok("/v1/score", queries="where?", documents=["abcdefgh"], max_tokens_per_query=2, max_tokens_per_doc=3)
    assert cut["data"] == scoring.ok("/v1/score", queries="wh", documents=["abc"])["data"]


# --- vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["float", "base64"])
def test_the_official_client_gets_the_models_own_vectors(embedder: LiveServer, form: Any) -> None:
    texts = ["one text", "another"]
    with openai.OpenAI(base_url=embedder.url + "/v1", api_key="x", max_retries=0, timeout=60) as client:
        plain = client.embeddings.create(model="tiny", input=texts)
        assert np.array_equal(np.array([d.embedding for d in plain.data], np.float32), embedder.engine.embed(texts))
        asked = client.embeddings.create(
            model="tiny", input=texts, encoding_format=form, dimensions=7, extra_body={"prompt_name": "query"}
        )
    expected = embedder.engine.embed([PROMPTS["query"] + text for text in texts], dimensions=7)
    got = [np.frombuffer(b64decode(d.embedding), np.float32) if form == "base64" else d.embedding for d in asked.data]
    assert np.array_equal(np.array(got, np.float32), expected)
    assert asked.usage.prompt_tokens == sum(len(PROMPTS["query"] + text) for text in texts)


def test_vectors_as_text_embeddings_inference_shows_them(embedder: LiveServer) -> None:
    found = np.array(embedder.ok("/embed", inputs=["one text", "b"]), np.float32)
    assert np.array_equal(found, embedder.engine.embed(["one text", "b"]))
    one = embedder.ok("/embed", inputs="one text", prompt_name="query", normalize=False, dimensions=5)
    assert np.array_equal(
        np.array(one, np.float32), embedder.engine.embed(["one text"], prompt_name="query", normalize=False, dimensions=5)
    )
    long = "z" * 600
    assert embedder.refused("/embed", inputs=long)["code"] == "prompt_too_long"
    assert embedder.ok("/embed", inputs=long, truncate=True) == embedder.ok("/embed", inputs=long[:512])


def test_pooling_in_ones_own_words_leaves_the_modules_out(embedder: LiveServer) -> None:
    row = np.array(
        embedder.ok("/v1/embeddings", input="one text", pooling="last", normalize=False)["data"][0]["embedding"], np.float32
    )
    assert np.array_equal(row, embedder.engine.extract(["one text"])[0])


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), [
    ("/classify", {"input": "a"}), ("/v1/classify", {"text": "a"}), ("/rerank", {"query": "a", "texts": ["b"]}),
    ("/v2/rerank", {"query": "a", "documents": ["b"]}), ("/v1/score", {"queries": "a", "documents": ["b"]}),
])  # fmt: skip
def test_a_model_without_such_a_head_gives_an_error_never_a_label(shared: LiveServer, path: str, body: dict[str, Any]) -> None:
    error = shared.refused(path, **body)
    assert error["code"] == "task_not_served" and "generate, embed" in error["message"]


@pytest.mark.parametrize(("path", "body", "param"), [
    ("/classify", {}, "input"), ("/classify", {"input": "a", "text": "b"}, "text"), ("/classify", {"input": []}, "input"),
    ("/classify", {"input": ""}, "input"), ("/classify", {"input": [1000]}, "input"), ("/classify", {"text": ["a", 1]}, "text"),
    ("/rerank", {"query": "a", "documents": []}, "documents"), ("/rerank", {"query": "", "documents": ["a"]}, "query"),
    ("/rerank", {"documents": ["a"]}, "query"), ("/rerank", {"query": "a", "documents": ["a"], "texts": ["b"]}, "texts"),
    ("/rerank", {"query": "a", "texts": ["a"], "top_n": 1}, "top_n"),
    ("/rerank", {"query": "a", "documents": ["a"], "raw_scores": True}, "raw_scores"),
    ("/rerank", {"query": "a", "documents": [{"title": "a"}]}, "documents"),
    ("/rerank", {"query": "a", "documents": ["a"], "instruct": "x"}, "instruct"),
    ("/rerank", {"query": "a", "documents": ["z" * 600], "truncate": False}, "documents"),
    ("/score", {"queries": "a"}, "documents"), ("/score", {"queries": "a", "data_2": "b"}, "documents"),
    ("/score", {"queries": "a", "documents": "b", "text_2": "c"}, "text_2"),
    ("/score", {"queries": [], "documents": "b"}, "queries"),
])  # fmt: skip
def test_refusals_name_the_callers_field(scoring: LiveServer, path: str, body: dict[str, Any], param: str) -> None:
    assert scoring.refused(path, **body)["param"] == param


def test_the_server_says_what_its_model_is_for(scoring: LiveServer, labels: LiveServer, embedder: LiveServer) -> None:
    for server, kinds in (
        (scoring, ["classify", "reward", "rerank"]), (labels, ["classify"]), (embedder, ["generate", "embed", "rerank"]),
    ):  # fmt: skip
        for said in (server.http.get("/model_info").json(), server.http.get("/v1/models").json()["data"][0]):
            assert said["tasks"] == kinds
    assert scoring.refused("/generate", text="a")["code"] == "no_lm_head"
    assert json.loads(embedder.post("/v1/completions", prompt="a", max_tokens=2).text)["choices"]
