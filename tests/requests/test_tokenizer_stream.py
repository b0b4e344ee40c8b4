"""Streaming text: always a prefix of the whole, equal to it in the end; stops neither leak nor swallow."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_cases import metadata, sentencepiece, texts, trained  # type: ignore[import-not-found]
from tokenizers import decoders, models

import assets
from wellhead.errors import InvalidRequest
from wellhead.requests.detokenizer import IncrementalDetokenizer
from wellhead.requests.gguf_tokenizer import build_tokenizer
from wellhead.requests.stops import PATTERN_REACH, StopMatch, StopMatcher
from wellhead.requests.tokenizer import Tokenizer


def rebuilt(kind: str) -> Tokenizer:
    described = metadata(trained("qwen2"), pre="qwen2") if kind == "byte level" else sentencepiece(kind == "prefix")[1]
    backend, config = build_tokenizer(described, kind)
    return Tokenizer(backend, config, kind)


SMALL = {kind: rebuilt(kind) for kind in ("byte level", "prefix", "no prefix")}


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.load(assets.fetch_smollm2())


def stream(tokenizer: Tokenizer, pieces: list[list[int]], skip: bool = True) -> str:
    """Pushes the pieces and holds the property at every moment; returns the whole."""
    whole = tokenizer.decode([i for piece in pieces for i in piece], skip_special_tokens=skip)
    detokenizer, given_out = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip), ""
    for piece in pieces:
        given_out += detokenizer.push(piece)
        assert whole.startswith(given_out)
    given_out += detokenizer.finish()
    assert given_out == whole
    return given_out


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    pieces, at = [], 0
    while at < len(ids):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(ids[at : at + size])
        at += size
    return pieces


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", SMALL)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids(kind: str, data: st.DataObject) -> None:
    tokenizer = SMALL[kind]
    # ids 3..258 are the bytes of the SentencePiece ones: often enough to build and to break characters
    some = st.one_of(st.integers(0, tokenizer.vocab_size + 3), st.integers(3, 258))
    stream(tokenizer, cut(data.draw(st.lists(some, max_size=40)), data.draw(SIZES)), data.draw(st.booleans()))


@pytest.mark.parametrize("kind", SMALL)
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40), sizes=SIZES)
def test_any_text(kind: str, text: str, sizes: list[int]) -> None:
    stream(SMALL[kind], cut(SMALL[kind].encode(text), sizes))


@pytest.mark.real
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_ids_of_a_real_tokenizer(smollm2: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 400) | st.integers(0, smollm2.vocab_size - 1), max_size=40))
    stream(smollm2, cut(ids, data.draw(SIZES)), data.draw(st.booleans()))


@pytest.mark.real
@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_ids_of_gemma(gemma: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(200, 600) | st.integers(0, gemma.vocab_size - 1), max_size=40))
    stream(gemma, cut(ids, data.draw(SIZES)), data.draw(st.booleans()))


@pytest.fixture(scope="module")
def gemma() -> Tokenizer:
    return Tokenizer.load(assets.fetch_gemma3_270m())


@pytest.mark.parametrize("kind", SMALL)
def test_characters_come_whole_and_as_soon_as_they_are(kind: str) -> None:
    tokenizer = SMALL[kind]
    for text in [*texts(), "🙂👩‍👩‍👧‍👦 e\u0301\u0323 हिन्दी"]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        detokenizer, given_out, waiting = IncrementalDetokenizer(tokenizer), "", 0
        for place, token in enumerate(ids):
            piece = detokenizer.push([token])
            given_out += piece
            assert "\ufffd" not in piece or "\ufffd" in text
            waiting = 0 if piece else waiting + 1
            if kind == "byte level":
                assert waiting <= 3 or token in tokenizer.special_ids
                assert given_out == tokenizer.decode(ids[: place + 1]).rstrip("\ufffd") or "\ufffd" in text
        assert given_out + detokenizer.finish() == tokenizer.decode(ids)


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    tokenizer = SMALL["byte level"]
    ids = tokenizer.encode("🙂")
    assert len(ids) > 1
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push([token]) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.finish() == tokenizer.decode(ids[:-1]) != ""


def test_byte_fallback_is_not_lost_at_the_end() -> None:
    tokenizer = SMALL["no prefix"]
    ids = tokenizer.encode("𐍈", add_special_tokens=False)
    assert len(ids) == 4
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.push(ids) == ""
    assert detokenizer.finish() == "𐍈"


def test_cost_is_linear() -> None:
    for tokenizer in SMALL.values():
        ids = tokenizer.encode("hello world, 🙂 and more of it. " * 4000, add_special_tokens=False)
        detokenizer, begun = IncrementalDetokenizer(tokenizer), time.perf_counter()
        pieces = [detokenizer.push([token]) for token in ids]
        assert time.perf_counter() - begun < 5
        assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [decoders.Metaspace(), decoders.WordPiece(), decoders.ByteFallback(), None],
    ids=["metaspace", "word piece", "fallback alone", "none"],
)
def test_other_decoders_end_equal_too(decoder: decoders.Decoder | None) -> None:
    words = ["▁the", "▁fox", "es", "##ing", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁", ",", "x"]
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="x"))
    if decoder is not None:
        backend.decoder = decoder
    tokenizer = Tokenizer(backend, {}, "words")
    for ids in ([0, 1, 2, 9, 0, 3], [4, 5, 6, 7, 0], [0, 4, 5], [10] * 50, list(range(11)) * 3):
        detokenizer = IncrementalDetokenizer(tokenizer)
        given_out = "".join(detokenizer.push([token]) for token in ids)
        assert given_out + detokenizer.finish() == tokenizer.decode(ids)


# -- stops


def first_stop(text: str, stops: list[str]) -> StopMatch | None:
    """The definition, written out: complete first; of those, the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return StopMatch(stop, end - len(stop), end)
    return None


