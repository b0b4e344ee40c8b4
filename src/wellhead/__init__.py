"""Wellhead: an LLM serving engine whose first-class output is hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wellhead.errors import WellheadError
from wellhead.types import CaptureMode, HiddenStates, Pooling, SamplingParams

if TYPE_CHECKING:
    from wellhead.frontends.engine import Engine

__version__ = "0.1.0"
__all__ = ["CaptureMode", "Engine", "HiddenStates", "Pooling", "SamplingParams", "WellheadError", "__version__"]


def __getattr__(name: str) -> Any:
    """``Engine`` is imported when it is used: it needs torch, and the client and the types do not."""
    if name == "Engine":
        from wellhead.frontends.engine import Engine

        return Engine
    raise AttributeError(f"module 'wellhead' has no attribute {name!r}")
