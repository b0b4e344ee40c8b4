"""Torch modules, state dicts and PEFT adapters -> ``Head``. Torch is not imported: tensors say themselves how they become
arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidHead
from wellhead.heads.head import Head, Layer

_MODULES: Mapping[str, str] = {"ReLU": "relu", "Tanh": "tanh", "SiLU": "silu", "Sigmoid": "sigmoid"}
#: The end of a classifier's name in an adapter: whole, or as PEFT keeps a module beside the original.
_SCORES = ("score", "classifier", "classification_head", "v_head")


def convert(
    module: Any, *, layers: tuple[Layer, ...], labels: tuple[str, ...], rows: Any, name: str, fields: Mapping[str, Any]
) -> Head:
    """``InvalidHead`` for modules or names that are not those of a head."""
    more = dict(fields)
    between = more.pop("between", None)
    if isinstance(module, Mapping):
        stack, tensors = _from_state(_score(module), between)
    else:
        if between is not None:
            raise InvalidHead("'between' is for state dicts: a module says itself what stands between its layers")
        stack, tensors = _from_modules(module)
    first = next((t for i, t in enumerate(tensors.values()) if stack and t.ndim == 2), None)
    if first is None:
        raise InvalidHead("no linear layer in it")
    said: dict[str, Any] = {
        "name": name,
        "layers": layers,
        "labels": labels,
        "rows": rows,
        "tensors": tensors,
        "width": first.shape[1],
    }
    if [item["do"] for item in stack] == ["linear"]:
        said |= {"kind": "linear", "tensors": {key.removeprefix("stack.0."): t for key, t in tensors.items()}}
    else:
        said |= {"kind": "mlp", "body": {"stack": stack}}
    made_by = {"library": "torch", "class": type(module).__name__}
    return Head(**{**said, **more, "provenance": {"made_by": made_by, **more.get("provenance", {})}})


def _array(tensor: Any) -> NDArray[Any]:
    if isinstance(tensor, np.ndarray):
        return tensor
    if not hasattr(tensor, "detach"):
        raise InvalidHead(f"a {type(tensor).__name__} among the tensors")
    tensor = tensor.detach().cpu()
    return np.array(tensor.double().numpy() if "float64" in str(tensor.dtype) else tensor.float().numpy())


def _from_modules(module: Any) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    stack: list[dict[str, Any]] = []
    tensors: dict[str, NDArray[Any]] = {}

    def add(one: Any) -> None:
        kind = type(one).__name__
        if kind == "Sequential":
            for part in one:
                add(part)
        elif kind in ("Linear", "LayerNorm"):
            for key in ("weight", "bias"):
                if getattr(one, key, None) is not None:
                    tensors[f"stack.{len(stack)}.{key}"] = _array(getattr(one, key))
            if kind == "LayerNorm" and getattr(one, "weight", None) is None:
                tensors[f"stack.{len(stack)}.weight"] = np.ones(one.normalized_shape[-1], np.float32)
            stack.append({"do": "linear"} if kind == "Linear" else {"do": "layer_norm", "eps": float(one.eps)})
        elif kind == "GELU":
            stack.append({"do": "gelu" if one.approximate == "none" else "gelu_tanh"})
        elif kind in _MODULES:
            stack.append({"do": _MODULES[kind]})
        elif kind not in ("Dropout", "Identity"):
            raise InvalidHead(
                f"a module of class {kind} cannot be part of a head; Linear, LayerNorm, GELU, {', '.join(_MODULES)} can"
            )

    add(module)
    return stack, tensors


def _score(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of an adapter's tensors, those of its classifier; any other state dict as it is.

    Names are ``[...].score.weight``, or ``[...].score.modules_to_save.NAME.weight``.
    """
    groups: dict[str, dict[str, Any]] = {}
    for key, tensor in state.items():
        parts = [p for p in key.split(".") if p != "base_layer"]
        found = next((i for i, p in enumerate(parts) if p in _SCORES), None)
        if found is None or "original_module" in parts:
            continue
        rest = parts[found + 1 :]
        saved = rest[1:2] if rest[:1] == ["modules_to_save"] and len(rest) > 2 else []
        rest = rest[1 + len(saved) :] if rest[:1] == ["modules_to_save"] else rest
        if rest and rest[0].startswith("lora_"):
            raise InvalidHead(f"{key!r:.120}: the classifier itself is low-rank; merge the adapter first")
        groups.setdefault(".".join([*parts[: found + 1], *saved]), {})[".".join(rest)] = tensor
    if len(groups) > 1:
        raise InvalidHead(f"several classifiers: {', '.join(sorted(groups))}; pass the tensors of one")
    if groups:
        return next(iter(groups.values()))
    if any("lora_" in key for key in state):
        raise InvalidHead("an adapter without a classifier of its own (no 'score' among its tensors)")
    return state


def _from_state(state: Mapping[str, Any], between: str | None) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for key, tensor in state.items():
        layer, _, leaf = key.rpartition(".")
        if leaf not in ("weight", "bias"):
            raise InvalidHead(f"{key!r:.120} is neither a weight nor a bias of a linear layer or a layer norm")
        found.setdefault(layer, {})[leaf] = _array(tensor)
    stack: list[dict[str, Any]] = []
    tensors: dict[str, NDArray[Any]] = {}
    for layer, parts in sorted(found.items(), key=_order(list(found))):
        if "weight" not in parts or parts["weight"].ndim not in (1, 2):
            raise InvalidHead(f"layer {layer!r:.120} is neither a linear layer nor a layer norm")
        linear = parts["weight"].ndim == 2
        if linear and any(item["do"] == "linear" for item in stack):
            if between is None:
                raise InvalidHead(
                    "a state dict of several layers does not say what stands between them: give between='relu', or 'none'"
                )
            if between != "none":
                stack.append({"do": between})
        tensors |= {f"stack.{len(stack)}.{leaf}": t for leaf, t in parts.items()}
        stack.append({"do": "linear"} if linear else {"do": "layer_norm"})
    return stack, tensors


def _order(names: list[str]) -> Callable[[tuple[str, Any]], Any]:
    """Layers with numbers by their number (``10`` after ``2``), others as they come."""

    def numbers(name: str) -> list[int]:
        return [int(p) for p in name.split(".") if p.isdecimal()]

    if len({tuple(numbers(name)) for name in names}) == len(names):
        return lambda item: numbers(item[0])
    return lambda item: names.index(item[0])
