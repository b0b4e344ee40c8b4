"""The tokenizer inside a GGUF file, rebuilt so that its ids equal those of the tokenizer it was made from.

A GGUF file keeps the vocabulary and one word, ``pre``, for everything that comes before it: normalisation and the
splitting of text. A wrong guess gives plausible ids that are subtly wrong, so a word that is not known is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from wellhead.errors import TokenizerError

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_SPACE = "▁"  # how SentencePiece writes a space
_UNUSED = re.compile(r"<unused\d+>")  # marked as control in the file, plain in the original

_QWEN2_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = _QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@dataclass(frozen=True)
class _Splitting:
    """What one value of ``tokenizer.ggml.pre`` stands for."""

    words: str | None = None  # a pattern of words; None: GPT-2's own
    digits: bool = False  # every digit apart, before anything else
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False  # where the file does not say


_SPLITTINGS = {
    "gpt-2": _Splitting(),
    "smollm": _Splitting(digits=True),
    "qwen2": _Splitting(words=_QWEN2_WORDS, nfc=True),
    "llama-bpe": _Splitting(words=_LLAMA3_WORDS, ignore_merges=True, add_bos=True),
}
_SPLITTINGS["llama3"] = _SPLITTINGS["llama-v3"] = _SPLITTINGS["llama-bpe"]


class Vocabulary:
    """The lists of a GGUF file, checked. Errors: TokenizerError naming the key."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self.metadata, self.source = metadata, source
        self.tokens: list[str] = self.items("tokens", str)
        self.types: list[int] = self.items("token_type", int) if self.has("token_type") else [_NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise TokenizerError(f"{source}: {len(self.types)} token types for {len(self.tokens)} tokens")

    def has(self, key: str) -> bool:
        return f"tokenizer.ggml.{key}" in self.metadata

    def value(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def items(self, key: str, kind: type) -> list[Any]:
        found = self.value(key)
        if not isinstance(found, list) or not found or not isinstance(found[0], kind):
            raise TokenizerError(f"{self.source} holds no tokenizer: tokenizer.ggml.{key} is missing, or not a list")
        return found

    def special(self, name: str) -> str | None:
        """The text of ``bos``, ``eos``, ``padding``, ``unknown``."""
        number = self.value(f"{name}_token_id")
        if number is None:
            return None
        if not isinstance(number, int) or not 0 <= number < len(self.tokens):
            raise TokenizerError(f"{self.source}: {name}_token_id {number} is not a token")
        return self.tokens[number]

    def by_text(self) -> dict[str, int]:
        ids = {text: number for number, text in enumerate(self.tokens)}
        if len(ids) != len(self.tokens):
            raise TokenizerError(f"{self.source}: {len(self.tokens) - len(ids)} tokens are there twice")
        return ids


def build_tokenizer(metadata: Mapping[str, Any], source: str) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and the ``tokenizer_config.json`` that the file would have had.

    ``source`` names the file in errors. Errors: TokenizerError for a model or a ``pre`` that is not known, by name.
    """
    vocabulary = Vocabulary(metadata, source)
    kind = vocabulary.value("model")
    try:
        if kind == "gpt2":
            built, add_bos = _byte_level(vocabulary)
        elif kind == "llama":
            built, add_bos = _sentencepiece(vocabulary), True
        else:
            raise TokenizerError(f"{source}: tokenizer model {kind!r} is not supported; supported: gpt2, llama")
        _add_tokens(built, vocabulary)
        _surround(built, vocabulary, add_bos)
    except TokenizerError:
        raise
    except Exception as error:  # the tokenizers package raises plain Exception
        raise TokenizerError(f"{source}: its tokenizer cannot be rebuilt: {error}") from error
    names = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
    config: dict[str, Any] = {name: vocabulary.special(key) for key, name in names.items()}
    return built, {**config, "chat_template": _chat_templates(metadata)}


def _byte_level(vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    pre = vocabulary.value("pre")
    if pre not in _SPLITTINGS:
        supported = ", ".join(_SPLITTINGS)
        raise TokenizerError(f"{vocabulary.source}: pre-tokenizer {pre!r} is not supported; supported: {supported}")
    splitting = _SPLITTINGS[pre]
    merges = []
    for merge in vocabulary.items("merges", str):
        left, space, right = merge.partition(" ")
        if not space:
            raise TokenizerError(f"{vocabulary.source}: merge {merge!r} is not a pair")
        merges.append((left, right))
    built = Tokenizer(models.BPE(vocabulary.by_text(), merges, ignore_merges=splitting.ignore_merges))
    if splitting.nfc:
        built.normalizer = normalizers.NFC()
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.words is None)
    steps: list[pre_tokenizers.PreTokenizer] = [bytes_only]
    if splitting.words is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(splitting.words), "isolated"))
    if splitting.digits:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    built.pre_tokenizer = pre_tokenizers.Sequence(steps)
    built.decoder = decoders.ByteLevel()
    return built, splitting.add_bos


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    # User-defined pieces are written with real spaces and a score of their own making; in the original they have
    # SentencePiece's spaces and come before everything else.
    paired = zip(vocabulary.tokens, vocabulary.types, strict=True)
    vocabulary.tokens = [text.replace(" ", _SPACE) if kind == _USER_DEFINED else text for text, kind in paired]
    prefix = vocabulary.value("add_space_prefix", True)
    unknown = vocabulary.special("unknown")
    ids = vocabulary.by_text()
    merges = _merges_from_scores(vocabulary, ids)
    built = Tokenizer(models.BPE(ids, merges, fuse_unk=True, byte_fallback=True, unk_token=unknown))
    to_piece = normalizers.Replace(" ", _SPACE)
    to_text = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        built.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), to_piece])
        built.decoder = decoders.Sequence([*to_text, decoders.Strip(" ", 1, 0)])
    else:
        built.normalizer = to_piece
        built.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        built.decoder = decoders.Sequence(to_text)
    return built


def _merges_from_scores(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, best score first: the order of the published merges.

    A quarter of a million pieces take under two seconds; what is in the inner loop is there for that.
    """
    scores = vocabulary.items("scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise TokenizerError(f"{vocabulary.source}: {len(scores)} scores for {len(vocabulary.tokens)} tokens")
    found: list[tuple[float, int, str, str]] = []
    for text, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True):
        if kind != _NORMAL and kind != _USER_DEFINED:
            continue
        rank = 0.0 if kind == _USER_DEFINED else -score
        for cut in range(1, len(text)):
            left = text[:cut]
            if left in ids:
                right = text[cut:]
                if right in ids:
                    found.append((rank, -cut, left, right))
    lengths = {text: -len(text) for text in ids}
    found.sort(key=lambda merge: (merge[0], merge[1], lengths[merge[3]]))
    return [(left, right) for _, _, left, right in found]


def _add_tokens(built: Tokenizer, vocabulary: Vocabulary) -> None:
    """Control and user-defined tokens are found in the text before anything else is; only control ones are special."""
    special: list[AddedToken] = []
    plain: list[AddedToken] = []
    for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            is_special = kind == _CONTROL and not _UNUSED.fullmatch(text)
            (special if is_special else plain).append(AddedToken(text, special=is_special, normalized=False))
    built.add_special_tokens(special)
    built.add_tokens(plain)


def _surround(built: Tokenizer, vocabulary: Vocabulary, add_bos: bool) -> None:
    """Opening and closing tokens, as ``add_bos_token`` and ``add_eos_token`` say."""
    before = vocabulary.special("bos") if vocabulary.value("add_bos_token", add_bos) else None
    after = vocabulary.special("eos") if vocabulary.value("add_eos_token", False) else None
    if before is None and after is None:
        return
    opening, closing = ([f"{text}:0"] if text is not None else [] for text in (before, after))
    again = [piece.removesuffix(":0") + ":1" for piece in opening]
    used = {text: built.token_to_id(text) for text in (before, after) if text is not None}
    built.post_processor = processors.TemplateProcessing(
        single=[*opening, "$A:0", *closing],
        pair=[*opening, "$A:0", *closing, *again, "$B:1", *[piece.removesuffix(":0") + ":1" for piece in closing]],
        special_tokens=list(used.items()),
    )


def _chat_templates(metadata: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    """``tokenizer.chat_template``, with its named companions if there are any."""
    default = metadata.get("tokenizer.chat_template")
    prefix = "tokenizer.chat_template."
    named = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    if not named:
        return default if isinstance(default, str) else None
    templates = {"default": default, **named}
    return [{"name": name, "template": value} for name, value in templates.items() if isinstance(value, str)]
