"""Wellhead: an LLM serving engine whose first-class output is hidden states."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wellhead._version import __version__
from wellhead.errors import (
    BatchTooLarge,
    BodyTooLarge,
    BodyTooSlow,
    BuildFailed,
    CacheBusy,
    CaptureAboveCeiling,
    CaptureDisabled,
    ClientGone,
    EmptyPrompt,
    EngineClosed,
    HeadNotFound,
    HeadUploadDisabled,
    InputFileError,
    InternalError,
    InvalidConfig,
    InvalidHead,
    InvalidRequest,
    MethodNotAllowed,
    ModelError,
    ModelNotFound,
    NoLMHead,
    NonFinite,
    NotAcceptable,
    NotFound,
    OutputFileError,
    Overloaded,
    PromptTooLong,
    RankDied,
    RequestAborted,
    RequestTimeout,
    RequestTooLarge,
    RowOutOfRange,
    ServerUnreachable,
    TaskNotServed,
    TokenizerError,
    TokenOutOfRange,
    TooManyLogprobs,
    Unauthorized,
    UnsupportedField,
    UnsupportedModel,
    WeightsError,
    WellheadError,
)
from wellhead.types import CaptureMode, HiddenStates, Pooling, Read, Rows, SamplingParams

if TYPE_CHECKING:
    from wellhead.client import AsyncClient, Client, Retry
    from wellhead.frontends.engine import Engine
    from wellhead.heads.fit.texts import fit
    from wellhead.heads.head import Head

__all__ = [
    "AsyncClient",
    "BatchTooLarge",
    "BodyTooLarge",
    "BodyTooSlow",
    "BuildFailed",
    "CacheBusy",
    "CaptureAboveCeiling",
    "CaptureDisabled",
    "CaptureMode",
    "Client",
    "ClientGone",
    "EmptyPrompt",
    "Engine",
    "EngineClosed",
    "Head",
    "HeadNotFound",
    "HeadUploadDisabled",
    "HiddenStates",
    "InputFileError",
    "InternalError",
    "InvalidConfig",
    "InvalidHead",
    "InvalidRequest",
    "MethodNotAllowed",
    "ModelError",
    "ModelNotFound",
    "NoLMHead",
    "NonFinite",
    "NotAcceptable",
    "NotFound",
    "OutputFileError",
    "Overloaded",
    "Pooling",
    "PromptTooLong",
    "RankDied",
    "Read",
    "RequestAborted",
    "RequestTimeout",
    "RequestTooLarge",
    "Retry",
    "RowOutOfRange",
    "Rows",
    "SamplingParams",
    "ServerUnreachable",
    "TaskNotServed",
    "TokenOutOfRange",
    "TokenizerError",
    "TooManyLogprobs",
    "Unauthorized",
    "UnsupportedField",
    "UnsupportedModel",
    "WeightsError",
    "WellheadError",
    "__version__",
    "fit",
]

#: Imported when they are used: ``Engine`` needs torch, the client httpx, and the types and errors neither.
_LATER = {
    "AsyncClient": "wellhead.client",
    "Client": "wellhead.client",
    "Engine": "wellhead.frontends.engine",
    "Head": "wellhead.heads.head",
    "Retry": "wellhead.client",
    "fit": "wellhead.heads.fit.texts",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'wellhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
