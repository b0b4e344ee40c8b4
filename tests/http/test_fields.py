"""One table of fields: what it says is what the endpoints do, what OpenAPI says, and what the page shows."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import openai
import pytest

import wellhead.frontends.http
from support.bodies import EACH, PLACE_PATHS, body_with, label
from support.live import LiveServer
from wellhead.client import AsyncClient, Client
from wellhead.frontends.engine import Engine
from wellhead.frontends.http import tables
from wellhead.frontends.http.schemas import BODIES, PLACES, described
from wellhead.requests import fields, normalize
from wellhead.requests.fields import EXAMPLES, TABLE, Field, Way, at
from wellhead.types import SamplingParams

DOCS = Path(__file__).parents[2] / "docs"
Serving = Callable[[str], LiveServer]


@pytest.mark.parametrize(("place", "f"), EACH, ids=label)
def test_each_field_of_the_table_is_taken_with_its_example(serving: Serving, place: str, f: Field) -> None:
    shared = serving(place)
    path, body = body_with(place, {f.name: f.example}, dict(f.beside))
    answer = shared.post(path, **body)
    assert answer.status_code == 200, (body, answer.text)
    if f.example is not None:
        jsonschema.validate(f.example, described(f))
    if f.default is not None:
        path, body = body_with(place, {f.name: f.default}, {k: v for k, v in f.beside.items() if v is None or k == "messages"})
        assert place == "abort_request" or shared.post(path, **body).status_code == 200, (body, "its default asks for nothing")


@pytest.mark.parametrize("place", [*PLACE_PATHS, "sampling_params"])
def test_no_other_field_is_taken(serving: Serving, place: str) -> None:
    shared = serving(place)
    strangers = {f.name for f in TABLE} | {"nonsense"}
    for name in sorted(strangers - set(at(place))):  # type: ignore[arg-type]
        path, body = body_with(place, {name: 1}, {})
        error = shared.refused(path, **body)
        assert error["param"] in (name, f"sampling_params.{name}") and "unknown field" in error["message"], (place, error)


#: Names in the endpoints' sources that belong to something inside a field.
INNER = {"role", "content", "type", "include_usage", "include_obfuscation"}


def names_read(file: Path) -> Iterator[str]:
    """Literal names that a file reads out of a body."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            function = node.func
            named = function.id if isinstance(function, ast.Name) else ""
            of_body = isinstance(function, ast.Attribute) and function.attr == "get" and ast.unparse(function.value) == "payload"
            if of_body or named in ("flag", "whole", "_flag", "_spread"):
                name = node.args[0 if of_body else 1]
                if isinstance(name, ast.Constant):
                    yield name.value
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "payload" and isinstance(node.slice, ast.Constant):
            yield node.slice.value


def test_what_the_sources_read_is_in_the_table() -> None:
    folder = Path(wellhead.frontends.http.__file__).parent
    files = [*folder.glob("*.py"), Path(normalize.__file__)]
    read = {name for file in files for name in names_read(file)}
    assert len(read) > 30 and read - INNER <= {f.name for f in TABLE}
    whole = " ".join(file.read_text() for file in files)
    for f in TABLE:
        if f.way is Way.READ:
            assert f'"{f.name}"' in whole, f"nobody reads {f.name}"
    requests = Path(normalize.__file__).parent
    door = " ".join(file.read_text() for file in requests.glob("*.py") if file.name != "fields.py")
    for f in TABLE:
        if f.way is Way.PASSED:
            name = f.engine[0] if f.engine else f.name
            assert f'"{name}"' in door, f"the engine's door does not read {name}"


#: Answers to values that have the right shape and still cannot be served here.
FITS_BUT = {
    "prompt_too_long",
    "token_out_of_range",
    "row_out_of_range",
    "capture_above_ceiling",
    "model_not_found",
    "head_not_found",
    "empty_prompt",
}
PROBES: tuple[Any, ...] = (
    True, False, 0, 1, -1, 3, 1.5, -2.5, 1000, 2**40, "", "x", "last", "base64", "full", [], [1], [-1], [True], ["x"], [[1]],
    [1.5], {}, {"3": 1}, {"x": 1}, {"a": "b"}, {"3": 1000}, [{}], {"max_new_tokens": 1}, {"max_new_tokens": -1},
)  # fmt: skip
#: field -> words of the refusal of a value that fits its schema, but not what stands beside it or what a schema cannot say.
OTHERWISE = {
    "abort_all": "give either rid or abort_all", "chat_template_kwargs": "is no variable of a template", "rid": "for 2 prompts",
    "min_tokens": "^min_tokens [0-9]+ exceeds max_tokens 2",
    "min_new_tokens": "exceeds max_new_tokens 2",
    "best_of": "unless it equals n", "dimensions": "between 1 and", "logprob_start_len": "the prompt's 8 tokens",
    "top_logprobs_num": "between 0 and", "instruct": "takes no instruction", "instruction": "takes no instruction",
    "prompt_name": "no prompt named", "data_1": "for 1 data_2", "text_1": "for 1 text_2", "data_2": "1 data_1 for",
    "text_2": "1 text_1 for",
}  # fmt: skip


