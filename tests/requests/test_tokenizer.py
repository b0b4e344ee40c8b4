"""Tokenizers from Hugging Face folders: ids, special tokens, chat templates, threads; transformers is the judge."""

from __future__ import annotations

import builtins
import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from wellhead.errors import InvalidRequest, TokenizerError
from wellhead.requests.tokenizer import Tokenizer

CHATML = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {%- if message.role == 'tool' %}{% continue %}{% endif %}\n"
    "    {% if message.role not in ['system', 'user', 'assistant'] %}\n"
    "{{ raise_exception('no such role: ' + message.role) }}{% endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% if message.reasoning_content is defined %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}"
    "{% endfor %}"
    "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
    "{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}"
    "{% if enable_thinking is defined and enable_thinking %}{{ '<think>' }}{% endif %}"
    "{% if documents is defined and documents is none %}none{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TEXTS = [
    "",
    " ",
    "a",
    "  two  spaces ",
    "Hello, wörld! 123",
    "日本語 🙂👩‍👩‍👧 e\u0301",
    "<|im_start|>x<|im_end|>",
    "\n\t\r\n",
    "\x00",
]
NEW_PAD = {
    "__type": "AddedToken",
    "content": "<|new pad|>",
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|> <b>é</b>"}]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Trains a small byte-level tokenizer and saves it: ``folder(post_processor, **tokenizer_config)``."""

    def write(post_processor: Any = None, **config: Any) -> Path:
        built = tokenizers.Tokenizer(models.BPE())
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        built.decoder = decoders.ByteLevel()
        special = ["<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
        built.train_from_iterator(["the quick brown fox jumps over the lazy dog, hello world"] * 3, trainer)
        built.add_tokens([AddedToken("<think>", normalized=False)])
        built.enable_truncation(5)
        built.enable_padding(length=12)
        if post_processor is not None:
            built.post_processor = post_processor
        built.save(str(tmp_path / "tokenizer.json"))
        names = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "chat_template": CHATML, **config}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return tmp_path

    return write


def around(before: list[str], after: list[str]) -> Any:
    ids = {"<|bos|>": 0, "<|im_end|>": 2}
    single = [f"{text}:0" for text in before] + ["$A:0"] + [f"{text}:0" for text in after]
    return processors.TemplateProcessing(single=single, special_tokens=[(text, ids[text]) for text in {*before, *after}])


def without_limits(path: Path) -> Any:
    theirs = AutoTokenizer.from_pretrained(path)
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    return theirs


@pytest.mark.parametrize(("before", "after"), [([], []), (["<|bos|>"], []), ([], ["<|im_end|>"]), (["<|bos|>"], ["<|im_end|>"])])
def test_ids_and_texts_are_those_of_transformers(before: list[str], after: list[str], folder: Callable[..., Path]) -> None:
    path = folder(around(before, after) if before or after else None)
    ours, theirs = Tokenizer.load(path), without_limits(path)
    for text in TEXTS:
        ids = theirs(text, truncation=False, padding=False)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
        assert ids[: len(before)] == [0] * len(before)
        assert len(after) == 0 or ids[-1] == 2
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]
    assert ours.encode_batch([]) == []


def test_truncation_and_padding_of_the_file_are_not_obeyed(folder: Callable[..., Path]) -> None:
    ids = Tokenizer.load(folder()).encode("hello " * 50, add_special_tokens=False)
    assert len(ids) >= 50
    assert Tokenizer.load(folder()).encode("") == []


def test_facts(folder: Callable[..., Path]) -> None:
    path = folder()
    ours, theirs = Tokenizer.load(path), AutoTokenizer.from_pretrained(path)
    assert ours.vocab_size == len(theirs)
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (0, 2, 3)
    assert ours.special_ids == {0, 1, 2, 3}
    assert ours.token_text(2) == "<|im_end|>"
    assert ours.token_text(ours.encode("é")[0]) == "\ufffd"
    assert ours.decode([2, 10**6]) == ""


def test_tokens_that_only_the_config_names_are_added(folder: Callable[..., Path]) -> None:
    extra = {"additional_special_tokens": ["<|tool|>"], "pad_token": NEW_PAD}
    path = folder(**extra)
    ours, theirs = Tokenizer.load(path), AutoTokenizer.from_pretrained(path)
    for text in ("<|tool|>", "<|new pad|>"):
        assert ours.encode(text) == [theirs.convert_tokens_to_ids(text)]
        assert ours.encode(text)[0] in ours.special_ids
    assert ours.pad_token_id == theirs.pad_token_id


def test_a_config_of_strange_types_is_read_for_what_it_is(folder: Callable[..., Path]) -> None:
    strange = {
        "added_tokens_decoder": {"x": 1, "9": {"content": "<|late|>"}, "8": 3},
        "extra_special_tokens": "abc",
        "bos_token": 7,
    }
    ours = Tokenizer.load(folder(**strange))
    assert ours.bos_token_id is None
    assert ours.encode("<|late|>abc")[0] == ours.vocab_size - 1


