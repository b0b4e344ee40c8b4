"""Weights on disk -> tensors by Hugging Face's names; strict, from the headers alone, before any is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import TracebackType
from typing import Any, Protocol, Self, cast

import torch
from safetensors import SafetensorError, safe_open

from wellhead.errors import UnsupportedModel, WeightsError
from wellhead.models.json_file import read_json
from wellhead.models.names import EMBEDDING, HEAD, expected_tensors
from wellhead.models.spec import ModelSpec
from wellhead.types import DType

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DTYPES: dict[str, DType] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_HARMLESS = re.compile(r"(^|\.)rotary_emb\.inv_freq$")  # a buffer that old checkpoints saved


class Handle(Protocol):
    """What we use of safetensors' ``safe_open``."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> Any: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


class WeightSource(Protocol):
    """Tensors by Hugging Face's names, read when asked for.

    ``spec`` is the spec as the weights bear it out: ``tied_head`` may have changed (see ``open_weights``).
    A source may be used as a context manager; closing it does not invalidate tensors already handed out.
    """

    @property
    def spec(self) -> ModelSpec:
        """The spec that these weights fit."""

    def names(self) -> tuple[str, ...]:
        """The names that ``get`` knows: exactly ``expected_tensors(self.spec)``."""

    def get(self, name: str) -> torch.Tensor:
        """One tensor on the CPU, contiguous, in the checkpoint's dtype; it may be a view of the mapped file.

        Do not write into it. Errors: WeightsError for a name that is not in ``names()``.
        """

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        """``get(name)`` from ``first`` to ``end - 1`` along ``axis`` (0 or 1), reading no more where the format allows it."""

    def close(self) -> None:
        """Let go of the files."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def open_weights(path: Path, spec: ModelSpec) -> WeightSource:
    """Open a folder of safetensors or a ``.gguf`` file and hold its headers against ``spec``.

    Tied and untied heads, as transformers does it:

    ==========  =================  ============================================================
    config      head in the file   result
    ==========  =================  ============================================================
    tied        absent             the embedding is the head
    tied        equal              the embedding is the head; the second copy is not read again
    tied        different          not tied: the file wins, ``source.spec.tied_head`` is False
    tied        only the head      the head is the embedding
    untied      present            two matrices, even when they are equal
    untied      absent             WeightsError
    no head     present            WeightsError
    ==========  =================  ============================================================

    *No head*: architectures such as ``Qwen3Model``, which ``AutoModel.save_pretrained`` writes.

    Errors: WeightsError naming file and tensor, for a tensor that is missing, left over, misshapen, or there twice;
    for a shard that is missing, outside the folder, or at odds with the index; for a torn or hostile header; for
    a folder with nothing but pickles. UnsupportedModel for a dtype other than float32, bfloat16, float16.
    """
    if path.is_file():
        from wellhead.models.gguf import GGUFWeights

        return GGUFWeights(path, spec)
    return SafetensorsWeights(path, spec)


def checkpoint_dtype(folder: Path) -> DType:
    """The dtype of the first floating-point tensor, for a config that names none. Errors: as ``open_weights``."""
    for file in shards(folder):
        handle = open_shard(file)
        for name in handle.keys():  # noqa: SIM118 - not a dict
            dtype = handle.get_slice(name).get_dtype()
            if dtype in _DTYPES:
                return _DTYPES[dtype]
    return "float32"


class SafetensorsWeights:
    """One ``model.safetensors``, or the shards of ``model.safetensors.index.json``, mapped into memory."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self._folder = folder
        self._handles: dict[Path, Handle] = {}
        self._where: dict[str, tuple[Path, str]] = {}
        for file, listed in shards(folder).items():
            self._handles[file] = open_shard(file)
            self._list(file, listed, spec)
        self._check_names(spec)
        self._check_shapes(spec)
        self.spec = self._settle_head(spec)

    def names(self) -> tuple[str, ...]:
        return tuple(expected_tensors(self.spec))

    def get(self, name: str) -> torch.Tensor:
        return self._read(name, lambda handle, stored: handle.get_tensor(stored))

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        index = (slice(None),) * axis + (slice(first, end),)
        return self._read(name, lambda handle, stored: cast(torch.Tensor, handle.get_slice(stored)[index]))

    def _read(self, name: str, how: Callable[[Handle, str], torch.Tensor]) -> torch.Tensor:
        if name not in self._where:
            raise WeightsError(f"{self._folder}: no tensor {name}")
        file, stored = self._where[name]
        try:
            return how(self._handles[file], stored)
        except (SafetensorError, OSError, KeyError) as error:
            raise WeightsError(f"{file}: tensor {stored} cannot be read: {error}") from error

    def close(self) -> None:
        self._handles.clear()
        self._where.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _list(self, file: Path, listed: set[str] | None, spec: ModelSpec) -> None:
        """Enter one file's tensors; ``listed`` is what the index says is in it."""
        stored = list(self._handles[file].keys())
        if listed is not None and set(stored) != listed:
            for name in sorted(listed - set(stored)):
                raise WeightsError(f"{file}: tensor {name} is missing; {_INDEX} says it is there")
            raise WeightsError(f"{file}: tensor {min(set(stored) - listed)} is not in {_INDEX}, or there for another file")
        for name in stored:
            ours = canonical_name(name, spec.architecture)
            if ours is None or _HARMLESS.search(ours):
                continue
            if ours in self._where:
                raise WeightsError(f"{file}: tensor {name} is there twice; also in {self._where[ours][0].name}")
            self._where[ours] = (file, name)

    def _check_names(self, spec: ModelSpec) -> None:
        expected = expected_tensors(spec)
        if spec.tied_head and HEAD in self._where and EMBEDDING not in self._where:
            self._where[EMBEDDING] = self._where[HEAD]
        missing = [name for name in expected if name not in self._where]
        if missing:
            hint = "; a model without its LM head says so by its architectures, such as LlamaModel" if missing == [HEAD] else ""
            raise WeightsError(f"{self._folder}: tensor {missing[0]} is missing{_and_more(missing)}{hint}")
        left = [name for name in self._where if name not in expected and not (spec.tied_head and name == HEAD)]
        if left:
            file = self._where[left[0]][0]
            raise WeightsError(f"{file}: tensor {left[0]} is left over: {spec.architecture} has none such{_and_more(left)}")

    def _check_shapes(self, spec: ModelSpec) -> None:
        expected = {**expected_tensors(spec), HEAD: (spec.vocab_size, spec.hidden_size)}
        for name, (file, stored) in self._where.items():
            header = self._handles[file].get_slice(stored)
            shape, dtype = tuple(header.get_shape()), header.get_dtype()
            if shape != expected[name]:
                raise WeightsError(f"{file}: tensor {stored} is {list(shape)}, the config asks for {list(expected[name])}")
            if dtype not in _DTYPES:
                raise UnsupportedModel(f"{file}: tensor {stored} has dtype {dtype}; supported: {', '.join(_DTYPES)}")

    def _settle_head(self, spec: ModelSpec) -> ModelSpec:
        if not spec.tied_head or HEAD not in self._where:
            return spec
        if self._where[HEAD] == self._where[EMBEDDING] or torch.equal(self.get(HEAD), self.get(EMBEDDING)):
            del self._where[HEAD]
            return spec
        return replace(spec, tied_head=False)


