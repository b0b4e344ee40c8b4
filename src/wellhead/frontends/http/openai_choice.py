"""One choice of an OpenAI answer as it grows, and the two ways in which OpenAI writes log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wellhead.frontends.native import labelled, merge_heads, show_heads
from wellhead.requests.detokenizer import IncrementalDetokenizer
from wellhead.requests.tokenizer import Tokenizer
from wellhead.types import FinishReason, HeadOutput, HiddenStates, Logprobs, Output, Request, Usage

#: OpenAI's own floor for a token that cannot come: JSON has no infinity, and clients expect a number.
FLOOR = -9999.0


class Choice:
    """Takes outputs; gives what is new (``take``) or all of it."""

    def __init__(self, request: Request, index: int) -> None:
        self.request = request
        self.index = index
        self.text = ""
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.prompt_logprobs: Logprobs | None = None
        self.finish: FinishReason | None = None
        self.usage = Usage(request.prompt_tokens)
        self.hidden_states: HiddenStates | None = None
        self.reads: Mapping[str, HiddenStates] = {}
        self.heads: dict[str, HeadOutput] = {}
        self._new_heads: dict[str, HeadOutput] = {}

    def take(self, outputs: Sequence[Output]) -> tuple[str, Logprobs | None]:
        """Outputs that came together: their text and logprobs. Raises the error of one that failed."""
        new: list[Logprobs] = []
        text = ""
        for output in outputs:
            if output.error is not None:
                raise output.error
            text += output.text
            self.tokens += output.token_ids
            self.usage = output.usage
            self.finish = output.finish
            self.hidden_states = output.hidden_states
            self.reads = output.reads
            merge_heads(self.heads, output.heads)
            merge_heads(self._new_heads, output.heads)
            if output.output_logprobs is not None:
                new.append(output.output_logprobs)
            if output.prompt_logprobs is not None:
                self.prompt_logprobs = output.prompt_logprobs
        self.text += text
        self.logprobs += new
        spec = self.request.logprobs
        return text, Logprobs.join(new, spec) if spec is not None else None

    def all_logprobs(self) -> Logprobs | None:
        spec = self.request.logprobs
        return Logprobs.join(self.logprobs, spec) if spec is not None else None

    def shown_heads(self) -> dict[str, Any]:
        """What all heads said, only if any were asked for."""
        return {"heads": show_heads(self.heads)} if self.request.heads else {}

    def new_heads(self) -> dict[str, Any]:
        """What they said since the last call, if anything."""
        new, self._new_heads = self._new_heads, {}
        return {"heads": show_heads(new)} if new else {}

    def shown_states(self, show: Callable[[HiddenStates], Any]) -> dict[str, Any]:
        """Hidden states and what goes with them, only if they were asked for."""
        shown = labelled(self.hidden_states, show) if self.hidden_states is not None else {}
        return {**shown, "reads": {k: labelled(v, show) for k, v in self.reads.items()}} if self.reads else shown

    def reason(self) -> dict[str, Any]:
        """``finish_reason``, and what matched, as SGLang adds it."""
        finish = self.finish
        if finish is None:
            return {"finish_reason": None}
        if finish.kind == "head":
            return {"finish_reason": "content_filter", "stopped_by": finish.verdict()}
        matched = {"matched_stop": finish.matched} if finish.matched is not None else {}
        return {"finish_reason": finish.kind, **matched}


def usage_of(choices: Sequence[Choice]) -> dict[str, Any]:
    """Prompt tokens count once per prompt, however many samples."""
    firsts = [c for c in choices if c.request.sample_index == 0]
    prompt, completion = sum(c.usage.prompt_tokens for c in firsts), sum(c.usage.completion_tokens for c in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(c.usage.cached_tokens for c in firsts)},
    }


def number(value: float) -> float | None:
    """A logprob that JSON can hold: ``null`` for "not known", the floor for minus infinity."""
    if value != value:
        return None
    return max(value, FLOOR)


def broken(tokenizer: Tokenizer, token: int) -> str | None:
    """A token that is a part of a character, as OpenAI writes it: ``\\xe2\\x80``; printable ASCII stays. ``None``: it is text."""
    if "\ufffd" not in tokenizer.token_text(token):
        return None
    found = tokenizer.token_bytes(token)
    try:
        found.decode()  # U+FFFD itself
    except UnicodeDecodeError:
        return "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in found)
    return None


def chat_logprobs(logprobs: Logprobs, tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    """Chat's format: one object per token. As with OpenAI the chosen token is in ``top_logprobs`` only if it is likely enough;
    its own value stands beside them."""

    def one(token: int, value: float) -> dict[str, Any]:
        text = broken(tokenizer, token) or tokenizer.token_text(token)
        return {"token": text, "logprob": number(value), "bytes": list(tokenizer.token_bytes(token))}

    content = []
    for i, (token, value) in enumerate(zip(logprobs.ids.tolist(), logprobs.values.tolist(), strict=True)):
        tops = zip(logprobs.top_ids[i, :top].tolist(), logprobs.top_values[i, :top].tolist(), strict=True)
        content.append({**one(token, value), "top_logprobs": [one(t, v) for t, v in tops]})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Completions' format: parallel lists. It counts characters, so it must see all tokens in order.

    ``top_logprobs`` maps texts to values: the likeliest tokens, and the chosen one if it is none of them (``top + 1`` entries
    then). Its value always stands under its text; another token with that text, or the text of a likelier one, is
    written ``token_id:N``. So an evaluation harness may compare the chosen value with the map's highest.
    """

    def __init__(self, tokenizer: Tokenizer, top: int, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def add(self, logprobs: Logprobs) -> dict[str, Any]:
        """The next tokens. ``text_offset``: characters of text before each of them."""
        shown: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [] if self._top else None, "text_offset": []}
        for i, (token, value) in enumerate(zip(logprobs.ids.tolist(), logprobs.values.tolist(), strict=True)):
            shown["tokens"].append(self._text(token))
            shown["token_logprobs"].append(number(value))
            shown["text_offset"].append(self._offset)
            if self._top:
                tops = zip(logprobs.top_ids[i, : self._top].tolist(), logprobs.top_values[i, : self._top].tolist(), strict=True)
                shown["top_logprobs"].append(self._tops(token, value, list(tops)))
            self._offset += len(self._detokenizer.push([token]))
        return shown

    def _text(self, token: int) -> str:
        part = broken(self._tokenizer, token)
        return self._tokenizer.token_text(token) if part is None else f"bytes:{part}"

    def _tops(self, chosen: int, value: float, tops: list[tuple[int, float]]) -> dict[str, float | None] | None:
        if any(v != v for _, v in tops):
            return None
        own = self._text(chosen)
        found: dict[str, float | None] = {}
        for token, top in tops:
            text = own if token == chosen else self._text(token)
            taken = token != chosen and (text == own or text in found)
            found[f"token_id:{token}" if taken else text] = number(value if token == chosen else top)
        found.setdefault(own, number(value))
        return found
