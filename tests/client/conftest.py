"""A live server for the client's tests, and a scripted one that misbehaves on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.flaky import FlakyServer
from support.live import LiveServer


@pytest.fixture(scope="module")
def server(family: Callable[..., Path]) -> Iterator[LiveServer]:
    live = LiveServer(family("llama"), {"max_batch_size": 16}, capture_layers=[0, 2, -1])
    yield live
    live.check_all_given_back()
    live.stop()


@pytest.fixture
def flaky() -> Iterator[Callable[..., FlakyServer]]:
    """``flaky(*actions)``: a server that carries out one action per request, and the last one for ever."""
    made: list[FlakyServer] = []

    def make(*actions: object) -> FlakyServer:
        made.append(FlakyServer(*actions))
        return made[-1]

    yield make
    for one in made:
        one.stop()
