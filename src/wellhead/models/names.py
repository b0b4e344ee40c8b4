"""The names that Hugging Face gives to a model's tensors, with their shapes: the table of ``tensors.py`` as a dict."""

from __future__ import annotations

from wellhead.models.spec import ModelSpec
from wellhead.models.tensors import TOP, all_tensors

EMBEDDING = f"{TOP['embedding']}.weight"
HEAD = f"{TOP['head']}.weight"
FINAL_NORM = f"{TOP['final_norm']}.weight"


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder reads, with its shape (matrices are ``[out, in]``); no head when it is tied or absent."""
    return {tensor.name: tensor.shape for tensor in all_tensors(spec)}
