"""The real models, fetched once, and tiny ones written where a test wants them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import TINY  # type: ignore[import-not-found]

import assets
from wellhead.models.names import expected_tensors
from wellhead.models.registry import spec_from_config


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return assets.fetch_smollm2()


@pytest.fixture(scope="session")
def gemma_gguf() -> Path:
    return assets.fetch_gemma3_270m()


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a random model: ``tiny_folder(changes, tensors=edit)``, where ``edit`` may change the dict of tensors."""

    def write(changes: dict[str, Any] | None = None, tensors: Callable[[dict[str, torch.Tensor]], None] | None = None) -> Path:
        config = {**TINY, **(changes or {})}
        generator = torch.Generator().manual_seed(0)
        shapes = expected_tensors(spec_from_config(config))
        found = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        if tensors is not None:
            tensors(found)
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(found, tmp_path / "model.safetensors")
        return tmp_path

    return write
