"""One table from codes to statuses, complete; two shapes of error bodies."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from support.live import LiveServer
from wellhead import errors
from wellhead.errors import WellheadError
from wellhead.frontends.http.errors import RETRY_AFTER, STATUS, headers_of, native_body, openai_body, status_of


def all_errors() -> list[type[WellheadError]]:
    found = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, WellheadError)}
    return sorted(found, key=lambda kind: kind.code)


def test_the_table_has_every_code_and_no_other() -> None:
    codes = [kind.code for kind in all_errors()]
    assert len(set(codes)) == len(codes)
    assert set(codes) == set(STATUS)
    assert set(RETRY_AFTER) <= set(STATUS)


def test_every_error_is_in_the_one_tree() -> None:
    names, strays = {kind.__name__ for kind in all_errors()}, []
    for path in Path(errors.__file__).parent.rglob("*.py"):
        classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        if path != Path(errors.__file__):
            strays += [node.name for node in classes if names & {ast.unparse(base).split(".")[-1] for base in node.bases}]
    assert strays == []


@pytest.mark.parametrize("kind", all_errors(), ids=lambda k: k.code)
def test_what_the_caller_can_mend_is_a_4xx(kind: type[WellheadError]) -> None:
    error = kind("what went wrong", param="text")
    if issubclass(kind, errors.InvalidRequest):
        assert 400 <= status_of(error) < 500
    assert native_body(error) == {"error": {"message": "what went wrong", "code": kind.code, "param": "text"}}
    assert set(openai_body(error)["error"]) == {"message", "type", "param", "code"}
    assert ("Retry-After" in headers_of(error)) is (status_of(error) == 503)


@pytest.mark.parametrize(
    ("path", "keys"), [("/generate", {"message", "code", "param"}), ("/v1/completions", {"message", "code", "param", "type"})]
)
def test_each_family_of_routes_has_its_own_body(shared: LiveServer, path: str, keys: set[str]) -> None:
    assert set(shared.refused(path, nonsense=1)) == keys


def test_a_path_or_method_that_is_not_served(shared: LiveServer) -> None:
    assert shared.http.get("/nowhere").json()["error"]["code"] == "not_found"
    answer = shared.http.get("/generate")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert "//health" in shared.http.get(f"{shared.url}//health").json()["error"]["message"]
    assert "type" in shared.http.get("/v1/nowhere").json()["error"]
