from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.live import LiveServer, add_chat_template


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


@pytest.fixture
def shared(_shared: LiveServer) -> Iterator[LiveServer]:
    """A server that all tests of this folder share; after each of them nothing of it may be left in the engine."""
    yield _shared
    _shared.check_all_given_back()
