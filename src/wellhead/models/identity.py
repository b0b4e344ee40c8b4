"""What tells one model from another without reading all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from wellhead.models.locate import locate

#: Read of a weights file: its first and last bytes, and the beginning of every ``_STRIDE`` between them. The header, with
#: names and shapes, is among the first; a fine-tuned copy differs in every stride that holds a matrix it has changed.
_EDGE = 1 << 20
_STRIDE = 1 << 20
_SAMPLE = 4096
_WHOLE = (".json", ".jinja", ".model", ".txt")


def file_facts(paths: list[str]) -> dict[str, Any]:
    """Names, sizes and digests of the files of a model's folder (or of the one file), and of its tokenizer's where that is
    another. Raises ``ModelError``."""
    facts: dict[str, Any] = {}
    for path in map(locate, paths):
        files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in (*_WHOLE, ".safetensors"))
        for file in files:
            digest = _whole(file) if file.suffix in _WHOLE else _sampled(file)
            facts[file.name if file.name not in facts else f"tokenizer/{file.name}"] = [file.stat().st_size, digest]
    return facts


def _whole(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sampled(path: Path) -> str:
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        digest.update(file.read(_EDGE))
        for at in range(_EDGE, size, _STRIDE):
            file.seek(at)
            digest.update(file.read(_SAMPLE))
        file.seek(max(0, size - _EDGE))
        digest.update(file.read(_EDGE))
    return digest.hexdigest()
