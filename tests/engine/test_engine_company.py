"""A reply does not depend on its company: alone, batched, chunked, after a prefix hit, after preemption: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.checks import all_same, check_shape
from support.company import MODES, company
from support.direct import Direct

Family = Callable[..., Path]
DTYPES = ("float32", "bfloat16")
MIXES = {**{mode: [mode] for mode in MODES}, "mixed": ["full", "off", "last", "mean", "last"]}
ALONE: dict[tuple[str, str, str], Any] = {}


def baseline(family: Family, model: str, dtype: str, mix: str) -> Any:
    """Every request by itself, whole prompts, nothing remembered."""
    key = (model, dtype, mix)
    if key not in ALONE:
        direct = Direct(family(model), dtype=dtype, chunked_prefill_size=-1, disable_radix_cache=True)
        ALONE[key] = direct.alone(company(MIXES[mix]))
    return ALONE[key]


def check(direct: Direct, replies: Any, wanted: Any) -> None:
    all_same(replies, wanted)
    for reply in replies:
        check_shape(reply, direct.hidden_size)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=MIXES)
def mix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("how", ["batched", "reversed", "chunk 1", "chunk 7", "chunk 64", "no cache, chunk 7"])
def test_batched_and_chunked_equal_alone(how: str, dtype: str, mix: str, family: Family) -> None:
    options: dict[str, Any] = {"disable_radix_cache": how.startswith("no cache")}
    if "chunk" in how:
        options["chunked_prefill_size"] = int(how.split()[-1])
    direct, payloads = Direct(family("llama"), dtype=dtype, **options), company(MIXES[mix])
    wanted = baseline(family, "llama", dtype, mix)
    if how == "reversed":
        check(direct, direct.run(payloads[::-1])[::-1], wanted)
    else:
        check(direct, direct.run(payloads), wanted)
    assert max(len(plan.rows) for plan in direct.runner.plans) > 1, "nothing was batched"


@pytest.mark.parametrize("chunk", [7, -1])
def test_after_a_prefix_hit_equals_alone(chunk: int, dtype: str, mix: str, family: Family) -> None:
    direct, payloads = Direct(family("llama"), dtype=dtype, chunked_prefill_size=chunk), company(MIXES[mix])
    wanted = baseline(family, "llama", dtype, mix)
    for turn in range(3):
        replies = direct.run(payloads)
        check(direct, replies, wanted)
        cached = [reply.to_dict()["meta_info"]["cached_tokens"] for reply in replies]
        if turn:
            long = [c for c, r in zip(cached, replies, strict=True) if r.request.prompt_tokens > 1]
            assert sum(c > 0 for c in long) > len(long) * 0.8, "nothing was cached"


@pytest.mark.parametrize("chunk", [7, 64])
def test_after_preemption_equals_alone(chunk: int, dtype: str, mix: str, family: Family) -> None:
    direct = Direct(family("llama"), dtype=dtype, chunked_prefill_size=chunk, max_total_tokens=14 * 16)
    payloads = company(MIXES[mix])
    for payload in payloads:  # all long, so that somebody has to go
        payload["sampling_params"] = {**payload["sampling_params"], "max_new_tokens": 40}
    alone = Direct(family("llama"), dtype=dtype, chunked_prefill_size=-1, disable_radix_cache=True)
    check(direct, direct.run(payloads), alone.alone(payloads))
    assert direct.core.scheduler.preemptions > 2


@pytest.mark.parametrize("model", ["gemma3", "mistral", "qwen2", "qwen3", "smollm3"])
def test_other_families_do_not_depend_on_company_either(model: str, dtype: str, family: Family) -> None:
    wanted, payloads = baseline(family, model, dtype, "mixed"), company(MIXES["mixed"])
    for options in ({}, {"chunked_prefill_size": 7}, {"max_total_tokens": 16 * 16, "chunked_prefill_size": 64}):
        direct = Direct(family(model), dtype=dtype, **options)
        check(direct, direct.run(payloads), wanted)
        check(direct, direct.run(payloads), wanted)


@pytest.mark.parametrize("page", [16, 64, 128])
def test_the_page_size_changes_nothing_that_company_could_see(page: int, dtype: str, family: Family) -> None:
    """Within one page size; another page size is another order of sums, and another engine."""
    payloads = company(MIXES["mixed"])
    alone = Direct(family("llama"), dtype=dtype, page_size=page, chunked_prefill_size=-1, disable_radix_cache=True).alone(
        payloads
    )
    direct = Direct(family("llama"), dtype=dtype, page_size=page, chunked_prefill_size=33)
    check(direct, direct.run(payloads), alone)
    check(direct, direct.run(payloads), alone)


def test_float16_does_not_depend_on_company_either(family: Family) -> None:
    wanted, payloads = baseline(family, "llama", "float16", "mixed"), company(MIXES["mixed"])
    direct = Direct(family("llama"), dtype="float16", chunked_prefill_size=7)
    for _ in range(2):
        check(direct, direct.run(payloads), wanted)


def test_the_kernels_of_these_tests_are_the_native_ones(family: Family) -> None:
    info = Direct(family("llama"), dtype="bfloat16").made.info()
    assert info["kernels"]["name"] == "native"
    assert info["batch_invariant"] is True
