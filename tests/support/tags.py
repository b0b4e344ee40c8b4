"""A runner without a model: the row of a token is (hash of all tokens up to it, its position, its id, 1).

It reads the tokens from the pages that the plan names, so a wrong page, a page that was never written, or one that two
sequences share in the wrong way gives another hash. Who owns a row is an exact comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.poison import note_freed
from wellhead.config import Resolved
from wellhead.core.engine import Core
from wellhead.requests.text import TextStreams
from wellhead.speculative.accept import accept
from wellhead.step import Plan, PlanRow, RowResult, StepResult
from wellhead.types import (
    CaptureMode,
    HiddenStates,
    Output,
    Pooling,
    Read,
    Request,
    Rows,
    SamplingParams,
)

WIDTH = 4
EOS = 999
POISON = -777
PRIME = 65521
Script = Callable[[list[int]], int]
Drafts = Callable[[str, list[int], Script], list[int]]
"""Key, tokens so far, the script that decides what follows -> drafts."""


def hashes(tokens: NDArray[np.int64] | list[int]) -> list[int]:
    """The hash of each prefix; small enough for float32."""
    found, value = [], 1
    for token in tokens:
        value = (value * 31 + int(token) + 1) % PRIME
        found.append(value)
    return found


def rows_for(tokens: list[int]) -> NDArray[np.float32]:
    """What every row must be: ``[len(tokens), WIDTH]``."""
    columns = [hashes(tokens), list(range(len(tokens))), tokens, [1] * len(tokens)]
    return np.array(columns, np.float32).T.reshape(len(tokens), WIDTH)


def next_token(tokens: list[int]) -> int:
    """The default script: what follows is decided by all that went before."""
    return hashes(tokens)[-1] % 500


def config(**changes: Any) -> Resolved:
    """A small engine: pages of 4 tokens would be refused from users, but nothing in the core minds them."""
    base: dict[str, Any] = {
        "model_path": "tags", "served_model_name": "tags", "dtype": "float32", "device": "cpu", "context_length": 4096,
        "ceiling": CaptureMode.FULL, "capture_layers": (1,), "layers": 1, "pages": 64, "page_size": 4, "chunk": 16,
        "max_running": 8, "max_queued": 10_000, "policy": "fcfs", "prefix_cache": True, "random_seed": 0,
    }  # fmt: skip
    return Resolved(**{**base, **changes})


class TagRunner:
    """Carries out plans on pages of token ids, and checks what a plan promises."""

    def __init__(self, core: Core) -> None:
        self.config = core.config
        self._freed = note_freed(core)
        self._due: set[int] = set()
        shape = (core.config.pages, core.config.page_size)
        self._tokens = np.full(shape, POISON, np.int64)
        self._rows = np.full((*shape, WIDTH), np.nan, np.float32)
        #: Rows of the newest steps; where steps overlap, one is judged while the next runs, and may be spoilt only after that.
        self._handed_out: list[list[NDArray[np.float32]]] = []
        self._judged_late = int(core.config.overlap)
        self.plans: list[Plan] = []
        self.scripts: dict[str, Script] = {}
        self.drafts: Drafts | None = None
        self.before: Callable[[Plan], None] = lambda plan: None
        self.after: Callable[[Plan, StepResult], StepResult] = lambda plan, result: result

    @property
    def computed(self) -> int:
        return sum(plan.tokens for plan in self.plans)

    def run(self, plan: Plan) -> StepResult:
        self.plans.append(plan)
        while len(self._handed_out) > self._judged_late:
            for spent in self._handed_out.pop(0):
                spent.fill(np.nan)
        self._prepare(plan)
        self.before(plan)
        self._write(plan)
        rows = tuple(self._row(row) for row in plan.rows)
        self._handed_out.append([array for row in rows for array in (row.hidden or {}).values()])
        produced = sum(sum(row.kept(len(got.tokens)).values()) for row, got in zip(plan.rows, rows, strict=True))
        return self.after(plan, StepResult(rows, produced))

    def begins(self, plan: Plan) -> None:
        """On the engine's thread, before a step: pages freed later may still be read by it."""
        del plan
        self._due |= self._freed
        self._freed.clear()

    def _prepare(self, plan: Plan) -> None:
        saved = [(self._tokens[source].copy(), self._rows[source].copy()) for source, _ in plan.copies]
        for page in self._due:
            self._tokens[page], self._rows[page] = POISON, np.nan
        self._due.clear()
        for (_, target), (tokens, rows) in zip(plan.copies, saved, strict=True):
            self._tokens[target], self._rows[target] = tokens, rows

    def _write(self, plan: Plan) -> None:
        users: dict[int, int] = {}
        for row in plan.rows:
            for page in set(row.pages.tolist()):
                users[page] = users.get(page, 0) + 1
        for row in plan.rows:
            for position, token in enumerate(row.tokens.tolist(), start=row.start):
                page, offset = self._slot(row, position)
                assert users[page] == 1, "a page that others read was written"
                self._tokens[page, offset] = token

    def _slot(self, row: PlanRow, position: int) -> tuple[int, int]:
        size = self.config.page_size
        return int(row.pages[position // size]), position % size

    def _row(self, row: PlanRow) -> RowResult:
        tokens = [int(self._tokens[self._slot(row, p)]) for p in range(row.end)]
        assert POISON not in tokens, f"{row.key} reads a slot that was never written"
        assert tokens[row.start :] == row.tokens.tolist()
        right = rows_for(tokens)
        for position in range(row.start, row.end):
            self._rows[self._slot(row, position)] = right[position]
        drawn = self._draw(row, tokens)
        hidden: dict[int, NDArray[np.float32]] = {}
        for layer, due in row.kept(len(drawn)).items():
            at = row.keep[layer]
            assert len(at) and (np.diff(at) > 0).all() and at[-1] < row.end
            assert at[0] >= row.start or self.config.rows_in_pages, "rows of earlier steps were asked for, and none are kept"
            hidden[layer] = np.array([self._rows[self._slot(row, p)] for p in at[:due].tolist()]).reshape(due, WIDTH)
        return RowResult(drawn, hidden=hidden, proposals=self._propose(row, tokens, drawn))

    def _draw(self, row: PlanRow, tokens: list[int]) -> tuple[int, ...]:
        """The script's tokens at each drawn position, as far as drafts stand."""
        if not row.samples:
            return ()
        first = row.end - row.drafts
        assert [s.position for s in row.samples] == list(range(first, row.end + 1))
        script = self.scripts.get(row.key, next_token)
        return accept(tokens[first:], (script(tokens[: s.position]) for s in row.samples))

    def _propose(self, row: PlanRow, tokens: list[int], drawn: tuple[int, ...]) -> NDArray[np.int32] | None:
        useful = min(row.useful_drafts(len(drawn)), self.config.speculation.drafts)
        if not useful or self.drafts is None:
            return None
        known = tokens[: row.end - row.drafts] + list(drawn)
        drafts = self.drafts(row.key, known, self.scripts.get(row.key, next_token))
        return np.array(drafts[:useful], np.int32)


class TagCore:
    """A core on a ``TagRunner``: submit, step, finish, and compare with what must come out."""

    def __init__(self, texts: TextStreams | None = None, eos: tuple[int, ...] = (EOS,), **changes: Any) -> None:
        self.config = config(**changes)
        self.core = Core(self.config, None, WIDTH, eos, texts)  # type: ignore[arg-type]
        self.runner = TagRunner(self.core)
        self.core.wrap(lambda _: self.runner, self.runner.begins)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[Output]] = {}

    def submit(
        self,
        prompt: list[int],
        mode: CaptureMode = CaptureMode.FULL,
        new: int = 0,
        *,
        script: Script | None = None,
        pooling: Pooling = Pooling.NONE,
        rid: str | None = None,
        **more: Any,
    ) -> str:
        """Queue a request; its key. Keys count up in order of submission."""
        key = f"k{len(self.requests)}"
        sampling = SamplingParams(max_new_tokens=new, **more.pop("sampling", {}))
        reads = more.pop("reads", None)
        if reads is None:
            reads = reads_of(mode, pooling, each=more.pop("incremental", False))
        request = Request(key=key, rid=rid or key, input_ids=np.array(prompt, np.int32), sampling=sampling, reads=reads, **more)
        if script is not None:
            self.runner.scripts[key] = script
        self.core.submit(request)
        self.requests[key] = request
        return key

    def step(self) -> list[Output]:
        outputs = self.core.step()
        for output in outputs:
            assert not any(o.terminal for o in self.outputs.get(output.key, [])), "something came after the end"
            self.outputs.setdefault(output.key, []).append(output)
        self.core.check_integrity()
        return outputs

    def finish(self, steps: int = 20_000) -> int:
        """Step until nothing is left; how many steps that were."""
        for count in range(steps):
            if self.core.idle:
                return count
            self.step()
        raise AssertionError("no end")

    def last(self, key: str) -> Output:
        """The terminal output of a request that did not stream."""
        (output,) = self.outputs[key]
        assert output.terminal
        return output

    def states(self, key: str) -> HiddenStates:
        states = self.last(key).hidden_states
        assert states is not None
        return states

    def verify(self, *keys: str) -> None:
        """These requests (default: all) ended well, with exactly the tokens and rows that are theirs."""
        for key in keys or tuple(self.requests):
            request, output = self.requests[key], self.last(key)
            assert output.error is None, output.error
            tokens = request.input_ids.tolist()
            if key not in self.runner.scripts:
                for token in output.token_ids:
                    assert token == next_token(tokens)
                    tokens.append(token)
            else:
                tokens += output.token_ids
            right = rows_for(tokens[: len(tokens) - 1] if output.token_ids else tokens)
            self._verify_rows(request, output, right)

    @staticmethod
    def _verify_rows(request: Request, output: Output, right: NDArray[np.float32]) -> None:
        named = {"": output.hidden_states} if output.hidden_states is not None else {}
        got = {**named, **output.reads}
        assert list(got) == [read.name for read in request.reads]
        for read in request.reads:
            states = got[read.name]
            assert states.total_rows == len(right)
            assert (states.token_ids is not None) is read.token_ids
            if states.token_ids is not None:
                np.testing.assert_array_equal(states.token_ids, right[states.positions, 2])
            chosen = chosen_rows(read.rows, request.input_ids.tolist(), right[:, 2].astype(int).tolist())
            chosen = chosen[:1] if read.reduce == "first" else chosen
            assert states.positions.tolist() == chosen, read
            np.testing.assert_array_equal(states.numpy(), reduced(right[chosen], read.reduce))


def reads_of(
    mode: CaptureMode, pooling: Pooling = Pooling.NONE, layers: tuple[int, ...] = (1,), *, each: bool = False
) -> tuple[Read, ...]:
    """What the older words mean."""
    if mode is CaptureMode.NULL:
        return ()
    if pooling is Pooling.MEAN:
        return (Read(Rows(), layers, reduce="mean"),)
    return (Read.last(layers),) if mode is CaptureMode.LAST else (Read(Rows(), layers, each=each, sglang=True),)


def chosen_rows(rows: Rows, prompt: list[int], tokens: list[int]) -> list[int]:
    """The plain meaning of ``Rows``, in lists, with the end known."""
    places = list(range(len(tokens)))
    part = {"prompt": places[: len(prompt)], "output": places[len(prompt) :], "all": places}[rows.part]
    found = part[rows.start : rows.stop : rows.step]
    if rows.positions is not None:
        named = {part[p] for p in rows.positions}
        found = [p for p in found if p in named]
    excluded = {part[p] for p in rows.exclude_positions if -len(part) <= p < len(part)}
    found = [p for p in found if p not in excluded and tokens[p] not in rows.exclude_token_ids]
    if rows.token_ids is not None:
        found = [p for p in found if tokens[p] in rows.token_ids]
    if rows.spans is not None:
        found = [p for p in found if p < len(prompt) and any(a <= p < b for a, b in rows.spans)]
    return found if rows.last is None else found[-rows.last :]


def reduced(rows: NDArray[np.float32], reduce: str) -> NDArray[np.float32]:
    """The plain meaning of each reduction."""
    if reduce == "rows":
        return rows
    if not len(rows):
        return np.full(rows.shape[1], np.nan, np.float32)
    wide, count = rows.astype(np.float64), len(rows)
    weights = np.arange(1, count + 1, dtype=np.float64)[:, None]
    return {
        "first": rows[0],
        "sum": wide.sum(0),
        "mean": wide.sum(0) / count,
        "mean_sqrt": wide.sum(0) / np.sqrt(count),
        "max": rows.max(0),
        "weighted_mean": (wide * weights).sum(0) / weights.sum(),
    }[reduce].astype(np.float32)
