"""Wellhead: an LLM serving engine whose first-class output is hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wellhead.errors import WellheadError
from wellhead.types import CaptureMode, HiddenStates, Pooling, SamplingParams

if TYPE_CHECKING:
    from wellhead.frontends.engine import Engine
    from wellhead.heads.fit.texts import fit
    from wellhead.heads.head import Head

__version__ = "0.1.0"
__all__ = ["CaptureMode", "Engine", "Head", "HiddenStates", "Pooling", "SamplingParams", "WellheadError", "__version__", "fit"]


def __getattr__(name: str) -> Any:
    """Imported when they are used: ``Engine`` needs torch, and the client and the types do not."""
    if name == "Engine":
        from wellhead.frontends.engine import Engine

        return Engine
    if name == "Head":
        from wellhead.heads.head import Head

        return Head
    if name == "fit":
        from wellhead.heads.fit.texts import fit

        return fit
    raise AttributeError(f"module 'wellhead' has no attribute {name!r}")
