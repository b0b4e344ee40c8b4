"""Text while the tokens come: what is certain at each moment, never a broken character, never part of a stop string."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any, Protocol

from wellhead.requests.stops import StopMatcher as StopMatcher  # one import for whoever streams
from wellhead.requests.tokenizer import Tokenizer

_BROKEN = "\ufffd"
_CONTEXT = 6  # tokens decoded again to keep the joint right, where nothing is known about the decoder


class IncrementalDetokenizer:
    """The text of a growing list of ids: ``push`` gives what is new and certain, ``finish`` the rest.

    At each moment what was given out is a prefix of ``tokenizer.decode(ids)`` of whatever ids may yet come, and in the
    end it equals it. Held back is only an unfinished character: with byte-level tokenizers at most three tokens; with
    byte fallback (SentencePiece) a run of byte tokens, to its end, since the decoder judges the run as a whole. Each
    token costs the same however many came before.

    Tokenizers with yet another decoder are decoded by a window of the last tokens; they get the rest from one decode
    of everything at the end, so that equality holds there too unless the decoder rewrites old text.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> None:
        """``spaces_between_special_tokens`` makes no difference; see ``Tokenizer.decode``."""
        del spaces_between_special_tokens
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._backend = tokenizer.backend
        self._assembly = _assembly(tokenizer, skip_special_tokens)

    def push(self, ids: Sequence[int]) -> str:
        """Take more ids; the text that has become certain (often one token's, sometimes none)."""
        pieces = []
        for token_id in ids:
            if token_id in self._skipped:
                continue
            token = self._backend.id_to_token(token_id)
            if token is not None:  # a padded vocabulary has ids without a token; decoding leaves them out
                pieces.append(self._assembly.add(token_id, token))
        return "".join(pieces)

    def finish(self) -> str:
        """The rest, when no more ids will come: what one decode of all ids has for an unfinished character."""
        return self._assembly.finish()


class _Assembly(Protocol):
    """How one kind of decoder turns tokens into text."""

    def add(self, token_id: int, token: str) -> str: ...

    def finish(self) -> str: ...


def _assembly(tokenizer: Tokenizer, skip_special_tokens: bool) -> _Assembly:
    steps = _decoder_steps(tokenizer)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _Bytes()
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        no_strip: dict[str, Any] = {"content": " ", "start": 0, "stop": 0}
        pattern, strip = steps[0].get("pattern"), steps[3] if len(steps) == 4 else no_strip
        if isinstance(pattern, dict) and "String" in pattern and not strip["stop"]:
            return _Pieces(pattern["String"], steps[0]["content"], strip["content"], strip["start"])
    return _Window(tokenizer, skip_special_tokens)


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    decoder = tokenizer.backend.decoder
    if decoder is None:
        return []
    described = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = described["decoders"] if described.get("type") == "Sequence" else [described]
    return steps


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's way to write every byte as a visible character: printable ones as themselves, the others from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


class _Bytes:
    """Byte-level: tokens are bytes, text is their UTF-8, broken sequences one U+FFFD each."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_id: int, token: str) -> str:
        try:
            raw = bytes([_ALPHABET[character] for character in token])
        except KeyError:  # an added token, written as it is
            raw = token.encode()
        return self._utf8.decode(raw)

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Pieces:
    """SentencePiece with byte fallback: pieces are text, runs of ``<0xNN>`` one string or, if broken, one U+FFFD a byte."""

    def __init__(self, space: str, written: str, stripped: str, strip: int) -> None:
        self._space, self._written = space, written
        self._stripped, self._strip = stripped, strip  # leading characters still to be dropped from the whole text
        self._run = bytearray()

    def add(self, token_id: int, token: str) -> str:
        token = token.replace(self._space, self._written)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                self._run.append(int(token[3:5], 16))
            except ValueError:
                pass
            else:
                return ""
        return self._lead(self._end_run() + token)

    def finish(self) -> str:
        return self._lead(self._end_run())

    def _end_run(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return _BROKEN * len(run)

    def _lead(self, text: str) -> str:
        """Drop the one leading space of the whole text, if it has one."""
        while self._strip and text:
            if not text.startswith(self._stripped):
                self._strip = 0
                break
            text, self._strip = text[len(self._stripped) :], self._strip - 1
        return text


class _Window:
    """Any other decoder: decode the last tokens with and without the new one, and give out what was added."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._ids: list[int] = []
        self._from, self._given_to, self._given = 0, 0, 0

    def add(self, token_id: int, token: str) -> str:
        self._ids.append(token_id)
        old = self._decode(self._ids[self._from : self._given_to])
        new = self._decode(self._ids[self._from :])
        if new.endswith(_BROKEN) or len(new) <= len(old) or not new.startswith(old):
            return ""
        self._from, self._given_to = max(self._from, self._given_to - _CONTEXT), len(self._ids)
        self._given += len(new) - len(old)
        return new[len(old) :]

    def finish(self) -> str:
        return self._decode(self._ids)[self._given :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)
