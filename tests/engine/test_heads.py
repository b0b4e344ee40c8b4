"""Heads in the pass that makes the text: the scores are those of the head alone, and a verdict ends an answer at its token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.direct import Direct
from support.heads import make
from support.speculating import REPEATING, options_for
from wellhead.errors import HeadNotFound, HeadUploadDisabled, InvalidHead, InvalidRequest, NonFinite
from wellhead.frontends.engine import Engine
from wellhead.heads.head import Head

W = 64
IDS = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]
GREEDY = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True, "logit_bias": REPEATING}
Family = Callable[..., Path]


def head(kind: str = "linear", name: str = "", **fields: Any) -> Head:
    return make(kind, width=W * len(fields.get("layers", (2,))), name=name or kind, **{"layers": (2,), **fields})


def margins(name: str = "m", seed: int = 0, **fields: Any) -> Head:
    """One whose scores are all different, so that a threshold can be put between any two."""
    weight = np.random.default_rng(seed).normal(size=(3, W))
    return head("linear", name, activation="identity", tensors={"weight": weight}, **fields)


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    def save(*heads: Head) -> list[str]:
        return [str(one.save(tmp_path / f"{one.name}.head")) for one in heads]

    return save


def said(reply: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (reply if isinstance(reply, dict) else reply.to_dict())["meta_info"]["heads"][name]
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Equal to the bit."""
    assert a.keys() == b.keys()
    for key, value in a.items():
        if isinstance(value, dict):
            same(value, b[key])
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, b[key])
        else:
            assert value == b[key]


# --- scores -------------------------------------------------------------------------------------------------------

