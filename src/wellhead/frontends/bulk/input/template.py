"""Templates: ``"Review: {text}\\nOverall, this movie was"`` and a row's values -> a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wellhead.errors import EmptyPrompt, InputFileError, InvalidConfig

_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Template:
    """``pieces``: literal text (``False``) and column names (``True``), in order. ``source``: as the user wrote it."""

    source: str
    pieces: tuple[tuple[bool, str], ...]

    @staticmethod
    def plain(text_column: str) -> Template:
        """The text as it is."""
        return Template("", ((True, text_column),))

    @staticmethod
    def parse(source: str, text_column: str) -> Template:
        """``{column}`` stands for a column's value, ``{text}`` for the text column's; ``{{`` and ``}}`` for braces; and
        ``\\n``, ``\\t``, ``\\\\`` as in most languages. Raises ``InvalidConfig``."""
        pieces: list[tuple[bool, str]] = []
        literal, at = "", 0
        while at < len(source):
            two = source[at : at + 2]
            if two in ("{{", "}}"):
                literal, at = literal + two[0], at + 2
            elif two[0] == "\\" and two[1:] in _ESCAPES:
                literal, at = literal + _ESCAPES[two[1]], at + 2
            elif two[0] == "{":
                end = source.find("}", at)
                name = source[at + 1 : end] if end > 0 else ""
                if not name or "{" in name:
                    raise InvalidConfig(f"--template: {source[at:]!r} opens a brace that is not closed", param="template")
                pieces += [(False, literal), (True, text_column if name == "text" else name)]
                literal, at = "", end + 1
            elif two[0] == "}":
                raise InvalidConfig("--template: a } without its {; write }} for a brace", param="template")
            else:
                literal, at = literal + two[0], at + 1
        pieces.append((False, literal))
        if not any(is_column for is_column, _ in pieces):
            raise InvalidConfig(f"--template has no {{text}} and no other column in it: {source!r}", param="template")
        return Template(source, tuple(piece for piece in pieces if piece[1]))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for is_column, name in self.pieces if is_column))

    def render(self, values: Mapping[str, Any], text_column: str) -> str:
        """The prompt. Raises ``InputFileError`` for a value that is no text, ``EmptyPrompt`` where there is nothing to read."""
        prompt = "".join(_text(name, values[name], name == text_column) if is_column else name for is_column, name in self.pieces)
        if not prompt:
            raise EmptyPrompt("the prompt is empty", param="text")
        return prompt


def _text(column: str, value: Any, is_text: bool) -> str:
    if isinstance(value, str):
        if not value and is_text:
            raise EmptyPrompt(f"{column!r} is empty", param="text")
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise InputFileError(f"{column!r} is not valid Unicode: it has half of a surrogate pair") from None
        return value
    if not is_text and isinstance(value, (int, float)):
        return str(value)
    raise InputFileError(f"{column!r} is not a string" if value is not None else f"{column!r} is null, not a string")
