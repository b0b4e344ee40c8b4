"""transformers in float32 as the judge: rows of every layer, and logits, of one sequence at a time."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray


@dataclass(frozen=True)
class Truth:
    """``layers[i]`` ``[T, H]`` as Hugging Face numbers them, the last one taken behind the final norm; ``logits`` ``[T, V]``;
    ``pre_norm`` ``[T, H]``, what that norm was given."""

    layers: list[NDArray[np.float32]]
    logits: torch.Tensor
    pre_norm: NDArray[np.float32]

    @property
    def logprobs(self) -> torch.Tensor:
        return torch.log_softmax(self.logits, dim=-1)


@functools.lru_cache(maxsize=16)
def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A causal model that computes attention without shortcuts."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


@torch.inference_mode()
def truth(folder: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> Truth:
    """One plain forward pass over all ids."""
    model = load(folder, dtype)
    layers, before, out = forward(model, model.model.norm, ids)
    return Truth(layers, out.logits[0].float(), before)


@torch.inference_mode()
def headless_rows(folder: Path, ids: list[int]) -> list[NDArray[np.float32]]:
    """``Truth.layers`` of a checkpoint without an LM head."""
    model: Any = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    assert "lm_head" not in dict(model.named_modules())
    model = getattr(model, "language_model", model)  # of a model with images
    return forward(model, model.norm, ids)[0]


def forward(model: Any, norm: torch.nn.Module, ids: list[int]) -> tuple[list[NDArray[np.float32]], NDArray[np.float32], Any]:
    """Rows of every layer, those before the final norm, and all that the model gave."""
    final: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = norm.register_forward_hook(lambda module, args, out: final.append((args[0].clone(), out)))
    try:
        out = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    finally:
        hook.remove()
    ((before, after),) = final
    return [layer[0].float().numpy() for layer in (*out.hidden_states[:-1], after)], before[0].float().numpy(), out


def furthest(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """The largest relative distance of two rows."""
    assert ours.shape == theirs.shape
    norms = np.linalg.norm(theirs.astype(np.float64), axis=-1)
    return float((np.linalg.norm(ours.astype(np.float64) - theirs, axis=-1) / norms).max())


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
