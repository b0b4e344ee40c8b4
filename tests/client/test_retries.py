"""The clients against a server that refuses, drops and stalls. No timing is asserted but that waits were kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.flaky import Drop, FlakyServer, Good, Say, error, right_answer, vector
from wellhead.client import AsyncClient, Client, Retry, ServerUnreachable
from wellhead.client.exchange import error_of, retry_after
from wellhead.client.extraction import ServerLimits, batches
from wellhead.errors import EmptyPrompt, InternalError, InvalidRequest, Overloaded, RequestTimeout, WellheadError

QUICK = Retry(attempts=4, first=0.01, most=0.02)
Make = Callable[..., FlakyServer]


def both(server: FlakyServer, work: Callable[[Any], Any], **options: Any) -> list[Any]:
    """What a call gives through ``Client`` and through ``AsyncClient``: a value, or the error."""

    async def go() -> Any:
        async with AsyncClient(server.url, retry=QUICK, **options) as client:
            return await work(client)

    def here() -> Any:
        with Client(server.url, retry=QUICK, **options) as client:
            return work(client)

    got = []
    for run in (here, lambda: asyncio.run(go())):
        try:
            got.append(run())
        except WellheadError as failed:
            got.append(failed)
    return got


def extract(client: Any) -> Any:
    return client.extract(["abc"])


def generate(client: Any) -> Any:
    return client.generate("abc")


def right(value: Any) -> bool:
    return np.array_equal(value, vector("abc")[None])


CUT_OFF = Say(body=right_answer("/v1/hidden_states", {"input": ["abc"]}), cut=40)


@pytest.mark.parametrize(
    "trouble",
    [error(503, "overloaded"), error(429, "rate_limit"), Drop(), CUT_OFF],
    ids=["503", "429", "dropped", "cut off in mid-body"],
)
def test_extraction_is_tried_again(flaky: Make, trouble: Any) -> None:
    server = flaky(trouble, Good(), trouble, Good())
    assert all(right(value) for value in both(server, extract))
    assert len(server.seen) == 4


def test_retry_after_is_honoured(flaky: Make) -> None:
    server = flaky(error(503, "overloaded", Retry_After="0.4"), Good())
    with Client(server.url, retry=QUICK) as client:
        assert right(extract(client))
    assert server.times[1] - server.times[0] >= 0.4


def test_it_gives_up_with_the_servers_error(flaky: Make) -> None:
    server = flaky(error(503, "overloaded", "the queue is full"))
    for failed in both(server, extract):
        assert type(failed) is Overloaded and failed.message == "the queue is full"
    assert len(server.seen) == 2 * QUICK.attempts


def test_generation_is_tried_again_before_the_first_byte_only(flaky: Make) -> None:
    server = flaky(Drop(), Good(), error(503, "overloaded"), Good())
    assert [value["text"] for value in both(server, generate)] == ["x", "x"]
    cut = flaky(Say(body=b'{"text": "x"}', cut=5))
    assert [type(e) for e in both(cut, generate)] == [ServerUnreachable] * 2
    assert len(cut.seen) == 2


@pytest.mark.parametrize("body", [b'data: {"text": "a", "meta_info": {}}\n\n', b""], ids=["after an event", "empty"])
def test_a_stream_that_breaks_off_is_no_success(flaky: Make, body: bytes) -> None:
    server = flaky(Say(body=body, headers={"Content-Type": "text/event-stream"}))
    with Client(server.url, retry=QUICK) as client, pytest.raises(ServerUnreachable, match="broke off"):
        list(client.stream("abc"))
    assert len(server.seen) == 1


def test_an_error_in_a_stream_is_raised(flaky: Make) -> None:
    body = b'data: {"text": "a", "meta_info": {}}\n\ndata: {"error": {"message": "no", "code": "timeout"}}\n\ndata: [DONE]\n\n'
    server = flaky(Say(body=body))
    with Client(server.url, retry=QUICK) as client:
        stream = client.stream("abc")
        assert next(stream)["text"] == "a"
        with pytest.raises(RequestTimeout):
            next(stream)


def test_silence_is_a_timeout_and_not_tried_again(flaky: Make) -> None:
    server = flaky(Say(wait=1.5))
    assert [type(e) for e in both(server, extract, timeout=0.2)] == [RequestTimeout] * 2
    assert len(server.seen) == 2


def test_an_answer_that_is_none_is_an_error(flaky: Make) -> None:
    nonsense = flaky(Say(body=b"\xff" * 64))
    short = flaky(Say(body=b"{}"))
    for server in (nonsense, short):
        assert [type(e) for e in both(server, extract)] == [InternalError] * 2
    other = flaky(Say(body=right_answer("/v1/hidden_states", {"input": ["a", "b"]})))
    assert [type(e) for e in both(other, extract)] == [InternalError] * 2


def test_a_refused_text_is_found_and_the_rest_goes_on(flaky: Make) -> None:
    def judge(payload: dict[str, Any]) -> Any:
        return error(400, "empty_prompt", "empty", "input") if "bad" in payload["input"] else Good()

    texts = [f"t{i}" for i in range(20)]
    texts[13] = "bad"
    for found in both(flaky(judge), lambda c: collect(c, texts)):
        assert sorted(found) == list(range(20))
        assert isinstance(found[13], EmptyPrompt)
        assert all(np.array_equal(found[i].numpy(), vector(texts[i])) for i in range(20) if i != 13)


def collect(client: Any, texts: list[str]) -> Any:
    if isinstance(client, Client):
        return dict(client.extract_iter(texts))

    async def go() -> dict[int, Any]:
        return {i: states async for i, states in client.extract_iter(texts)}

    return go()


def test_a_wrong_key_ends_it_at_once(flaky: Make) -> None:
    server = flaky(error(401, "unauthorized", "a key is needed"))
    for failed in both(server, extract):
        assert isinstance(failed, InvalidRequest) and failed.code == "unauthorized"
    assert len(server.seen) == 2


def test_batches_keep_to_the_limits() -> None:
    texts: list[Any] = ["a" * 300, "é" * 300, [1, 2], [3], *["b"] * 40, "c" * 99999]
    parts = list(batches(texts, ServerLimits(texts=8, bytes=8192, tokens=1000, hidden_size=4)))
    assert [i for part in parts for i, _ in part] == list(range(len(texts)))
    assert all(len(part) <= 8 and len({isinstance(t, str) for _, t in part}) == 1 for part in parts)
    assert [len(part) for part in parts][-1] == 1
    one = list(batches([[1] * 400] * 5, ServerLimits(8, 1 << 20, 1000, 4)))
    assert [len(part) for part in one] == [2, 2, 1]


def test_texts_are_taken_as_they_are_needed(flaky: Make) -> None:
    server, taken = flaky(Good()), []

    def texts() -> Any:
        for i in range(100_000):
            taken.append(i)
            yield "abc"

    with Client(server.url, in_flight=2) as client:
        source = client.extract_iter(texts())
        for _ in range(20):
            next(source)
        source.close()  # type: ignore[attr-defined]
    assert len(taken) < 100


def test_errors_by_code_and_by_status() -> None:
    assert type(error_of(400, b'{"error": {"message": "m", "code": "empty_prompt", "param": "input"}}')) is EmptyPrompt
    assert type(error_of(429, b"slow down")) is Overloaded
    assert type(error_of(504, b"<html>")) is RequestTimeout
    assert type(error_of(404, b"[]")) is InvalidRequest
    assert type(error_of(500, b'{"error": null}')) is InternalError


def test_waits() -> None:
    rng, retry = random.Random(0), Retry(attempts=4, first=1.0, most=3.0)
    waits = [retry.delay(n, 0.0, rng) for n in (1, 2, 3, 4)]
    assert waits[3] is None
    for wait, most in zip(waits[:3], (1.0, 2.0, 3.0), strict=True):
        assert wait is not None and most / 2 <= wait <= most
    assert retry.delay(1, 7.0, rng) == 7.0
    assert retry_after({"retry-after": "3"}) == 3.0
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert [retry_after(h) for h in ({}, {"retry-after": "soon"}, {"retry-after": "-1"})] == [0.0] * 3
