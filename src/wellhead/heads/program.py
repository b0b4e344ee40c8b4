"""What is done to a row before it is a score: steps and layers, each of them row by row, in float64.

Affine steps before a linear layer, and linear layers on linear layers, are folded when the program is made: a standardised
linear head costs one product. An L2 norm or an activation cannot be folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidHead
from wellhead.heads.products import Array, aligned, products, sums

Tensors = Mapping[str, NDArray[Any]]


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.ravel().tolist()]).reshape(x.shape)


def sigmoid(z: Array) -> Array:
    """Without overflow on either side."""
    e = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1.0, e) / (1.0 + e))


def softmax(z: Array) -> Array:
    """Over the last axis of ``[k, C]``."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / sums(e))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1.0 + _erf(x / math.sqrt(2))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


#: A fixed table of names: a file never says what to import.
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
}


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """``x * scale + shift``; each ``[W]``."""

    scale: Array
    shift: Array

    def __call__(self, x: Array) -> Array:
        return x * self.scale + self.shift


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """``x weight^T + bias``; weight ``[C, W]`` as it was given, and aligned."""

    weight: Array
    bias: Array
    rows: Array

    @staticmethod
    def of(weight: NDArray[Any], bias: NDArray[Any] | None) -> Dense:
        wide = weight.astype(np.float64)
        return Dense(wide, np.zeros(len(wide)) if bias is None else bias.astype(np.float64), aligned(wide))

    def __call__(self, x: Array) -> Array:
        return products(aligned(x), self.rows) + self.bias


@dataclass(frozen=True, slots=True)
class L2:
    """To unit length; a row of zeros stays as it is."""

    def __call__(self, x: Array) -> Array:
        length = np.sqrt(sums(x * x))
        return np.asarray(x / np.where(length == 0.0, 1.0, length))


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm:
    weight: Array
    bias: Array
    eps: float

    def __call__(self, x: Array) -> Array:
        centred = x - sums(x) / x.shape[1]
        return np.asarray(centred / np.sqrt(sums(centred * centred) / x.shape[1] + self.eps) * self.weight + self.bias)


@dataclass(frozen=True, slots=True)
class Activation:
    name: str

    def __call__(self, x: Array) -> Array:
        return ACTIVATIONS[self.name](x)


Op = Affine | Dense | L2 | LayerNorm | Activation


@dataclass(frozen=True, slots=True)
class Program:
    """Operations in order, from rows ``[k, width]`` to ``[k, out]``."""

    width: int
    out: int
    ops: tuple[Op, ...]

    def __call__(self, x: Array) -> Array:
        for op in self.ops:
            x = op(x)
        return x

    def then(self, weight: NDArray[Any], bias: NDArray[Any] | None = None) -> Program:
        """With one more linear layer."""
        if weight.ndim != 2 or weight.shape[1] != self.out or (bias is not None and bias.shape != weight.shape[:1]):
            shape = None if bias is None else bias.shape
            raise InvalidHead(f"a linear layer of shape {weight.shape} (bias {shape}) on values of width {self.out}")
        return Program(self.width, len(weight), _fold([*self.ops, Dense.of(weight, bias)]))


def build(width: int, lists: Iterable[tuple[str, Iterable[Mapping[str, Any]]]], tensors: Tensors) -> Program:
    """A program of one or more lists of operations; the tensors of operation i of the list ``steps`` are ``steps.i.*``."""
    ops: list[Op] = []
    at = width
    for prefix, items in lists:
        for i, item in enumerate(items):
            op, at = _op(item, f"{prefix}.{i}", tensors, at)
            ops.append(op)
    return Program(width, at, _fold(ops))


