"""Fixtures of the engine's tests. An engine that a test was given is checked and shut down when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wellhead.frontends.engine import Engine


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``family(name, **config changes)``: the folder of a tiny checkpoint, written once per session."""
    from support.families import write_family

    root, made = tmp_path_factory.mktemp("families"), dict[str, Path]()

    def get(name: str, **changes: Any) -> Path:
        label = "-".join([name, *(f"{k}={v}" for k, v in sorted(changes.items()))])
        if label not in made:
            made[label] = write_family(name, root / str(len(made)), **changes)
        return made[label]

    return get


@pytest.fixture
def engine(family: Callable[..., Path]) -> Iterator[Callable[..., Engine]]:
    """``engine(model="llama", **options)``: an engine on its thread, with poisoned pages."""
    from support.poison import PoisonedRunner

    made: list[Engine] = []

    def make(model: str | Path = "llama", **options: Any) -> Engine:
        folder = family(model) if isinstance(model, str) else model
        defaults: dict[str, Any] = {
            "return_hidden_states_mode": "full", "native_kernels": True, "max_total_tokens": 4096, "page_size": 16,
        }  # fmt: skip
        new = Engine(model_path=str(folder), **{**defaults, **options})
        made.append(new)
        new.loop.call(PoisonedRunner).result()
        return new

    yield make
    for one in made:
        if one.loop.healthy:
            one.check_integrity()
        one.shutdown()
        one.assembled.core.check_integrity()


@pytest.fixture
def direct(family: Callable[..., Path]) -> Iterator[Callable[..., Any]]:
    """``direct(model="llama", **options)``: an engine without a thread (``support.direct.Direct``)."""
    from support.direct import Direct

    made: list[Direct] = []

    def make(model: str | Path = "llama", **options: Any) -> Direct:
        made.append(Direct(family(model) if isinstance(model, str) else model, **options))
        return made[-1]

    yield make
    for one in made:
        one.made.close()
        one.core.check_integrity()