TEXTS = ["one text", "another, rather longer text of this kind", "b"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_scores_exactly_what_the_head_makes_of_extracted_rows(
    engine: Callable[..., Engine], files: Callable[..., list[str]], dtype: str
) -> None:
    heads = [
        head("linear"), head("attention", rows={"last": 4}), head("mlp", reduce="mean", rows="all"), head("quadratic"),
        head("linear", "two", layers=(1, 3)), head("multimax", rows="all"), head("ensemble", reduce="max", rows="prompt"),
    ]  # fmt: skip
    wh = engine(dtype=dtype, capture_layers=[1, 2, 3], heads=files(*heads))
    told = wh.extract(TEXTS, heads=[h.name for h in heads])
    for one in heads:
        reads = wh.extract(TEXTS, rows=one.rows, reduce=None if one.reduce == "rows" else one.reduce, layers=list(one.layers))
        for i in range(len(TEXTS)):
            rows = np.concatenate([np.atleast_2d(reads[layer][i]) for layer in one.layers], axis=1)
            scores = one.scores(rows)
            if one.reduce == "rows" and one.rows != "last":  # several rows are meant, however many there are
                total = one.accumulator()
                total.update(one.features(rows))
                scores = np.asarray(total.value())[None]
            np.testing.assert_array_equal(told[one.name]["scores"][i], scores[0])
            np.testing.assert_array_equal(told[one.name]["probabilities"][i], one.probabilities(scores)[0])
            assert told[one.name]["label"][i] == one.winners(scores)[0]
        assert told[one.name]["version"] == wh.heads[one.name].version != ""


def test_rows_of_an_answer_are_scored_one_by_one_and_together(
    engine: Callable[..., Engine], files: Callable[..., list[str]]
) -> None:
    heads = [head("linear"), head("attention"), head("linear", "ema", aggregate={"kind": "ema", "a": 0.25})]
    wh = engine(capture_layers=[2], heads=files(*heads))
    names = [h.name for h in heads]
    reply = wh.generate(input_ids=IDS, sampling_params=GREEDY, heads=names, return_hidden_states={"rows": "all"})
    rows = reply["meta_info"]["hidden_states"]
    assert len(rows) == len(IDS) + 11
    for one in heads:
        found = said(reply, one.name)
        np.testing.assert_array_equal(found["scores"], one.scores(rows[len(IDS) - 1 : len(IDS)])[0])
        assert found["positions"].tolist() == [len(IDS) - 1] and found["label"] in found["labels"]
        output = rows[len(IDS) :]
        np.testing.assert_array_equal(found["tokens"]["scores"], one.scores(output))
        np.testing.assert_array_equal(found["tokens"]["positions"], np.arange(len(IDS), len(IDS) + 11))
        np.testing.assert_array_equal(found["tokens"]["probabilities"], one.probabilities(one.scores(output)))
        total = one.accumulator()
        total.update(one.features(output))
        np.testing.assert_array_equal(found["aggregate"]["scores"], total.value())


ALONE: dict[str, Any] = {"disable_radix_cache": True}
MACHINES: dict[str, dict[str, Any]] = {
    "chunks of 3": {"chunked_prefill_size": 3},
    "cached": {"chunked_prefill_size": 5},
    "no rows in pages": {"return_hidden_states_mode": "last"},
    "off": {"return_hidden_states_mode": "off"},
    "scarce pages": {"max_total_tokens": 64},
    "overlap": {"disable_overlap_schedule": False},
    "graphs": {"enable_torch_compile": True, "cuda_graph_max_bs": 2, "return_hidden_states_mode": "off"},
}
COMPANY = [[7, 8, 9], IDS[:6], [*IDS[:9], 99, 98], [40] * 20]


@pytest.mark.parametrize("machine", [*MACHINES, "NGRAM", "SELF"])
def test_scores_do_not_depend_on_the_machine_or_the_company(
    direct: Callable[..., Direct], files: Callable[..., list[str]], family: Family, machine: str
) -> None:
    paths = files(head("linear", layers=(1,)), head("attention", layers=(1,)), head("mlp", layers=(2,), rows={"last": 5}))
    plain = direct(heads=paths, **ALONE)
    special = MACHINES.get(machine) or options_for(machine, family, "llama")
    other = direct(heads=paths, **special)
    payload = {"input_ids": IDS, "sampling_params": GREEDY, "heads": ["linear", "attention", "mlp"]}
    (alone,) = plain.run([payload])
    crowd = [{"input_ids": ids, "sampling_params": {**GREEDY, "max_new_tokens": 20}, "heads": ["linear"]} for ids in COMPANY]
    for round_ in range(2):
        replies = other.run([*crowd, payload])
        assert replies[-1].output_ids == alone.output_ids
        for name in ("linear", "attention", "mlp"):
            same(said(alone, name), said(replies[-1], name))
        if machine == "scarce pages":
            assert other.core.scheduler.preemptions
        if round_ and machine == "cached":
            assert replies[-1].to_dict()["meta_info"]["cached_tokens"]
    if machine in ("NGRAM", "SELF"):
        assert other.core.counters.accepted_tokens and other.core.counters.proposed_tokens
    assert not plain.core.counters.row_bytes


def test_which_heads_are_asked_for_beside_it_changes_no_bit(
    direct: Callable[..., Direct], files: Callable[..., list[str]]
) -> None:
    heads = [head("linear", f"h{i}") for i in range(16)]
    machine = direct(heads=files(*heads))
    payload = {"input_ids": IDS, "sampling_params": GREEDY}
    (all_of_them,) = machine.run([{**payload, "heads": [h.name for h in heads]}])
    for one in heads[::5]:
        (alone,) = machine.run([{**payload, "heads": [one.name]}])
        same(said(alone, one.name), said(all_of_them, one.name))


def test_several_samples_are_judged_each_by_itself(direct: Callable[..., Direct], files: Callable[..., list[str]]) -> None:
    machine = direct(heads=files(margins()))
    params = {"max_new_tokens": 8, "temperature": 1.0, "n": 3, "sampling_seed": 5, "ignore_eos": True}
    together = machine.run([{"input_ids": IDS, "sampling_params": params, "heads": ["m"]}])
    assert len({tuple(r.output_ids) for r in together}) == 3
    for k, one in enumerate(together):
        alone = {**params, "n": 1, "sampling_seed": 5 + k}
        (reply,) = machine.run([{"input_ids": IDS, "sampling_params": alone, "heads": ["m"]}])
        same(said(reply, "m"), said(one, "m"))


@pytest.mark.parametrize("model", ["llama", "llama-tied"])
def test_a_difference_of_tokens_is_that_of_their_logits(
    direct: Callable[..., Direct], files: Callable[..., list[str]], family: Family, model: str
) -> None:
    folder = family("llama", tie_word_embeddings=model == "llama-tied")
    body = {"positive": 65, "negative": 70}
    pair = Head(
        name="pair", kind="token_difference", layers=(-1,), width=W, labels=("no", "yes"), body=body, activation="sigmoid"
    )
    wh = direct(folder, heads=files(pair), dtype="float32")
    ask = {"input_ids": IDS, "sampling_params": {"max_new_tokens": 1}, "heads": ["pair"]}
    (reply,) = wh.run([{**ask, "return_logprob": True, "token_ids_logprob": [65, 70]}])
    (yes, no) = (value for value, *_ in reply.to_dict()["meta_info"]["output_token_ids_logprobs"][0])
    assert said(reply, "pair")["scores"][0] == pytest.approx(yes - no, abs=1e-5)
    for bad, words in (({"positive": 999}, "outside"), ({"positive": "several tokens of text"}, "tokens of this model")):
        one = Head(name="bad", kind="token_difference", layers=(-1,), width=W, labels=("no", "yes"), body=bad)
        with pytest.raises(InvalidHead, match=words):
            direct(folder, heads=files(one))


# --- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"speculative_algorithm": "NGRAM", "speculative_ngram_min_match_window_size": 1}])
def test_a_stream_has_each_score_once_beside_its_token(
    engine: Callable[..., Engine], files: Callable[..., list[str]], options: dict[str, Any]
) -> None:
    wh = engine(heads=files(head("linear")), **options)
    ask = {"input_ids": IDS, "sampling_params": GREEDY, "heads": ["linear"]}
    whole = said(wh.generate(**ask), "linear")
    for stop in ({}, {"stop_on": {"head": "linear", "label": "a", "threshold": 2.0}}):
        at: list[int] = []
        scores, last = [], {}
        for event in wh.generate(**ask, **stop, stream=True):
            new = event["meta_info"]["heads"].get("linear", {})
            fresh = new.get("tokens", {"positions": np.zeros(0, np.int64), "scores": np.zeros((0, 3), np.float32)})
            at += fresh["positions"].tolist()
            scores.append(fresh["scores"])
            if stop and event["meta_info"]["finish_reason"] is None:  # held back until judged: no token without its score
                assert len(event["output_ids"]) == len(at)
            last = {**last, **new}
        np.testing.assert_array_equal(np.concatenate(scores), whole["tokens"]["scores"])
        assert at == whole["tokens"]["positions"].tolist()
        np.testing.assert_array_equal(last["scores"], whole["scores"])
        same(last["aggregate"], whole["aggregate"])


# --- stops --------------------------------------------------------------------------------------------------------


def record(scores: Any, least: int) -> tuple[int, str, float]:
    """Index, label and value of a score above all before it in its column, the first that comes so late."""
    found = ((i, c) for i in range(least, len(scores)) for c in range(3) if not i or scores[i, c] > scores[:i, c].max())
    i, column = next(found)
    return i, "abc"[column], float(scores[i, column])


@pytest.mark.parametrize("machine", ["plain", "overlap", "NGRAM", "SELF", "scarce pages", "off"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold", [1, 0])
def test_a_verdict_ends_the_answer_before_the_condemned_token(
    direct: Callable[..., Direct], files: Callable[..., list[str]], family: Family, machine: str, stream: bool, hold: int
) -> None:
    special = MACHINES.get(machine) or ({} if machine == "plain" else options_for(machine, family, "llama"))
    wh = direct(heads=files(margins()), **special)
    params = {**GREEDY, "max_new_tokens": 24}
    ask = {"input_ids": IDS, "sampling_params": params, "heads": {"m": {"on": "output"}}, "return_logprob": True}
    (plain,) = wh.run([ask])
    whole = plain.to_dict()
    scores = said(plain, "m")["tokens"]["scores"]
    crowd = [{"input_ids": ids, "sampling_params": params} for ids in COMPANY]
    for least in (0, 1, 4):
        i, label, value = record(scores, least)
        stop = {"head": "m", "label": label, "threshold": value, "hold": hold}
        replies = wh.run([{**ask, "stop_on": stop, "stream": stream}, *crowd])
        got, kept = replies[0].to_dict(), i if hold else i + 1
        assert got["output_ids"] == whole["output_ids"][:kept]
        assert got["meta_info"]["finish_reason"] == {
            "type": "head", "head": "m", "label": label, "score": float(str(np.float32(value))), "position": len(IDS) + i,
        }  # fmt: skip
        assert got["text"] == wh.made.tokenizer.decode(whole["output_ids"][:kept])
        assert got["meta_info"]["completion_tokens"] == kept
        assert len(got["meta_info"]["output_token_logprobs"]) == kept
        if not stream:  # a stream's last event has its new rows alone
            np.testing.assert_array_equal(said(got, "m")["tokens"]["scores"], scores[: i + 1])


@pytest.mark.parametrize("hold", [1, 0])
@pytest.mark.parametrize("read", [{"rows": "last"}, {"rows": "all"}, {"rows": "output", "reduce": "mean"}, {"rows": {"last": 3}}])
def test_rows_of_an_answer_that_a_head_ended_are_those_of_its_tokens(
    engine: Callable[..., Engine], files: Callable[..., list[str]], read: dict[str, Any], hold: int
) -> None:
    wh = engine(heads=files(margins(layers=(3,))), speculative_algorithm="NGRAM", speculative_ngram_min_match_window_size=1)
    ask = {"input_ids": IDS, "sampling_params": GREEDY, "heads": {"m": {"on": "output"}}}
    whole = wh.generate(**ask)
    i, label, value = record(said(whole, "m")["tokens"]["scores"], 2)
    kept = i if hold else i + 1
    stop = {"head": "m", "label": label, "threshold": value, "hold": hold}
    got = wh.generate(**ask, stop_on=stop, return_hidden_states=read)
    ids = [*IDS, *whole["output_ids"][:kept]]
    rows = {"rows": {"start": len(IDS)}, "reduce": "mean"} if read.get("reduce") else read
    want = wh.generate(input_ids=ids, sampling_params={"max_new_tokens": 0}, return_hidden_states=rows)
    np.testing.assert_array_equal(got["meta_info"]["hidden_states"], want["meta_info"]["hidden_states"])


def test_a_prompt_that_is_condemned_gets_no_token(direct: Callable[..., Direct], files: Callable[..., list[str]]) -> None:
    wh = direct(heads=files(margins()), chunked_prefill_size=4)
    (plain,) = wh.run([{"input_ids": IDS, "sampling_params": {"max_new_tokens": 0}, "heads": ["m"]}])
    top = float(said(plain, "m")["scores"][0])
    for new, stream, hold in ((0, False, 1), (9, False, 1), (9, True, 0)):
        for threshold, ends in ((top, True), (top + 1e-3, False)):
            stop = {"head": "m", "label": "a", "threshold": threshold, "hold": hold}
            params = {**GREEDY, "max_new_tokens": new, "min_new_tokens": min(new, 2)}
            ask = {
                "input_ids": IDS,
                "sampling_params": params,
                "heads": {"m": {"on": "prompt"}},
                "stop_on": stop,
                "stream": stream,
            }
            (reply,) = wh.run([ask])
            got = reply.to_dict()
            assert len(got["output_ids"]) == (0 if ends else new)
            if ends:
                assert got["text"] == ""
                assert got["meta_info"]["finish_reason"]["type"] == "head"
                assert got["meta_info"]["finish_reason"]["position"] == len(IDS) - 1


def test_a_stop_string_or_the_last_token_comes_before_its_own_verdict(
    direct: Callable[..., Direct], files: Callable[..., list[str]]
) -> None:
    wh = direct(heads=files(margins()))
    ask = {"input_ids": IDS, "sampling_params": GREEDY, "heads": {"m": {"on": "output"}}}
    (plain,) = wh.run([ask])
    ids = plain.output_ids
    i, label, value = record(said(plain, "m")["tokens"]["scores"], 2)
    stop = {"head": "m", "label": label, "threshold": value}
    for cut, kind in ((i + 1, "length"), (i + 2, "head")):  # the token at i is judged only when the next is drawn
        (reply,) = wh.run([{**ask, "sampling_params": {**GREEDY, "max_new_tokens": cut}, "stop_on": stop}])
        assert reply.to_dict()["meta_info"]["finish_reason"]["type"] == kind
        assert reply.output_ids == ids[: i + 1 if kind == "length" else i]
    # A minimum of tokens does not hold a verdict off.
    (reply,) = wh.run([{**ask, "sampling_params": {**GREEDY, "min_new_tokens": 12}, "stop_on": stop}])
    assert reply.output_ids == ids[:i]
    # With a stop string that never comes, the text is still that of the tokens that were kept.
    (reply,) = wh.run([{**ask, "sampling_params": {**GREEDY, "stop": ["never, ever"]}, "stop_on": stop}])
    assert reply.text == wh.made.tokenizer.decode(ids[:i])


def test_a_stop_on_the_aggregate(direct: Callable[..., Direct], files: Callable[..., list[str]]) -> None:
    one = margins(aggregate={"kind": "window", "size": 3})
    wh = direct(heads=files(one))
    ask = {"input_ids": IDS, "sampling_params": GREEDY, "heads": {"m": {"on": "output"}}}
    (plain,) = wh.run([ask])
    rows = said(plain, "m")["tokens"]["scores"]
    i, label, value = record(one.accumulator().update(rows), 2)
    stop = {"head": "m", "label": label, "threshold": value, "on": "aggregate"}
    (reply,) = wh.run([{**ask, "stop_on": stop}])
    assert reply.output_ids == plain.output_ids[:i]
    np.testing.assert_array_equal(said(reply, "m")["aggregate"]["scores"], one.accumulator().update(rows[: i + 1])[-1])
    # k rows in a row: before there are k, nothing was judged, not even against a negative threshold
    ask = {**ask, "heads": {"m": {"on": "output", "aggregate": {"kind": "k_in_a_row", "k": 4}}}}
    (reply,) = wh.run([{**ask, "stop_on": {"head": "m", "label": "b", "threshold": -1e9, "on": "aggregate"}}])
    assert reply.output_ids == plain.output_ids[:3]


# --- what may and may not be --------------------------------------------------------------------------------------


def test_with_the_ceiling_off_heads_look_and_no_row_leaves(
    engine: Callable[..., Engine], files: Callable[..., list[str]]
) -> None:
    wh = engine(heads=files(margins()), return_hidden_states_mode="off")
    reply = wh.generate(input_ids=IDS, sampling_params=GREEDY, heads=["m"])
    assert "hidden_states" not in reply["meta_info"] and said(reply, "m")["tokens"]["scores"].shape == (11, 3)
    for asked in ({"return_hidden_states": "last"}, {"reads": {"a": {}}}):
        with pytest.raises(InvalidRequest) as caught:
            wh.generate(input_ids=IDS, sampling_params=GREEDY, heads=["m"], **asked)
        assert caught.value.code == "capture_disabled"
    assert wh.info()["heads"] == {"m": wh.heads["m"].version}


BAD = [
    ({"heads": ["m", "m"]}, "once"),
    ({"heads": "m"}, "list of names"),
    ({"heads": {"m": {"row": 1}}}, "unknown key"),
    ({"heads": {"m": {"rows": 13, "on": "prompt"}}}, "does not exist"),
    ({"heads": {"m": {"rows": {"part": "output", "last": 2}}}}, "as they come"),
    ({"heads": {"m": {"rows": "output", "reduce": "mean"}}}, "one by one"),
    ({"heads": {"m": {"on": "answer"}}}, "on must be"),
    ({"heads": {"m": {"on": "output", "aggregate": "median"}}}, "unknown aggregate"),
    ({"heads": {"m": {"on": "prompt", "aggregate": "max"}}}, "judges none"),
    ({"stop_on": {"head": "m"}}, "head and label"),
    ({"stop_on": {"head": "m", "label": "d", "threshold": 1}}, "no label"),
    ({"stop_on": {"head": "m", "label": "a"}}, "threshold"),
    ({"stop_on": {"head": "m", "label": "a", "threshold": float("nan")}}, "threshold"),
    ({"stop_on": {"head": "m", "label": "a", "threshold": 1, "hold": 2}}, "hold"),
]


def test_wishes_that_cannot_be_are_refused_by_name(engine: Callable[..., Engine], files: Callable[..., list[str]]) -> None:
    wh = engine(heads=files(margins()))
    for wish, words in BAD:
        with pytest.raises(InvalidRequest, match=words) as caught:
            wh.generate(input_ids=IDS, sampling_params=GREEDY, **wish)
        assert caught.value.param == next(iter(wish))
    for wish in ({"heads": ["x"]}, {"stop_on": {"head": "x", "label": "a", "threshold": 1}}):
        with pytest.raises(HeadNotFound, match="there are m"):
            wh.generate(input_ids=IDS, sampling_params=GREEDY, **wish)
    with pytest.raises(InvalidRequest, match="max_new_tokens is 0"):
        wh.generate(input_ids=IDS, sampling_params={"max_new_tokens": 0}, heads={"m": {"on": "output"}})


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: make("linear", width=48, layers=(2,)), "width 48"),
        (lambda: head(layers=(9,)), "layer 9"),
        (lambda: head(provenance={"model": {"config.json": [1, "x"]}}), "another model"),
        (lambda: head(rows="some"), "rows must be"),
        (lambda: head(rows={"chars": [0, 4]}), "characters"),
    ],
)
def test_a_head_of_another_model_is_refused_at_the_start(
    engine: Callable[..., Engine], files: Callable[..., list[str]], made: Callable[[], Head], words: str
) -> None:
    with pytest.raises(InvalidHead, match=words):
        engine(heads=files(made()))


