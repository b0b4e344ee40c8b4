"""From what the user calls a model to a folder or file on disk, and from there to its spec."""

from __future__ import annotations

import os
from pathlib import Path

from wellhead.errors import ModelError, WeightsError
from wellhead.models.json_file import read_json
from wellhead.models.registry import spec_from_config
from wellhead.models.spec import ModelSpec

# Never *.bin (pickle) and never *.py (remote code).
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.tiktoken", "merges.txt", "vocab.txt"]


def locate(model_path: str | os.PathLike[str]) -> Path:
    """A folder with ``config.json`` (or at least ``tokenizer.json``), or a ``.gguf`` file.

    A folder that holds a single GGUF file and no config means that file. What is neither file nor folder is taken
    for a hub id and fetched (never pickles, never code). Errors: ModelError, saying what was tried.
    """
    path = Path(model_path).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is a file, but not a .gguf file; give a folder with config.json, a .gguf file or a hub id")
        return path
    if path.is_dir():
        return _inside(path)
    name = os.fspath(model_path)
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith((".gguf", "/")):
        raise ModelError(f"no such file or folder: {name} (and it does not look like a hub id, ORGANISATION/NAME)")
    return _inside(_download(name))


def load_spec(path: Path) -> ModelSpec:
    """The spec of a located model, of either kind. Errors: ModelError, UnsupportedModel, WeightsError."""
    if path.is_file():
        from wellhead.models.gguf import gguf_spec

        return gguf_spec(path)
    config = read_json(path / "config.json")
    generation = path / "generation_config.json"
    if not (config.get("dtype") or config.get("torch_dtype") or (config.get("text_config") or {}).get("dtype")):
        from wellhead.models.weights import checkpoint_dtype

        config["dtype"] = checkpoint_dtype(path)
    return spec_from_config(config, read_json(generation) if generation.exists() else None)


def _inside(folder: Path) -> Path:
    if (folder / "config.json").exists() or (folder / "tokenizer.json").exists():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise WeightsError(f"{folder} holds {len(files)} .gguf files and no config.json; name one of them")
    raise ModelError(f"{folder} holds neither config.json nor a .gguf file")


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelError(f"no such folder: {name}; to fetch it from the hub, install huggingface_hub") from None
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:  # offline, unknown, gated, disk full: all one to the caller
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"no folder {name} here, and fetching {name} from the hub failed: {reason}") from error
