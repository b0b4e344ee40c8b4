from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.live import LiveServer, add_chat_template
from support.tasks import write_scored


@pytest.fixture(scope="session")
def chat_model(family: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with a chat template."""
    return add_chat_template(Path(shutil.copytree(family("llama"), tmp_path_factory.mktemp("chat") / "tiny")))


@pytest.fixture
def live(chat_model: Path) -> Iterator[Callable[..., LiveServer]]:
    """``live(options={...}, **engine options)``: a server of one's own."""
    made: list[LiveServer] = []

    def make(options: dict[str, Any] | None = None, **engine: Any) -> LiveServer:
        made.append(LiveServer(chat_model, options, **engine))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(scope="session")
def _shared(chat_model: Path) -> Iterator[LiveServer]:
    server = LiveServer(chat_model)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A model with one label, which scores pairs as well."""
    folder = write_scored("llama", tmp_path_factory.mktemp("scoring") / "tiny", num_labels=1)
    (folder / "config.json").write_text(
        json.dumps({**json.loads((folder / "config.json").read_text()), "sentence_transformers": {"version": "6.2.0"}})
    )
    server = LiveServer(add_chat_template(folder))
    yield server
    server.stop()


@pytest.fixture
def scoring(_scoring: LiveServer) -> Iterator[LiveServer]:
    """The same of a model that labels texts and scores pairs."""
    yield _scoring
    _scoring.check_all_given_back()


@pytest.fixture
def serving(request: pytest.FixtureRequest) -> Callable[[str], LiveServer]:
    """``serving(place)``: the server whose model is for what that endpoint is asked."""
    return lambda place: request.getfixturevalue("scoring" if place in ("classify", "rerank", "score") else "shared")


@pytest.fixture
def shared(_shared: LiveServer) -> Iterator[LiveServer]:
    """A server that all tests of this folder share; after each of them nothing of it may be left in the engine."""
    yield _shared
    _shared.check_all_given_back()
