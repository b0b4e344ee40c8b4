"""A Ray cluster of two small nodes on loopback, started once; everything of it is gone when the tests are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import SMALL

ray = pytest.importorskip("ray")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """``ray.cluster_utils.Cluster`` of two nodes with one CPU each; this process is connected to it."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        made = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
        made.add_node(**SMALL)
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.fixture(scope="session")
def model(family: Callable[..., Path]) -> Path:
    return family("llama")
