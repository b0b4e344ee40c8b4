"""Tiny checkpoints with heads of their own, saved by transformers under the published names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

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


PROMPTS = {"query": "Instruct: find\nQuery:", "document": ""}


def add_modules(
    folder: Path,
    pooling: dict[str, Any],
    dense: tuple[tuple[int, int, str | None], ...] = (),
    *,
    normalize: bool = True,
    **said: Any,
) -> Path:
    """What sentence-transformers lays beside a model. ``dense``: widths in and out, and the activation's class."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *(("Dense", f"{i + 2}_Dense") for i in range(len(dense)))]
    kinds += [("Normalize", f"{len(kinds)}_Normalize")] if normalize else []
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": COMMON["hidden_size"], **pooling}))
    told = {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine", **said}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(told))
    draw = torch.Generator().manual_seed(5)
    for i, (into, out, activation) in enumerate(dense):
        here = folder / f"{i + 2}_Dense"
        here.mkdir(exist_ok=True)
        weights = {"linear.weight": torch.randn(out, into, generator=draw) / 8, "linear.bias": torch.randn(out, generator=draw)}
        save_file(weights, here / "model.safetensors")
        config = {"in_features": into, "out_features": out, "bias": True, "activation_function": activation}
        (here / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def add_template(folder: Path, template: str) -> Path:
    """Give a checkpoint this chat template; the folder."""
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    return folder


def final_rows(folder: Path, ids: list[int]) -> torch.Tensor:
    """The rows after the final norm as transformers computes them, float64 ``[tokens, H]``."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0]
