"""Small tokenizers like the published ones, and the GGUF metadata that a converter would make of them."""

from __future__ import annotations

import json
import random
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [
    "The quick brown fox jumps over 12345 lazy dogs; don't you think so? I'll say we're 99% sure.",
    "def f(x):\n    return x ** 2  # a comment\n\n\n\tpass\r\n",
    "café naïve Ångström e\u0301clair, größer, 日本語のテキスト, Привет мир, 🙂👩‍👩‍👧",
    "   many    spaces     and\n\n\nlines  ",
]
ALPHABET = [
    *"abcdefg XYZ 0123456789 \n\r\t.,!?'\"<>|_-▁éüñß中文字😀👍🏽",
    "\u0301",
    "\u200d",
    "\u00a0",
    "  ",
    "'s",
    "'LL",
    "<|end|>",
]


def texts() -> list[str]:
    rng = random.Random(1)
    mixed = ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 40))) for _ in range(400)]
    wild = [
        "".join(chr(rng.choice([*range(0x20, 0x2000, 7), *range(0xE000, 0x11000, 31)])) for _ in range(20)) for _ in range(100)
    ]
    runs = [" " * n + "x" + "\n" * n for n in (1, 2, 5, 33, 70)]
    return ["", " ", "▁▁", *CORPUS, *mixed, *wild, *runs]


def trained(pre: str) -> tokenizers.Tokenizer:
    """What the original of each ``pre`` looks like in its published ``tokenizer.json``, with a small vocabulary."""
    built = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    words = {"qwen2": QWEN2, "llama-bpe": LLAMA3}.get(pre)
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)]
    if words is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(words), "isolated"))
    if pre == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if pre == "qwen2":
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence(steps)
    built.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False)
    built.train_from_iterator(CORPUS * 4, trainer)
    built.add_tokens([AddedToken("<think>", normalized=False)])
    return built


def metadata(built: tokenizers.Tokenizer, **more: Any) -> dict[str, Any]:
    """What a converter would write."""
    vocabulary = built.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    added = {token.content: token.special for token in built.get_added_tokens_decoder().values()}
    merges = [" ".join(merge) for merge in json.loads(built.to_str())["model"]["merges"]]
    types = [3 if added.get(token) else 4 if token in added else 1 for token in tokens]
    values = {"model": "gpt2", "tokens": tokens, "token_type": types, "merges": merges, "eos_token_id": 0, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def sentencepiece(prefix: bool) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """A BPE with byte fallback whose merges follow scores, as SentencePiece has it, and its metadata."""
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    learned = tokenizers.Tokenizer(models.BPE())
    learned.train_from_iterator([text.replace(" ", "▁") for text in CORPUS], trainer)
    pieces = json.loads(learned.to_str())["model"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    runs = ["▁▁", "\n\n"]
    letters = [piece for piece in pieces["vocab"] if piece not in ("<unk>", "<s>", "</s>", *runs)]
    tokens = ["<unk>", "<s>", "</s>", *fallback, *runs, *letters]
    types = [2, 3, 3, *[6] * 256, *[4] * len(runs), *[1] * len(letters)]
    merged = {left + right: rank for rank, (left, right) in enumerate(pieces["merges"])}
    scores = [-1000.0] * (259 + len(runs)) + [-float(merged.get(piece, 10**6)) for piece in letters]
    ids = {token: number for number, token in enumerate(tokens)}
    order = sorted((token for token in tokens[259:]), key=lambda token: -(0.0 if token in runs else scores[ids[token]]))
    ways = [(token[:cut], token[cut:]) for token in order for cut in range(len(token) - 1, 0, -1)]
    merges = [way for way in ways if way[0] in ids and way[1] in ids]
    original = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    original.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    original.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    original.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "</s>")])
    original.add_tokens([AddedToken(text, normalized=False) for text in runs])
    original.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    written = [token.replace("▁", " ") if token in runs else token for token in tokens]
    values = {"model": "llama", "pre": "default", "tokens": written, "token_type": types, "scores": scores}
    facts = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_space_prefix": prefix}
    return original, {f"tokenizer.ggml.{key}": value for key, value in {**values, **facts}.items()}
