"""The eager runner: one plan, one forward pass, one copy of rows to the host."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from wellhead.capture.tap import RowStore, StepTap, Transfer, whole_layers
from wellhead.config import Resolved
from wellhead.errors import InternalError
from wellhead.kernels.ops import KVPages, Ops, Packing
from wellhead.models.decoder import Decoder
from wellhead.models.spec import ModelSpec
from wellhead.runner import inputs as packer
from wellhead.runner.capture import Capture
from wellhead.runner.graph import GraphPlan, GraphRunner
from wellhead.runner.sampler import Draws, draw, token_logprobs
from wellhead.step import Plan, RowResult, StepResult, Tap
from wellhead.types import CaptureMode, Logprobs, LogprobSpec

#: Rows that pass the LM head at once; bounds the memory that logits take (a vocabulary of 262,144: 64 MiB).
HEAD_ROWS = 64
NOW, EARLIER = "now", "earlier"


class Model(Protocol):
    """What a step asks of a model: a ``Decoder``, or one that several processes share."""

    @property
    def spec(self) -> ModelSpec:
        """Of what this process computes."""

    @property
    def ops(self) -> Ops: ...

    def final_rows(self, ids: torch.Tensor, packing: Packing, kv: KVPages, tap: Tap, out: torch.Tensor | None) -> torch.Tensor:
        """As ``Decoder.final_rows``."""
        ...

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """As ``Decoder.logits``."""
        ...


class EagerRunner:
    """Carries out plans on a decoder, its KV pages and, with the ceiling at full, the rows beside them.

    ``read``: layers that a draft model reads. After a step, ``features`` has their rows of all its tokens, packed in the
    order of the plan, ``[T, H]`` in the model's dtype.
    """

    def __init__(self, decoder: Model, config: Resolved, read: frozenset[int] = frozenset()) -> None:
        self.decoder = decoder
        self.features: dict[int, torch.Tensor] = {}
        if read and config.capture is not CaptureMode.FULL:
            raise InternalError(f"a draft reads layers {sorted(read)} of a target that captures {config.capture.word}")
        self._read = read
        self._config = config
        spec, ops = decoder.spec, decoder.ops
        self._device = ops.device
        self._last_layers = frozenset((spec.layers, spec.layers + 1))  # after the final norm, and before it
        self._thread: int | None = None
        spare = 1 if config.decode_graphs or config.prefill_graphs else 0  # a page for rows that fill up a graph's bucket
        self.kv: KVPages = ops.new_kv(
            pages=config.pages + spare,
            page_size=config.page_size,
            layers=spec.layers,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
        )
        self.graphs: GraphRunner | None = None
        self.rows: RowStore | None = None
        if config.rows_in_pages:
            self.rows = RowStore(config.pages, config.page_size, config.shown_layers, spec.hidden_size, self.kv.data)

    @torch.inference_mode()
    def capture_graphs(self, capture: Capture) -> None:
        """Capture what the configuration asks for, once, at the ceiling; steps use the graphs from then on."""
        if self.graphs is not None:
            raise InternalError("graphs are captured once")
        if not isinstance(self.decoder, Decoder):
            raise InternalError("graphs are captured of a model that one process has alone")
        config = self._config
        width = -(-min(config.context_length, config.graph_context) // config.page_size)
        layers = tuple(sorted({*config.shown_layers, *self._read}))
        plan = GraphPlan(config.decode_graphs, config.prefill_graphs, config.capture, layers, width, config.pages)
        self.graphs = GraphRunner(self.decoder, self.kv, plan, capture)

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        """One step. Rows are matched to sequences by absolute position; see ``step``."""
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self.decoder.ops.prepare_thread()
        if plan.mode > self._config.strongest:
            raise InternalError(f"a batch of mode {plan.mode.word} reached a runner whose ceiling is {self._config.ceiling.word}")
        for source, target in plan.copies:
            self.decoder.ops.copy_page(self.kv, source, target)
            if self.rows is not None:
                self.rows.copy_page(source, target)
        batch = packer.build(plan.rows, self._config.page_size, self._device)
        heads = [packer.head_rows(row, int(f)) for row, f in zip(plan.rows, batch.first, strict=True)]
        wanted = packer.gather(plan.rows, batch.first, self._config.page_size)
        need = self._need(batch.tokens, packer.concat(heads), wanted)
        tap = self._tap(wanted, need, batch.packing.slots)
        final = self._forward(batch, plan.mode, tap, need, packer.concat(heads)) if batch.tokens else None
        self.features = tap.features
        moving = self._move(tap, wanted)
        judged = self._judge(plan, final, [len(h) for h in heads])
        due = [row.kept(len(r.tokens)) for row, r in zip(plan.rows, judged, strict=True)]
        hidden = _hand_over(due, moving.arrays(), wanted)
        rows = (dataclasses.replace(r, hidden=h) for r, h in zip(judged, hidden, strict=True))
        return StepResult(tuple(rows), sum(sum(counts.values()) for counts in due))

    def _put(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _need(self, tokens: int, heads: NDArray[np.int64], wanted: Mapping[int, packer.Gathering]) -> NDArray[np.int64] | None:
        """The packed tokens whose final rows are needed, ``None`` for all: the last block and the norm work on no others."""
        last = self._last_layers
        if not last.isdisjoint(whole_layers(self.rows, self._read)):
            return None
        need = np.unique(np.concatenate([heads, *(wanted[layer].now for layer in wanted if layer in last)]))
        return need if len(need) < tokens else None

    def _tap(self, wanted: Mapping[int, packer.Gathering], need: NDArray[np.int64] | None, slots: torch.Tensor) -> StepTap:
        index: dict[int, torch.Tensor] = {}
        for layer, gathering in wanted.items():
            if len(gathering.now):
                among = need is not None and layer in self._last_layers
                index[layer] = self._put(np.searchsorted(need, gathering.now) if among and need is not None else gathering.now)
        return StepTap(index, self.decoder.ops.dtype, self.rows, slots, self._read)

    def _forward(
        self, batch: packer.Inputs, mode: CaptureMode, tap: StepTap, need: NDArray[np.int64] | None, heads: NDArray[np.int64]
    ) -> torch.Tensor | None:
        """Run the model; leaves rows in the tap and returns the final rows of the tokens at ``heads``."""
        out = None if need is None else self._put(need)
        if self.graphs is not None:
            final = self.graphs.forward(batch, mode, tap, out)
        else:
            final = self.decoder.final_rows(batch.ids, batch.packing, self.kv, tap, out)
        if self.decoder.spec.layers in tap.layers:
            tap.take(self.decoder.spec.layers, final)
        if not len(heads):
            return None
        return final.index_select(0, self._put(heads if need is None else np.searchsorted(need, heads)))

    def _move(self, tap: StepTap, wanted: Mapping[int, packer.Gathering]) -> Transfer:
        """Start bringing rows to the host: of each layer those computed now, and those of earlier steps."""
        parts: dict[Hashable, torch.Tensor] = {(layer, NOW): rows for layer, rows in tap.kept.items()}
        parts |= {(layer, EARLIER): self._recall(layer, g.slots) for layer, g in wanted.items() if len(g.slots)}
        return Transfer(parts)

    def _recall(self, layer: int, slots: NDArray[np.int64]) -> torch.Tensor:
        if self.rows is None:
            raise InternalError("rows of computed positions were asked for, but this engine does not keep rows beside its pages")
        return self.rows.read(layer, self._put(slots))

    # --- head: logits, logprobs of the prompt, the next token -------------------------------------------------------

    def _judge(self, plan: Plan, final: torch.Tensor | None, counts: list[int]) -> list[RowResult]:
        """Draw tokens and work out logprobs. ``final``: rows of targets and then of the draw, per plan row."""
        results = [RowResult() for _ in plan.rows]
        if final is None:
            return results
        draws: list[tuple[int, int]] = []
        at = 0
        for i, (row, count) in enumerate(zip(plan.rows, counts, strict=True)):
            if row.targets is not None and row.target_spec is not None:
                spec, span = row.target_spec, final[at : at + len(row.targets)]
                results[i] = dataclasses.replace(results[i], target_logprobs=self._targets(span, row.targets, spec))
            at += count
            if row.samples:
                draws.append((i, at - len(row.samples)))
        for part in _parts(plan, draws):
            self._draw(plan, final, part, results)
        return results

    def _draw(self, plan: Plan, final: torch.Tensor, part: list[tuple[int, int]], results: list[RowResult]) -> None:
        """Draw for the plan rows of ``part``, each with the place of its first row in ``final``."""
        index = packer.concat([np.arange(at, at + len(plan.rows[i].samples), dtype=np.int64) for i, at in part])
        logits = self.decoder.logits(final.index_select(0, self._put(index)))
        draws = Draws(logits, [spec for i, _ in part for spec in plan.rows[i].samples], self.decoder.ops.peak)
        first = 0
        for i, _ in part:
            row = plan.rows[i]
            drafts = row.tokens[len(row.tokens) - row.drafts :].tolist()
            drawn = draw(draws, first, drafts, row.samples[0].logprobs)
            results[i] = dataclasses.replace(drawn, target_logprobs=results[i].target_logprobs)
            first += len(row.samples)

    def _targets(self, rows: torch.Tensor, targets: NDArray[np.int32], spec: LogprobSpec) -> Logprobs:
        parts = []
        for part in range(0, len(targets), HEAD_ROWS):
            logprobs = torch.log_softmax(self.decoder.logits(rows[part : part + HEAD_ROWS]), dim=-1)
            parts.append(token_logprobs(logprobs, targets[part : part + HEAD_ROWS].astype(np.int64), spec))
        return Logprobs.join(parts, spec)


def _hand_over(
    due: list[dict[int, int]], rows: dict[Hashable, NDArray[Any]], wanted: Mapping[int, packer.Gathering]
) -> list[dict[int, NDArray[Any]]]:
    """Rows of this step and of earlier ones, per plan row. ``due``: how many to hand over, fewer if drafts fell."""
    hidden: list[dict[int, NDArray[Any]]] = [{} for _ in due]
    for layer, gathering in wanted.items():
        now, past = rows.get((layer, NOW)), rows.get((layer, EARLIER))
        at_now = at_past = 0
        for mine, counts, (before, new) in zip(hidden, due, gathering.counts, strict=True):
            count = counts.get(layer, 0)
            parts = []
            if past is not None and before:
                parts.append(past[at_past : at_past + before])
            if now is not None and count > before:
                parts.append(now[at_now : at_now + count - before])
            at_now, at_past = at_now + new, at_past + before
            if parts:
                mine[layer] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return hidden


def _parts(plan: Plan, draws: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Draws of whole sequences, ``HEAD_ROWS`` rows at once."""
    part: list[tuple[int, int]] = []
    rows = 0
    for i, at in draws:
        count = len(plan.rows[i].samples)
        if part and rows + count > HEAD_ROWS:
            yield part
            part, rows = [], 0
        part.append((i, at))
        rows += count
    if part:
        yield part
