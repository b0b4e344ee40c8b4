"""``Ops`` in torch operators alone: any device, any dtype, readable; the reference that the native kernels are tested against.

Results of its matrix products may depend on the row count (the vendor's library picks how to split sums), so
``batch_invariant`` is false.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from wellhead.errors import InvalidConfig
from wellhead.kernels.int8 import product, rounded, widened
from wellhead.kernels.ops import KVPages, Packed, Packing, Peak
from wellhead.types import Activation

SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)


class PlainOps:
    """Torch operators. KV layout: ``[pages, layers, 2, K, B, D]``."""

    name = "plain"
    batch_invariant = False

    def __init__(self, dtype: torch.dtype, device: torch.device | str = "cpu", *, why: str | None = None) -> None:
        """``why`` says why the native kernels are not used, for ``describe``. Raises InvalidConfig for other dtypes."""
        if dtype not in SUPPORTED:
            raise InvalidConfig(f"dtype {dtype} is not one of float32, bfloat16, float16", param="dtype")
        self.dtype = dtype
        self.device = torch.device(device)
        self._why = why
        self._wide = self.device.type == "cuda" and dtype != torch.float32

    def prepare_thread(self) -> None:
        """Nothing to prepare: torch's own threads do the work."""

    def pack(self, *weights: torch.Tensor, int8: bool = False) -> Packed:
        """Stack ``[out_i, in]`` weights of the model's dtype; raises InvalidConfig on other shapes or dtypes."""
        check_weights(weights, self.dtype)
        data = torch.cat([w.to(self.device) for w in weights]) if len(weights) > 1 else weights[0].to(self.device).contiguous()
        scales = None
        if int8:
            data, scales = rounded(data)
        return Packed(data, tuple(w.shape[0] for w in weights), weights[0].shape[1], scales)

    def pack_glu(self, gate: torch.Tensor, up: torch.Tensor, *, int8: bool = False) -> Packed:
        """Stack gate and up ``[F, H]``; raises InvalidConfig when their shapes differ."""
        check_glu(gate, up)
        return self.pack(gate, up, int8=int8)

    def unpack(self, weight: Packed) -> torch.Tensor:
        """The ``[out, in]`` weight."""
        return weight.data if weight.scales is None else widened(weight.data, weight.scales).to(self.dtype)

    def linear(self, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 ``[T, out]``. On the CPU a bfloat16 or float16 product is rounded to that dtype first."""
        if weight.scales is not None:
            out = product(x, weight.data, weight.scales)
        elif self._wide:
            out = torch.mm(x, weight.data.t(), out_dtype=torch.float32)
        else:
            out = F.linear(x, weight.data).float()
        return out if bias is None else out.add_(bias)

    def linear_add_(self, residual: torch.Tensor, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> None:
        """``residual += linear(x)`` in float32."""
        residual.add_(self.linear(x, weight, bias))

    def glu(self, x: torch.Tensor, weight: Packed, activation: Activation) -> torch.Tensor:
        """``[T, H] -> [T, F]`` of the model's dtype."""
        gate, up = torch.tensor_split(self.linear(x, weight), (weight.outs[0],), dim=1)
        gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        return (gate * up).to(self.dtype)

    def embed(self, ids: torch.Tensor, weight: Packed, scale: float) -> torch.Tensor:
        """Float32 ``[T, H]``."""
        rows = F.embedding(ids, weight.data)
        if scale != 1.0:
            rows = rows * torch.tensor(scale, dtype=self.dtype, device=self.device)
        return rows.float()

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``[T, H]`` of the model's dtype."""
        return _rms(x, weight, eps).to(self.dtype)

    def norm_add_(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """``residual += norm(x)`` in float32."""
        residual.add_(_rms(x, weight, eps))

    def peak(self, x: torch.Tensor) -> Peak:
        """As torch finds it."""
        most, at = x.max(dim=-1)
        return Peak(most.tolist(), at.tolist(), torch.isfinite(x).all(dim=-1).tolist())

    def new_kv(self, *, pages: int, page_size: int, layers: int, kv_heads: int, head_dim: int) -> KVPages:
        """Uninitialised pages."""
        shape = (pages, layers, 2, kv_heads, page_size, head_dim)
        data = torch.empty(shape, dtype=self.dtype, device=self.device)
        return KVPages(data, pages, page_size, layers, kv_heads, head_dim)

    def rope_store(
        self,
        qkv: torch.Tensor,
        kv: KVPages,
        layer: int,
        packing: Packing,
        *,
        heads: int,
        cos_sin: torch.Tensor | None,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """Store k and v; return q ``[T, Q, D]``."""
        tokens, dim = qkv.shape[0], kv.head_dim
        q, k, v = torch.tensor_split(qkv.view(tokens, -1, dim), (heads, heads + kv.kv_heads), dim=1)
        if q_norm is not None:
            q = _rms(q, q_norm, eps)
        if k_norm is not None:
            k = _rms(k, k_norm, eps)
        if cos_sin is not None:
            cos, sin = cos_sin[packing.positions].unsqueeze(1).chunk(2, dim=-1)
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        page, slot = packing.slots // kv.page_size, packing.slots % kv.page_size
        kv.data[page, layer, 0, :, slot] = k.to(self.dtype)
        kv.data[page, layer, 1, :, slot] = v.to(self.dtype)
        return q.to(self.dtype).contiguous()

    def attend(
        self, q: torch.Tensor, kv: KVPages, layer: int, packing: Packing, *, scale: float, window: int | None
    ) -> torch.Tensor:
        """One sequence after another: gather its written slots, then torch's attention. -> ``[T, Q * D]``."""
        if packing.decode and self.device.type == "cuda":
            return self.attend_ones(q, kv, layer, packing, scale=scale, window=window)
        out = torch.empty_like(q)
        starts, lens = packing.starts.tolist(), packing.kv_lens.tolist()
        for s, total in enumerate(lens):
            first, last = starts[s], starts[s + 1]
            if first == last:
                continue
            pages = packing.page_table[s, : -(-total // kv.page_size)].long()
            # Cutting at `total` keeps slots that were never written out of the sums altogether.
            keys, values = (kv.data[pages, layer, half].transpose(0, 1).flatten(1, 2)[:, :total].unsqueeze(0) for half in (0, 1))
            queries = q[first:last].transpose(0, 1).unsqueeze(0)
            mask = _mask(last - first, total, window, q.device)
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=True)
            out[first:last] = mixed.squeeze(0).transpose(0, 1)
        return out.flatten(1)

    def attend_ones(
        self, q: torch.Tensor, kv: KVPages, layer: int, packing: Packing, *, scale: float, window: int | None
    ) -> torch.Tensor:
        """``attend`` where every sequence has one token: all at once, by masks, without a look at any number.

        So it can stand in a CUDA graph, whose page tables change under it. It reads as many pages of each sequence as the
        table is wide.
        """
        sequences, dim = q.shape[0], kv.head_dim
        pages = packing.page_table.clamp(min=0).long()
        keys, values = (kv.data[pages, layer, half].transpose(1, 2).reshape(sequences, kv.kv_heads, -1, dim) for half in (0, 1))
        at = torch.arange(keys.shape[2], device=q.device)
        seen = at < packing.kv_lens[:, None]
        if window is not None:
            seen &= at >= packing.kv_lens[:, None] - window
        # Slots that were never written may hold NaN, which no mask of scores keeps out.
        keys, values = (half.masked_fill(~seen[:, None, :, None], 0.0) for half in (keys, values))
        mixed = F.scaled_dot_product_attention(
            q.unsqueeze(2), keys, values, attn_mask=seen[:, None, None], scale=scale, enable_gqa=True
        )
        return mixed.reshape(sequences, -1)

    def copy_page(self, kv: KVPages, source: int, target: int) -> None:
        """Copy one page of all layers."""
        kv.data[target].copy_(kv.data[source])

    def describe(self) -> dict[str, Any]:
        """Name, device, dtype, and the reason why the native kernels are not used (``None``: not asked for)."""
        return {
            "name": self.name,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "unit": None,
            "why": "torch's own operators" + (f": {self._why}" if self._why else ""),
            "instruction_set": torch.backends.cpu.get_cpu_capability() if self.device.type == "cpu" else None,
            "batch_invariant": self.batch_invariant,
            "why_not_native": self._why,
        }


def check_weights(weights: tuple[torch.Tensor, ...], dtype: torch.dtype) -> None:
    """Raise InvalidConfig unless every weight is ``[out_i, in]`` with one ``in``, of ``dtype``."""
    shapes = [tuple(w.shape) for w in weights]
    if not weights or any(w.dim() != 2 or 0 in w.shape or w.shape[1] != weights[0].shape[1] for w in weights):
        raise InvalidConfig(f"cannot pack weights of shapes {shapes}: each must be [out, in] with one and the same in")
    if any(w.dtype != dtype for w in weights):
        raise InvalidConfig(f"cannot pack weights of dtypes {[str(w.dtype) for w in weights]} for a model in {dtype}")


def check_glu(gate: torch.Tensor, up: torch.Tensor) -> None:
    """Raise InvalidConfig unless gate and up have the same shape."""
    if gate.shape != up.shape:
        raise InvalidConfig(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} of a gated MLP must have the same shape")


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def _mask(tokens: int, total: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Which of ``total`` keys the last ``tokens`` positions see: bool ``[tokens, total]``, or ``None`` for all of them."""
    if tokens == 1 and (window is None or window >= total):
        return None
    query = torch.arange(total - tokens, total, device=device).unsqueeze(1)
    key = torch.arange(total, device=device)
    seen = key <= query
    return seen if window is None else seen & (key > query - window)