@settings(max_examples=500, deadline=None)
@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    sizes=SIZES,
    keep=st.booleans(),
)
def test_stops_are_cut_where_they_begin_however_the_text_comes(text: str, stops: list[str], sizes: list[int], keep: bool) -> None:
    matcher, expected, shown, at = StopMatcher(stops, keep=keep), first_stop(text, stops), "", 0
    matched = None
    for piece in cut(list(text), sizes):  # type: ignore[arg-type]
        more, matched = matcher.push("".join(map(str, piece)))
        shown, at = shown + more, at + len(piece)
        if matched is not None:
            break
        beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        hold = max((len(start) for start in beginnings if text[:at].endswith(start)), default=0)
        assert shown == text[: at - hold], "shows all that is certain, and nothing else"
    assert matcher.match == expected
    assert matched == (expected.stop if expected else None)
    if expected is None:
        assert shown + matcher.finish() == text
    else:
        assert shown == text[: expected.end if keep else expected.start]
        assert (matcher.push("more"), matcher.finish()) == (("", expected.stop), "")


def feed(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        more, matched = matcher.push(piece)
        shown += more
        if matched is not None:
            return shown, matched
    return shown + matcher.finish(), None


PATTERNS: list[tuple[list[str], str, tuple[str, str | None]]] = [
    (["answer: 4", "2. ", "Then"], r"\d+\.", ("answer: ", r"\d+\.")),
    (["one EN", "D two"], "END", ("one ", "END")),
    (["one EN", "CORE"], "END", ("one ENCORE", None)),
    (["x\n", "\n", "y"], r"\n\n", ("x", r"\n\n")),
    (["say END", " END"], r"^END", ("say END END", None)),
    (["END", " END"], r"^END", ("", r"^END")),
    (["the", "END ", "END"], r"\bEND", ("theEND ", r"\bEND")),
    (["a b", "c"], r"(?<=a b)c", ("a b", r"(?<=a b)c")),
    (["caf", "é!"], r"(?i)É", ("caf", r"(?i)É")),
]


@pytest.mark.parametrize(("pieces", "pattern", "result"), PATTERNS, ids=[pattern for _, pattern, _ in PATTERNS])
def test_patterns(pieces: list[str], pattern: str, result: tuple[str, str | None]) -> None:
    assert feed(StopMatcher(patterns=[pattern]), pieces) == result


def test_whichever_begins_first_wins() -> None:
    assert feed(StopMatcher(["bc"], [r"a.c"]), ["xabc"]) == ("x", r"a.c")
    assert feed(StopMatcher(["ab"], [r"b+"]), ["xab"]) == ("x", "ab")
    matcher = StopMatcher(patterns=["b", "a"], keep=True)
    assert feed(matcher, ["xx", "xab"]) == ("xxxa", "a")
    assert matcher.match == StopMatch("a", 3, 4)


def test_what_a_pattern_holds_back_is_bounded() -> None:
    matcher = StopMatcher(patterns=["<.*>"])
    shown = sum(len(matcher.push("<" + "x" * 99)[0]) for _ in range(50))
    assert 5000 - PATTERN_REACH <= shown <= 5000
    assert len(matcher.finish()) == 5000 - shown


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: StopMatcher([""]), "may not be empty"),
        (lambda: StopMatcher(patterns=["("]), "missing \\)"),
        (lambda: StopMatcher(patterns=["a*"]), "matches the empty text"),
    ],
)
def test_bad_stops_are_refused(make: Callable[[], StopMatcher], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make()


def test_a_pattern_that_never_ends_is_refused() -> None:
    begun = time.perf_counter()
    with pytest.raises(InvalidRequest, match="too long to search"):
        feed(StopMatcher(patterns=[r"(?:x|xx)+y\b"]), ["x" * 60])
    assert time.perf_counter() - begun < 5
