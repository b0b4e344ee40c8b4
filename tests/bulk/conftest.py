from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.bulk import TEXTS, write_jsonl
from wellhead.frontends.engine import Engine


@pytest.fixture(scope="session")
def model(family: Callable[..., Path]) -> Path:
    return family("llama")


@pytest.fixture(scope="session")
def reference(model: Path) -> Iterator[Engine]:
    """An engine to hold vectors against."""
    with Engine(
        str(model), return_hidden_states_mode="full", capture_layers=[0, 2, -1, "L:pre_norm"], max_total_tokens=4096
    ) as engine:
        yield engine


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """``TEXTS`` with ids and labels."""
    return write_jsonl(tmp_path / "in.jsonl", [{"text": t, "id": f"k{i}", "label": i % 3} for i, t in enumerate(TEXTS)])
