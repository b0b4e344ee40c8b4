"""Random tiny checkpoints of every family, written by transformers, so that nothing of ours decides what is in them.

Norm weights are drawn from 0.5 to 2 (a norm applied twice, or not at all, would not show with ones), heads are untied
where the family allows it, keys and values are grouped.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

VOCAB = 272
LAYERS = 3
HIDDEN = 64
WINDOW = 24
CONTEXT = 512
EOS = 256

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "rms_norm_eps": 1e-6,
}
THETA = 10_000.0


def _rope(kind: str, **more: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": THETA, **more}}


#: name -> (config class, what differs from COMMON)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"head_dim": 16}),
    "llama-biased": ("LlamaConfig", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("LlamaConfig", {"head_dim": 16, "tie_word_embeddings": True}),
    "llama3-rope": (
        "LlamaConfig",
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "yarn-rope": ("LlamaConfig", _rope("yarn", factor=4.0, original_max_position_embeddings=128)),
    "linear-rope": ("LlamaConfig", _rope("linear", factor=3.0)),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 0, 1], "use_sliding_window": False}),
    "mistral": ("MistralConfig", {"head_dim": 16, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-window": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
            "final_logit_softcapping": 20.0,
        },
    ),
}


def write_family(name: str, folder: Path, *, headless: bool = False, **changes: Any) -> Path:
    """A checkpoint of a family in float32, with a byte-level tokenizer; the folder. ``headless``: of ``AutoModel``."""
    kind, differs = FAMILIES[name]
    config = getattr(transformers, kind)(**{**COMMON, **differs, **changes})
    make: Any = (transformers.AutoModel if headless else transformers.AutoModelForCausalLM).from_config
    model = make(config, dtype=torch.float32)
    randomise(model, one_plus=name.startswith("gemma"))
    if not headless:
        model.generation_config.eos_token_id = EOS
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


@torch.no_grad()
def randomise(model: torch.nn.Module, *, one_plus: bool, seed: int = 0) -> None:
    """Every parameter anew: norms 0.5 .. 2 (``one_plus``: stored less one), matrices scaled to keep the stream alive."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        fresh = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            fresh = torch.rand(parameter.shape, generator=generator) * 1.5 + (-0.5 if one_plus else 0.5)
        elif parameter.dim() == 1:
            fresh = fresh * 0.3
        elif "embed" not in name:
            fresh = fresh * 1.2 / parameter.shape[1] ** 0.5
        parameter.copy_(fresh)


def tokenizer() -> tokenizers.Tokenizer:
    """One token per byte (ids 0 .. 255 are the bytes, in the alphabet's order), and one special token, ``</s>``."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return built


@functools.cache
def byte_ids(text: str) -> tuple[int, ...]:
    """The ids of a text under ``tokenizer``."""
    return tuple(tokenizer().encode(text).ids)
