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
from wellhead.models.spec import ModelSpec

FAMILIES: dict[str, Callable[[Fields], ModelSpec]] = {
    "LlamaForCausalLM": llama,
    "SmolLM3ForCausalLM": smollm3,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3_text_part,
}

#: What ``AutoModel.save_pretrained`` writes: the same models without their LM head.
HEADLESS = {
    "LlamaModel": "LlamaForCausalLM",
    "SmolLM3Model": "SmolLM3ForCausalLM",
    "MistralModel": "MistralForCausalLM",
    "Qwen2Model": "Qwen2ForCausalLM",
    "Qwen3Model": "Qwen3ForCausalLM",
    "Gemma3TextModel": "Gemma3ForCausalLM",
    "Gemma3Model": "Gemma3ForConditionalGeneration",
}

_BY_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
}


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
    if architecture not in HEADLESS:
        return FAMILIES[architecture](fields)
    return replace(FAMILIES[HEADLESS[architecture]](fields), has_head=False, tied_head=False)


def _architecture(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    named = config.get("architectures")
    names = named if isinstance(named, list) and named else [_BY_MODEL_TYPE.get(str(model_type), model_type)]
    for name in names:
        if isinstance(name, str) and (name in FAMILIES or name in HEADLESS):
            return name
    supported = ", ".join([*FAMILIES, *HEADLESS])
    raise UnsupportedModel(f"architecture {', '.join(map(str, names))} is not supported; supported: {supported}")
