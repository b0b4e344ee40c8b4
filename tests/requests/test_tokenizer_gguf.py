"""Tokenizers rebuilt from GGUF metadata: the ids of the tokenizer that the file was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizer_cases import metadata, sentencepiece, texts, trained  # type: ignore[import-not-found]

import assets
from wellhead.errors import TokenizerError
from wellhead.requests.gguf_tokenizer import build_tokenizer
from wellhead.requests.tokenizer import Tokenizer


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_byte_level_ids_are_the_originals(pre: str) -> None:
    original = trained(pre)
    backend, config = build_tokenizer(metadata(original, pre=pre, add_bos_token=False), "m.gguf")
    ours = Tokenizer(backend, config, "m.gguf")
    for text in texts():
        ids = original.encode(text).ids
        assert ours.encode(text) == ids, repr(text)
        assert ours.decode(ids) == original.decode(ids)
    assert ours.special_ids == {0}
    assert ours.eos_token_id == 0


def test_the_pre_tokenizers_differ_on_these_texts() -> None:
    """Otherwise the test above would prove little."""
    backends = {}
    for pre in ("smollm", "qwen2", "llama-bpe"):
        original = trained("gpt-2")
        backends[pre], _ = build_tokenizer(metadata(original, pre=pre, add_bos_token=False), "m.gguf")
    found = {pre: [backend.encode(text).ids for text in texts()] for pre, backend in backends.items()}
    assert found["smollm"] != found["qwen2"] != found["llama-bpe"] != found["smollm"]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids_are_the_originals(prefix: bool) -> None:
    original, described = sentencepiece(prefix)
    backend, config = build_tokenizer(described, "m.gguf")
    ours = Tokenizer(backend, config, "m.gguf")
    for text in texts():
        ids = original.encode(text).ids
        assert ours.encode(text) == ids, repr(text)
        assert ours.decode(ids) == original.decode(ids)


@pytest.mark.parametrize(("add_bos", "add_eos"), [(None, None), (True, False), (False, True), (True, True)])
def test_opening_and_closing_tokens(add_bos: bool | None, add_eos: bool | None) -> None:
    flags = {"add_bos_token": add_bos, "add_eos_token": add_eos}
    described = metadata(trained("smollm"), pre="smollm", bos_token_id=5, **{k: v for k, v in flags.items() if v is not None})
    backend, config = build_tokenizer(described, "m.gguf")
    ours = Tokenizer(backend, config, "m.gguf")
    plain = ours.encode("the fox", add_special_tokens=False)
    assert ours.encode("the fox") == [5] * bool(add_bos) + plain + [0] * bool(add_eos)
    assert ours.encode("") == [5] * bool(add_bos) + [0] * bool(add_eos)


def test_llama_3_and_sentencepiece_open_with_bos_unless_told_otherwise() -> None:
    backend, _ = build_tokenizer(metadata(trained("llama-bpe"), pre="llama-bpe", bos_token_id=5), "m.gguf")
    assert backend.encode("the").ids[0] == 5
    backend, _ = build_tokenizer(sentencepiece(True)[1], "m.gguf")
    assert backend.encode("the").ids[0] == 1


def test_chat_templates_of_the_file() -> None:
    described = {**metadata(trained("smollm"), pre="smollm"), "tokenizer.chat_template": "plain {{ eos_token }}"}
    backend, config = build_tokenizer(described, "m.gguf")
    chat = [{"role": "user", "content": "x"}]
    assert Tokenizer(backend, config, "m.gguf").apply_chat_template(chat) == "plain <|end|>"
    backend, config = build_tokenizer({**described, "tokenizer.chat_template.tool_use": "tools"}, "m.gguf")
    assert Tokenizer(backend, config, "m.gguf").apply_chat_template(chat, tools=[]) == "tools"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "bert"}, "tokenizer model 'bert'"),
    ({"model": None}, "tokenizer model None"),
    ({"pre": "chatglm-bpe"}, "pre-tokenizer 'chatglm-bpe' is not supported"),
    ({"pre": "default"}, "pre-tokenizer 'default' is not supported"),
    ({"pre": None}, "pre-tokenizer None is not supported"),
    ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
    ({"merges": None}, "tokenizer.ggml.merges is missing"),
    ({"merges": ["ab"]}, "merge 'ab' is not a pair"),
    ({"merges": ["nowhere atall"]}, "cannot be rebuilt"),
    ({"token_type": [1]}, "1 token types"),
    ({"tokens": ["a", "a"], "token_type": [1, 1]}, "1 tokens are there twice"),
    ({"eos_token_id": 10**6}, "eos_token_id 1000000 is not a token"),
    ({"model": "llama"}, "tokenizer.ggml.scores is missing"),
    ({"model": "llama", "scores": [0.0]}, "1 scores"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_refused_by_name(changes: dict[str, Any], said: str) -> None:
    described = metadata(trained("smollm"), pre="smollm")
    described.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    with pytest.raises(TokenizerError, match=said) as caught:
        build_tokenizer({key: value for key, value in described.items() if value is not None}, "m.gguf")
    assert "m.gguf" in caught.value.message


# -- the real ones; the ids are those of the published tokenizer.json files


@pytest.mark.real
def test_smollm2() -> None:
    ours = Tokenizer.load(assets.fetch_smollm2())
    for text, ids in SMOLLM2.items():
        assert ours.encode(text) == ids, text
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert (ours.vocab_size, ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (49152, 1, 2, 2)
    chat = ours.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert ours.encode_chat([{"role": "user", "content": "Hi"}])[0] == 1


@pytest.mark.real
@pytest.mark.slow
def test_gemma_3() -> None:
    ours = Tokenizer.load(assets.fetch_gemma3_270m())
    for text, ids in GEMMA3.items():
        assert ours.encode(text) == ids, text
        assert ours.decode(ids[1:], skip_special_tokens=False) == text.replace("▁", " ")
    assert ours.vocab_size == 262144
    assert Path(ours.source).suffix == ".gguf"


SMOLLM2: dict[str, list[int]] = {
    "Hello world": [19556, 905],
    "In 2024, 3.14 and 1000000 + \xbd": [
        788,
        216,
        34,
        32,
        34,
        36,
        28,
        216,
        35,
        30,
        33,
        36,
        284,
        216,
        33,
        32,
        32,
        32,
        32,
        32,
        32,
        1232,
        216,
        16738,
    ],
    "don't I'll WE'RE": [12420, 982, 339, 3060, 26587, 23, 3256],
    "    def f(x):\n\t\treturn x\r\n\n": [333, 753, 275, 24, 104, 727, 3354, 197, 5406, 1792, 201, 1116],
    "caf\xe9 cafe\u0301": [83, 1939, 2756, 1020, 4565, 151, 219],
    "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 \U0001f469\u200d\U0001f469\u200d\U0001f467": [
        23274,
        115,
        40993,
        179,
        120,
        248,
        216,
        33085,
        246,
        181,
        130,
        251,
        183,
        240,
        129,
        216,
        31933,
        222,
        10283,
        241,
        10283,
        112,
        15107,
        235,
        119,
        321,
        231,
        10813,
        235,
        119,
        321,
        231,
        10813,
        235,
        117,
    ],
    "<|im_start|>user\nHi<|im_end|>": [1, 4093, 198, 26843, 2],
    "                                        x": [12427, 415, 1792],
}
GEMMA3: dict[str, list[int]] = {
    "Hello world": [2, 9259, 1902],
    "In 2024, 3.14 and 1000000 + \xbd": [
        2,
        902,
        236743,
        236778,
        236771,
        236778,
        236812,
        236764,
        236743,
        236800,
        236761,
        236770,
        236812,
        532,
        236743,
        236770,
        236771,
        236771,
        236771,
        236771,
        236771,
        236771,
        900,
        47041,
    ],
    "    def f(x):\n\t\treturn x\r\n\n": [2, 140, 2063, 517, 236769, 236781, 1473, 107, 255969, 2060, 1123, 251, 108],
    "caf\xe9 cafe\u0301": [2, 123125, 236859, 24364, 238288],
    "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U00010348": [
        2,
        94951,
        50413,
        237430,
        127604,
        236743,
        243767,
        237243,
        243767,
        237243,
        244814,
        236743,
        478,
        382,
        379,
        374,
    ],
    "<start_of_turn>user\nHi<end_of_turn>\n": [2, 105, 2364, 107, 10979, 106, 107],
    "                                        x": [2, 167, 145, 236781],
    "\u2581\u2581 \n\n\n\n": [2, 138, 236743, 110],
    "<table><tr>": [2, 168, 173],
}
