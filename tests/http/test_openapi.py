"""The OpenAPI page: every endpoint is there, and every example works when it is pasted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.live import LiveServer
from wellhead.frontends.http.app import ROUTES
from wellhead.frontends.http.schemas import BODIES, PLACES


def test_docs_and_schema_are_served(shared: LiveServer) -> None:
    assert "swagger" in shared.http.get("/docs").text.lower()
    schema = shared.http.get("/openapi.json").json()
    assert set(schema["paths"]) == {path.replace("{model:path}", "{model}") for path in ROUTES if not path.startswith("/get_")}
    for operations in schema["paths"].values():
        for operation in operations.values():
            assert operation["description"]
            assert "503" in operation["responses"]


@pytest.mark.parametrize("path", BODIES)
def test_the_example_works(serving: Callable[[str], LiveServer], path: str) -> None:
    shared = serving(PLACES[path])
    example: dict[str, Any] = BODIES[path]["requestBody"]["content"]["application/json"]["example"]
    assert shared.ok(path, **example)


def test_every_known_field_of_a_schema_is_known_to_its_route(serving: Callable[[str], LiveServer]) -> None:
    for path, extra in BODIES.items():
        shared = serving(PLACES[path])
        content = extra["requestBody"]["content"]["application/json"]
        for name in content["schema"]["properties"]:
            answer = shared.post(path, **{**content["example"], name: {"no": "such value"}})
            if answer.status_code != 200:
                assert not answer.json()["error"]["message"].startswith(f"unknown field {name!r}"), f"{path}: {name}"
