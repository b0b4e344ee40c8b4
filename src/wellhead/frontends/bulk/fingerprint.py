"""What tells one model from another without reading all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from wellhead.frontends.bulk.files import sha256
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.work.opening import open_source
from wellhead.models.locate import locate

#: Read of a weights file: its first and last bytes, and the beginning of every ``_STRIDE`` between them. The header, with
#: names and shapes, is among the first; a fine-tuned copy differs in every stride that holds a matrix it has changed.
_EDGE = 1 << 20
_STRIDE = 1 << 20
_SAMPLE = 4096
_WHOLE = (".json", ".jinja", ".model", ".txt")


def model_facts(options: Options) -> dict[str, Any]:
    """Names, sizes and digests of a model's files (and its tokenizer's, if that is another); of a server what it says.

    Raises ``ModelError``, or what keeps the server from answering.
    """
    if options.url is not None:
        with open_source(options) as server:
            return {"server": server.facts()}
    paths = [options.engine["model_path"]]
    if options.engine.get("tokenizer_path"):
        paths.append(options.engine["tokenizer_path"])
    return file_facts(paths)


def file_facts(paths: list[str]) -> dict[str, Any]:
    """The same of a model's folder or file, and of its tokenizer's where that is another."""
    facts: dict[str, Any] = {}
    for path in map(locate, paths):
        files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in (*_WHOLE, ".safetensors"))
        for file in files:
            digest = sha256(file) if file.suffix in _WHOLE else _sampled(file)
            facts[file.name if file.name not in facts else f"tokenizer/{file.name}"] = [file.stat().st_size, digest]
    return facts


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