def test_a_head_made_on_this_model_is_taken_and_another_only_by_force(
    engine: Callable[..., Engine], files: Callable[..., list[str]], family: Family
) -> None:
    from wellhead.models.identity import file_facts

    mine = head(name="mine", provenance={"model": file_facts([str(family("llama"))])})
    assert set(engine(heads=files(mine)).heads) == {"mine"}
    other = head(name="other", provenance={"model": {"config.json": [1, "x"]}})
    assert set(engine(heads=files(other), force_heads=True).heads) == {"other"}


def test_a_head_is_replaced_while_a_request_uses_it(direct: Callable[..., Direct], files: Callable[..., list[str]]) -> None:
    old, new = margins(), margins(seed=1)
    wh = direct(heads=files(old), allow_head_upload=True)
    ask = {"input_ids": IDS, "sampling_params": GREEDY, "heads": ["m"]}
    before = wh.made.heads["m"].version
    batch = wh.submit(ask)
    for _ in range(4):
        wh.step()
    wh.made.heads.add(new)
    later = wh.submit(ask)
    wh.step()
    wh.made.heads.remove("m")
    with pytest.raises(HeadNotFound):
        wh.submit(ask)
    wh.finish()
    (first,), (second,) = wh.replies(batch), wh.replies(later)
    assert said(first, "m")["version"] == before
    assert (said(first, "m")["scores"] != said(second, "m")["scores"]).any()
    assert len(said(first, "m")["tokens"]["scores"]) == 11


