"""Architectures that end in a head of their own: which backbones have which, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wellhead.models.fields import Fields
from wellhead.models.spec import ModelSpec, ScoreSpec

_MOST_LABELS = 65_536
_TRANSFORMERS = frozenset({"llama", "smollm3", "mistral", "qwen2", "qwen3"})
SEQUENCE, TOKENS, REWARD, STEPS = "ForSequenceClassification", "ForTokenClassification", "ForRewardModel", "ForProcessRewardModel"
#: What an architecture's name ends in -> the ``model_type`` of the backbones that are known to have it.
SCORED: Mapping[str, frozenset[str]] = {
    SEQUENCE: _TRANSFORMERS | {"gemma3_text"},
    TOKENS: _TRANSFORMERS,
    REWARD: frozenset({"qwen2"}),  # Qwen2.5-Math-RM
    STEPS: frozenset({"qwen2"}),  # Qwen2.5-Math-PRM
}


def with_score(backbone: ModelSpec, task: str, fields: Fields) -> ModelSpec:
    """The backbone without an LM head, and the head that the name's end stands for. Errors: UnsupportedModel."""
    if task == SEQUENCE:
        score = ScoreSpec(label_count(fields))
    elif task == TOKENS:
        score = ScoreSpec(label_count(fields), bias=fields.flag("token_classification_bias", True), each=True)
    else:
        score = ScoreSpec(1 if task == REWARD else 2, bias=True, inner=True, each=task == STEPS)
    return replace(backbone, has_head=False, tied_head=False, score=score)


def label_count(fields: Fields) -> int:
    """As transformers counts: the entries of ``id2label``, else ``num_labels``, else two."""
    named = fields.config.get("id2label")
    if named is None:
        return fields.integer("num_labels", 2, most=_MOST_LABELS)
    if not isinstance(named, Mapping) or not 1 <= len(named) <= _MOST_LABELS:
        raise fields.refuse(f"id2label must be an object of 1 to {_MOST_LABELS} labels")
    return len(named)


def label_names(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """The labels in the order of the scores; one that ``id2label`` does not name is called as transformers would."""
    named = config.get("id2label") or {}
    return tuple(str(named.get(str(i), named.get(i, f"LABEL_{i}"))) for i in range(count))