def canonical_name(name: str, architecture: str) -> str | None:
    """A stored name as the decoder asks for it; ``None`` for the tensors of an image tower.

    Models with images keep the language model under a prefix (two layouts are in use); models saved without their
    head lack the prefix ``model.``.
    """
    if architecture in ("Gemma3ForConditionalGeneration", "Gemma3Model"):
        parts = name.removeprefix("model.").split(".")
        if parts[0] in ("vision_tower", "multi_modal_projector"):
            return None
        name = name.removeprefix("model.language_model.") if name.startswith("model.language_model.") else name
        name = name.removeprefix("language_model.")
    if name.startswith(("embed_tokens.", "layers.", "norm.")):
        return f"model.{name}"
    return name


def shards(folder: Path) -> dict[Path, set[str] | None]:
    """The files to read, each with the tensors that the index puts there (``None`` without an index)."""
    if (folder / _SINGLE).exists():
        return {folder / _SINGLE: None}
    if not (folder / _INDEX).exists():
        pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
        found = f"; {pickles[0].name} is a pickle, which could run code: convert it to safetensors" if pickles else ""
        raise WeightsError(f"{folder} holds neither {_SINGLE} nor {_INDEX}{found}")
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise WeightsError(f"{folder / _INDEX} has no weight_map")
    shards: dict[Path, set[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _stays_inside(file):
            raise WeightsError(f"{folder / _INDEX}: tensor {name} is said to be in {file!r}, which is not a file of this folder")
        listed = shards.setdefault(folder / file, set())
        assert listed is not None
        listed.add(name)
    for path in shards:
        if not path.is_file():
            raise WeightsError(f"{path} is missing; {_INDEX} names it")
    return dict(sorted(shards.items()))


def _stays_inside(file: str) -> bool:
    posix, windows = PurePosixPath(file), PureWindowsPath(file)
    outside = posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts or "\0" in file
    return not outside and posix.suffix == ".safetensors"


def open_shard(file: Path) -> Handle:
    try:
        return cast(Handle, safe_open(str(file), framework="pt", device="cpu"))
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{file} is not a whole safetensors file: {error}") from error


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