# -- chats


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_generation_prompt": False},
        {"tools": [{"type": "function", "function": {"name": "f<>&é", "parameters": {"b": 1, "a": None}}}]},
        {"enable_thinking": True},
        {"documents": [{"title": "t", "text": "x"}]},
    ],
    ids=str,
)
def test_chats_are_rendered_as_transformers_does(options: dict[str, Any], folder: Callable[..., Path]) -> None:
    path = folder(around(["<|bos|>"], ["<|im_end|>"]))
    ours, theirs = Tokenizer.load(path), without_limits(path)
    last = {"role": "assistant", "content": "x", "reasoning": "because", "tool_calls": None}
    for chat in (CHAT, [*CHAT, last, {"role": "tool", "content": "left out"}]):
        given = {"add_generation_prompt": True, **options}
        assert ours.apply_chat_template(chat, **options) == theirs.apply_chat_template(chat, tokenize=False, **given)
        ids = theirs.apply_chat_template(chat, tokenize=True, return_dict=False, **given)
        assert ours.encode_chat(chat, **options) == ids
        assert ids.count(0) == 1


def test_the_last_message_can_be_left_open(folder: Callable[..., Path]) -> None:
    path = folder(chat_template=CHATML.replace("message['content'] +", "message['content'] | trim +"))
    ours, theirs = Tokenizer.load(path), AutoTokenizer.from_pretrained(path)
    for ending in ("Sure:", "Sure: "):
        chat = [*CHAT, {"role": "assistant", "content": ending}]
        options: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
        assert ours.apply_chat_template(chat, **options) == theirs.apply_chat_template(chat, tokenize=False, **options)
    with pytest.raises(InvalidRequest, match="excludes"):
        ours.apply_chat_template(chat, continue_final_message=True)


def test_template_files_and_named_templates(folder: Callable[..., Path]) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    ours = Tokenizer.load(folder(chat_template=named))
    assert ours.apply_chat_template(CHAT) == "plain"
    assert ours.apply_chat_template(CHAT, tools=[{}]) == "tools"
    path = folder()
    (path / "chat_template.jinja").write_text("from the file")
    assert Tokenizer.load(path).apply_chat_template(CHAT) == "from the file"


@pytest.mark.parametrize(
    ("chat", "said"),
    [
        ([], "at least one message"),
        ("hello", "at least one message"),
        (["hello"], "must be an object"),
        ([{"role": "pirate", "content": "x"}], "no such role: pirate"),
        ([{"role": "user"}], "refuses these messages"),
        ([{"role": "user", "content": object()}], "JSON values only"),
    ],
)
def test_messages_that_do_not_fit_are_refused(chat: Any, said: str, folder: Callable[..., Path]) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Tokenizer.load(folder()).apply_chat_template(chat)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__bases__[0].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}{{ i }}{% endfor %}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
    ],
)
def test_templates_cannot_reach_out(template: str, folder: Callable[..., Path]) -> None:
    ours = Tokenizer.load(folder(chat_template=template))
    with contextlib.suppress(InvalidRequest):
        assert ours.apply_chat_template(CHAT) == ""


def test_without_a_template_and_with_a_broken_one(folder: Callable[..., Path]) -> None:
    ours = Tokenizer.load(folder(chat_template=None))
    assert not ours.has_chat_template
    with pytest.raises(InvalidRequest, match="no chat template"):
        ours.apply_chat_template(CHAT)
    with pytest.raises(TokenizerError, match="cannot be compiled"):
        Tokenizer.load(folder(chat_template="{% if %}")).apply_chat_template(CHAT)


# -- bad input, bad folders


def test_lone_surrogates_are_refused_by_place(folder: Callable[..., Path]) -> None:
    ours = Tokenizer.load(folder())
    with pytest.raises(InvalidRequest, match=r"lone surrogate \(U\+D83D\) at character 2"):
        ours.encode("ab\ud83d")
    with pytest.raises(InvalidRequest, match="text 1 holds a lone surrogate"):
        ours.encode_batch(["fine", "\udc00"])
    with pytest.raises(InvalidRequest, match="must be a string, not bytes"):
        ours.encode(b"ab")  # type: ignore[arg-type]


def test_folders_without_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


def test_vocabularies_without_a_tokenizer_json_go_through_transformers(
    folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tokenizer_class="GPT2Tokenizer")
    whole = json.loads((path / "tokenizer.json").read_text())
    expected = Tokenizer.load(path).encode("hello fox")
    (path / "tokenizer.json").unlink()
    (path / "vocab.json").write_text(json.dumps(whole["model"]["vocab"]))
    merges = [" ".join(merge) for merge in whole["model"]["merges"]]
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    assert Tokenizer.load(path).encode("hello fox") == expected

    found = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(TokenizerError, match="install transformers"):
        Tokenizer.load(path)


def test_many_threads_share_one(folder: Callable[..., Path]) -> None:
    ours = Tokenizer.load(folder(around(["<|bos|>"], [])))
    expected = {text: ours.encode(text) for text in TEXTS}

    def work(number: int) -> bool:
        text = TEXTS[number % len(TEXTS)]
        rendered = ours.encode_chat(CHAT)
        same = ours.encode(text) == expected[text] and ours.encode_batch([text] * 3) == [expected[text]] * 3
        return same and ours.decode(rendered) != "" and ours.token_text(rendered[0]) == "<|bos|>"

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(2000)))


def test_importing_needs_neither_torch_nor_transformers() -> None:
    import subprocess
    import sys

    code = "import sys, wellhead.requests.tokenizer, wellhead.requests.detokenizer"
    check = "assert not {'torch', 'transformers'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", f"{code}; {check}"], check=True, timeout=60)
