"""What makes two manifests' headers, or two engines, different jobs."""

from __future__ import annotations

import json
from typing import Any

#: What must be the same for a job to be gone on with.
COMPARED = ("options", "input", "model", "engine", "columns")
#: Of a file: what may differ in a copy of it.
_CIRCUMSTANCES = ("mtime_ns",)


def differences(old: dict[str, Any], new: dict[str, Any], names: tuple[str, ...] = COMPARED) -> list[str]:
    """What makes two headers different jobs, as ``name: was old, is new``."""
    found: list[str] = []
    for name in names:
        _compare(name, old.get(name), new.get(name), found)
    return found


def _compare(name: str, old: Any, new: Any, found: list[str]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            if key not in _CIRCUMSTANCES:
                _compare(f"{name}.{key}", old.get(key), new.get(key), found)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            _compare(f"{name}[{i}]", a, b, found)
    elif old != new:
        found.append(f"{name}: was {_short(old)}, is {_short(new)}")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."
