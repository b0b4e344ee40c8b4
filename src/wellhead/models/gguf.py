"""GGUF files as models: metadata -> ModelSpec, quantised tensors -> float32 under Hugging Face's names.

What a reader must know, since the file does not say it:

- ``llama`` files hold q and k with the two halves of each rotation interleaved; they are put back in order.
- ``gemma3`` files hold ``1 + w`` for every norm; 1 is subtracted, so that names and meaning are Hugging Face's.
- ``gemma3`` files leave out the local rope base, the pattern of sliding layers and the attention scale.
- Some files carry an output matrix apart from the embedding where the original model ties them (Qwen 2.5 0.5B): they
  were quantised apart, so the file is followed and the head is not tied.
- Rope scaling is linear where a factor is given without a type, and files of 2023 call the factor ``rope.scale_linear``;
  a factor of 0 is none. (llama.cpp reads them so.)
- Numbers are float32: an epsilon of 1e-6 reads as 9.99999997e-07 and is rounded back to the decimal it came from.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gguf
import numpy as np
import torch
from gguf.quants import dequantize

from wellhead.errors import UnsupportedModel, WeightsError
from wellhead.gguf_file import GGUFFile, GGUFTensor, read_gguf
from wellhead.models.names import expected_tensors
from wellhead.models.registry import spec_from_config
from wellhead.models.spec import ModelSpec
from wellhead.models.tensors import TOP, Role, all_tensors, modules

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
#: GGUF's names of what a tensor is for; those of a layer stand behind ``blk.{i}.``.
_TOP: dict[str, Role] = {"token_embd": "embedding", "output_norm": "final_norm", "output": "head"}
_LAYER: dict[str, Role] = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "post_attention_norm": "attn_post_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "mlp_post_norm",
}
_ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_GEMMA_27B_LAYERS = 62  # the one size whose attention scale is not that of its head size
#: Of ``rope.*`` and ``attention.*``: what is read here, or changes no number. Every other key refuses the file.
_UNDERSTOOD = frozenset(
    {
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "attention.sliding_window", "rope.dimension_count", "rope.freq_base",
        "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.finetuned", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    }
)  # fmt: skip
_GEMMA_UNDERSTOOD = frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"})
#: Understood with this value alone, at which they change nothing.
_IDLE_AT: dict[str, bool | float] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "rope.scaling.alpha": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
#: Sizes of a head that may be given apart, for values, rotated channels and sliding layers: only all alike.
_HEAD_SIZES = (
    "attention.value_length", "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count",
    "rope.dimension_count_swa",
)  # fmt: skip
_CHUNK = 2**22  # elements dequantised at a time: what a tensor needs beyond itself stays small


def gguf_spec(path: Path) -> ModelSpec:
    """The spec of a GGUF file.

    ``dtype`` is the file's own for float32, float16 and bfloat16 files, and bfloat16 for quantised ones.
    Stop tokens are eos, end of turn and end of message. Errors: WeightsError, UnsupportedModel.
    """
    return spec_from_config(_config(read_gguf(path)))


class GGUFWeights:
    """A ``WeightSource`` over one GGUF file: ``get`` dequantises to float32, one tensor at a time."""

    def __init__(self, path: Path, spec: ModelSpec) -> None:
        file = read_gguf(path)
        self.spec = spec
        self._path = path
        self._gguf_architecture = file.metadata.get("general.architecture")
        self._roles = {tensor.name: (tensor.role, tensor.kind) for tensor in all_tensors(spec)}
        self._tensors = self._named(file)
        _check_layout(file)
        self._data: np.memmap[Any, np.dtype[np.uint8]] | None = np.memmap(path, dtype=np.uint8, mode="r")

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def get(self, name: str) -> torch.Tensor:
        if self._data is None or name not in self._tensors:
            raise WeightsError(f"{self._path}: no tensor {name}" + (" (closed)" if self._data is None else ""))
        values = _dequantise(self._data, self._tensors[name])
        role, kind = self._roles[name]
        if self._gguf_architecture == "gemma3" and kind == "norm":
            values -= 1.0
        if self._gguf_architecture == "llama" and role in ("q", "k"):
            values = _halves(values, self.spec.heads if role == "q" else self.spec.kv_heads)
        return torch.from_numpy(values)

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        return self.get(name).narrow(axis, first, end - first)

    def close(self) -> None:
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _named(self, file: GGUFFile) -> dict[str, GGUFTensor]:
        """Tensors by our names, each expected one exactly once."""
        expected, found = expected_tensors(self.spec), {}
        for tensor in file.tensors.values():
            if tensor.name == _ROPE_FACTORS and self._gguf_architecture == "llama":
                continue
            name = _hugging_face_name(tensor.name, self._gguf_architecture == "gemma3")
            if name not in expected:
                raise WeightsError(f"{file.path}: tensor {tensor.name} is left over: {self.spec.architecture} has none such")
            if tensor.shape != expected[name]:
                shapes = f"{list(tensor.shape)}, the metadata asks for {list(expected[name])}"
                raise WeightsError(f"{file.path}: tensor {tensor.name} is {shapes}")
            found[name] = tensor
        missing = [name for name in expected if name not in found]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise WeightsError(f"{file.path}: tensor {missing[0]} is missing{more}")
        return {name: found[name] for name in expected}


def _config(file: GGUFFile) -> dict[str, Any]:
    """The ``config.json`` that the file would have had."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        supported = ", ".join(_ARCHITECTURES)
        raise UnsupportedModel(f"{file.path}: GGUF architecture {architecture!r} is not supported; supported: {supported}")
    if "token_embd.weight" not in file.tensors:
        raise WeightsError(f"{file.path}: tensor token_embd.weight is missing")
    own = {key.removeprefix(f"{architecture}."): value for key, value in file.metadata.items()}
    _refuse_unknown(file, own)
    heads, hidden = own.get("attention.head_count"), own.get("embedding_length")
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        raise UnsupportedModel(f"{file.path}: head_count {heads!r} and embedding_length {hidden!r} must be whole numbers")
    head_dim = own.get("attention.key_length", hidden // heads)
    for key in _HEAD_SIZES:
        if own.get(key, head_dim) != head_dim:
            raise UnsupportedModel(f"{file.path}: {key} {own[key]} differs from the head size {head_dim}")
    ends = [file.metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    config = {
        "architectures": [_ARCHITECTURES[architecture]],
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": _needed(file, own, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": _needed(file, own, "feed_forward_length"),
        "max_position_embeddings": _needed(file, own, "context_length"),
        "rms_norm_eps": _decimal(_needed(file, own, "attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(own.get("rope.freq_base", 10_000.0)),
        "rope_scaling": _rope_scaling(file, own, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "num_local_experts": own.get("expert_count"),
        "final_logit_softcapping": own.get("final_logit_softcapping"),
        "attn_logit_softcapping": own.get("attn_logit_softcapping"),
        "dtype": _dtype(file),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [end for end in ends if end is not None],
    }
    if architecture == "gemma3":
        config.update(_gemma(own, hidden, heads, head_dim))
    elif own.get("attention.sliding_window"):
        raise UnsupportedModel(f"{file.path}: a sliding window in a {architecture} GGUF file is not supported")
    return config


def _refuse_unknown(file: GGUFFile, own: dict[str, Any]) -> None:
    """Refuse what concerns rotation or attention and is not understood: ignored, it would give another model's rows."""
    gemma = file.metadata["general.architecture"] == "gemma3"
    understood = _UNDERSTOOD | _GEMMA_UNDERSTOOD if gemma else _UNDERSTOOD
    for key, value in own.items():
        concerns = {"rope", "attention"}.intersection(key.split(".")[:-1]) and not key.startswith(("general.", "tokenizer."))
        if not concerns or key in understood or key in _HEAD_SIZES:
            continue
        if key not in _IDLE_AT or value != _IDLE_AT[key]:
            known = f"; only {_IDLE_AT[key]} is" if key in _IDLE_AT else ""
            raise UnsupportedModel(f"{file.path}: the metadata's {key} ({str(value)[:40]}) is not supported{known}")


def _gemma(own: dict[str, Any], hidden: int, heads: int, head_dim: int) -> dict[str, Any]:
    scale_of = hidden // heads if own.get("block_count") == _GEMMA_27B_LAYERS else head_dim
    gemma = {
        "sliding_window": own.get("attention.sliding_window"),
        "query_pre_attn_scalar": scale_of,
        "rope_local_base_freq": _decimal(own.get("rope.freq_base_swa", 10_000.0)),
    }
    pattern = own.get("attention.sliding_window_pattern", 6)
    if isinstance(pattern, list):
        return {**gemma, "layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}
    return {**gemma, "sliding_window_pattern": pattern}


def _rope_scaling(file: GGUFFile, own: dict[str, Any], head_dim: int) -> dict[str, Any] | None:
    kind = own.get("rope.scaling.type", "linear")
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear", 0.0))
    scales = kind != "none" and factor not in (0, 1)
    if _ROPE_FACTORS in file.tensors:
        if scales:
            raise UnsupportedModel(f"{file.path}: {_ROPE_FACTORS} together with rope scaling by {factor} is not supported")
        return _llama3_from_factors(file, own, head_dim)
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{file.path}: rope scaling {kind!r} is not supported")
    if not scales:
        return None
    scaling = {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": own.get("rope.scaling.original_context_length"),
        "beta_fast": own.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": own.get("rope.scaling.yarn_beta_slow"),
    }
    return {key: value for key, value in scaling.items() if value is not None}


def _llama3_from_factors(file: GGUFFile, own: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling, which the file holds as one factor a frequency: recognised, or refused."""
    tensor = file.tensors[_ROPE_FACTORS]
    if tensor.kind != gguf.GGMLQuantizationType.F32 or tensor.shape != (head_dim // 2,):
        raise UnsupportedModel(f"{file.path}: {_ROPE_FACTORS} is not {head_dim // 2} float32 numbers")
    _check_layout(file)
    stored = np.memmap(file.path, dtype="<f4", mode="r", offset=tensor.offset, shape=tensor.shape)
    factor, low, high, context = float(np.max(stored)), *_LLAMA3.values()
    theta = _decimal(own.get("rope.freq_base", 10_000.0))
    turns = context / (2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim))
    keep = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(1 / stored, keep + (1 - keep) / factor, rtol=1e-4, atol=0):
        raise UnsupportedModel(f"{file.path}: {_ROPE_FACTORS} is not the scaling of Llama 3")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _needed(file: GGUFFile, own: dict[str, Any], key: str) -> Any:
    if key not in own:
        raise UnsupportedModel(f"{file.path}: the metadata has no {key}")
    return own[key]


def _decimal(value: Any) -> Any:
    """The shortest decimal that reads as this float32: what the model's author wrote."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _dtype(file: GGUFFile) -> str:
    kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if kinds == {gguf.GGMLQuantizationType.F32.value}:
        return "float32"
    return "float16" if kinds == {gguf.GGMLQuantizationType.F16.value} else "bfloat16"


def _hugging_face_name(name: str, gemma: bool) -> str:
    """Our name for a tensor; an unknown one is returned as it is, which no model expects."""
    base, _, suffix = name.rpartition(".")
    if base in _TOP:
        return f"{TOP[_TOP[base]]}.{suffix}"
    block, _, kind = base.partition(".")[2].partition(".")
    role = _LAYER.get(kind)
    known = modules(post_norms=gemma).get(role) if role else None
    return f"model.layers.{block}.{known}.{suffix}" if base.startswith("blk.") and known else name


def _check_layout(file: GGUFFile) -> None:
    """Every tensor of a type that can be read, inside the file, on bytes of its own."""
    end, before = 0, ""
    for tensor in sorted(file.tensors.values(), key=lambda tensor: tensor.offset):
        size = _bytes(file.path, tensor)
        if tensor.offset < end:
            raise WeightsError(f"{file.path}: tensors {before} and {tensor.name} overlap")
        end, before = tensor.offset + size, tensor.name
        if end > file.size:
            raise WeightsError(f"{file.path}: tensor {tensor.name} ends at byte {end}, the file at {file.size}: it is torn")


def _bytes(path: Path, tensor: GGUFTensor) -> int:
    try:
        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        dequantize(np.zeros((1, size), dtype=np.uint8).view(_stored_as(kind)), kind)
    except (ValueError, KeyError, NotImplementedError):
        raise UnsupportedModel(f"{path}: tensor {tensor.name} has type {tensor.kind}, which cannot be dequantised") from None
    if tensor.shape[-1] % block:
        raise WeightsError(f"{path}: tensor {tensor.name} has rows of {tensor.shape[-1]}, not a multiple of {block}")
    return math.prod(tensor.shape) // block * size


def _stored_as(kind: gguf.GGMLQuantizationType) -> str:
    floats = {gguf.GGMLQuantizationType.F32: "<f4", gguf.GGMLQuantizationType.F16: "<f2"}
    return floats.get(kind, "u1")


def _dequantise(data: np.ndarray[Any, np.dtype[np.uint8]], tensor: GGUFTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32 of the tensor's shape, a chunk of rows at a time."""
    kind = gguf.GGMLQuantizationType(tensor.kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    width = tensor.shape[-1]
    rows = math.prod(tensor.shape[:-1])
    row_bytes = width // block * size
    stored = data[tensor.offset : tensor.offset + rows * row_bytes].reshape(rows, row_bytes)
    values = np.empty((rows, width), dtype=np.float32)
    step = max(1, _CHUNK // width)
    for first in range(0, rows, step):
        part = np.ascontiguousarray(stored[first : first + step]).view(_stored_as(kind))
        values[first : first + step] = dequantize(part, kind)
    return values.reshape(tensor.shape)


def _halves(values: np.ndarray[Any, np.dtype[np.float32]], heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Interleaved rotation pairs ``(0, 1), (2, 3), ...`` of each head -> the order in which ``i`` turns with ``i + d/2``."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
