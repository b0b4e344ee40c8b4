"""The seam between the model's mathematics and whatever computes it.

``Ops`` is everything a decoder needs from a machine. Two classes implement it: ``NativeOps`` (the compiled kernels of
``csrc/``, CPU) and ``PlainOps`` (torch operators, any device). The second is the reference of the first in tests, and
what runs where the first cannot be built.

Dtypes: *activations* and weights have the model's dtype (``ops.dtype``: float32, bfloat16 or float16). The residual
stream is always float32. Norm weights, biases and rope tables are float32.

Letters in shapes: T packed tokens of a step, S sequences of a step, H hidden size, D head dim, Q query heads,
K key-value heads, B page size, F inner size of the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from wellhead.types import Activation


@dataclass(frozen=True, slots=True)
class Packed:
    """One weight ``[out_features, in_features]`` in the layout that its ``Ops`` likes best.

    ``data`` belongs to the ``Ops`` that packed it; nobody else looks inside. ``outs`` are the sizes of the parts that
    were stacked along the output axis (``pack`` of one weight: one part). ``scales``: of an int8 weight, in the same hands.
    """

    data: torch.Tensor
    outs: tuple[int, ...]
    in_features: int
    scales: torch.Tensor | None = None

    @property
    def out_features(self) -> int:
        return sum(self.outs)


@dataclass(frozen=True, slots=True)
class KVPages:
    """The key-value store: page-major, so that one page of all layers is one contiguous run of memory.

    ``data``: ``[pages, ...]`` of the model's dtype; what lies behind the first axis belongs to the ``Ops``.
    """

    data: torch.Tensor
    pages: int
    page_size: int
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def bytes_per_page(self) -> int:
        return self.data[0].numel() * self.data.element_size()


@dataclass(frozen=True, slots=True)
class Packing:
    """How the T tokens of a step belong to its S sequences, and where their keys and values lie.

    Sequence s owns tokens ``starts[s]:starts[s + 1]``, which are the *last* tokens of its ``kv_lens[s]`` tokens so
    far; the key of position p lies in page ``page_table[s, p // B]`` at slot ``p % B``.
    """

    positions: torch.Tensor  # int64 [T], absolute position of each token
    starts: torch.Tensor  # int32 [S + 1]
    kv_lens: torch.Tensor  # int32 [S], tokens with keys after this step's writes
    page_table: torch.Tensor  # int32 [S, longest], -1 beyond a sequence's pages
    slots: torch.Tensor  # int64 [T], page * B + position % B
    decode: bool = False  # every sequence has exactly one token


@dataclass(frozen=True, slots=True)
class Peak:
    """Of each row: its largest element, the first place of that, and whether no element is NaN or infinite; if one is, the
    other two say nothing."""

    most: list[float]
    at: list[int]
    finite: list[bool]


class Ops(Protocol):
    """Row-wise operators: the result for one token never depends on which other tokens are in the call."""

    name: str
    batch_invariant: bool
    dtype: torch.dtype
    device: torch.device

    def prepare_thread(self) -> None:
        """Called once on each thread that runs steps, before its first."""
        ...

    def pack(self, *weights: torch.Tensor, int8: bool = False) -> Packed:
        """Pack weights ``[out_i, in]`` of one input into one, stacked along ``out`` in the order given.

        ``int8``: round them, and in products their inputs, as ``kernels/int8.py`` says. Not for ``embed``.
        """
        ...

    def pack_glu(self, gate: torch.Tensor, up: torch.Tensor, *, int8: bool = False) -> Packed:
        """Pack the two halves of a gated MLP, ``[F, H]`` each, for ``glu``. ``int8``: as in ``pack``."""
        ...

    def unpack(self, weight: Packed) -> torch.Tensor:
        """The plain ``[out, in]`` weight back, bit for bit but for int8 (tests, and tools that read weights)."""
        ...

    def linear(self, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x [T, in]`` of the model's dtype -> ``x @ weight.T + bias`` as float32 ``[T, out]``, rounded once."""
        ...

    def linear_add_(self, residual: torch.Tensor, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> None:
        """``residual [T, out] += x @ weight.T + bias`` in float32, in place."""
        ...

    def glu(self, x: torch.Tensor, weight: Packed, activation: Activation) -> torch.Tensor:
        """``activation(x @ gate.T) * (x @ up.T)``: ``[T, H]`` -> ``[T, F]``.

        Computed in float32, rounded once to the model's dtype.
        """
        ...

    def embed(self, ids: torch.Tensor, weight: Packed, scale: float) -> torch.Tensor:
        """Rows ``ids`` (int64 ``[T]``) of the embedding times ``scale``, as float32 ``[T, H]``.

        ``scale`` is first rounded to the model's dtype, and so is the product, as transformers does (no-op at 1.0).
        """
        ...

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm of float32 ``[T, H]`` rows times a float32 ``[H]`` weight, rounded to the model's dtype.

        ``x / sqrt(mean(x**2) + eps) * weight`` (Zhang and Sennrich 2019), the mean in float32.
        """
        ...

    def norm_add_(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """``residual += norm(x)``, all float32, in place (the post-norms of Gemma)."""
        ...

    def peak(self, x: torch.Tensor) -> Peak:
        """The largest element of each row of float32 ``[R, V]``, where it first stands, and whether the whole row is finite."""
        ...

    def new_kv(self, *, pages: int, page_size: int, layers: int, kv_heads: int, head_dim: int) -> KVPages:
        """Room for ``pages`` pages; the memory is not initialised."""
        ...

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
        """Split ``qkv`` (float32 ``[T, (Q + 2K) D]``), norm q and k per head, rotate them, store k and v in their pages.

        ``cos_sin``: float32 ``[positions, D]``, cosines in the first half and sines in the second, attention scaling
        folded in; ``None`` for layers without rope. The rotation pairs element i with i + D/2 (rotate-half).
        Norm and rotation are in float32; one rounding at the end. Returns q ``[T, Q, D]`` in the model's dtype.
        """
        ...

    def attend(
        self, q: torch.Tensor, kv: KVPages, layer: int, packing: Packing, *, scale: float, window: int | None
    ) -> torch.Tensor:
        """Causal attention of ``q [T, Q, D]`` over each sequence's own pages -> ``[T, Q * D]`` in the model's dtype.

        A query at position p sees keys ``max(0, p - window + 1) .. p`` (``window=None``: ``0 .. p``). Slots that were
        never written may hold anything, NaN included, and must not show in the result.
        """
        ...

    def copy_page(self, kv: KVPages, source: int, target: int) -> None:
        """Copy one page of all layers."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a start-up line and ``/server_info`` say: name, instruction set, the unit of products, batch_invariant, why."""
        ...
