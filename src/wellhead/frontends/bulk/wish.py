"""What a job wants of each prompt's rows, in the words of ``Engine.extract``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from wellhead.errors import InvalidConfig, InvalidRequest
from wellhead.reads import CaptureMode, Part, Rows, as_json, parse_reduce, parse_rows
from wellhead.reductions import FIRST, ROWS

#: What ``--mode`` is short for: rows, and what becomes of them.
MODES = {"last": ("last", FIRST), "mean": ("all", "mean"), "full": ("all", ROWS)}

_NUMBERS = re.compile(r"\s*-?\d+\s*(,\s*-?\d+\s*)*")


@dataclass(frozen=True, slots=True)
class Wish:
    """Rows x layers x reduction, of every prompt.

    ``words``: which rows, as JSON has them; ``rows``: what they mean, where special tokens and characters are not looked at.
    ``reduce``: a name of ``REDUCTIONS``. ``layers`` as they were asked for, ``None``: the final one. ``mode``: the word that was
    given for all that; its outputs have no labels. ``token_ids``: rows are labelled with their tokens too. ``chars``: do spans
    of characters say which rows?
    """

    words: Any
    rows: Rows
    reduce: str
    layers: tuple[int | str, ...] | None
    mode: str | None
    token_ids: bool = False
    chars: bool = False

    @staticmethod
    def of(mode: str | None, rows: Any, reduce: str | None, layers: Any, token_ids: bool) -> Wish:
        """From what was asked: ``rows`` are words, or a string that a command line has for them; ``None`` for what was not
        said. Raises ``InvalidConfig``."""
        asked = None if layers is None else tuple(layers)
        if rows is None and reduce is None:
            if token_ids:
                raise InvalidConfig("--token-ids labels the rows of --rows or --reduce: give one of them", param="token_ids")
            mode = mode or "last"
            words, reduce = MODES[mode]
            return Wish(words, parse_rows(words, "--rows")[0], reduce, asked, mode)
        if mode is not None:
            raise InvalidConfig(f"--mode {mode} is short for --rows and --reduce: give one or the other", param="mode")
        words = "all" if rows is None else _on_a_command_line(rows) if isinstance(rows, str) else rows
        try:
            meant, one, chars = parse_rows(words, "--rows", ())
            reduce = parse_reduce(reduce, FIRST if one else ROWS, "--reduce")
            words = as_json(words)
        except InvalidRequest as error:
            raise InvalidConfig(error.message, param=(error.param or "rows").lstrip("-")) from None
        if meant.part is Part.OUTPUT:
            raise InvalidConfig("--rows: rows of the output are those of generated tokens, and none are generated", param="rows")
        return Wish(words, meant, reduce, asked, None, token_ids, bool(chars))

    @property
    def labelled(self) -> bool:
        """Do the outputs say which rows these are?"""
        return self.mode is None

    @property
    def full(self) -> bool:
        """Any number of rows per prompt and layer, or one vector?"""
        return self.reduce == ROWS

    @property
    def cost(self) -> CaptureMode:
        return self.rows.cost

    def most_rows(self, tokens: int) -> int:
        """Rows that can come back of a prompt of so many tokens, at most; of one vector that is none worth counting."""
        return self.rows.most(tokens) if self.full else 0

    def fields(self) -> dict[str, Any]:
        """The fields of a request to an engine."""
        return {
            "sampling_params": {"max_new_tokens": 0}, "hidden_states_rows": self.words, "hidden_states_reduce": self.reduce,
            "hidden_states_layers": None if self.layers is None else list(self.layers), "hidden_states_token_ids": self.token_ids,
        }  # fmt: skip

    def deciding(self) -> dict[str, Any]:
        """What of it decides which bytes are written, as JSON has it."""
        layers = None if self.layers is None else list(self.layers)
        if self.mode is not None:
            return {"mode": self.mode, "layers": layers}
        return {"rows": self.words, "reduce": self.reduce, "layers": layers, "token_ids": self.token_ids}

    def metadata(self) -> dict[str, str]:
        """What files say of it."""
        if self.mode is not None:
            return {"wellhead.mode": self.mode}
        return {"wellhead.rows": json.dumps(self.words), "wellhead.reduce": self.reduce}


def _on_a_command_line(text: str) -> Any:
    """``last``, ``-8:``, ``-1``, ``0,5,17``, ``{"last": 8}`` -> words."""
    if text.strip()[:1] in ("{", "[", '"'):
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidConfig(f"--rows {text!r:.80} is not JSON: {error}", param="rows") from None
    if not _NUMBERS.fullmatch(text):
        return text.strip()
    numbers = [int(n) for n in text.split(",")]
    return numbers if "," in text else numbers[0]