@pytest.mark.parametrize(("place", "f"), EACH, ids=label)
def test_the_description_and_the_parser_agree_on_every_probe(serving: Serving, place: str, f: Field) -> None:
    shared = serving(place)
    checker = jsonschema.Draft202012Validator(described(f))
    for probe in PROBES:
        path, body = body_with(place, {f.name: probe}, dict(f.beside))
        answer = shared.post(path, **body)
        if not checker.is_valid(probe):
            assert answer.status_code in (400, 404), (f.name, probe, "is not what the description allows, and was taken")
        elif answer.status_code != 200:
            error = answer.json()["error"]
            fits = error["code"] in FITS_BUT or (f.name in OTHERWISE and re.search(OTHERWISE[f.name], error["message"]))
            assert fits, (f.name, probe, "is what the description allows, and was refused", answer.text)


def test_no_place_has_two_fields_of_one_name_and_the_places_are_all_there() -> None:
    assert set(EXAMPLES) == set(get_args(fields.Place)) == {*PLACES.values(), "sampling_params"}
    for place in EXAMPLES:
        names = [f.name for f in TABLE if place in f.on]
        assert len(names) == len(set(names)), place


def test_defaults_of_sampling_are_the_engines() -> None:
    params = SamplingParams()
    assert set(at("sampling_params", Way.SAMPLING)) == set(SamplingParams.__slots__)
    for name, f in at("sampling_params", Way.SAMPLING).items():
        value = getattr(params, name)
        assert (dict(value) if name == "logit_bias" else list(value) if isinstance(value, tuple) else value) == f.default


def test_the_page_is_current() -> None:
    page = (DOCS / "http.md").read_text()
    assert tables.filled(page) == page, "run python -m wellhead.frontends.http.tables docs/http.md"
    shown = {name for block in tables._BLOCK.findall(page) for name in _first_cells(block[0] + tables.table(block[1]))}
    assert {f.name for f in TABLE} <= shown


def _first_cells(text: str) -> set[str]:
    return {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}


@pytest.mark.parametrize("function", [Client.generate, Client.stream, AsyncClient.generate, AsyncClient.stream, Engine.generate])
def test_the_clients_words_are_the_tables(function: Any) -> None:
    known = at("generate")
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("self", "fields", "prompt"):
            continue
        assert name in known and parameter.default in (None, known[name].default), name
    assert any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


def test_the_clients_extract_says_what_hidden_states_takes() -> None:
    known = at("hidden_states")
    for function in (Client.extract, Client.extract_iter, AsyncClient.extract):
        names = set(inspect.signature(function).parameters) - {"self", "texts", "progress", "on_error"}
        assert names <= set(known), function


# --- OpenAI's own lists -------------------------------------------------------------------------------------------


def openai_fields(place: str) -> set[str]:
    from openai.types import completion_create_params, embedding_create_params
    from openai.types.chat import completion_create_params as chat_params

    kind = {
        "completions": completion_create_params.CompletionCreateParamsBase,
        "chat": chat_params.CompletionCreateParamsBase,
        "embeddings": embedding_create_params.EmbeddingCreateParams,
    }[place]
    return set(kind.__annotations__) | ({"stream"} if place != "embeddings" else set())


@pytest.mark.parametrize("place", ["completions", "chat", "embeddings"])
def test_every_field_of_openais_api_is_in_the_table(place: Any) -> None:
    """A new one in the installed package fails here: serve it, list it as a hint, or refuse it by name."""
    assert openai_fields(place) <= set(at(place))


def test_the_official_client_sends_all_hints_at_once(shared: LiveServer) -> None:
    for place in ("chat", "completions", "embeddings"):
        hints = {name: f.example for name, f in at(place, Way.HINT).items()}  # type: ignore[arg-type]
        hints |= {name: f.idle[0] for name, f in at(place, Way.IDLE).items() if f.idle}  # type: ignore[arg-type]
        official = {k: v for k, v in hints.items() if k in openai_fields(place)}
        rest = {k: v for k, v in hints.items() if k not in official}
        with openai.OpenAI(base_url=shared.url + "/v1", api_key="x", max_retries=0, timeout=60) as client:
            if place == "chat":
                ask: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
                plain = client.chat.completions.create(**ask, max_tokens=3)
                assert {"prompt_cache_key", "safety_identifier", "prediction", "metadata"} <= set(official)
                got = client.chat.completions.create(**ask, max_tokens=3, **official, extra_body=rest)
                assert got.choices[0].message.content == plain.choices[0].message.content
            elif place == "completions":
                assert client.completions.create(model="tiny", prompt="hello", max_tokens=3, **official, extra_body=rest).choices
            else:
                assert client.embeddings.create(model="tiny", input="hello", **official, extra_body=rest).data


