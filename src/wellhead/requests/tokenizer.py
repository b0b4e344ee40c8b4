"""Text <-> token ids, for a Hugging Face folder or a GGUF file; no torch, and no transformers unless nothing else reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from wellhead.errors import InvalidRequest, TokenizerError
from wellhead.gguf_file import read_gguf
from wellhead.requests.chat_template import ChatTemplates
from wellhead.requests.gguf_tokenizer import build_tokenizer
from wellhead.requests.words import word

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _byte_letters() -> dict[str, int]:
    """Byte-level vocabularies write a printable byte of Latin-1 as itself, the others as letters from U+0100 on, in order."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_LETTERS = _byte_letters()
#: How SentencePiece writes a byte for which it has no piece.
_BYTE_PIECE = re.compile("<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """One model's tokenizer and chat template. Immutable once made, so any number of threads may share it.

    (``tokenizers`` panics with "Already borrowed" when one thread changes truncation, padding or tokens while
    another encodes. Nothing here changes them after ``load``.)

    Attributes: ``vocab_size`` (ids are below it; the model's own may be larger), ``bos_token_id``, ``eos_token_id``,
    ``pad_token_id`` (``None`` where there is none), ``special_ids`` (what ``skip_special_tokens`` leaves out),
    ``has_chat_template``.
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, Any], source: str) -> None:
        """Take over ``backend`` (nobody else may change it) with what ``tokenizer_config.json`` says."""
        backend.no_truncation()
        backend.no_padding()
        special_tokens = {name: text for name in _NAMED if (text := _text(config.get(name))) is not None}
        _add_missing(backend, config, special_tokens)
        self._backend = backend
        self._chat = ChatTemplates(_templates(config.get("chat_template")), special_tokens)
        self.source = source
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.bos_token_id, self.eos_token_id, self.pad_token_id = (
            backend.token_to_id(special_tokens[name]) if name in special_tokens else None
            for name in ("bos_token", "eos_token", "pad_token")
        )
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(number for number, token in added.items() if token.special)

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a folder with ``tokenizer.json``, or a ``.gguf`` file.

        A folder with another kind of tokenizer is read through transformers, if that is installed.
        Errors: TokenizerError; WeightsError for a GGUF file that is torn.
        """
        if path.is_file():
            backend, config = build_tokenizer(read_gguf(path).metadata, str(path))
            return cls(backend, config, str(path))
        config = _folder_config(path)
        file = path / "tokenizer.json"
        if not file.is_file():
            return cls(_through_transformers(path), config, str(path))
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises plain Exception
            raise TokenizerError(f"{file} cannot be read as a tokenizer: {error}") from error
        return cls(backend, config, str(path))

    @property
    def has_chat_template(self) -> bool:
        """Whether ``apply_chat_template`` can work."""
        return bool(self._chat)

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The ``tokenizers`` object; read it, never change it."""
        return self._backend

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with the opening and closing tokens that the model's tokenizer adds. Errors: InvalidRequest."""
        _check_unicode(text)
        # A batch of one: unlike the package's own ``encode`` it lets other threads run meanwhile.
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """``encode`` of each, on all cores. Errors: InvalidRequest, naming the text."""
        for index, text in enumerate(texts):
            _check_unicode(text, index)
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """For each token of ``encode(text)``, the characters ``[from, to)`` of the text that it came from; ``(0, 0)`` for what
        the tokenizer added. Errors: InvalidRequest."""
        _check_unicode(text)
        spans: list[tuple[int, int]] = self._backend.encode_batch([text])[0].offsets
        return spans

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Two texts as one, joined as the model's tokenizer joins pairs. Errors: InvalidRequest, naming the pair."""
        for index, pair in enumerate(pairs):
            for text in pair:
                _check_unicode(text, index)
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(pairs))]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True) -> str:
        """Text of ids, in one go; broken UTF-8 shows as U+FFFD, and ids that are no tokens show as nothing.

        ``spaces_between_special_tokens`` is the name of an option of slow tokenizers; tokenizers of this kind never
        put spaces there, so both values decode alike.
        """
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, special tokens included; part of a character shows as U+FFFD."""
        return self.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text, also where they are only a part of a character."""
        text = self.token_text(token_id)
        piece = self._backend.id_to_token(token_id) if "\ufffd" in text else None
        if piece is None:
            return text.encode()
        if _BYTE_PIECE.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        if all(letter in _BYTE_LETTERS for letter in piece):
            return bytes(_BYTE_LETTERS[letter] for letter in piece)
        return text.encode()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt of a chat as text; see ``ChatTemplates.render``.

        Encode it with ``add_special_tokens=False``, or use ``encode_chat``: templates write the opening token
        themselves. Errors: InvalidRequest.
        """
        return self._chat.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            continue_final_message=continue_final_message,
            variables=variables,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """The ids of a chat, equal to transformers' ``apply_chat_template(tokenize=True)``: never a second bos."""
        return self.encode(self.apply_chat_template(messages, **options), add_special_tokens=False)


