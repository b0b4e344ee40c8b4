"""The one decoder: a residual stream with taps. A family is a ``ModelSpec``, never a class of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from wellhead.errors import InternalError
from wellhead.kernels.ops import KVPages, Ops, Packed, Packing
from wellhead.models.names import EMBEDDING, FINAL_NORM, HEAD
from wellhead.models.rope import rope_table
from wellhead.models.spec import ModelSpec
from wellhead.models.tensors import Role, layer_tensors
from wellhead.step import Tap

GetTensor = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's weights, packed. ``attn_norm``: of the residual, before attention; EAGLE drafts may have none."""

    attn_norm: torch.Tensor | None
    qkv: Packed
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Packed
    o_bias: torch.Tensor | None
    attn_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Packed
    gate_up_bias: torch.Tensor | None
    down: Packed
    down_bias: torch.Tensor | None
    mlp_post_norm: torch.Tensor | None
    rope: torch.Tensor | None
    window: int | None


class Loader:
    """Tensors by name -> what ``ops`` works with. ``get`` yields a tensor; each is packed as it comes and not kept.

    ``int8``: round the weights of blocks (not embeddings and heads) to it.
    """

    def __init__(self, spec: ModelSpec, ops: Ops, get: GetTensor, *, int8: bool = False) -> None:
        self._spec, self._ops, self._get, self._int8 = spec, ops, get, int8

    def pack(self, *names: str, int8: bool = False) -> Packed:
        return self._ops.pack(*(self._to_dtype(self._get(name)) for name in names), int8=int8)

    def vector(self, *names: str) -> torch.Tensor:
        """Biases, rounded to the model's dtype as any weight and then held as float32."""
        return torch.cat([self._to_dtype(self._get(name)).float() for name in names])

    def norm(self, name: str) -> torch.Tensor:
        weight = self._to_dtype(self._get(name)).float()
        return weight + 1.0 if self._spec.norm_plus_one else weight.clone()

    def block(self, at: str, i: int, ropes: list[torch.Tensor], *, attn_norm: bool = True) -> Block:
        """Layer ``i``, whose tensors' names begin with ``at``."""
        spec = self._spec
        names = {(tensor.role, tensor.kind): at + tensor.name for tensor in layer_tensors(spec)}

        def pack(*roles: Role) -> Packed:
            return self.pack(*(names[role, "matrix"] for role in roles), int8=self._int8)

        def bias(*roles: Role) -> torch.Tensor | None:
            return self.vector(*(names[role, "bias"] for role in roles)) if (roles[0], "bias") in names else None

        def norm(role: Role) -> torch.Tensor | None:
            return self.norm(names[role, "norm"]) if (role, "norm") in names else None

        rope = spec.ropes[i]
        return Block(
            attn_norm=norm("attn_norm") if attn_norm else None,
            qkv=pack("q", "k", "v"),
            qkv_bias=bias("q", "k", "v"),
            q_norm=norm("q_norm"),
            k_norm=norm("k_norm"),
            o=pack("o"),
            o_bias=bias("o"),
            attn_post_norm=norm("attn_post_norm"),
            mlp_norm=self.norm(names["mlp_norm", "norm"]),
            gate_up=self._gate_up(names["gate", "matrix"], names["up", "matrix"]),
            gate_up_bias=bias("gate", "up"),
            down=pack("down"),
            down_bias=bias("down"),
            mlp_post_norm=norm("mlp_post_norm"),
            rope=None if rope is None else ropes[rope],
            window=spec.windows[i],
        )

    def _gate_up(self, gate: str, up: str) -> Packed:
        if self._spec.mlp_bias:
            return self.pack(gate, up, int8=self._int8)
        return self._ops.pack_glu(self._to_dtype(self._get(gate)), self._to_dtype(self._get(up)), int8=self._int8)

    def _to_dtype(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to(device=self._ops.device, dtype=self._ops.dtype)


class Decoder:
    """Weights in the layout of ``ops``, and the forward pass.

    ``get`` yields a tensor by its Hugging Face name. ``positions``: how many rows the rope tables need. ``int8``: of blocks.
    """

    def __init__(self, spec: ModelSpec, ops: Ops, get: GetTensor, positions: int, *, int8: bool = False) -> None:
        self.spec = spec
        self.ops = ops
        load = Loader(spec, ops, get, int8=int8)
        ropes = [rope_table(r, positions).to(ops.device) for r in spec.rope_tables]
        self.embedding = load.pack(EMBEDDING)
        self.blocks = [load.block(f"model.layers.{i}.", i, ropes) for i in range(spec.layers)]
        self._final_norm = load.norm(FINAL_NORM)
        self.head = self._head(load)

    def _head(self, load: Loader) -> Packed | None:
        if not self.spec.has_head:
            return None
        return self.embedding if self.spec.tied_head else load.pack(HEAD)

    def final_rows(self, ids: torch.Tensor, packing: Packing, kv: KVPages, tap: Tap, out: torch.Tensor | None) -> torch.Tensor:
        """Run the packed tokens ``ids`` (int64 ``[T]``) through all blocks, writing their keys and values.

        ``out`` (int64 ``[k]``, ``None`` for all): the tokens whose final row is needed; the last block does no more
        than these ask for. Returns their final rows ``[k, H]`` in the model's dtype: Hugging Face's ``hidden_states[-1]``.
        """
        x = self.embed(ids)
        shown, last = tap.layers, len(self.blocks) - 1
        for layer in range(last + 1):
            if layer in shown:
                tap.take(layer, x)
            mixed = self.attention(layer, self.before_attention(layer, x, packing, kv), packing, kv)
            if layer < last:
                self.after_attention_(layer, x, mixed)
        return self.finish(x, mixed, tap, out)

    def finish(self, x: torch.Tensor, mixed: torch.Tensor, tap: Tap, out: torch.Tensor | None) -> torch.Tensor:
        """From the last attention to the final rows, for the tokens ``out`` alone; ``x`` may change."""
        x = after_attention_(self.spec, self.ops, self.blocks[-1], x, mixed, out)
        if len(self.blocks) + 1 in tap.layers:
            tap.take(len(self.blocks) + 1, x)
        return self.ops.norm(x, self._final_norm, self.spec.norm_eps)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids, int64 ``[T]`` -> the residual stream at its start, float32 ``[T, H]``."""
        return self.ops.embed(ids, self.embedding, self.spec.embed_scale)

    def before_attention(self, layer: int, x: torch.Tensor, packing: Packing, kv: KVPages) -> torch.Tensor:
        """The first part of a block; see the function of this name."""
        return before_attention(self.spec, self.ops, self.blocks[layer], layer, x, packing, kv)

    def attention(self, layer: int, q: torch.Tensor, packing: Packing, kv: KVPages) -> torch.Tensor:
        """The middle of a block; see the function of this name."""
        return attention(self.spec, self.ops, self.blocks[layer], layer, q, packing, kv)

    def after_attention_(self, layer: int, x: torch.Tensor, mixed: torch.Tensor) -> None:
        """The rest of a block; see the function of this name."""
        after_attention_(self.spec, self.ops, self.blocks[layer], x, mixed)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Final rows ``[k, H]`` -> logits, float32 ``[k, vocab_size]``. Raises InternalError for a model without a head."""
        if self.head is None:  # requests that need one are refused at the door
            raise InternalError(f"{self.spec.architecture} has no LM head")
        logits = self.ops.linear(rows, self.head)
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def run_block(
    spec: ModelSpec, ops: Ops, b: Block, layer: int, x: torch.Tensor, packing: Packing, kv: KVPages,
    out: torch.Tensor | None, h: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """One layer on the residual ``x`` (float32 ``[T, H]``), in place or, with ``out``, on those rows alone.

    ``h``: what attention reads, in the model's dtype, if it is not the (normed) residual.
    """
    q = before_attention(spec, ops, b, layer, x, packing, kv, h)
    return after_attention_(spec, ops, b, x, attention(spec, ops, b, layer, q, packing, kv), out)


def before_attention(
    spec: ModelSpec, ops: Ops, b: Block, layer: int, x: torch.Tensor, packing: Packing, kv: KVPages,
    h: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Norm, project, store keys and values; the queries ``[T, Q, D]``. Row by row; ``x`` stays as it is."""
    if h is None:
        h = x.to(ops.dtype) if b.attn_norm is None else ops.norm(x, b.attn_norm, spec.norm_eps)
    qkv = ops.linear(h, b.qkv, b.qkv_bias)
    return ops.rope_store(
        qkv, kv, layer, packing,
        heads=spec.heads, cos_sin=b.rope, q_norm=b.q_norm, k_norm=b.k_norm, eps=spec.norm_eps,
    )  # fmt: skip


def attention(
    spec: ModelSpec, ops: Ops, b: Block, layer: int, q: torch.Tensor, packing: Packing, kv: KVPages
) -> torch.Tensor:  # fmt: skip
    """Queries ``[T, Q, D]`` -> ``[T, Q * D]``: the one part of a block in which rows meet."""
    return ops.attend(q, kv, layer, packing, scale=spec.attn_scale, window=b.window)


def after_attention_(
    spec: ModelSpec, ops: Ops, b: Block, x: torch.Tensor, mixed: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The rest of a block, row by row: the residual stream behind it, ``x`` in place or, with ``out``, those rows alone."""
    if out is not None:
        x, mixed = x.index_select(0, out), mixed.index_select(0, out)
    _add(spec, ops, x, mixed, b.o, b.o_bias, b.attn_post_norm)
    _add(spec, ops, x, _gated(spec, ops, ops.norm(x, b.mlp_norm, spec.norm_eps), b), b.down, b.down_bias, b.mlp_post_norm)
    return x


def _gated(spec: ModelSpec, ops: Ops, h: torch.Tensor, b: Block) -> torch.Tensor:
    if b.gate_up_bias is None:
        return ops.glu(h, b.gate_up, spec.activation)
    gate, up = ops.linear(h, b.gate_up, b.gate_up_bias).chunk(2, dim=-1)
    gate = F.silu(gate) if spec.activation == "silu" else F.gelu(gate, approximate="tanh")
    return (gate * up).to(ops.dtype)


def _add(
    spec: ModelSpec, ops: Ops, x: torch.Tensor, h: torch.Tensor, weight: Packed, bias: torch.Tensor | None,
    post_norm: torch.Tensor | None,
) -> None:  # fmt: skip
    if post_norm is None:
        ops.linear_add_(x, h, weight, bias)
    else:
        ops.norm_add_(x, ops.linear(h, weight, bias), post_norm, spec.norm_eps)
