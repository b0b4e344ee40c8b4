"""Captured forward passes with a fixed ceiling: decode by batch size, prompt chunks by number of tokens.

All graphs are captured once, at start-up, at one capture mode. A weaker batch replays the same graph and keeps less of
what it yields; a stronger one is an error. Nothing is ever captured again. Rows that fill a bucket up are a token 0 in a page
of their own, which no sequence has; they end with the graph.
"""

from __future__ import annotations

import bisect
import dataclasses
import logging
import time
from collections.abc import Callable

import torch

from wellhead.errors import InternalError
from wellhead.kernels.ops import KVPages, Packing
from wellhead.models.decoder import Decoder
from wellhead.runner.capture import Capture, Function
from wellhead.runner.inputs import Inputs
from wellhead.step import Tap
from wellhead.types import CaptureMode

log = logging.getLogger("wellhead")

Graph = Callable[[Inputs, Tap, torch.Tensor | None], torch.Tensor]
"""A captured forward pass: batch, tap, the tokens whose final rows are needed (``None``: all) -> these rows."""


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPlan:
    """What to capture. ``mode`` and ``layers``: what a replay must be able to show; ``width``: pages per sequence that a
    decode graph can see; ``spare``: the page of the rows that fill buckets up."""

    decode_sizes: tuple[int, ...]
    prefill_sizes: tuple[int, ...]
    mode: CaptureMode
    layers: tuple[int, ...]
    width: int
    spare: int


class GraphRunner:
    """Buckets, their static inputs, and the choice between them; falls back to eager where no bucket fits."""

    def __init__(self, decoder: Decoder, kv: KVPages, plan: GraphPlan, capture: Capture) -> None:
        """Captures everything, which takes seconds per bucket; says how long and how much memory it took."""
        self.plan = plan
        self.captures = 0
        self._decoder, self._kv = decoder, kv
        self._said: set[str] = set()
        started, before = time.perf_counter(), capture.memory()
        self._decode = {size: self._captured(DecodeGraph, size, capture) for size in plan.decode_sizes}
        self._prefill = {size: self._captured(PrefillGraph, size, capture) for size in plan.prefill_sizes}
        self.seconds, self.bytes = time.perf_counter() - started, max(0, capture.memory() - before)
        self.replays = 0
        log.info(
            "%s: %d graphs at mode %s (decode %s, prefill %s) in %.1f s, %.0f MiB", capture.name, self.captures, plan.mode.word,
            list(plan.decode_sizes), list(plan.prefill_sizes), self.seconds, self.bytes / 2**20,
        )  # fmt: skip

    def forward(self, batch: Inputs, mode: CaptureMode, tap: Tap, need: torch.Tensor | None) -> torch.Tensor:
        """The final rows, in the model's dtype, of the tokens at ``need`` (``None``: all). The tap sees real tokens only.

        Raises ``InternalError`` for a batch that is stronger than the graphs.
        """
        if mode > self.plan.mode:
            raise InternalError(f"a batch of mode {mode.word} reached graphs that were captured at mode {self.plan.mode.word}")
        unseen = tap.layers - set(self.plan.layers)
        if unseen:
            raise InternalError(f"layers {sorted(unseen)} were asked of graphs that show {list(self.plan.layers)}")
        run = self._pick(batch)
        if run is None:
            return self._decoder.final_rows(batch.ids, batch.packing, self._kv, tap, need)
        self.replays += 1
        return run(batch, tap, need)

    def _pick(self, batch: Inputs) -> Graph | None:
        if batch.decode and (size := _bucket(self.plan.decode_sizes, batch.tokens)) is not None:
            if batch.packing.page_table.shape[1] <= self.plan.width:
                return self._decode[size]
            self._say_once(f"a sequence of more than {self.plan.width} pages decodes without a graph")
        if (size := _bucket(self.plan.prefill_sizes, batch.tokens)) is not None:
            return self._prefill[size]
        self._say_once(f"no graph for {'a decode' if batch.decode else 'a prompt'} step of this size; it runs without")
        return None

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.info("%s", text)

    def _captured(self, kind: type[DecodeGraph] | type[PrefillGraph], size: int, capture: Capture) -> Graph:
        self.captures += 1
        return kind(self._decoder, self._kv, self.plan, size, capture)


def _bucket(sizes: tuple[int, ...], count: int) -> int | None:
    at = bisect.bisect_left(sizes, count)
    return sizes[at] if at < len(sizes) else None


def _fill(own: torch.Tensor, given: torch.Tensor, pad: int) -> None:
    """Put a step's numbers into a static buffer, and ``pad`` behind them."""
    own[: len(given)] = given
    own[len(given) :] = pad


class _Shown:
    """A tap inside a captured function: rows of each layer, as outputs of the graph."""

    def __init__(self, layers: frozenset[int], dtype: torch.dtype) -> None:
        self.layers = layers
        self._dtype = dtype
        self.rows: dict[int, torch.Tensor] = {}

    def take(self, layer: int, rows: torch.Tensor) -> None:
        self.rows[layer] = rows.to(self._dtype, copy=True)


