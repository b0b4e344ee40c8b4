"""Templates, truncation, and the order in which prompts go to the engine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wellhead.errors import EmptyPrompt, InputFileError, InvalidConfig, PromptTooLong
from wellhead.frontends.bulk.input.inputs import Row
from wellhead.frontends.bulk.input.prompts import Item, Prompt, Prompts
from wellhead.frontends.bulk.input.template import Template
from wellhead.frontends.bulk.options import Options, add_arguments
from wellhead.frontends.bulk.work.order import BLOCK_TOKENS, WINDOW_PROMPTS, Line, departures, windows
from wellhead.requests.tokenizer import Tokenizer


def options(*more: str) -> Options:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return Options.from_args(parser.parse_args(["--model-path", "m", "--input", "i.txt", "--output", "o.parquet", *more]))


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{text}", "a {b} c"),
        (r"Review: {text}\nOverall, this movie was", "Review: a {b} c\nOverall, this movie was"),
        (r"{{{stars}}}\t{title}\\n{text}{text}", "{4}\tT\\na {b} ca {b} c"),
    ],
)
def test_templates(source: str, prompt: str) -> None:
    assert Template.parse(source, "body").render({"body": "a {b} c", "title": "T", "stars": 4}, "body") == prompt


@pytest.mark.parametrize("source", ["no place", "", "{text", "{}", "a } b", "{a{b}"])
def test_templates_that_cannot_be_meant(source: str) -> None:
    with pytest.raises(InvalidConfig, match="--template"):
        Template.parse(source, "text")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"text": "", "n": 1}, EmptyPrompt),
        ({"text": None, "n": 1}, InputFileError),
        ({"text": 3, "n": 1}, InputFileError),
        ({"text": "a", "n": None}, InputFileError),
        ({"text": "a", "n": []}, InputFileError),
        ({"text": "\ud800", "n": 1}, InputFileError),
    ],
)
def test_values_that_make_no_prompt(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Template.parse("{text} {n}", "text").render(values, "text")


@pytest.fixture
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.load(model)


def items(tokenizer: Tokenizer, limit: int, texts: list[Any], *more: str) -> list[Item]:
    rows = (Row(i, str(i), {"text": t}) for i, t in enumerate(texts))
    return list(Prompts(options(*more), tokenizer, limit).items(rows))


def test_only_the_text_is_cut_and_it_is_said_how_much(tokenizer: Tokenizer) -> None:
    texts = ["0123456789" * 3, "short", "é" * 30, ""]
    right = items(tokenizer, 16, texts, "--template", "<{text}>", "--truncate", "right")
    assert [i.prompts[0].text for i in right[:3]] == ["<01234567890123>", "<short>", "<" + "é" * 7 + ">"]
    assert [i.prompts[0].cut for i in right[:3]] == [16, 0, 46]
    left = items(tokenizer, 16, texts, "--template", "<{text}>", "--truncate", "left")
    assert [i.prompts[0].text for i in left[:3]] == ["<67890123456789>", "<short>", "<" + "é" * 7 + ">"]
    assert all(p.ids == tokenizer.encode(p.text) and len(p.ids) <= 16 for i in [*left, *right] for p in i.prompts)
    assert isinstance(right[3].error, EmptyPrompt)


def test_what_is_too_long_is_refused_unless_it_may_be_cut(tokenizer: Tokenizer) -> None:
    assert isinstance(items(tokenizer, 16, ["x" * 17])[0].error, PromptTooLong)
    assert items(tokenizer, 16, ["x" * 16])[0].error is None
    alone = items(tokenizer, 16, ["x" * 9], "--template", "a template of its own{text}", "--truncate", "left")[0]
    assert isinstance(alone.error, PromptTooLong) and "leaves no room" in alone.error.message


def test_one_template_that_fails_keeps_the_row_out(tokenizer: Tokenizer) -> None:
    found = items(tokenizer, 16, ["x" * 12, "y"], "--template", "{text}", "--template", "{text} and more")
    assert isinstance(found[0].error, PromptTooLong) and len(found[1].prompts) == 2


def made(count: int, tokens: int = 1, templates: int = 1) -> Iterator[Item]:
    return (Item(Row(i, str(i), {}), (Prompt("t", [1] * tokens),) * templates) for i in range(count))


def test_windows_are_bounded_in_prompts_tokens_and_bytes() -> None:
    assert [len(w) for w in windows(made(1200), lambda item: 0)] == [WINDOW_PROMPTS, WINDOW_PROMPTS, 1200 - 2 * WINDOW_PROMPTS]
    assert {len(w) for w in windows(made(64, tokens=8192), lambda item: 0)} == {4}
    assert {len(w) for w in windows(made(64, tokens=1000), lambda item: item.tokens << 20)} == {1}


def test_rows_leave_the_line_in_order_whatever_overtakes() -> None:
    line = Line()
    slots = [line.join(item) for item in made(4, templates=2)]
    for slot in reversed(slots):
        slot.put(1, EmptyPrompt("x"))
    assert list(line.leave()) == []
    for slot in (slots[1], slots[0]):
        slot.put(0, PromptTooLong("first"))
    assert [(d.item.row.number, str(d.error)) for d in line.leave()] == [(0, "first"), (1, "first")]
    assert len(line) == 2


def test_templates_take_turns_a_block_of_rows_each() -> None:
    line = Line()
    slots = [line.join(item) for item in made(10, tokens=BLOCK_TOKENS // 4, templates=2)]
    order = [(slot.item.row.number, template) for slot, template in departures(slots, 2)]
    assert order[:8] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1)]
    assert sorted(order) == [(i, t) for i in range(10) for t in (0, 1)]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--shard", "3/3"), "--shard must be"),
        (("--shard", "0/2"), "names a file"),
        (("--output", "o", "--shard", "0/2", "--input", "-"), "needs files"),
        (("--rows-per-part", "5"), "names a file"),
        (("--output", "o", "--rows-per-part", "0"), "at least 1"),
        (("--max-length", "0"), "at least 1"),
        (("--format", "safetensors"), "cannot write"),
        (("--output", "o.npy", "--strict", "--carry", "a"), "no place for other columns"),
        (("--output", "o.npy", "--strict", "--mode", "full"), "one float32"),
        (("--output", "o.npy", "--strict", "--template", "{text}a", "--template", "{text}b"), "one float32"),
        (("--carry", "a:text"), "the type must be"),
        (("--carry", "a", "a:int64"), "twice"),
        (("--retry-failed", "--overwrite"), "throws it away"),
        (("--skip-tokenizer-init",), "tokenizer"),
    ],
)
def test_options_that_cannot_be_meant(more: tuple[str, ...], word: str) -> None:
    with pytest.raises(InvalidConfig, match=word):
        options(*more)


@pytest.mark.parametrize("flag", [("--truncate", "left"), ("--max-length", "5"), ("--save-token-ids",), ("--dry-run",)])
def test_what_a_server_cannot_do_is_refused(flag: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(InvalidConfig, match="--url"):
        Options.from_args(parser.parse_args(["--url", "http://x", "--input", "i.txt", "--output", "o.parquet", *flag]))
