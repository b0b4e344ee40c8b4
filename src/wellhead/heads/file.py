"""The head file: safetensors, with everything but the weights as JSON in its metadata. Nothing in it is executed.

``__metadata__["wellhead.head"]`` is one JSON object: ``format`` 1 and the fields of ``Head`` but ``tensors`` and ``version``. A
reader
refuses a format or a field that it does not know. ``version`` is a digest of the file's bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidHead, OutputFileError
from wellhead.heads.head import Head
from wellhead.types import widen

KEY = "wellhead.head"
FORMAT = 1
SUFFIX = ".head"
MOST_HEADER = 4 << 20
MOST_BYTES = 1 << 30
MOST_HEADS = 4096
_SAVED = tuple(f.name for f in fields(Head) if f.init and f.name not in ("tensors", "version"))
_NEEDED = ("name", "kind", "layers", "width", "labels")
_DTYPES: Mapping[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def encode(head: Head) -> bytes:
    """The bytes of the file. ``InvalidHead`` if its JSON is larger than a reader takes."""
    from safetensors.numpy import save as packed

    said = {"format": FORMAT, **{name: getattr(head, name) for name in _SAVED}}
    try:
        text = json.dumps(said, default=_plain, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidHead(f"head {head.name!r} cannot be written as JSON: {error}") from error
    if len(text) > MOST_HEADER // 2:
        raise InvalidHead(f"head {head.name!r}: {len(text)} bytes of facts; a head file holds at most {MOST_HEADER // 2}")
    tensors = {name: np.ascontiguousarray(t) for name, t in sorted(head.tensors.items())}
    return bytes(packed(tensors, metadata={KEY: text}))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def save(head: Head, path: Path) -> Path:
    body = encode(head)
    partial = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            partial = Path(file.name)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        if partial is not None:
            partial.unlink(missing_ok=True)
        raise OutputFileError(f"{path}: {error.strerror or error}") from error
    return path


def load(path: Path) -> Head:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise InvalidHead(f"{path}: {size} bytes; a head file has at most {MOST_BYTES}")
        with path.open("rb") as file:
            start = file.read(8)
            header = int.from_bytes(start, "little")
            if len(start) < 8 or header > MOST_HEADER or header > size - 8:
                raise InvalidHead(f"{path}: {_header_fault(len(start), header, size)}")
            body = start + file.read(MOST_BYTES)
    except OSError as error:
        raise InvalidHead(f"{path}: {error.strerror or error}") from error
    return decode(body, str(path))


def _header_fault(start: int, header: int, size: int) -> str:
    if start < 8 or header <= MOST_HEADER:
        return f"not a head file, or a torn one: it has {size} bytes and says {header} for its header"
    return f"a header of {header} bytes; a head file's has at most {MOST_HEADER}"


def decode(body: bytes, source: str = "the head") -> Head:
    """A head from the bytes of its file; ``source`` names it in errors. ``InvalidHead``."""
    header = int.from_bytes(body[:8], "little")
    if len(body) < 8 or header > MOST_HEADER or header > len(body) - 8:
        raise InvalidHead(f"{source}: {_header_fault(len(body), header, len(body))}")
    said = _facts(body[8 : 8 + header], source)
    try:
        head = Head(
            **{name: _frozen(name, said[name]) for name in _SAVED if name in said},
            tensors=_tensors(body, source),
            version=hashlib.sha256(body).hexdigest()[:16],
        )
    except InvalidHead as error:
        raise InvalidHead(f"{source}: {error.message}") from error
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise InvalidHead(f"{source}: its facts are not those of a head ({error})") from error
    return head


def _facts(header: bytes, source: str) -> dict[str, Any]:
    try:
        outer = json.loads(header, object_pairs_hook=_once)
        said = json.loads(outer["__metadata__"][KEY], object_pairs_hook=_once, parse_constant=_no_constant)
    except KeyError as error:
        raise InvalidHead(f"{source}: a safetensors file without {KEY!r} in its metadata is not a head file") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidHead(f"{source}: its header is not JSON of a head file ({error!s:.120})") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        found = said.get("format") if isinstance(said, dict) else said
        raise InvalidHead(f"{source}: format {found!r:.80}; this version reads format {FORMAT}")
    unknown = sorted(set(said) - {"format", *_SAVED})
    missing = [name for name in _NEEDED if name not in said]
    if unknown or missing:
        raise InvalidHead(f"{source}: {f'unknown field {unknown[0]!r:.80}' if unknown else f'field {missing[0]!r} is missing'}")
    return said


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r:.80} is there twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_LISTS = ("layers", "labels", "steps")
_OBJECTS = ("body", "thresholds", "metrics", "provenance")


def _frozen(name: str, value: Any) -> Any:
    """A field as ``Head`` has it; ``InvalidHead`` for another type."""
    if name in _LISTS:
        if not isinstance(value, list):
            raise InvalidHead(f"{name} must be a list, not {value!r:.80}")
        return tuple(value)
    if name in _OBJECTS and not isinstance(value, dict):
        raise InvalidHead(f"{name} must be an object, not {value!r:.80}")
    return value


def _tensors(body: bytes, source: str) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError, deserialize

    try:
        found = deserialize(body)  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError) as error:
        raise InvalidHead(f"{source}: torn or not safetensors: {error}") from error
    tensors = {}
    for name, facts in found:
        dtype = _DTYPES.get(facts["dtype"])
        if dtype is None:
            raise InvalidHead(f"{source}: tensor {name!r:.80} is {facts['dtype']}; weights are {', '.join(_DTYPES)}")
        values = np.frombuffer(facts["data"], dtype).reshape(facts["shape"])
        tensors[name] = widen(values, "bfloat16") if facts["dtype"] == "BF16" else values
    return tensors


def load_all(paths: Iterable[str | Path]) -> dict[str, Head]:
    """Heads by name, from files and from folders (every ``*.head`` in one, in order of names).

    ``InvalidHead`` for a folder without heads, or a name that is there twice: nothing is loaded then.
    """
    found: dict[str, Head] = {}
    places: dict[str, Path] = {}
    for path in map(Path, paths):
        files = sorted(p for p in path.iterdir() if p.suffix == SUFFIX) if path.is_dir() else [path]
        if not files:
            raise InvalidHead(f"{path}: no *{SUFFIX} file in this folder")
        for file in files:
            head = load(file)
            if head.name in found:
                raise InvalidHead(f"two heads are named {head.name!r}: {places[head.name]} and {file}")
            if len(found) == MOST_HEADS:
                raise InvalidHead(f"more than {MOST_HEADS} heads")
            found[head.name], places[head.name] = head, file
    return found
