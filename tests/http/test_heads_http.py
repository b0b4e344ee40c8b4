"""Heads over HTTP: what they say in every endpoint's answer, how they end one, and who may change them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from support.heads import make
from support.live import LiveServer
from wellhead.encoding.registry import FORMATS
from wellhead.heads.file import encode
from wellhead.heads.head import Head

W = 64
PARAMS = {"max_new_tokens": 10, "temperature": 0, "ignore_eos": True}


def margins(name: str, seed: int = 0) -> Head:
    weight = np.random.default_rng(seed).normal(size=(2, W))
    return make("linear", W, name, layers=(2,), labels=("safe", "unsafe"), activation="identity", tensors={"weight": weight})


@pytest.fixture(scope="module")
def _judging(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("heads")
    for name in ("safety", "mood"):
        margins(name, len(name)).save(folder / f"{name}.head")
    server = LiveServer(chat_model, heads=[str(folder)], return_hidden_states_mode="last")
    yield server
    server.stop()


@pytest.fixture
def server(_judging: LiveServer) -> Iterator[LiveServer]:
    yield _judging
    _judging.check_all_given_back()


def rule(server: LiveServer, **more: Any) -> tuple[dict[str, Any], int, float]:
    """A rule that ends the greedy answer to "one text", the index of the token that it condemns, and its score there."""
    plain = server.ok("/generate", text="one text", sampling_params=PARAMS, heads={"safety": {"on": "output"}})
    scores = [s[1] for s in plain["meta_info"]["heads"]["safety"]["tokens"]["scores"]]
    i = int(np.argmax(scores))
    return {"head": "safety", "label": "unsafe", "threshold": scores[i], **more}, i, scores[i]


def test_generate_says_what_each_head_said(server: LiveServer) -> None:
    whole = server.ok("/generate", text="one text", sampling_params=PARAMS, heads=["safety", "mood"])
    said = whole["meta_info"]["heads"]
    assert list(said) == ["safety", "mood"]
    assert said["safety"]["label"] in ("safe", "unsafe") and said["safety"]["labels"] == ["safe", "unsafe"]
    assert len(said["safety"]["tokens"]["scores"]) == 9 and len(said["safety"]["version"]) == 16
    events = server.events("/generate", text="one text", sampling_params=PARAMS, heads=["safety"])
    parts = [e["meta_info"]["heads"]["safety"]["tokens"] for e in events if "tokens" in e["meta_info"]["heads"].get("safety", {})]
    for key in ("scores", "positions", "probabilities"):
        assert functools.reduce(operator.iadd, (part[key] for part in parts), []) == said["safety"]["tokens"][key]
    assert events[0]["meta_info"]["heads"]["safety"]["label"] == said["safety"]["label"]
    assert events[-1]["meta_info"]["heads"]["safety"]["aggregate"] == said["safety"]["aggregate"]
    plain = server.ok("/generate", text="one text", sampling_params=PARAMS)
    assert "heads" not in plain["meta_info"]


def test_batches_and_samples_have_their_own_verdicts(server: LiveServer) -> None:
    params = {**PARAMS, "temperature": 1, "n": 2, "sampling_seed": 1}
    found = server.ok("/generate", text=["one text", "another"], sampling_params=params, heads=["mood"])
    assert len(found) == 4
    prompts = [one["meta_info"]["heads"]["mood"]["scores"] for one in found]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert len({str(one["meta_info"]["heads"]["mood"]["tokens"]["scores"]) for one in found}) == 4


@pytest.mark.parametrize("hold", [1, 0])
def test_a_condemned_answer_ends_natively(server: LiveServer, hold: int) -> None:
    stop, i, score = rule(server, hold=hold)
    ask = {"text": "one text", "sampling_params": PARAMS, "heads": {"safety": {"on": "output"}}, "stop_on": stop}
    got = server.ok("/generate", **ask)
    finish = got["meta_info"]["finish_reason"]
    assert (finish["type"], finish["head"], finish["label"], finish["score"]) == ("head", "safety", "unsafe", score)
    assert len(got["output_ids"]) == (i if hold else i + 1)
    events = server.events("/generate", **ask)
    assert events[-1]["output_ids"] == got["output_ids"] and events[-1]["text"] == got["text"]
    assert all(got["text"].startswith(event["text"]) for event in events), "what was condemned was never shown"
    assert events[-1]["meta_info"]["finish_reason"] == finish


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_openai_clients_see_a_content_filter(server: LiveServer, stream: bool, chat: bool) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    extra: dict[str, Any] = {"heads": {"safety": {"on": "output"}}, "ignore_eos": True}

    def ask(**more: Any) -> Any:
        common: dict[str, Any] = {"model": "tiny", "max_tokens": 10, "temperature": 0, "extra_body": {**extra, **more}}
        if chat:
            return client.chat.completions.create(
                messages=[{"role": "user", "content": "one text"}], stream=stream and bool(more), **common
            )
        return client.completions.create(prompt="one text", stream=stream and bool(more), **common)

    plain = ask().choices[0]
    scores = [s[1] for s in plain.model_extra["heads"]["safety"]["tokens"]["scores"]]
    assert len(scores) == 9 and plain.finish_reason == "length"
    i = int(np.argmax(scores))
    answer = ask(stop_on={"head": "safety", "label": "unsafe", "threshold": scores[i]})
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    (last,) = [c for c in choices if c.finish_reason]
    assert last.finish_reason == "content_filter"
    assert last.model_extra["stopped_by"] == {
        "head": "safety", "label": "unsafe", "score": scores[i], "position": last.model_extra["stopped_by"]["position"],
    }  # fmt: skip
    text = "".join((c.delta.content or "") if chat and stream else c.message.content if chat else c.text for c in choices)
    whole = plain.message.content if chat else plain.text
    assert whole.rstrip("\ufffd").startswith(text.rstrip("\ufffd")) and len(text) <= len(whole)
    told = [
        c.model_extra["heads"]["safety"]["tokens"]["scores"]
        for c in choices
        if "tokens" in (c.model_extra or {}).get("heads", {}).get("safety", {})
    ]
    assert [s[1] for s in functools.reduce(operator.iadd, told, [])] == scores[: i + 1]


def test_hidden_states_carry_verdicts_in_every_format_that_has_facts(server: LiveServer) -> None:
    want = server.ok("/generate", text="one text", sampling_params={"max_new_tokens": 0}, heads=["safety"])
    body = {"input": ["one text", "another"], "heads": ["safety"]}
    for media_type, form in FORMATS.items():
        answer = server.http.post("/v1/hidden_states", json=body, headers={"Accept": media_type})
        if media_type == "application/x-npy":
            assert answer.status_code == 400 and "no place" in answer.json()["error"]["message"]
            continue
        assert answer.status_code == 200, answer.text
        facts = form.decode(answer.content).facts
        assert next(one["safety"]["label"] for one in facts["heads"]) == want["meta_info"]["heads"]["safety"]["label"]
        assert facts["heads"][0]["safety"]["scores"] == want["meta_info"]["heads"]["safety"]["scores"]


def test_heads_are_listed_and_not_changed_without_leave(server: LiveServer) -> None:
    listed = server.http.get("/v1/heads").json()["data"]
    assert {card["id"]: card["labels"] for card in listed} == {key: ["safe", "unsafe"] for key in ("mood", "safety")}
    assert all(len(card["version"]) == 16 and card["layers"] == [2] for card in listed)
    for answer in (server.http.post("/v1/heads", content=encode(margins("new"))), server.http.delete("/v1/heads/mood")):
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "head_upload_disabled"
    assert len(server.http.get("/v1/heads").json()["data"]) == 2
    assert server.refused("/generate", 404, text="x", heads=["new"])["code"] == "head_not_found"


def test_heads_come_and_go_where_that_is_allowed(live: Callable[..., LiveServer]) -> None:
    server = live(allow_head_upload=True, capture_layers=[2])
    added = server.http.post("/v1/heads", content=encode(margins("new", 1)))
    assert added.status_code == 200 and added.json()["id"] == "new"
    first = server.ok("/generate", text="x", sampling_params=PARAMS, heads=["new"])["meta_info"]["heads"]["new"]
    assert first["version"] == added.json()["version"]
    again = server.http.post("/v1/heads", content=encode(margins("new", 2))).json()
    second = server.ok("/generate", text="x", sampling_params=PARAMS, heads=["new"])["meta_info"]["heads"]["new"]
    assert second["version"] == again["version"] != first["version"] and second["scores"] != first["scores"]
    torn = encode(margins("torn"))[:200]
    other = encode(make("linear", W, "deep", layers=(1,)))
    for body, words in (
        (torn, "torn"),
        (b"", "head file"),
        (other, "layer 1"),
        (encode(make("linear", 48, "w", layers=(2,))), "48"),
    ):
        answer = server.http.post("/v1/heads", content=body)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_head", answer.text
        assert words in answer.json()["error"]["message"]
    assert server.http.delete("/v1/heads/new").json()["deleted"] is True
    assert server.http.delete("/v1/heads/new").status_code == 404
    assert server.http.delete("/v1/heads/..%2F..%2Fetc").status_code == 404
    assert server.http.get("/v1/heads").json()["data"] == []
    server.check_all_given_back()
