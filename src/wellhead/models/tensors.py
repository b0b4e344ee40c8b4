"""The one table of a model's tensors: what each is for, its name and shape, and how it is cut over several processes.

The checks of files, the decoder's packing, the parts of ranks, GGUF's names and the files of drafts all read it. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from wellhead.models.spec import ModelSpec

#: What a tensor is for. ``mlp_norm`` stands before the MLP, the ``post`` norms behind attention and MLP (Gemma).
Role = Literal[
    "embedding", "final_norm", "head", "q", "k", "v", "o", "gate", "up", "down",
    "attn_norm", "mlp_norm", "attn_post_norm", "mlp_post_norm", "q_norm", "k_norm", "score", "score_inner",
]  # fmt: skip
#: A matrix ``[out, in]`` is packed (``Ops.pack``); biases and norms are vectors.
Kind = Literal["matrix", "bias", "norm"]
#: By what ranks share a tensor: heads, key-value heads, the MLP's channels, or ids.
Share = Literal["heads", "keys", "ffn", "vocabulary"]

#: Hugging Face's modules, of the whole model and of one layer.
TOP: dict[Role, str] = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
#: Of a head of the checkpoint's own: the matrix that gives the scores, alone or behind another.
_SCORE, _SCORE_INNER, _SCORE_OUTER = "score", "score.0", "score.2"
_LAYER: dict[Role, str] = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
#: Trap: with norms behind attention and MLP, ``post_attention_layernorm`` is what its name says, and elsewhere it is not.
_POST_NORMS: dict[Role, str] = {
    **_LAYER,
    "attn_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor. ``name``: Hugging Face's. ``share`` and ``axis`` (0: outputs, 1: inputs): how ranks cut it; ``share`` is
    ``None`` where each has the whole. The bias of a matrix that is cut along its inputs has that ``axis`` too: as the ranks'
    products are added up, it belongs to one of them."""

    role: Role
    kind: Kind
    name: str
    shape: tuple[int, ...]
    share: Share | None = None
    axis: int = 0


def modules(*, post_norms: bool) -> dict[Role, str]:
    """The modules of one layer, below ``model.layers.{i}.``."""
    return _POST_NORMS if post_norms else _LAYER


def all_tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    """Every tensor of the model; no LM head when it is tied or absent."""
    vocabulary = (spec.vocab_size, spec.hidden_size)
    yield TensorSpec("embedding", "matrix", f"{TOP['embedding']}.weight", vocabulary, "vocabulary")
    layer = layer_tensors(spec)
    for i in range(spec.layers):
        for tensor in layer:
            yield replace(tensor, name=f"model.layers.{i}.{tensor.name}")
    yield TensorSpec("final_norm", "norm", f"{TOP['final_norm']}.weight", (spec.hidden_size,))
    if spec.has_head and not spec.tied_head:
        yield TensorSpec("head", "matrix", f"{TOP['head']}.weight", vocabulary, "vocabulary")
    yield from score_tensors(spec)


def score_tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    """Those of the checkpoint's own head, in the order in which a row passes them; every rank has them whole."""
    score, hidden = spec.score, spec.hidden_size
    if score is None:
        return
    if score.inner:
        yield TensorSpec("score_inner", "matrix", f"{_SCORE_INNER}.weight", (hidden, hidden))
        yield TensorSpec("score_inner", "bias", f"{_SCORE_INNER}.bias", (hidden,))
    name = _SCORE_OUTER if score.inner else _SCORE
    yield TensorSpec("score", "matrix", f"{name}.weight", (score.labels, hidden))
    if score.bias:
        yield TensorSpec("score", "bias", f"{name}.bias", (score.labels,))


def layer_tensors(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """One layer's, their names without ``model.layers.{i}.``."""
    hidden, ffn, dim = spec.hidden_size, spec.ffn_size, spec.head_dim
    queries, keys = spec.heads * dim, spec.kv_heads * dim
    named = modules(post_norms=spec.post_norms)

    def linear(role: Role, out: int, into: int, bias: bool, share: Share, axis: int = 0) -> Iterator[TensorSpec]:
        yield TensorSpec(role, "matrix", f"{named[role]}.weight", (out, into), share, axis)
        if bias:
            yield TensorSpec(role, "bias", f"{named[role]}.bias", (out,), share, axis)

    def norm(role: Role, size: int) -> TensorSpec:
        return TensorSpec(role, "norm", f"{named[role]}.weight", (size,))

    post: tuple[Role, ...] = ("attn_post_norm", "mlp_post_norm") if spec.post_norms else ()
    of_heads: tuple[Role, ...] = ("q_norm", "k_norm") if spec.qk_norm else ()
    return (
        *linear("q", queries, hidden, spec.qkv_bias, "heads"),
        *linear("k", keys, hidden, spec.qkv_bias, "keys"),
        *linear("v", keys, hidden, spec.qkv_bias, "keys"),
        *linear("o", hidden, queries, spec.o_bias, "heads", axis=1),
        *linear("gate", ffn, hidden, spec.mlp_bias, "ffn"),
        *linear("up", ffn, hidden, spec.mlp_bias, "ffn"),
        *linear("down", hidden, ffn, spec.mlp_bias, "ffn", axis=1),
        *(norm(role, hidden) for role in ("attn_norm", "mlp_norm", *post)),
        *(norm(role, dim) for role in of_heads),
    )
