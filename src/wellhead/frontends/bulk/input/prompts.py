"""Rows -> prompts: rendered, tokenised, cut where that was asked for; or the error of the row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from wellhead.errors import InputFileError, PromptTooLong, WellheadError
from wellhead.frontends.bulk.input.inputs import Row
from wellhead.frontends.bulk.input.template import Template
from wellhead.frontends.bulk.options import Options

#: Rows that are tokenised at once.
BATCH = 128


class Tokenizer(Protocol):
    """What is used of ``requests.tokenizer.Tokenizer``."""

    @property
    def backend(self) -> Any: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """One template's prompt of a row. ``ids``: None where a server tokenises; ``cut``: tokens that truncation took away."""

    text: str
    ids: list[int] | None = None
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """A row with its prompts, one per template; none if it has an error."""

    row: Row
    prompts: tuple[Prompt, ...] = ()
    error: WellheadError | None = None

    @property
    def tokens(self) -> int:
        return sum(len(p.ids) for p in self.prompts if p.ids is not None)


class Prompts:
    """Makes items of rows. ``tokenizer``: None where a server tokenises; ``limit``: tokens that a prompt may have."""

    def __init__(self, options: Options, tokenizer: Tokenizer | None, limit: int) -> None:
        self._options, self._tokenizer, self._limit = options, tokenizer, limit

    def items(self, rows: Iterator[Row]) -> Iterator[Item]:
        """One item per row, in order."""
        while batch := list(itertools.islice(rows, BATCH)):
            yield from self._batch(batch)

    def _batch(self, rows: list[Row]) -> Iterator[Item]:
        rendered = [self._render(row) for row in rows]
        texts = [text for found in rendered if not isinstance(found, WellheadError) for text in found]
        if self._tokenizer is None:
            prompts = iter([Prompt(text) for text in texts])
        else:
            encoded = self._tokenizer.encode_batch(texts) if texts else []
            prompts = (Prompt(text, ids) for text, ids in zip(texts, encoded, strict=True))
        for row, found in zip(rows, rendered, strict=True):
            if isinstance(found, WellheadError):
                yield Item(row, error=found)
            else:
                yield self._fitted(row, tuple(itertools.islice(prompts, len(found))))

    def _render(self, row: Row) -> list[str] | WellheadError:
        if row.error is not None:
            return row.error
        try:
            return [template.render(row.values, self._options.text_column) for template in self._options.templates]
        except WellheadError as error:
            return error

    def _fitted(self, row: Row, prompts: tuple[Prompt, ...]) -> Item:
        if all(p.ids is None or 0 < len(p.ids) <= self._limit for p in prompts):
            return Item(row, prompts)
        try:
            fitted = [self._fit(row, t, p) for t, p in zip(self._options.templates, prompts, strict=True)]
        except WellheadError as error:
            return Item(row, error=error)
        return Item(row, tuple(fitted))

    def _fit(self, row: Row, template: Template, prompt: Prompt) -> Prompt:
        assert prompt.ids is not None
        if not prompt.ids:
            raise InputFileError("the tokenizer makes no tokens of this text")
        if len(prompt.ids) <= self._limit:
            return prompt
        if self._options.truncate is None:
            raise PromptTooLong(f"the prompt has {len(prompt.ids)} tokens, {self._limit} fit", param="text")
        return self._cut(row, template, prompt.ids)

    def _cut(self, row: Row, template: Template, whole: list[int]) -> Prompt:
        """The prompt with a piece of its text gone. The template stays whole: a question after the text is what it is for."""
        assert self._tokenizer is not None
        column = self._options.text_column
        if column not in template.columns:
            raise PromptTooLong(f"the prompt has {len(whole)} tokens, {self._limit} fit, and no {{text}} to cut", param="text")
        text = str(row.values[column])
        offsets = self._tokenizer.backend.encode(text, add_special_tokens=False).offsets
        keep = len(offsets) - (len(whole) - self._limit)
        while keep > 0:
            left = self._options.truncate == "left"
            piece = text[offsets[-keep][0] :] if left else text[: offsets[keep - 1][1]]
            rendered = template.render({**row.values, column: piece}, column) if piece else ""
            ids = self._tokenizer.encode(rendered) if rendered else whole
            if len(ids) <= self._limit:
                return Prompt(rendered, ids, len(whole) - len(ids))
            # A piece may be split into more tokens than it had inside the whole, by one or two.
            keep -= max(1, min(len(ids) - self._limit, keep - 1))
        raise PromptTooLong(f"the template alone leaves no room for text: {self._limit} tokens fit", param="text")
