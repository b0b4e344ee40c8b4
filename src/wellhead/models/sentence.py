"""The files that sentence-transformers lays beside a model: what is done with its rows. Read, never imported. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from wellhead.errors import ModelError, UnsupportedModel
from wellhead.models.json_file import read_json

_LARGEST = 2**20
#: Flags of older files, in the order in which several of them are joined -> our words for rows and reduction.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "Sigmoid", "SiLU")


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """One matrix ``[out, into]`` behind the pooled row, in ``model.safetensors`` of a folder beside the model's files."""

    path: str
    into: int
    out: int
    bias: bool
    activation: str
    residual: bool


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """From rows to a vector.

    ``pooling``: ``cls`` (the first row), ``last``, or reductions of all; several are joined. ``steps``: dense layers, and
    ``None`` for a scaling to length 1. ``prompts``: texts in front, by name. ``include_prompt``: do their rows count?
    ``max_tokens``: longer texts are cut. ``width``: of the vector.
    """

    pooling: tuple[str, ...]
    width: int
    steps: tuple[DenseSpec | None, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    similarity: str = "cosine"
    max_tokens: int | None = None
    lower: bool = False


def read_embedding(path: Path, hidden: int) -> EmbeddingSpec | None:
    """``modules.json`` and what it points to; ``None`` where there is none, or no pooling in it.

    Errors: ModelError for files that are torn, UnsupportedModel, by name, for what would change the vectors.
    """
    modules = _modules(path)
    names = [name for name, _ in modules]
    if "Pooling" not in names:
        return None
    pooling: tuple[str, ...] = ()
    include, width = True, hidden
    steps: list[DenseSpec | None] = []
    for at, (name, folder) in enumerate(modules):
        if name == "Transformer" and at == 0:
            if folder not in ("", "."):
                raise UnsupportedModel(f"{path / 'modules.json'}: the model itself lies in {folder!r}; give that folder")
        elif name == "Pooling" and at == 1:
            pooling, include = _pooling(path / folder)
            width = hidden * len(pooling)
        elif name == "Dense" and pooling:
            dense = _dense(path, folder, width)
            steps.append(dense)
            width = dense.out
        elif name == "Normalize" and pooling:
            steps.append(None)
        else:
            raise UnsupportedModel(f"{path / 'modules.json'}: a module {name!r:.60} in place {at} is not supported")
    said = _optional(path / "config_sentence_transformers.json")
    prompts = said.get("prompts") or {}
    if not isinstance(prompts, Mapping) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelError(f"{path / 'config_sentence_transformers.json'}: prompts must be an object of texts")
    default = said.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(f"{path / 'config_sentence_transformers.json'}: there is no prompt {default!r:.60}")
    limits = _optional(path / "sentence_bert_config.json")
    most = limits.get("max_seq_length")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ModelError(f"{path / 'sentence_bert_config.json'}: max_seq_length must be a whole number above 0")
    if most is None:  # newer files leave it to the tokenizer, whose "no limit" is a huge number
        said_by_tokenizer = _optional(path / "tokenizer_config.json").get("model_max_length")
        most = said_by_tokenizer if type(said_by_tokenizer) is int and 0 < said_by_tokenizer < 2**31 else None
    similarity = said.get("similarity_fn_name") or "cosine"
    return EmbeddingSpec(
        pooling, width, tuple(steps), dict(prompts), default, include, str(similarity), most, limits.get("do_lower_case") is True
    )


def logit_score(path: Path) -> tuple[int, int | None] | None:
    """The tokens for and against of a module ``LogitScore``, if the model has one."""
    folder = next((folder for name, folder in _modules(path) if name == "LogitScore"), None)
    if folder is None:
        return None
    said = read_json(path / folder / "config.json")
    true, false = said.get("true_token_id"), said.get("false_token_id")
    if not _is_id(true) or not (false is None or _is_id(false)):
        raise ModelError(f"{path / folder / 'config.json'}: true_token_id and false_token_id must be token ids")
    return true, false  # type: ignore[return-value]


def cross_encoder(path: Path) -> bool:
    """Do the files call it a model for pairs of texts?"""
    return _optional(path / "config_sentence_transformers.json").get("model_type") == "CrossEncoder"


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _modules(path: Path) -> list[tuple[str, str]]:
    """The last name of each module's type, and its folder, in order."""
    file = path / "modules.json"
    if not file.is_file():
        return []
    try:
        if file.stat().st_size > _LARGEST:
            raise ModelError(f"{file} is larger than {_LARGEST >> 20} MiB")
        found = json.loads(file.read_text(encoding="utf-8"))
        listed = [(str(one["type"]).rpartition(".")[2], one.get("path", ""), one.get("idx", at)) for at, one in enumerate(found)]
        listed.sort(key=lambda one: one[2])
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{file} is not a list of modules: {error}") from error
    for _, folder, _ in listed:
        if not isinstance(folder, str) or ".." in PurePosixPath(folder).parts or PurePosixPath(folder).is_absolute():
            raise ModelError(f"{file}: {folder!r:.80} is not a folder of this model")
    return [(name, folder) for name, folder, _ in listed]


def _pooling(folder: Path) -> tuple[tuple[str, ...], bool]:
    said = read_json(folder / "config.json")
    named = said.get("pooling_mode")
    if named is not None:
        modes = [named] if isinstance(named, str) else named
        if not isinstance(modes, list) or not modes or not all(mode in _MODES for mode in modes):
            raise UnsupportedModel(f"{folder / 'config.json'}: pooling_mode {named!r:.60} is not one of {', '.join(_MODES)}")
        pooling = tuple(_MODES[mode] for mode in modes)
    else:
        strange = [key for key, value in said.items() if key.startswith("pooling_mode_") and value and key not in _FLAGS]
        if strange:
            raise UnsupportedModel(f"{folder / 'config.json'}: {strange[0]} is not supported")
        pooling = tuple(mode for flag, mode in _FLAGS.items() if said.get(flag) is True)
    include = said.get("include_prompt", True) is not False
    if not pooling:
        raise ModelError(f"{folder / 'config.json'} says no way of pooling")
    if not include and "weighted_mean" in pooling:
        raise UnsupportedModel(f"{folder / 'config.json'}: weighted means that leave the prompt out are not supported")
    return pooling, include


def _dense(path: Path, folder: str, width: int) -> DenseSpec:
    file = path / folder / "config.json"
    said = read_json(file)
    into, out, bias = said.get("in_features"), said.get("out_features"), said.get("bias", True)
    if into != width:
        raise ModelError(f"{file}: in_features {into!r:.40}, but what comes in is {width} wide")
    if isinstance(out, bool) or not isinstance(out, int) or not 1 <= out <= 2**20 or not isinstance(bias, bool):
        raise ModelError(f"{file}: out_features must be a whole number from 1 to {2**20}, and bias true or false")
    for key in ("module_input_name", "module_output_name"):
        if said.get(key) not in (None, "sentence_embedding"):
            raise UnsupportedModel(f"{file}: {key} {said[key]!r:.60} is not supported")
    activation = said.get("activation_function")
    if activation is None:
        raise UnsupportedModel(
            f"{file} names no activation_function, which some readers take for Tanh and others for none; write it there, such as "
            '"torch.nn.modules.linear.Identity"'
        )
    last = str(activation).rpartition(".")[2]
    if last not in ACTIVATIONS or not str(activation).startswith("torch.nn."):
        raise UnsupportedModel(f"{file}: activation_function {activation!r:.80} is not supported; {', '.join(ACTIVATIONS)} are")
    return DenseSpec(folder, width, out, bias, last, said.get("use_residual") is True)


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}
