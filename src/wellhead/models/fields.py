"""Typed reading of a config's fields, and the refusals that hold for every family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from wellhead.errors import UnsupportedModel
from wellhead.types import Activation, DType

_LARGEST = 2**31
_MOST_LAYERS = 4096
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_DTYPES: dict[str, DType] = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
_MISSING = object()


class Fields:
    """A ``config.json`` as its family reads it: every getter checks the type and names the key in its error."""

    def __init__(self, config: Mapping[str, Any], architecture: str) -> None:
        self.config = config
        self.architecture = architecture

    def refuse(self, what: str) -> UnsupportedModel:
        """The error for a feature that the decoder does not have."""
        return UnsupportedModel(f"{self.architecture}: {what}")

    def _value(self, key: str, default: object) -> Any:
        value = self.config.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.refuse(f"config.json has no {key!r}")
        return default

    def integer(self, key: str, default: object = _MISSING, *, most: int = _LARGEST) -> int:
        """A whole number in ``[1, most]``; a JSON ``null`` counts as missing."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.refuse(f"{key} must be a whole number from 1 to {most}, not {_short(value)}")
        return value

    def number(self, key: str, default: object = _MISSING) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.refuse(f"{key} must be a number above 0, not {_short(value)}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number above 0, or ``None``."""
        return None if self.config.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        """``true`` or ``false``."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.refuse(f"{key} must be true or false, not {_short(value)}")
        return value

    def layers(self, default: int) -> int:
        """``num_hidden_layers``."""
        return self.integer("num_hidden_layers", default, most=_MOST_LAYERS)

    def layer_list(self, key: str, layers: int) -> list[Any] | None:
        """A list with one entry a layer (longer is allowed, as in transformers, and cut), or ``None``."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers:
            raise self.refuse(f"{key} must be a list of {layers} entries, one a layer")
        return value[:layers]

    def activation(self, key: str, default: str) -> Activation:
        """The MLP's gate activation."""
        name = self._value(key, default)
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            raise self.refuse(f"{key} {_short(name)} is not supported; supported: {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]

    def dtype(self) -> DType:
        """``dtype`` (``torch_dtype`` in older files), float32 where it is missing."""
        name = self.config.get("dtype") or self.config.get("torch_dtype") or "float32"
        name = str(name).removeprefix("torch.")
        if name not in _DTYPES:
            raise self.refuse(f"dtype {_short(name)} is not supported; supported: {', '.join(_DTYPES)}")
        return _DTYPES[name]

    def token_ids(self, key: str, default: int | None) -> tuple[int, ...]:
        """A token id or a list of them; an explicit ``null`` is none, a missing key is the family's default."""
        value = self.config.get(key, default)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or not -1 <= i < _LARGEST for i in ids):
            raise self.refuse(f"{key} must be a token id or a list of them, not {_short(value)}")
        return tuple(dict.fromkeys(i for i in ids if i >= 0))

    def windows(self, layers: int, window: int | None, layer_types: list[Any]) -> tuple[int | None, ...]:
        """``layer_types`` as windows: ``"full_attention"`` or ``"sliding_attention"`` (then ``window`` is needed)."""
        unknown = sorted({str(kind) for kind in layer_types} - {"full_attention", "sliding_attention"})
        if unknown:
            raise self.refuse(f"layer type {_short(unknown[0])} is not supported")
        if window is None and "sliding_attention" in layer_types:
            raise self.refuse("layer_types name sliding_attention, but no sliding_window is set")
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types[:layers])


def refuse_what_no_family_has(fields: Fields) -> None:
    """Features that would quietly change the numbers if they were ignored.

    Errors: UnsupportedModel for quantised checkpoints, mixtures of experts, attention soft-capping, attention that
    is not causal, and heads cut to a part of the vocabulary.
    """
    config = fields.config
    quantisation = config.get("quantization_config") or config.get("compression_config")
    if quantisation:
        method = quantisation.get("quant_method", "?") if isinstance(quantisation, dict) else quantisation
        raise fields.refuse(f"quantised checkpoints ({_short(method)}) are not supported")
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if isinstance(config.get(key), int) and config[key] > 1:
            raise fields.refuse(f"mixtures of experts ({key}={config[key]}) are not supported")
    if config.get("attn_logit_softcapping") is not None:
        raise fields.refuse("attn_logit_softcapping is not supported")
    if config.get("use_bidirectional_attention"):
        raise fields.refuse("use_bidirectional_attention is not supported")
    if config.get("is_causal") is False or config.get("is_encoder_decoder"):
        raise fields.refuse("attention that is not causal is not supported")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
