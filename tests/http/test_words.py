"""Errors speak of a field by the name that the caller of this route has for it, in the message and in ``param``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.bodies import EACH, body_with, label
from support.live import LiveServer
from wellhead.errors import InvalidRequest, WellheadError
from wellhead.frontends.engine import EXTRACT_WORDS, Engine
from wellhead.requests import normalize, sampling, tokenizer
from wellhead.requests.fields import EXAMPLES, Field, at, called
from wellhead.requests.words import speaking, word

#: Values of which each field takes some and refuses most, at one depth or another: by type, range, entries, company.
WRONG: tuple[Any, ...] = (
    True, 0, -1, 1.5, 1000, 2**40, 2**70, "x", "(", "a*", "last", "1000:", [], [1000], [-1], [99999999], ["x"], [""], ["("],
    [[1], []],
    [[1.5]], [None], {}, {"3": 1000}, {"x": 1}, {"99999999": 1}, {"3": "x"}, {"rows": 9}, {"rows": [10**6]},
    {"rows": {"last": 0}},
    {"rows": "x", "reduce": "y"}, {"layers": [99]}, {"reduce": "x"}, {"a": {"rows": [10**6]}}, {"a": {"layers": [99]}},
    {"chars": [0, 10**6]}, {"positions": [10**6]}, {"last": 0},
)  # fmt: skip


def foreign(place: str) -> Iterator[re.Pattern[str]]:
    """The engine's names that callers of this place do not know. A text is a word, too: as a field it begins a sentence."""
    for name in set(called(place)) - set(at(place)):  # type: ignore[arg-type]
        yield re.compile(r"^text\b|text\[" if name == "text" else rf"(?<![\w.]){re.escape(name)}\b")


def check(place: str, name: str, error: Mapping[str, Any]) -> bool:
    """Is this error in the words of the place? Does it name the field that was wrong?"""
    for pattern in foreign(place):
        assert not pattern.search(error["message"]), (name, error)
        assert not pattern.fullmatch(error["param"] or ""), (name, error)
    known = {*at(place), *(["max_new_tokens", *at("generate")] if place in ("generate", "sampling_params") else [])}  # type: ignore[arg-type]
    assert error["param"] is None or error["param"].split(".")[0] in known, (name, error)
    return name in error["message"] or (error["param"] or "").split(".")[-1] == name


@pytest.mark.parametrize(("place", "f"), EACH, ids=label)
def test_every_refusal_of_every_field_is_in_the_callers_words(serving: Callable[[str], LiveServer], place: str, f: Field) -> None:
    refused, shared = 0, serving(place)
    for value in WRONG:
        path, body = body_with(place, {f.name: value}, dict(f.beside))
        answer = shared.post(path, **body)
        if answer.status_code == 200:
            continue
        refused += 1
        assert check(place, f.name, answer.json()["error"]), (f.name, value, answer.json())
    assert refused


@pytest.fixture
def modest(live: Callable[..., LiveServer]) -> LiveServer:
    """A server that refuses what the shared one takes."""
    limits = {"max_batch_size": 2, "max_request_tokens": 40, "max_request_logprobs": 8}
    return live(limits, return_hidden_states_mode="last", capture_layers=[-1])


