"""A JSON object from a file that somebody else wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wellhead.errors import ModelError

_LARGEST_JSON = 64 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Errors: ModelError naming the file."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelError(f"{path} is larger than {_LARGEST_JSON >> 20} MiB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"no such file: {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value
