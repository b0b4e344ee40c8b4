"""How requests end, to the token: stops, limits, eos, and the text and rows that go with each."""

from __future__ import annotations

from typing import Any

import pytest

from support.families import byte_ids, tokenizer
from support.tags import EOS, TagCore
from wellhead.requests.text import TextStreams
from wellhead.requests.tokenizer import Tokenizer
from wellhead.types import CaptureMode, FinishReason

FULL = CaptureMode.FULL
WORDS = "one two STOP three"


def spoken(text: str = WORDS, *, eos_at: int | None = None, **sampling: Any) -> tuple[TagCore, str]:
    """A core whose model says ``text``, byte by byte (then dots), after a prompt of three tokens; already finished."""
    tags = TagCore(TextStreams(Tokenizer(tokenizer(), {"eos_token": "</s>"}, "test")), chunk=100)
    ids = [*byte_ids(text), *byte_ids("." * 100)]

    def script(seen: list[int]) -> int:
        at = len(seen) - 3
        return EOS if at == eos_at else ids[at]

    key = tags.submit([1, 2, 3], FULL, sampling.pop("max_new_tokens", 40), script=script, sampling=sampling)
    tags.finish()
    tags.verify()
    return tags, key


CASES: list[tuple[dict[str, Any], str, int, FinishReason]] = [
    ({"max_new_tokens": 5}, "one t", 5, FinishReason("length", length=5)),
    ({"max_new_tokens": 1}, "o", 1, FinishReason("length", length=1)),
    ({"stop": ("STOP",)}, "one two ", 12, FinishReason("stop", matched="STOP")),
    ({"stop": ("STOP",), "no_stop_trim": True}, "one two STOP", 12, FinishReason("stop", matched="STOP")),
    ({"stop": ("nope", "two", "STOP")}, "one ", 7, FinishReason("stop", matched="two")),
    ({"stop": ("STOPPED",), "max_new_tokens": 12}, "one two STOP", 12, FinishReason("length", length=12)),
    ({"stop": ("STOP",), "max_new_tokens": 12}, "one two ", 12, FinishReason("stop", matched="STOP")),
    ({"stop": ("STOP",), "max_new_tokens": 11}, "one two STO", 11, FinishReason("length", length=11)),
    ({"stop": ("o",)}, "", 1, FinishReason("stop", matched="o")),
    ({"stop": ("o",), "min_new_tokens": 3}, "one tw", 7, FinishReason("stop", matched="o")),
    ({"stop_regex": ("[A-Z]+",), "max_new_tokens": 20}, "one two ", 9, FinishReason("stop", matched="[A-Z]+")),
    ({"stop_regex": (r"t\w+ ",), "stop": ("three",)}, "one ", 8, FinishReason("stop", matched=r"t\w+ ")),
    ({"stop_token_ids": byte_ids("S")}, "one two ", 9, FinishReason("stop", matched=byte_ids("S")[0])),
    ({"stop_token_ids": byte_ids("S"), "no_stop_trim": True}, "one two S", 9, FinishReason("stop", matched=byte_ids("S")[0])),
    ({"stop_token_ids": byte_ids("S"), "stop": ("STOP", "T")}, "one two ", 9, FinishReason("stop", matched=byte_ids("S")[0])),
    ({"eos_at": 4}, "one ", 5, FinishReason("stop", matched=EOS)),
    ({"eos_at": 0}, "", 1, FinishReason("stop", matched=EOS)),
    ({"eos_at": 4, "max_new_tokens": 5}, "one ", 5, FinishReason("stop", matched=EOS)),
    ({"eos_at": 4, "ignore_eos": True, "max_new_tokens": 7}, "one wo", 7, FinishReason("length", length=7)),
    ({"eos_at": 4, "ignore_eos": True, "stop_token_ids": (EOS,)}, "one ", 5, FinishReason("stop", matched=EOS)),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "text", "count", "finish"), CASES)
def test_text_ids_rows_and_reason_agree(asked: dict[str, Any], text: str, count: int, finish: FinishReason) -> None:
    tags, key = spoken(**asked)
    output = tags.last(key)
    assert output.finish == finish
    assert len(output.token_ids) == count
    assert output.usage.completion_tokens == count
    assert output.text == text
    assert tags.states(key).total_rows == 3 + count - 1


@pytest.mark.parametrize(("asked", "text", "count", "finish"), CASES)
def test_a_stream_adds_up_to_the_same(asked: dict[str, Any], text: str, count: int, finish: FinishReason) -> None:
    asked = dict(asked)
    tags = TagCore(TextStreams(Tokenizer(tokenizer(), {"eos_token": "</s>"}, "test")), chunk=100)
    eos_at, new = asked.pop("eos_at", None), asked.pop("max_new_tokens", 40)
    ids = [*byte_ids(WORDS), *byte_ids("." * 100)]
    key = tags.submit(
        [1, 2, 3], FULL, new, sampling=asked, stream=True, incremental=True,
        script=lambda seen: EOS if len(seen) - 3 == eos_at else ids[len(seen) - 3],
    )  # fmt: skip
    tags.finish()
    outputs = tags.outputs[key]
    assert [o.terminal for o in outputs] == [False] * (len(outputs) - 1) + [True]
    assert len(outputs) == count
    assert "".join(o.text for o in outputs) == text
    assert sum(len(o.token_ids) for o in outputs) == count
    assert outputs[-1].finish == finish
    rows = [o.hidden_states for o in outputs]
    assert [r.first_row for r in rows if r is not None] == [0, *range(3, 3 + count - 1)]


def test_a_list_of_eos_ids() -> None:
    for eos in (EOS, 77, 5):
        tags = TagCore(chunk=100, eos=(EOS, 77))
        key = tags.submit([1, 2, 3], FULL, 9, script=lambda seen, eos=eos: eos if len(seen) == 5 else 6)  # type: ignore[misc]
        tags.finish()
        tags.verify()
        assert len(tags.last(key).token_ids) == (9 if eos == 5 else 3)


def test_a_character_over_several_tokens_comes_whole() -> None:
    tags, key = spoken("né 日本 🙂!", max_new_tokens=len(byte_ids("né 日本 🙂!")), stop=("🙂!",))
    assert tags.last(key).text == "né 日本 "
    tags, key = spoken("a🙂", max_new_tokens=3, stop=("zzz",))
    assert tags.last(key).text == "a\ufffd"
    assert len(tags.last(key).token_ids) == 3


def test_a_stop_pattern_that_takes_too_long_fails_its_own_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from wellhead.errors import InvalidRequest
    from wellhead.requests.stops import StopMatcher

    push = StopMatcher.push

    def slow(self: StopMatcher, text: str) -> tuple[str, str | None]:
        if self._patterns:
            raise InvalidRequest("a stop pattern takes too long to search for", param="sampling_params.stop_regex")
        return push(self, text)

    monkeypatch.setattr(StopMatcher, "push", slow)
    tags = TagCore(TextStreams(Tokenizer(tokenizer(), {}, "test")), chunk=100)
    bad = tags.submit([1, 2, 3], FULL, 5, sampling={"stop_regex": ("(a+)+b",)})
    good = tags.submit([4, 5, 6], FULL, 5, sampling={"stop": ("zzz",)})
    tags.finish()
    assert isinstance(tags.last(bad).error, InvalidRequest)
    tags.verify(good)
    assert tags.core.space.leases == 0
