"""Where requests go, and what the answers of many replicas add up to. No cluster needed."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray.exceptions import RayActorError

from wellhead.errors import InvalidConfig
from wellhead.frontends.scale import totals
from wellhead.frontends.scale.front import Answer, Gone
from wellhead.frontends.scale.options import ScaleOptions, add_scale_arguments, scale_options
from wellhead.frontends.scale.prefixes import BLOCK_BYTES, SPILL_MORE, Fleet, blocks_of
from wellhead.frontends.scale.replica import Start

SYSTEM = "You are a careful reader of film reviews, and you say in one word what the writer thought of the film. "


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def common(a: bytes, b: bytes) -> int:
    """Blocks that two bodies begin with alike."""
    pairs = list(zip(blocks_of(a), blocks_of(b), strict=False))
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))


def test_blocks_are_those_of_the_beginning() -> None:
    assert common(body(text=SYSTEM + "one" * 50), body(text=SYSTEM + "two" * 50)) == len(SYSTEM) // BLOCK_BYTES
    ids = list(range(1000, 1040))
    assert common(body(input_ids=ids * 5), body(input_ids=[ids * 5, [1]])) > 3
    chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "one" * 50}]
    assert common(body(messages=chat), body(messages=[chat[0], {"role": "user", "content": "x" * 80}])) >= 1
    assert common(body(text="x" + SYSTEM), body(text=SYSTEM)) == 0


@pytest.mark.parametrize(
    "odd", [b"", b"{", b"[1]", b"null", body(text=5), body(text=None), body(messages=[1, 2]), body(text=[[[]]])]
)
def test_what_is_no_prompt_has_no_blocks(odd: bytes) -> None:
    assert len(blocks_of(odd)) <= 1


def test_a_prefix_stays_where_it_is_until_that_replica_is_overloaded() -> None:
    fleet = Fleet()
    fleet.update(["a", "b", "c"])
    prompts = {topic: blocks_of(body(text=f"{topic} {SYSTEM * 4}")) for topic in range(30)}
    home = {}
    for topic, blocks in prompts.items():
        home[topic] = fleet.choose(blocks)
        fleet.begin(str(home[topic]), blocks)
    assert sorted({list(home.values()).count(name) for name in "abc"}) == [10]
    for name in "abc":
        for _ in range(10):
            fleet.end(name)
    order = random.Random(0).choices(list(prompts), k=200)
    for topic in order:
        assert fleet.choose(prompts[topic]) == home[topic]
        fleet.begin(str(home[topic]), prompts[topic])
        fleet.end(str(home[topic]))
    for _ in range(SPILL_MORE):
        fleet.begin(str(home[0]), prompts[0])
        assert fleet.choose(prompts[0]) == home[0]
    fleet.begin(str(home[0]), prompts[0])
    assert fleet.choose(prompts[0]) != home[0]


def test_a_replica_that_is_gone_gets_nothing_and_memory_is_bounded() -> None:
    fleet = Fleet(remembered=100)
    fleet.update(["a", "b"])
    blocks = blocks_of(body(text=SYSTEM * 4))
    fleet.begin("a", blocks)
    fleet.end("a")
    assert fleet.choose(blocks) == "a"
    fleet.gone("a")
    assert fleet.choose(blocks) == "b"
    fleet.gone("b")
    assert fleet.choose(blocks) is None
    fleet.update(["a", "b"])
    for i in range(100):
        fleet.begin("b", blocks_of(body(text=f"{i} {SYSTEM}")))
        fleet.end("b")
    assert len(fleet._seen) == 100
    assert {fleet.choose(blocks) for _ in range(5)} <= {"a", "b"}


METRICS = b"""# HELP wellhead_steps_total Steps
# TYPE wellhead_steps_total counter
wellhead_steps_total 3.0
# HELP wellhead_pages KV pages by state
# TYPE wellhead_pages gauge
wellhead_pages{state="free"} 7.0
# HELP wellhead_cache_hit_ratio Ratio
# TYPE wellhead_cache_hit_ratio gauge
wellhead_cache_hit_ratio 0.5
"""


def test_metrics_per_replica_and_summed() -> None:
    texts = {"a": METRICS, "b": METRICS.replace(b"3.0", b"4.5")}

    def read(text: bytes) -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(text.decode())
        return {(s.name, s.labels.get("replica", "")): s.value for f in families for s in f.samples}

    assert read(totals.summed(texts)) == {("wellhead_steps_total", ""): 7.5, ("wellhead_pages", ""): 14.0}
    apart = read(totals.labelled(texts))
    assert apart["wellhead_steps_total", "b"] == 4.5 and apart["wellhead_cache_hit_ratio", "a"] == 0.5


def test_answers_of_all_replicas_are_one() -> None:
    ok, bad = (200, b'{"status":"ok"}'), (503, b'{"status":"unavailable"}')
    assert totals.health({"a": ok, "b": bad})[0] == 200
    assert totals.health({"a": bad})[0] == totals.health({})[0] == 503
    assert totals.added({"a": (200, b'{"aborted":1}'), "b": (200, b'{"aborted":2}')}) == (200, b'{"aborted":3}')
    assert totals.added({"a": (200, b'{"flushed":true}'), "b": (400, b"busy")}) == (400, b"busy")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (["--replicas", "2"], "replicas"),
        (["--routing-policy", "random"], "routing_policy"),
        (["--ray", "local", "--replicas", "0"], "replicas"),
        (["--ray", "local", "--replicas", "3", "--max-replicas", "2"], "max_replicas"),
        (["--ray", "local", "--target-ongoing-requests", "2"], "target_ongoing_requests"),
    ],
)
def test_flags_that_cannot_be(given: list[str], param: str) -> None:
    parser = argparse.ArgumentParser()
    add_scale_arguments(parser)
    with pytest.raises(InvalidConfig) as refused:
        scale_options(parser.parse_args(given))
    assert refused.value.param == param
    assert scale_options(parser.parse_args([])) is None
    assert scale_options(parser.parse_args(["--ray", "auto", "--replicas", "2"])) == ScaleOptions(replicas=2)


class DiesAfter:
    """A replica's answer of which these pieces come; then the replica is gone."""

    def __init__(self, *pieces: Any) -> None:
        self._pieces = list(pieces)

    async def __anext__(self) -> Any:
        if not self._pieces:
            raise RayActorError()
        return self._pieces.pop(0)

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize(("first", "rest"), [(b"abcdef", ()), (b"abc", (b"def",))])
def test_an_answer_that_has_come_whole_outlives_its_replica(first: bytes, rest: tuple[bytes, ...]) -> None:
    async def read(length: int) -> bytes:
        start = Start("a", 200, [(b"content-length", str(length).encode())], first)
        answer = Answer(Fleet(), DiesAfter(start, *rest), "a", ())
        await answer.begin()
        return b"".join([part async for part in answer.parts()])

    assert asyncio.run(read(6)) == b"abcdef"
    with pytest.raises(Gone):
        asyncio.run(read(7))
