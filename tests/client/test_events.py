"""Event streams as bytes: what ends a line, and that pieces of a body mean nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.flaky import Say
from wellhead.client import AsyncClient, Client
from wellhead.client.events import EventStream

#: All that ``str.splitlines`` splits at, of which only the first two end a line of an event stream.
SPLITS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
ANY = (st.integers(0, 0xD7FF) | st.integers(0xE000, 0x10FFFF)).map(chr)
TEXTS = st.lists(st.sampled_from("aé€😀 :{" + SPLITS) | ANY, max_size=12).map("".join)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def read(pieces: list[bytes]) -> list[str]:
    stream = EventStream()
    return [found for piece in pieces for found in stream.feed(piece)]


def cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(body) + 1) for place in places}), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(edges)]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A body with all its freedoms, and the data of its events."""
    lines, events = list[str](), list[str]()
    for _ in range(draw(st.integers(0, 4))):
        wanted = [json.dumps(draw(TEXTS), ensure_ascii=False) for _ in range(draw(st.integers(1, 3)))]
        for one in wanted:
            lines += draw(
                st.lists(st.sampled_from([": a comment", ":", "id: 3", "retry: 10", "event: x", "nonsense"]), max_size=1)
            )
            lines.append(("data: " if draw(st.booleans()) else "data:") + one)
        lines += [""] * draw(st.integers(1, 2))
        events.append("\n".join(wanted))
    text, last = draw(st.sampled_from(["", "\ufeff"])), ""
    for line in lines:
        end = draw(ENDS)
        if last == "\r" and not line and end == "\n":
            end = "\r"  # a CR and a LF in a row are one end
        text, last = text + line + end, end
    unfinished = draw(st.sampled_from(["", "data: 1", "data: 1\n"]))
    return (text + ("\n" if unfinished and last == "\r" else "") + unfinished).encode(), events


@settings(deadline=None)
@given(bodies(), st.lists(st.integers(0, 10_000), max_size=12))
def test_events_do_not_depend_on_pieces(made: tuple[bytes, list[str]], places: list[int]) -> None:
    body, events = made
    assert read([body]) == events
    assert read(cut(body, places)) == events
    assert read([body[i : i + 1] for i in range(len(body))]) == events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_ends_as_soon_as_its_empty_line_does(end: bytes) -> None:
    stream = EventStream()
    assert list(stream.feed(b"data: 1" + end)) == []
    assert list(stream.feed(end)) == ["1"]  # also at a CR, of which nobody knows whether a LF follows
    assert list(stream.feed(b"")) == [] and list(stream.feed(b"data: 2" + end + end)) == ["2"]


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"text": text, "meta_info": {}}, ensure_ascii=False).encode() + b"\n\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_both_clients_read_text_that_splitlines_would_split(flaky: Callable[..., Any], end: bytes) -> None:
    texts = [f"a{mark}b" for mark in SPLITS]
    body = b"".join([*map(event, texts), b"data: [DONE]\n\n"]).replace(b"\n", end)
    server = flaky(Say(body=body, headers={"Content-Type": "text/event-stream"}))

    async def later() -> list[str]:
        async with AsyncClient(server.url) as client:
            return [one["text"] async for one in client.stream("abc")]

    with Client(server.url) as client:
        assert [one["text"] for one in client.stream("abc")] == texts
    assert asyncio.run(later()) == texts
