"""``Ops`` over the compiled kernels of ``csrc/``: the CPU, one order of sums per row whatever else is in the call."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F

from wellhead.config import PAGE_SIZES
from wellhead.errors import InvalidConfig
from wellhead.kernels import build, fakes
from wellhead.kernels.int8 import rounded, widened
from wellhead.kernels.ops import KVPages, Packed, Packing, Peak
from wellhead.kernels.plain import SUPPORTED, check_glu, check_weights
from wellhead.types import Activation

BLOCK = 32  # columns of a packed block; kCols of csrc/numbers.h
LARGEST_INT8 = 65536  # inputs of an int8 product: 255 * 127 * this is what 32 bits hold


class NativeOps:
    """Packed weights and pages, described in ``csrc/kernels.h``.

    bfloat16 is multiplied as such where the processor can (AVX512 or AMX), else widened to float32, as float16 always is.
    """

    name = "native"
    batch_invariant = True
    device = torch.device("cpu")

    def __init__(self, dtype: torch.dtype) -> None:
        """Raises BuildFailed when the extension cannot be built, InvalidConfig when this processor or dtype is not supported."""
        if dtype not in SUPPORTED:
            raise InvalidConfig(f"dtype {dtype} is not one of float32, bfloat16, float16", param="dtype")
        build.load()
        fakes.register()
        torch.ops.wellhead.set_team_size(torch.get_num_threads())
        self.dtype = dtype
        kernels = torch.ops.wellhead
        self._linear = kernels.linear.default
        self._linear_add = kernels.linear_add_.default
        self._glu = kernels.glu.default
        self._embed = kernels.embed.default
        self._norm = kernels.norm.default
        self._norm_add = kernels.norm_add_.default
        self._peak = kernels.peak.default
        self._rope_store = kernels.rope_store.default
        self._attend = kernels.attend.default
        self._pairs = dtype == torch.bfloat16
        failure = self._probe()
        self._no_pairs = failure if self._pairs else None
        if failure and self._pairs:
            self._pairs = False
            failure = self._probe()
        if failure:
            raise InvalidConfig(f"this processor has no matrix product for {dtype}: {failure}")

    def _probe(self) -> str | None:
        """Try the product that this dtype needs; why it cannot be had, or ``None``."""
        weight = torch.linspace(-1, 1, BLOCK * 8).view(BLOCK, 8).to(self.dtype)
        x = torch.linspace(-1, 1, 24).view(3, 8).to(self.dtype)
        try:
            out = self.linear(x, self.pack(weight))
        except RuntimeError as error:
            return str(error).splitlines()[0]
        right = torch.allclose(out, x.float() @ weight.float().t(), rtol=1e-2, atol=1e-2)
        return None if right else "a small product came out wrong"

    def prepare_thread(self) -> None:
        """From now on torch's own operators run on this thread alone, so that its threads do not stand in the kernels' way."""
        torch.ops.wellhead.lone_torch()

    def pack(self, *weights: torch.Tensor, int8: bool = False) -> Packed:
        """Stack ``[out_i, in]`` weights of the model's dtype into blocks; raises InvalidConfig on other shapes or dtypes."""
        check_weights(weights, self.dtype)
        stacked = torch.cat(weights) if len(weights) > 1 else weights[0]
        data, scales = self._blocks8(stacked) if int8 else (self._blocks(stacked), None)
        return Packed(data, tuple(w.shape[0] for w in weights), weights[0].shape[1], scales)

    def pack_glu(self, gate: torch.Tensor, up: torch.Tensor, *, int8: bool = False) -> Packed:
        """Blocks of half gate columns and half up columns; raises InvalidConfig when the shapes differ."""
        check_glu(gate, up)
        check_weights((gate, up), self.dtype)
        half, inner = BLOCK // 2, gate.shape[1]
        padded = [F.pad(w, (0, 0, 0, -w.shape[0] % half)).view(-1, half, inner) for w in (gate, up)]
        stacked = torch.cat(padded, dim=1).view(-1, inner)
        data, scales = self._blocks8(stacked) if int8 else (self._blocks(stacked), None)
        return Packed(data.view(*data.shape[:2], 2, half, *data.shape[3:]), (gate.shape[0], up.shape[0]), inner, scales)

    def _blocks8(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``_blocks`` of a rounded weight, and its scales and sums of steps, float32 ``[2, blocks, BLOCK]``."""
        if weight.shape[1] > LARGEST_INT8:
            raise InvalidConfig(f"an int8 weight of shape {tuple(weight.shape)} may overflow: in is {LARGEST_INT8} at most")
        steps, scales = rounded(weight)
        sums = steps.sum(dim=1, dtype=torch.int32).float()
        columns = F.pad(torch.stack((scales, sums)), (0, -weight.shape[0] % BLOCK))
        return self._blocks(steps), columns.view(2, -1, BLOCK).contiguous()

    def _blocks(self, weight: torch.Tensor) -> torch.Tensor:
        """``[out, in]`` -> ``[blocks, in, BLOCK]``, or in groups of 2 (``pairs``) or 4 (int8) ``[blocks, in / group, BLOCK,
        group]``; missing columns are zero."""
        out, inner = weight.shape
        group = self._group(weight)
        if inner % group:
            raise InvalidConfig(f"cannot pack a {weight.dtype} weight of shape {tuple(weight.shape)}: in must divide by {group}")
        # As one wider number, a group moves in one piece.
        if group > 1 and (not weight.is_contiguous() or weight.storage_offset() % group):
            weight = weight.clone(memory_format=torch.contiguous_format)
        source = weight.view(torch.int32) if group > 1 else weight
        data = torch.empty((-(-out // BLOCK), source.shape[1], BLOCK), dtype=source.dtype)
        whole = out // BLOCK
        data[:whole] = source[: whole * BLOCK].view(whole, BLOCK, source.shape[1]).transpose(1, 2)
        if whole < data.shape[0]:
            data[whole] = F.pad(source[whole * BLOCK :], (0, 0, 0, -out % BLOCK)).t()
        return data.view(weight.dtype).view(*data.shape, group) if group > 1 else data

    def _group(self, weight: torch.Tensor) -> int:
        """How many neighbours along ``in`` lie side by side."""
        return 4 if weight.dtype == torch.int8 else 2 if self._pairs else 1

    def unpack(self, weight: Packed) -> torch.Tensor:
        """The ``[out, in]`` weight; of ``pack_glu``, gate over up."""
        data, scales = weight.data, weight.scales
        if data.dim() == (5 if self._group(data) > 1 else 4):
            return torch.cat([self._plain(data.select(2, half), scales, half, weight.outs[half]) for half in (0, 1)])
        return self._plain(data, scales, 0, weight.out_features)

    def _plain(self, data: torch.Tensor, scales: torch.Tensor | None, half: int, out: int) -> torch.Tensor:
        plain = data.transpose(1, 2).flatten(2).flatten(0, 1)[:out]
        if scales is None:
            return plain
        columns = scales[0].view(len(data), -1, data.shape[2])[:, half].flatten()
        return widened(plain, columns[:out]).to(self.dtype)

    def linear(self, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 ``[T, out]``."""
        out: torch.Tensor = self._linear(x, weight.data, weight.scales, weight.out_features, bias)
        return out

    def linear_add_(self, residual: torch.Tensor, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> None:
        """``residual += linear(x)`` in float32."""
        self._linear_add(residual, x, weight.data, weight.scales, bias)

    def glu(self, x: torch.Tensor, weight: Packed, activation: Activation) -> torch.Tensor:
        """``[T, H] -> [T, F]`` of the model's dtype."""
        out: torch.Tensor = self._glu(x, weight.data, weight.scales, weight.outs[0], activation == "silu")
        return out

    def embed(self, ids: torch.Tensor, weight: Packed, scale: float) -> torch.Tensor:
        """Float32 ``[T, H]``; raises IndexError for ids outside the weight."""
        rounded = scale if scale == 1.0 else torch.tensor(scale, dtype=self.dtype).item()
        out: torch.Tensor = self._embed(ids, weight.data, weight.out_features, rounded)
        return out

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``[T, H]`` of the model's dtype."""
        out: torch.Tensor = self._norm(x, weight, eps, self.dtype)
        return out

    def norm_add_(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """``residual += norm(x)`` in float32."""
        self._norm_add(residual, x, weight, eps)

    def peak(self, x: torch.Tensor) -> Peak:
        """One pass over each row, and one up to its largest element."""
        most, at, finite = self._peak(x)
        return Peak(most.tolist(), at.tolist(), finite.tolist())

    def new_kv(self, *, pages: int, page_size: int, layers: int, kv_heads: int, head_dim: int) -> KVPages:
        """Uninitialised pages; raises InvalidConfig for a page size that is not 16, 32, 64 or 128, or an odd head dim."""
        if page_size not in PAGE_SIZES:
            raise InvalidConfig(f"page size {page_size} is not one of {PAGE_SIZES}", param="page_size")
        if head_dim % 2:
            raise InvalidConfig(f"head dim {head_dim} is odd")
        data = torch.empty((pages, layers, kv_heads, 2, page_size * head_dim), dtype=self.dtype)
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
        """Store k and v; return q ``[T, Q, D]``. Raises IndexError for slots or positions outside the pages or the table."""
        q: torch.Tensor = self._rope_store(
            qkv, kv.data, self._pairs, layer, kv.page_size, heads, packing.positions, packing.slots, cos_sin, q_norm, k_norm, eps
        )
        return q

    def attend(
        self, q: torch.Tensor, kv: KVPages, layer: int, packing: Packing, *, scale: float, window: int | None
    ) -> torch.Tensor:
        """``[T, Q * D]`` of the model's dtype; raises IndexError for sequences that do not fit their pages."""
        out: torch.Tensor = self._attend(
            q, kv.data, self._pairs, layer, kv.page_size, packing.starts, packing.kv_lens, packing.page_table, scale, window or 0
        )
        return out

    def copy_page(self, kv: KVPages, source: int, target: int) -> None:
        """Copy one page of all layers."""
        kv.data[target].copy_(kv.data[source])

    def describe(self) -> dict[str, Any]:
        """Name, device, dtype, the instructions of row-wise work, and in which dtype and by which unit products are made."""
        products, unit = ("bfloat16", torch.ops.wellhead.unit16()) if self._pairs else ("float32", float_unit())
        return {
            "name": self.name,
            "device": "cpu",
            "dtype": str(self.dtype).removeprefix("torch."),
            "instruction_set": torch.backends.cpu.get_cpu_capability(),
            "products": products,
            "unit": unit,
            "int8_unit": torch.ops.wellhead.unit8(),
            "why": self._why(products, unit),
            "batch_invariant": self.batch_invariant,
            "why_not_native": None,
        }

    def _why(self, products: str, unit: str) -> str:
        """A sentence about ``describe``'s choice."""
        made = f"products of {products} by {unit}"
        name = str(self.dtype).removeprefix("torch.")
        if name == products:
            return made
        reason = f", since this processor does not multiply them as they are: {self._no_pairs}" if self._no_pairs else ""
        return f"{made}, {name} weights widened{reason}"


def float_unit(capability: str | None = None, limit: str | None = None) -> str:
    """The unit of float32 products: torch's level, and what ``ONEDNN_MAX_CPU_ISA`` leaves of it (both given by tests alone)."""
    capability = torch.backends.cpu.get_cpu_capability() if capability is None else capability
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")) if limit is None else limit
    below = limit.upper() in ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")
    return "AVX512" if capability.startswith("AVX512") and not below else "AVX2"
