"""A head of each kind, with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.heads.head import Head

W = 40
RNG = np.random.default_rng(7)


def normal(*shape: int) -> NDArray[np.float64]:
    return RNG.normal(size=shape)


def make(kind: str, width: int = W, name: str = "h", **fields: Any) -> Head:
    """A head of each kind, with three labels."""
    standard = {"steps.0.mean": normal(width), "steps.0.scale": np.abs(normal(width)) + 0.1}
    parts: dict[str, dict[str, Any]] = {
        "linear": {"tensors": {"weight": normal(3, width), "bias": normal(3)}, "activation": "softmax"},
        "steps": {
            "kind": "linear",
            "steps": ({"do": "standardise"}, {"do": "whiten"}, {"do": "l2"}),
            "tensors": {
                **standard, "steps.1.mean": normal(width), "steps.1.matrix": normal(9, width), "weight": normal(3, 9),
            },
        },
        "mlp": {
            "body": {"stack": [{"do": "linear"}, {"do": "layer_norm"}, {"do": "gelu"}, {"do": "linear"}]},
            "tensors": {
                "stack.0.weight": normal(16, width), "stack.0.bias": normal(16), "stack.1.weight": normal(16),
                "stack.3.weight": normal(3, 16), "stack.3.bias": normal(3),
            },
        },
        "attention": {"tensors": {"query": normal(4, width), "value": normal(12, width), "bias": normal(3)}},
        "multimax": {"body": {"heads": 4}, "tensors": {"value": normal(12, width)}},
        "quadratic": {
            "tensors": {"mean": normal(3, width), "variance": np.abs(normal(3, width)) + 0.1, "prior": normal(3)},
            "activation": "softmax",
        },
        "ensemble": {
            "body": {"members": [{"kind": "linear", "activation": "softmax"}, {"kind": "linear", "activation": "ovr"}]},
            "tensors": {"members.0.weight": normal(3, width), "members.1.weight": normal(3, width)},
            "activation": "softmax",
        },
    }  # fmt: skip
    return Head(
        **{"name": name, "kind": kind, "layers": (5,), "width": width, "labels": ("a", "b", "c"), **parts[kind], **fields}
    )


KINDS = ("linear", "steps", "mlp", "attention", "multimax", "quadratic", "ensemble")
