"""Tiny checkpoints with heads of their own, saved by transformers under the published names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from support.families import COMMON, FAMILIES, randomise, tokenizer

#: A token that texts may really end in: the full stop.
PAD: int = tokenizer().encode(".").ids[0]


def write_scored(name: str, folder: Path, kind: str = "SequenceClassification", **changes: Any) -> Path:
    """``kind``: ``SequenceClassification``, ``TokenClassification`` or ``CausalLM``; the folder."""
    config_class, differs = FAMILIES[name]
    config = getattr(transformers, config_class)(**{**COMMON, **differs, "pad_token_id": PAD, **changes})
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config, dtype=torch.float32)
    randomise(model, one_plus=name.startswith("gemma"))
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


def change_config(folder: Path, **changes: Any) -> Path:
    """The same checkpoint with other words in its config; ``None`` takes a key away."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def theirs(folder: Path, kind: str, ids: list[int]) -> torch.Tensor:
    """The scores of transformers, float32 computed in float64: ``[C]``, or ``[tokens, C]``."""
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