def tensor(tensors: Tensors, name: str, *shape: int | None) -> NDArray[Any]:
    """A tensor that must be there, of this shape (``None``: any length)."""
    found = tensors.get(name)
    if found is None:
        raise InvalidHead(f"tensor {name!r} is missing")
    if found.ndim != len(shape) or any(want not in (None, have) for want, have in zip(shape, found.shape, strict=True)):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InvalidHead(f"tensor {name!r} has shape {list(found.shape)}, not [{wanted}]")
    return found


def _op(item: Mapping[str, Any], at: str, tensors: Tensors, width: int) -> tuple[Op, int]:
    kind = item.get("do") if isinstance(item, Mapping) else None
    if kind == "mean":
        mean = tensor(tensors, f"{at}.mean", width).astype(np.float64)
        return Affine(np.ones(width), -mean), width
    if kind == "standardise":
        mean, scale = (tensor(tensors, f"{at}.{name}", width).astype(np.float64) for name in ("mean", "scale"))
        if not np.all(scale > 0):
            raise InvalidHead(f"{at}: a scale that is not positive (a constant column has scale 1)")
        return Affine(1.0 / scale, -mean / scale), width
    if kind in ("whiten", "project"):
        matrix = tensor(tensors, f"{at}.matrix", None, width).astype(np.float64)
        mean = tensor(tensors, f"{at}.mean", width).astype(np.float64)
        return Dense.of(matrix, -_apply(matrix, mean)), len(matrix)
    if kind == "linear":
        weight = tensor(tensors, f"{at}.weight", None, width)
        bias = tensor(tensors, f"{at}.bias", len(weight)) if f"{at}.bias" in tensors else None
        return Dense.of(weight, bias), len(weight)
    if kind == "layer_norm":
        eps = item.get("eps", 1e-5)
        if not isinstance(eps, (int, float)) or not 0 <= eps < 1:
            raise InvalidHead(f"{at}: eps must be in [0, 1), not {eps!r:.40}")
        weight = tensor(tensors, f"{at}.weight", width).astype(np.float64)
        bias = tensor(tensors, f"{at}.bias", width).astype(np.float64) if f"{at}.bias" in tensors else np.zeros(width)
        return LayerNorm(weight, bias, float(eps)), width
    if kind == "l2":
        return L2(), width
    if isinstance(kind, str) and kind in ACTIVATIONS:
        return Activation(kind), width
    known = ["mean", "standardise", "whiten", "project", "l2", "linear", "layer_norm", *ACTIVATIONS]
    raise InvalidHead(f"{at}: unknown operation {kind!r:.80}; known are {', '.join(known)}")


def _apply(matrix: Array, vector: Array) -> Array:
    return np.asarray(products(aligned(vector[None]), aligned(matrix))[0])


def _fold(ops: Iterable[Op]) -> tuple[Op, ...]:
    done: list[Op] = []
    for op in ops:
        last = done[-1] if done else None
        if isinstance(op, Dense) and isinstance(last, Affine):
            done[-1] = Dense.of(op.weight * last.scale, op.bias + _apply(op.weight, last.shift))
        elif isinstance(op, Dense) and isinstance(last, Dense):
            # Fewer multiplications only if the second is narrow: a wide layer over a projection stays two products.
            if op.weight.size + last.weight.size < len(op.weight) * last.weight.shape[1]:
                done.append(op)
                continue
            joined = products(aligned(op.weight), aligned(np.ascontiguousarray(last.weight.T)))
            done[-1] = Dense.of(joined, op.bias + _apply(op.weight, last.bias))
        elif isinstance(op, Affine) and isinstance(last, Affine):
            done[-1] = Affine(last.scale * op.scale, last.shift * op.scale + op.shift)
        else:
            done.append(op)
        while len(done) > 1 and isinstance(done[-1], Dense) and isinstance(done[-2], Affine):
            second, first = done.pop(), done.pop()
            assert isinstance(second, Dense) and isinstance(first, Affine)
            done.append(Dense.of(second.weight * first.scale, second.bias + _apply(second.weight, first.shift)))
    return tuple(done)
