"""Outputs -> SGLang's reply, the dict that ``Engine.generate`` and ``/generate`` share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from wellhead.types import HeadOutput, HiddenStates, Logprobs, LogprobSpec, Output, Request, Usage

TokenText = Callable[[int], str | None]
Triple = tuple[float | None, int, str | None]


def labelled(states: HiddenStates, encode: Callable[[HiddenStates], Any]) -> dict[str, Any]:
    """Rows in the form that ``encode`` gives them, which positions they are and, if that was asked for, their tokens."""
    shown = {"hidden_states": encode(states), "hidden_states_positions": states.positions}
    return shown if states.token_ids is None else {**shown, "hidden_states_token_ids": states.token_ids}


def merge_heads(found: dict[str, HeadOutput], new: Mapping[str, HeadOutput]) -> None:
    """Pieces of what heads said, one behind the other."""
    for name, piece in new.items():
        found[name] = found[name].and_then(piece) if name in found else piece


def show_heads(heads: Mapping[str, HeadOutput]) -> dict[str, Any]:
    """As ``meta_info["heads"]`` has them, by name."""
    return {name: piece.to_dict() for name, piece in heads.items()}


class Reply:
    """One request's reply as it grows: text, ids and logprobs are cumulative, as SGLang streams them."""

    def __init__(self, request: Request, token_text: TokenText | None) -> None:
        self.request = request
        self._started = time.perf_counter()
        spec = request.logprobs
        self._spec = spec
        self._token_text = token_text if spec is not None and spec.with_text else None
        self.text = ""
        self.output_ids: list[int] = []
        self._logprobs: list[Logprobs] = []
        self._prompt_logprobs: Logprobs | None = None
        self._usage = Usage(request.prompt_tokens)
        self._finish: dict[str, Any] | None = None
        self.hidden_states: HiddenStates | None = None
        self.reads: Mapping[str, HiddenStates] = {}
        self.heads: dict[str, HeadOutput] = {}
        self._heads_shown = False
        self._rows = 0

    @property
    def finished(self) -> bool:
        return self._finish is not None

    def update(self, output: Output) -> None:
        """Take the next piece; raises its error if it is one."""
        if output.error is not None:
            raise output.error
        self.text += output.text
        self.output_ids += output.token_ids
        self._usage = output.usage
        self.hidden_states = output.hidden_states
        self.reads = output.reads
        if self._heads_shown:  # what was shown is not shown again
            self.heads, self._heads_shown = {}, False
        merge_heads(self.heads, output.heads)
        if output.hidden_states is not None:
            self._rows += len(output.hidden_states.positions)
        if output.output_logprobs is not None:
            self._logprobs.append(output.output_logprobs)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        if output.finish is not None:
            self._finish = output.finish.to_dict()

    def to_dict(self, encode: Callable[[HiddenStates], Any] = HiddenStates.entries) -> dict[str, Any]:
        """The reply so far. ``encode`` gives hidden states their form (default: numpy arrays)."""
        meta = self.summary() | {"e2e_latency": time.perf_counter() - self._started, "weight_version": "default"}
        if self._spec is not None:
            meta |= self._logprob_fields(self._spec)
        if self.hidden_states is not None:
            meta |= labelled(self.hidden_states, encode)
            if self._finish is not None and any(read.each for read in self.request.reads):
                meta["hidden_states_total"] = self._total_entries(self.hidden_states)
        if self.reads:
            meta["reads"] = {name: labelled(states, encode) for name, states in self.reads.items()}
        if self.request.heads:
            meta["heads"] = show_heads(self.heads)
            self._heads_shown = self.request.stream
        return {"text": self.text, "output_ids": list(self.output_ids), "meta_info": meta}

    def summary(self) -> dict[str, Any]:
        """Id, finish reason and counts. Speculative decoding adds SGLang's: ``spec_verify_ct`` steps after the first token's,
        and ``spec_accept_length``, tokens over those."""
        steps = self._usage.verify_steps
        spec = {"spec_verify_ct": steps, "spec_accept_length": self._usage.completion_tokens / steps} if steps else {}
        return {
            "id": self.request.rid,
            "finish_reason": self._finish,
            "prompt_tokens": self._usage.prompt_tokens,
            "completion_tokens": self._usage.completion_tokens,
            "cached_tokens": self._usage.cached_tokens,
            "num_retractions": self._usage.retractions,
            **spec,
        }

    def _total_entries(self, states: HiddenStates) -> int:
        """How many entries there were in all: rows, or in SGLang's shape one for the prompt and one per row after it."""
        return 1 + max(0, states.total_rows - states.prompt_rows) if states.sglang else self._rows

    def _logprob_fields(self, spec: LogprobSpec) -> dict[str, Any]:
        output = Logprobs.join(self._logprobs, spec)
        prompt = self._with_first(spec)
        fields: dict[str, Any] = {
            "input_token_logprobs": self._triples(prompt),
            "output_token_logprobs": self._triples(output),
        }
        if spec.top:
            fields["input_top_logprobs"] = self._tops(prompt)
            fields["output_top_logprobs"] = self._tops(output)
        if spec.token_ids:
            fields["input_token_ids_logprobs"] = self._picked(prompt, spec)
            fields["output_token_ids_logprobs"] = self._picked(output, spec)
        return fields

    def _with_first(self, spec: LogprobSpec) -> Logprobs:
        """Prompt logprobs from ``spec.start`` on; nothing predicts position 0, whose value is not known (NaN)."""
        known = self._prompt_logprobs if self._prompt_logprobs is not None else Logprobs.join([], spec)
        if spec.start != 0:
            return known
        return Logprobs.join([Logprobs.unknown(int(self.request.input_ids[0]), spec), known], spec)

    def _text(self, token: int) -> str | None:
        return self._token_text(token) if self._token_text is not None else None

    def _triples(self, lp: Logprobs) -> list[Triple]:
        pairs = zip(lp.values.tolist(), lp.ids.tolist(), strict=True)
        return [(None if math.isnan(v) else v, t, self._text(t)) for v, t in pairs]

    def _tops(self, lp: Logprobs) -> list[list[Triple] | None]:
        return self._lists(lp.top_values.tolist(), lp.top_ids.tolist())

    def _picked(self, lp: Logprobs, spec: LogprobSpec) -> list[list[Triple] | None]:
        ids = list(spec.token_ids)
        return self._lists(lp.picked.tolist(), [ids] * len(lp))

    def _lists(self, values: list[list[float]], ids: list[list[int]]) -> list[list[Triple] | None]:
        return [
            None if math.isnan(v[0]) else [(x, t, self._text(t)) for x, t in zip(v, i, strict=True)]
            for v, i in zip(values, ids, strict=True)
        ]
