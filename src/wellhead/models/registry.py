"""Architectures -> specs. One line a family; a new one is a small file beside this and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from wellhead.errors import UnsupportedModel
from wellhead.models.fields import Fields, refuse_what_no_family_has
from wellhead.models.gemma3 import gemma3, gemma3_text_part
from wellhead.models.llama import llama, smollm3
from wellhead.models.mistral import mistral
from wellhead.models.qwen2 import qwen2
from wellhead.models.qwen3 import qwen3
from wellhead.models.scores import SCORED, with_score
from wellhead.models.spec import ModelSpec

ToSpec = Callable[[Fields], ModelSpec]
#: ``model_type``, the architecture with its LM head, that without (what ``AutoModel.save_pretrained`` writes), who reads both.
_TABLE: tuple[tuple[str, str, str, ToSpec], ...] = (
    ("llama", "LlamaForCausalLM", "LlamaModel", llama),
    ("smollm3", "SmolLM3ForCausalLM", "SmolLM3Model", smollm3),
    ("mistral", "MistralForCausalLM", "MistralModel", mistral),
    ("qwen2", "Qwen2ForCausalLM", "Qwen2Model", qwen2),
    ("qwen3", "Qwen3ForCausalLM", "Qwen3Model", qwen3),
    ("gemma3_text", "Gemma3ForCausalLM", "Gemma3TextModel", gemma3),
    ("gemma3", "Gemma3ForConditionalGeneration", "Gemma3Model", gemma3_text_part),
)
FAMILIES: dict[str, ToSpec] = {with_head: read for _, with_head, _, read in _TABLE}
_HEADLESS: dict[str, ToSpec] = {headless: read for _, _, headless, read in _TABLE}
#: Backbone x task: an architecture with a head of its own -> who reads its backbone, and the task's part of the name.
_SCORED: dict[str, tuple[ToSpec, str]] = {
    f"{headless.removesuffix('Model')}{task}": (read, task)
    for model_type, _, headless, read in _TABLE
    for task, backbones in SCORED.items()
    if model_type in backbones
}
_BY_MODEL_TYPE = {model_type: with_head for model_type, with_head, _, _ in _TABLE}


def spec_from_config(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> ModelSpec:
    """``config.json`` (old or new style) -> ModelSpec; stop and start tokens of ``generation_config.json`` win.

    Errors: UnsupportedModel for an unknown architecture or for a feature that the decoder does not have, by name.
    """
    architecture = _architecture(config)
    if generation_config:
        theirs = {key: generation_config.get(key) for key in ("bos_token_id", "eos_token_id")}
        config = {**config, **{key: value for key, value in theirs.items() if value is not None}}
    fields = Fields(config, architecture)
    refuse_what_no_family_has(fields)
    if isinstance(config.get("text_config"), dict):
        refuse_what_no_family_has(Fields(config["text_config"], architecture))
    if architecture in _SCORED:
        read, task = _SCORED[architecture]
        if fields.config.get("classifier_from_token") is not None:
            return read(fields)  # the scores are rows of the LM head, which the checkpoint then has; see ``task.py``
        return with_score(read(fields), task, fields)
    if architecture in _HEADLESS:
        return replace(_HEADLESS[architecture](fields), has_head=False, tied_head=False)
    return FAMILIES[architecture](fields)


def _architecture(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    named = config.get("architectures")
    names = named if isinstance(named, list) and named else [_BY_MODEL_TYPE.get(str(model_type), model_type)]
    for name in names:
        if isinstance(name, str) and (name in FAMILIES or name in _HEADLESS or name in _SCORED):
            return name
    supported = ", ".join([*FAMILIES, *_HEADLESS, *_SCORED])
    raise UnsupportedModel(f"architecture {', '.join(map(str, names))} is not supported; supported: {supported}")