@pytest.mark.parametrize(("name", "value"), [
    ("tools", [{"type": "function", "function": {"name": "f"}}]), ("response_format", {"type": "json_object"}), ("store", True),
    ("reasoning_effort", "low"), ("verbosity", "low"), ("moderation", {"model": "m"}), ("audio", {"voice": "a"}),
    ("tool_choice", "required"),
])  # fmt: skip
def test_what_would_change_the_answer_is_refused_by_name(shared: LiveServer, name: str, value: Any) -> None:
    path, body = body_with("chat", {name: value}, {})
    error = shared.refused(path, **body)
    assert (error["param"], error["code"]) == (name, "unsupported_field")


# --- nothing is ignored in silence --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value", "nothing"), [
    ("top_logprobs_num", 2, [0, None, [0]]), ("token_ids_logprob", [3], [[], None, [[]]]),
    ("logprob_start_len", 0, [-1, None, [-1]]),
    ("return_text_in_logprobs", True, [False, None]), ("token_ids_logprob", [[3]], []), ("top_logprobs_num", [2], []),
])  # fmt: skip
def test_fields_of_logprobs_need_logprobs(shared: LiveServer, name: str, value: Any, nothing: list[Any]) -> None:
    path, body = body_with("generate", {name: value}, {})
    assert shared.refused(path, **body)["param"] == name
    assert shared.refused(path, **body, return_logprob=False)["param"] == name
    assert shared.ok(path, **body, return_logprob=True)["meta_info"]["output_token_logprobs"]
    for same in nothing:
        assert shared.ok(path, **{**body, name: same})


@pytest.mark.parametrize(
    "beside", [{"return_hidden_states": "last"}, {"return_hidden_states": True, "hidden_states_pooling": "mean"}]
)
def test_increments_of_one_vector_are_refused(shared: LiveServer, beside: dict[str, Any]) -> None:
    path, body = body_with("generate", {"incremental_hidden_states": True, "stream": True}, beside)
    assert shared.refused(path, **body)["param"] == "incremental_hidden_states"


def test_a_vector_in_a_batch_of_increments_counts_no_entries(shared: LiveServer) -> None:
    """``hidden_states_total`` belongs to lists of entries; a neighbour that asked for the last row has one vector."""
    body = {
        "text": ["one", "two"],
        "sampling_params": {"max_new_tokens": 3, "ignore_eos": True},
        "return_hidden_states": [True, "last"],
    }
    last = {e["index"]: e["meta_info"] for e in shared.events("/generate", **body, incremental_hidden_states=True)}
    assert last[0]["hidden_states_total"] == 3 and "hidden_states_total" not in last[1]
    assert isinstance(last[1]["hidden_states"][0], float)


def test_sampling_without_tokens_is_refused(shared: LiveServer) -> None:
    error = shared.refused("/v1/hidden_states", input="a", sampling_params={"temperature": 0.5})
    assert error["param"] == "sampling_params.temperature" and "max_new_tokens" in error["message"]
    for same in ({}, {"temperature": 1}, {"top_k": -1, "stop": []}):
        assert shared.ok("/v1/hidden_states", input="a", sampling_params=same)
    assert shared.ok("/v1/hidden_states", input="a", sampling_params={"temperature": 0.5}, max_new_tokens=1)


def test_two_sizes_of_the_pool_are_refused() -> None:
    from wellhead.config import EngineConfig
    from wellhead.errors import InvalidConfig

    with pytest.raises(InvalidConfig, match="max_total_tokens") as caught:
        EngineConfig(model_path="m", max_total_tokens=1024, mem_fraction_static=0.8)
    assert caught.value.param == "mem_fraction_static"
    assert EngineConfig(model_path="m", max_total_tokens=1024, mem_fraction_static=0.5)


def test_every_status_is_described() -> None:
    from wellhead.frontends.http.errors import STATUS
    from wellhead.frontends.http.schemas import operation

    for path in BODIES:
        assert {"405", "499", "500"} <= {str(s) for s in STATUS.values()} <= set(operation(path)["responses"])
