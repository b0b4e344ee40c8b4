"""StepResult -> Outputs: tokens into sequences, rows into readers, and the decision to stop.

Rows are consumed in plan order by explicit counts. If the rows that came are not the rows that were asked for, the whole
step is refused: a reply must never carry a neighbour's vector.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from wellhead.errors import InternalError, InvalidRequest, NonFinite, WellheadError
from wellhead.results.judging import Look, check_finite, look, rows_below
from wellhead.scheduler.sequence import Phase, Sequence
from wellhead.step import Plan, PlanRow, RowResult, StepResult
from wellhead.types import DType, FinishReason, Logprobs, Output, SamplingParams


class Lookup(Protocol):
    """The sequence of a key, unless it is done."""

    def __call__(self, key: str) -> Sequence | None: ...


class Decode(Protocol):
    """Output ids -> text in one go, for requests that need none on the way."""

    def __call__(self, ids: list[int], params: SamplingParams) -> str: ...


def check_rows(plan: Plan, result: StepResult) -> None:
    """Rows produced == rows consumed, row by row and in all; ``InternalError`` otherwise."""
    if len(result.rows) != len(plan.rows):
        raise InternalError(f"step {plan.number}: {len(plan.rows)} sequences planned, {len(result.rows)} came back")
    consumed = 0
    for row, got in zip(plan.rows, result.rows, strict=True):
        if (bool(row.samples) != bool(got.tokens) and got.finite) or len(got.tokens) > len(row.samples):
            raise InternalError(f"step {plan.number}: {len(row.samples)} draws for {row.key}, {len(got.tokens)} tokens came")
        for layer, due in row.kept(len(got.tokens)).items():
            count = len(got.hidden[layer]) if got.hidden is not None and layer in got.hidden else 0
            if count != due:
                raise InternalError(f"step {plan.number}: {due} rows of layer {layer} expected for {row.key}, {count} came")
            consumed += due
    if consumed != result.produced:
        raise InternalError(f"step {plan.number}: {result.produced} rows were produced, {consumed} consumed")


class Processor:
    """Judges a step. ``eos_ids``: the model's end-of-sequence tokens."""

    def __init__(self, dtype: DType, eos_ids: tuple[int, ...], decode: Decode | None) -> None:
        self._dtype = dtype
        self._eos_ids = frozenset(eos_ids)
        self._decode = decode

    def process(self, plan: Plan, result: StepResult, lookup: Lookup) -> list[Output]:
        """Extend sequences, fill readers, decide stops; sequences that end are marked DONE for the scheduler to settle."""
        check_rows(plan, result)
        outputs, live = [], []
        for row, got in zip(plan.rows, result.rows, strict=True):
            seq = lookup(row.key)
            if seq is not None and seq.phase is Phase.RUNNING:
                live.append((seq, row, got))
        looks = look(live, self._dtype)
        for seq, row, got in live:
            try:
                output = self._advance(seq, row, got, looks.get(seq.key))
            except InvalidRequest as error:  # found out late: a stop pattern that takes too long
                output = self.fail(seq, error)
            if output is not None:
                outputs.append(output)
        return outputs

    def _advance(self, seq: Sequence, row: PlanRow, got: RowResult, said: Look | None) -> Output | None:
        if said is not None and said.error is not None:
            return self.fail(seq, said.error)
        finish, texts = self._accept(seq, got, row.drafts, said.ends if said is not None else None)
        error = self._keep(seq, row, got, len(texts), finish, said)
        if error is None and finish is None and not got.finite:
            error = NonFinite(f"NaN or infinity in the logits of request {seq.request.rid!r} at position {seq.length - 1}")
        if error is not None:
            return self.fail(seq, error)
        if finish is None and row.end == seq.prompt_length and not seq.generates:
            finish = FinishReason("length", length=0)
        text = self._certain(seq, texts, finish)
        if finish is not None:
            return self._finish(seq, finish, "".join(seq.unsent_text) + text)
        if seq.request.stream and row.samples:
            return self._stream(seq, text)
        if text:
            seq.unsent_text.append(text)
        return None

    def _keep(
        self, seq: Sequence, row: PlanRow, got: RowResult, tokens: int, finish: FinishReason | None, said: Look | None
    ) -> WellheadError | None:
        """Give the readers and judges the rows that ``tokens`` valid ones leave, and nothing of what was accepted beyond a stop.

        Where a head ended the answer, the rows of all its tokens are there, and the judges have the condemned row besides.
        """
        by_head = finish is not None and finish.kind == "head"
        end = row.valid_end(tokens)
        if said is not None:
            said.settle((finish.position or 0) + 1 if by_head and finish is not None else end)
        if seq.readers:
            at, rows = rows_below(row, got, seq.length if by_head else end)
            try:
                check_finite(seq, at, rows, self._dtype)
            except NonFinite as error:
                return error
            for reader in seq.readers:
                reader.take(at, rows, seq.length if by_head else end, seq.tokens)
        if got.target_logprobs is not None:
            if np.isnan(got.target_logprobs.values).any():
                return NonFinite(
                    f"NaN in the logprobs of the prompt of request {seq.request.rid!r}, up to position {row.end - 1}"
                )
            seq.prompt_logprobs.append(got.target_logprobs)
        return None

    def _accept(
        self, seq: Sequence, got: RowResult, drafts: int, ends: FinishReason | None
    ) -> tuple[FinishReason | None, list[str]]:
        """Append the tokens up to the first that ends the sequence, or up to the row that a head condemns: why it ends, and the
        text that each of them made certain."""
        finish: FinishReason | None = None
        texts: list[str] = []
        for token in got.tokens:
            if ends is not None and (ends.position or 0) < seq.length:
                break
            finish, text = self._append(seq, token)
            texts.append(text)
            if finish is not None:
                break
        count = len(texts)
        if finish is None and ends is not None and (ends.position or 0) < seq.length:
            finish = ends
        if got.logprobs is not None and count:
            seq.output_logprobs.append(got.logprobs[:count])
        if seq.speculation is not None and count:
            seq.speculation.judged(drafts, min(count, len(got.tokens) - 1), got.proposals)
        if finish is ends and ends is not None and seq.bench is not None and seq.bench.holds:
            seq.truncate(max(seq.prompt_length, ends.position or 0))
        return finish, texts

    @staticmethod
    def _certain(seq: Sequence, texts: list[str], finish: FinishReason | None) -> str:
        """The text that may go out now: without that of the newest token, while a head still has to judge it."""
        if seq.bench is None or not seq.bench.holds or not texts:
            return "".join(texts)
        text, seq.held_text = seq.held_text, ""
        if finish is None:
            *texts, seq.held_text = texts
        return text + "".join(texts)

    def _append(self, seq: Sequence, token: int) -> tuple[FinishReason | None, str]:
        """Append one token, and say whether that ends the sequence and what text is now certain."""
        seq.append(token)
        params = seq.request.sampling
        count = seq.length - seq.prompt_length
        finish: FinishReason | None = None
        if (token in self._eos_ids and not params.ignore_eos) or token in params.stop_token_ids:
            finish = FinishReason("stop", matched=token)
        hide = finish is not None and not params.no_stop_trim
        text = ""
        if seq.text is not None and not hide:
            text, matched = seq.text.push(token, stops=count >= params.min_new_tokens)
            if matched is not None:
                return FinishReason("stop", matched=matched), text
        if finish is None and count >= params.max_new_tokens:
            finish = FinishReason("length", length=count)
        return finish, text

    def _finish(self, seq: Sequence, finish: FinishReason, text: str) -> Output:
        seq.phase = Phase.DONE
        judged = finish.kind == "head"  # then the row of the newest token is there as well
        rows = seq.length - 1 if seq.generates and not judged else seq.length
        states = {reader.read.name: reader.result(rows, seq.tokens) for reader in seq.readers}
        finish, text = self._last_text(seq, finish, text)
        return Output(
            key=seq.key,
            rid=seq.request.rid,
            token_ids=tuple(int(t) for t in seq.output[seq.sent_tokens :]),
            text=text,
            finish=finish,
            usage=seq.usage(),
            hidden_states=states.pop("", None),
            reads=states,
            heads=seq.bench.pieces(last=True) if seq.bench is not None else {},
            prompt_logprobs=self._prompt_logprobs(seq),
            output_logprobs=self._output_logprobs(seq, seq.length - seq.prompt_length),
        )

    def _last_text(self, seq: Sequence, finish: FinishReason, text: str) -> tuple[FinishReason, str]:
        """The text that was held back. It may complete a stop string, which then is the reason."""
        params = seq.request.sampling
        if finish.kind == "head" and self._decode is not None:  # what was pushed may be of tokens that were taken back
            return finish, self._decode(seq.output.tolist(), params)[seq.sent_chars :] if len(seq.output) else ""
        by_token = finish.kind == "stop" and isinstance(finish.matched, int)
        if seq.text is not None:
            if finish.kind == "stop" and not by_token:
                return finish, text
            rest, matched = seq.text.finish()
            if matched is not None and not by_token:
                finish = FinishReason("stop", matched=matched)
            return finish, text + rest
        if self._decode is None or seq.length == seq.prompt_length:
            return finish, ""
        ids = seq.output.tolist()
        return finish, self._decode(ids[:-1] if by_token and not params.no_stop_trim else ids, params)

    def _prompt_logprobs(self, seq: Sequence) -> Logprobs | None:
        spec = seq.request.logprobs
        return None if spec is None or spec.start is None else Logprobs.join(seq.prompt_logprobs, spec)

    def _output_logprobs(self, seq: Sequence, tokens: int) -> Logprobs | None:
        """Those of the first ``tokens`` of the output, as far as they were not sent; later ones stay."""
        spec = seq.request.logprobs
        if spec is None:
            return None
        joined, due = Logprobs.join(seq.output_logprobs, spec), tokens - seq.sent_tokens
        seq.output_logprobs = [joined[due:]] if due < len(joined) else []
        return joined[:due]

    def _stream(self, seq: Sequence, text: str) -> Output:
        ready = seq.length - seq.prompt_length - (1 if seq.bench is not None and seq.bench.holds else 0)
        logprobs = self._output_logprobs(seq, ready)
        sent, seq.sent_tokens = seq.sent_tokens, ready
        seq.sent_chars += len(text)
        pieces = ((reader.read.name, reader.piece(seq.tokens)) for reader in seq.readers)
        states = {name: piece for name, piece in pieces if piece is not None}
        return Output(
            key=seq.key,
            rid=seq.request.rid,
            token_ids=tuple(int(t) for t in seq.output[sent:ready]),
            text=text,
            usage=dataclasses.replace(seq.usage(), completion_tokens=ready),
            hidden_states=states.pop("", None),
            reads=states,
            heads=seq.bench.pieces(last=False) if seq.bench is not None else {},
            prompt_logprobs=self._prompt_logprobs(seq) if not sent else None,
            output_logprobs=logprobs,
        )

    @staticmethod
    def fail(seq: Sequence, error: WellheadError) -> Output:
        """The terminal output of a sequence that cannot go on: an error and nothing else. Marks it FAILED for the scheduler."""
        seq.phase = Phase.FAILED
        return Output(key=seq.key, rid=seq.request.rid, error=error, usage=seq.usage())