class DecodeGraph:
    """One whole forward pass of ``size`` sequences with one token each."""

    def __init__(self, decoder: Decoder, kv: KVPages, plan: GraphPlan, size: int, capture: Capture) -> None:
        self._spare, self._spare_slot = plan.spare, plan.spare * kv.page_size
        device = decoder.ops.device
        self._ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._packing = Packing(
            positions=torch.zeros(size, dtype=torch.int64, device=device),
            starts=torch.arange(size + 1, dtype=torch.int32, device=device),
            kv_lens=torch.ones(size, dtype=torch.int32, device=device),
            page_table=torch.full((size, plan.width), plan.spare, dtype=torch.int32, device=device),
            slots=torch.full((size,), self._spare_slot, dtype=torch.int64, device=device),
            decode=True,
        )
        self._final = decoder.spec.layers
        inner = frozenset(layer for layer in plan.layers if layer != self._final)
        self._layers = tuple(sorted(inner)) if plan.mode is not CaptureMode.NULL else ()
        p = self._packing
        self._inputs = (self._ids, p.positions, p.starts, p.kv_lens, p.page_table, p.slots, kv.data)

        def step(
            ids: torch.Tensor,
            positions: torch.Tensor,
            starts: torch.Tensor,
            kv_lens: torch.Tensor,
            page_table: torch.Tensor,
            slots: torch.Tensor,
            data: torch.Tensor,
        ) -> tuple[torch.Tensor, ...]:
            shown = _Shown(frozenset(self._layers), decoder.ops.dtype)
            packing = Packing(positions, starts, kv_lens, page_table, slots, decode=True)
            final = decoder.final_rows(ids, packing, dataclasses.replace(kv, data=data), shown, None)
            return (final, *(shown.rows[layer] for layer in self._layers))

        self._replay: Function = capture(step, *self._inputs)

    def __call__(self, batch: Inputs, tap: Tap, need: torch.Tensor | None) -> torch.Tensor:
        """Fill in, replay, and hand out the rows of real tokens."""
        count, own, given = batch.tokens, self._packing, batch.packing
        _fill(self._ids, batch.ids, 0)
        _fill(own.positions, given.positions, 0)
        _fill(own.kv_lens, given.kv_lens, 1)
        _fill(own.page_table[:, : given.page_table.shape[1]], given.page_table, self._spare)
        _fill(own.slots, given.slots, self._spare_slot)
        final, *rows = self._replay(*self._inputs)
        for layer, shown in zip(self._layers, rows, strict=True):
            if layer in tap.layers:
                tap.take(layer, shown[:count] if need is None or layer < self._final else shown.index_select(0, need))
        return final[:count].clone() if need is None else final.index_select(0, need)


class PrefillGraph:
    """A step of up to ``size`` tokens in pieces: attention, in which rows meet, runs between them on the real tokens.

    The last block goes on after its attention without a graph, since it works on the rows that are needed alone.
    """

    def __init__(self, decoder: Decoder, kv: KVPages, plan: GraphPlan, size: int, capture: Capture) -> None:
        self._decoder, self._kv = decoder, kv
        device, spec = decoder.ops.device, decoder.spec
        self._spare_slot = plan.spare * kv.page_size
        self._ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._positions = torch.zeros(size, dtype=torch.int64, device=device)
        self._slots = torch.full((size,), self._spare_slot, dtype=torch.int64, device=device)
        self._mixed = torch.zeros((size, spec.heads * spec.head_dim), dtype=decoder.ops.dtype, device=device)
        none = torch.empty(0, dtype=torch.int32, device=device)

        def packing(positions: torch.Tensor, slots: torch.Tensor) -> Packing:
            return Packing(positions, none, none, none.view(0, 0), slots)

        def first(
            ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, data: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            x = decoder.embed(ids)
            return x, decoder.before_attention(0, x, packing(positions, slots), dataclasses.replace(kv, data=data))

        def between(layer: int) -> Function:
            def piece(
                x: torch.Tensor, mixed: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, data: torch.Tensor
            ) -> tuple[torch.Tensor, ...]:
                x = x.clone()
                decoder.after_attention_(layer - 1, x, mixed)
                return x, decoder.before_attention(layer, x, packing(positions, slots), dataclasses.replace(kv, data=data))

            return piece

        self._first = capture(first, self._ids, self._positions, self._slots, kv.data)
        x, _ = self._first(self._ids, self._positions, self._slots, kv.data)
        self._pieces: list[Function] = []
        for layer in range(1, spec.layers):
            self._pieces.append(capture(between(layer), x, self._mixed, self._positions, self._slots, kv.data))
            x, _ = self._pieces[-1](x, self._mixed, self._positions, self._slots, kv.data)

    def __call__(self, batch: Inputs, tap: Tap, need: torch.Tensor | None) -> torch.Tensor:
        """Fill in, replay piece by piece, and hand out the rows of real tokens."""
        count, decoder = batch.tokens, self._decoder
        _fill(self._ids, batch.ids, 0)
        _fill(self._positions, batch.packing.positions, 0)
        _fill(self._slots, batch.packing.slots, self._spare_slot)
        x, q = self._first(self._ids, self._positions, self._slots, self._kv.data)
        for layer in range(decoder.spec.layers):
            if layer in tap.layers:
                tap.take(layer, x[:count])
            mixed = decoder.attention(layer, q[:count], batch.packing, self._kv)
            if layer == decoder.spec.layers - 1:
                return decoder.finish(x[:count], mixed, tap, need)
            self._mixed[:count] = mixed
            x, q = self._pieces[layer](x, self._mixed, self._positions, self._slots, self._kv.data)
        raise InternalError("a model without layers")
