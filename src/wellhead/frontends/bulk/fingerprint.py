"""What identifies the model that a run's vectors come from."""

from __future__ import annotations

from typing import Any

from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.work.opening import open_source
from wellhead.models.identity import file_facts


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
