"""The weights of a model's own heads, for whoever computes scores out of rows: float32 arrays, rounded as the model is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wellhead.errors import WeightsError
from wellhead.models.names import EMBEDDING, HEAD
from wellhead.models.sentence import DenseSpec
from wellhead.models.spec import ModelSpec
from wellhead.models.task import Task
from wellhead.models.tensors import score_tensors
from wellhead.models.weights import open_shard, open_weights

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """``weight`` float32 ``[out, in]``, ``bias`` float32 ``[out]`` or ``None``."""

    weight: Array
    bias: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Brought:
    """``score``: the matrices of the checkpoint's own head, ReLU between them. ``verdict``: rows of the LM head, ``[1 or 2, H]``:
    that of yes, and that of no. ``dense``: in the order of the task's dense layers, each with its residual's or ``None``."""

    score: tuple[Matrix, ...] = ()
    verdict: Array | None = None
    dense: tuple[tuple[Matrix, Array | None], ...] = ()


def load_brought(path: Path, spec: ModelSpec, task: Task, verdict: tuple[int, ...], dtype: torch.dtype) -> Brought:
    """``spec``: as the weights bear it out. ``verdict``: the token ids of yes and no. Heads are rounded to ``dtype``, as the
    model is; dense layers stay in float32. Errors: WeightsError."""
    if spec.score is None and not verdict and (task.embedding is None or not any(task.embedding.steps)):
        return Brought()
    if any(i >= spec.vocab_size for i in verdict):
        raise WeightsError(f"{path}: the verdict's token {max(verdict)} is outside the vocabulary of {spec.vocab_size}")
    score: tuple[Matrix, ...] = ()
    rows = None
    if spec.score is not None or verdict:
        with open_weights(path, spec) as weights:
            score = _score(spec, lambda name: _rounded(weights.get(name), dtype))
            if verdict:
                name = HEAD if weights.spec.has_head and not weights.spec.tied_head else EMBEDDING
                rows = np.concatenate([_rounded(weights.part(name, 0, i, i + 1), dtype) for i in verdict])
    steps = task.embedding.steps if task.embedding is not None else ()
    return Brought(score, rows, tuple(_dense(path, step) for step in steps if step is not None))


def _score(spec: ModelSpec, get: Any) -> tuple[Matrix, ...]:
    tensors = list(score_tensors(spec))
    biases = {t.role: t.name for t in tensors if t.kind == "bias"}
    return tuple(Matrix(get(t.name), get(biases[t.role]) if t.role in biases else None) for t in tensors if t.kind == "matrix")


def _rounded(weight: torch.Tensor, dtype: torch.dtype) -> Array:
    return weight.to(dtype).float().numpy()


def _dense(path: Path, spec: DenseSpec) -> tuple[Matrix, Array | None]:
    file = path / spec.path / "model.safetensors"
    if not file.is_file():
        raise WeightsError(f"{file} is missing; a pickle in its place could run code: convert it to safetensors")
    expected: dict[str, tuple[int, ...]] = {"linear.weight": (spec.out, spec.into)}
    if spec.bias:
        expected["linear.bias"] = (spec.out,)
    if spec.residual and spec.into != spec.out:
        expected["residual.weight"] = (spec.out, spec.into)
    handle, found = open_shard(file), dict[str, Array]()
    if set(handle.keys()) != set(expected):
        raise WeightsError(f"{file} holds {', '.join(sorted(handle.keys()))}; its config asks for {', '.join(sorted(expected))}")
    for name, shape in expected.items():
        tensor = handle.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{file}: tensor {name} is {list(tensor.shape)}, the config asks for {list(shape)}")
        found[name] = _rounded(tensor, torch.float32)
    return Matrix(found["linear.weight"], found.get("linear.bias")), found.get("residual.weight")
