"""Wellhead: an LLM serving engine whose first-class output is hidden states."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wellhead._version import __version__
from wellhead.errors import (
    CaptureAboveCeiling,
    CaptureDisabled,
    EmptyPrompt,
    EngineClosed,
    InputFileError,
    InternalError,
    InvalidConfig,
    InvalidRequest,
    ModelError,
    NonFinite,
    OutputFileError,
    Overloaded,
    PromptTooLong,
    RankDied,
    RequestAborted,
    RequestTimeout,
    TokenizerError,
    TokenOutOfRange,
    UnsupportedField,
    UnsupportedModel,
    WeightsError,
    WellheadError,
)
from wellhead.types import CaptureMode, HiddenStates, Pooling, SamplingParams

if TYPE_CHECKING:
    from wellhead.client import AsyncClient, Client, Retry, ServerUnreachable
    from wellhead.frontends.engine import Engine

__all__ = [
    "AsyncClient",
    "CaptureAboveCeiling",
    "CaptureDisabled",
    "CaptureMode",
    "Client",
    "EmptyPrompt",
    "Engine",
    "EngineClosed",
    "HiddenStates",
    "InputFileError",
    "InternalError",
    "InvalidConfig",
    "InvalidRequest",
    "ModelError",
    "NonFinite",
    "OutputFileError",
    "Overloaded",
    "Pooling",
    "PromptTooLong",
    "RankDied",
    "RequestAborted",
    "RequestTimeout",
    "Retry",
    "SamplingParams",
    "ServerUnreachable",
    "TokenOutOfRange",
    "TokenizerError",
    "UnsupportedField",
    "UnsupportedModel",
    "WeightsError",
    "WellheadError",
    "__version__",
]

#: Imported when they are used: ``Engine`` needs torch, the client httpx, and the types and errors neither.
_LATER = {
    "AsyncClient": "wellhead.client",
    "Client": "wellhead.client",
    "Engine": "wellhead.frontends.engine",
    "Retry": "wellhead.client",
    "ServerUnreachable": "wellhead.client",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'wellhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