def _check_unicode(text: str, index: int | None = None) -> None:
    where = "" if index is None else f" {index}"
    if not isinstance(text, str):
        raise InvalidRequest(f"{word('text')}{where} must be a string, not {type(text).__name__}", param="text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
        raise InvalidRequest(f"{word('text')}{where} holds {found}, which is not a character", param="text") from None


def _text(token: Any) -> str | None:
    """A token in a config is a string or an object with ``content``."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) and token else None


def _add_missing(backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> None:
    """Tokens that the config names and ``tokenizer.json`` does not; those already there keep what they are."""
    listed = config.get("added_tokens_decoder")
    if isinstance(listed, dict):
        known = {str(token.content) for token in backend.get_added_tokens_decoder().values()}
        for _, entry in sorted(((int(n), entry) for n, entry in listed.items() if n.isdecimal()), key=lambda item: item[0]):
            text = _text(entry)
            if isinstance(entry, dict) and text is not None and text not in known:
                flags = {
                    key: bool(entry[key]) for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in entry
                }
                backend.add_tokens([tokenizers.AddedToken(text, **flags)])
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    listed_too = list(extra.values()) if isinstance(extra, dict) else extra if isinstance(extra, list) else []
    more = [text for token in listed_too if (text := _text(token)) is not None]
    wanted = dict.fromkeys([*special_tokens.values(), *more])
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in wanted])


def _templates(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        return {str(name): text for name, text in value.items() if isinstance(text, str)}
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return {str(entry.get("name")): entry["template"] for entry in entries if isinstance(entry.get("template"), str)}


def _folder_config(folder: Path) -> dict[str, Any]:
    """``tokenizer_config.json``, completed by ``special_tokens_map.json`` and overruled by template files."""
    config = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
    files = {"default": folder / "chat_template.jinja"}
    files.update({file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))})
    try:
        found = {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{folder}: a chat template cannot be read: {error}") from error
    return {**config, "chat_template": found} if found else config


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{file} holds no JSON object")
    return value


def _through_transformers(folder: Path) -> tokenizers.Tokenizer:
    """A folder with ``tokenizer.model`` or ``vocab.json`` and ``merges.txt``: transformers converts those."""
    kinds = [name for name in ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model") if (folder / name).is_file()]
    if not kinds:
        raise TokenizerError(f"{folder} holds no tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        advice = "install transformers and sentencepiece, or add a tokenizer.json"
        raise TokenizerError(f"{folder} has {kinds[0]} but no tokenizer.json; to read it, {advice}") from None
    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise TokenizerError(f"{folder}: transformers cannot read {kinds[0]}: {error}") from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerError(f"{folder}: {kinds[0]} has no fast tokenizer; add a tokenizer.json")
    return backend