@pytest.mark.parametrize(("place", "given", "param"), [
    ("hidden_states", {"mode": "full"}, "mode"), ("hidden_states", {"rows": "all"}, "rows"),
    ("hidden_states", {"reduce": "mean"}, "reduce"), ("hidden_states", {"layers": [0]}, "layers"),
    ("embeddings", {"pooling": "mean"}, "pooling"), ("completions", {"return_hidden_states": True}, "return_hidden_states"),
    ("generate", {"reads": {"a": {"rows": "all"}}}, "reads"), ("chat", {"hidden_states_rows": "all"}, "hidden_states_rows"),
    ("completions", {"prompt": ["a", "b", "c"]}, "prompt"), ("hidden_states", {"input": [[1], [2], [3]]}, "input"),
    ("completions", {"n": 3}, "n"), ("generate", {"sampling_params": {"n": 3}}, "sampling_params.n"),
    ("completions", {"max_tokens": 38}, "prompt"), ("chat", {"max_tokens": 38}, "messages"),
    ("completions", {"logprobs": 5}, "logprobs"), ("chat", {"logprobs": True, "top_logprobs": 5}, "top_logprobs"),
    ("generate", {"return_logprob": True, "token_ids_logprob": [1, 2, 3, 4, 5]}, "token_ids_logprob"),
    ("completions", {"stop_regex": "("}, "stop_regex"), ("chat", {"stop_regex": "a*"}, "stop_regex"),
    ("chat", {"max_tokens": None, "max_completion_tokens": 1000}, "max_completion_tokens"),
])  # fmt: skip
def test_limits_ceilings_and_what_comes_out_late_name_the_callers_field(
    modest: LiveServer, place: str, given: dict[str, Any], param: str
) -> None:
    path, body = body_with(place, given, {})
    error = modest.refused(path, **body)
    assert error["param"] == param, error
    check(place, param, error)


def test_no_message_of_the_door_has_a_renamed_field_written_into_it() -> None:
    pairs = [(name.split(".")[-1], own) for place in EXAMPLES for name, own in called(place).items()]
    renamed_somewhere = {name for name, own in pairs if own != name}
    names = re.compile("|".join(rf"\b{name}\b" for name in sorted(renamed_somewhere - {"text"})))
    assert len(renamed_somewhere) > 8
    messages = 0
    for module in (normalize, sampling, tokenizer):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Call) and any(k.arg == "param" for k in node.keywords) and node.args:
                messages += 1
                said = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                calls = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.Call)]
                spoken = [call for call in calls if ast.unparse(call.func) == "word"]
                told = [part.value for call in spoken for part in ast.walk(call) if isinstance(part, ast.Constant)]
                for text in said:
                    assert text in told or not names.search(str(text)), (module.__name__, text)
    assert messages > 40


@pytest.mark.parametrize(("texts", "wish", "param"), [
    (["a"], {"rows": "nowhere"}, "rows"), (["a"], {"reduce": "median"}, "reduce"), (["a"], {"layers": [99]}, "layers"),
    (["a"], {"mode": "full"}, "mode"), (["a"], {"mode": "mean"}, "mode"), (["a"], {"rows": "all"}, "rows"),
    (["a", ""], {}, "text"), ([[1], [10**6]], {}, "input_ids"), ([[1], ["x"]], {}, "input_ids"), (["a"], {"rows": [-99]}, "rows"),
    (["a"], {"reads": {"x": {"rows": "all"}}}, "reads"), (["a" * 5000], {}, "text"),
])  # fmt: skip
def test_extract_speaks_of_its_own_arguments(engine: Callable[..., Engine], texts: Any, wish: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine(return_hidden_states_mode="last").extract(texts, **wish)
    error = caught.value
    assert error.param == param
    for name in EXTRACT_WORDS:
        assert name not in error.message, error.message


def test_words_hold_inside_and_are_forgotten_outside() -> None:
    assert word("input_ids") == "input_ids"
    with pytest.raises(WellheadError, match="prompt is empty") as caught, speaking({"input_ids": "prompt"}):
        raise InvalidRequest(f"{word('input_ids')} is empty", param="input_ids")
    assert (caught.value.param, word("input_ids")) == ("prompt", "input_ids")
    with pytest.raises(InvalidRequest) as unknown, speaking({"a": "b"}):
        raise InvalidRequest("no field")
    assert unknown.value.param is None


def test_no_callers_name_is_an_engines_name_for_something_else() -> None:
    """Names are changed once on the way; twice must be the same."""
    for place in EXAMPLES:
        words = called(place)
        assert all(words.get(own, own) == own for own in words.values()), place