def test_heads_are_not_changed_without_leave(engine: Callable[..., Engine], files: Callable[..., list[str]]) -> None:
    wh = engine(heads=files(margins()))
    for change in (lambda: wh.add_head(margins("n")), lambda: wh.remove_head("m")):
        with pytest.raises(HeadUploadDisabled, match="allow-head-upload"):
            change()
    assert set(wh.heads) == {"m"}


def test_a_score_that_is_not_finite_fails_its_request_and_no_other(
    direct: Callable[..., Direct], files: Callable[..., list[str]]
) -> None:
    huge = np.zeros((1, W))
    huge[0, 0] = 1e300
    bad = Head(name="bad", kind="linear", layers=(2,), width=W, labels=("x",), tensors={"weight": huge})
    wh = direct(heads=files(bad, margins()))
    ask = {"input_ids": IDS, "sampling_params": GREEDY}
    (alone,) = wh.run([{**ask, "heads": ["m"]}])
    for side in ("prompt", "output"):
        broken = wh.submit({**ask, "heads": {"bad": {"on": side}}})
        good = wh.submit({**ask, "heads": ["m"]})
        wh.finish()
        with pytest.raises(NonFinite, match="bad"):
            wh.replies(broken)
        same(said(wh.replies(good)[0], "m"), said(alone, "m"))


def test_extract_with_heads_says_what_of_which_text(engine: Callable[..., Engine], files: Callable[..., list[str]]) -> None:
    wh = engine(heads=files(margins(), head("linear", "five", rows={"last": 5, "exclude": {"positions": [0]}})))
    told = wh.extract(["one", "", "three"], heads=["m"], on_error="skip")
    assert told.indices.tolist() == [0, 2] and told.result["m"]["scores"].shape == (2, 3)
    listed = wh.extract(["one", "", "three"], heads=["m"], on_error="return")["m"]
    assert listed[0]["label"] in "abc" and isinstance(listed[1], InvalidRequest)
    none = wh.extract([[5]], heads=["five"])["five"]
    assert none["label"] == [None] and np.isnan(none["scores"]).all()
    for more in ({"mode": "last"}, {"rows": "all"}, {"return_positions": True}):
        with pytest.raises(InvalidRequest, match="leave the other words out"):
            wh.extract(["one"], heads=["m"], **more)
    assert wh.extract([], heads=["m"])["m"]["scores"].shape == (0, 3)
