"""Graphs: captured once, at a fixed ceiling; the same bits as eager; padding never shows; nothing is captured again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.checks import all_same, rows_of
from support.company import company, prompt, sampling
from support.direct import Direct
from support.replayed import Replayed
from support.speculating import options_for
from wellhead.config import EngineConfig
from wellhead.errors import InternalError, InvalidConfig
from wellhead.runner.capture import Compiled
from wellhead.runner.graph import GraphRunner
from wellhead.types import CaptureMode

Family = Callable[..., Path]
GRAPHS = {"enable_torch_compile": True, "cuda_graph_max_bs": 4, "piecewise_cuda_graph_max_tokens": 64}


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellhead.core.assemble.Compiled", Replayed)


def graphs_of(direct: Direct) -> GraphRunner:
    graphs = direct.runner.inner.graphs
    assert isinstance(graphs, GraphRunner)
    return graphs


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize("options", [{}, {"chunked_prefill_size": 7}, {"max_total_tokens": 256}], ids=str)
def test_graphs_give_the_bits_of_eager(name: str, dtype: str, options: dict[str, Any], direct: Callable[..., Direct]) -> None:
    payloads = company(["off", "last", "full", "mean"])
    eager, graphs = direct(name, dtype=dtype, **options), direct(name, dtype=dtype, **options, **GRAPHS)
    for _ in range(2):
        all_same(graphs.run(payloads), eager.run(payloads))
    assert graphs_of(graphs).replays > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_graphs_give_the_bits_of_eager(dtype: str, direct: Callable[..., Direct]) -> None:
    payloads = company(["off", "last", "full", "mean"])
    eager = direct("qwen3", dtype=dtype)
    graphs = direct("qwen3", dtype=dtype, **{**GRAPHS, "cuda_graph_max_bs": 2})
    all_same(graphs.run(payloads), eager.run(payloads))
    assert graphs_of(graphs).replays > 0


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("ceiling", ["off", "last", "full"])
def test_nothing_is_captured_again_whatever_the_modes(ceiling: str, direct: Callable[..., Direct]) -> None:
    made = direct("llama", return_hidden_states_mode=ceiling, capture_layers=[1, -1], **GRAPHS)
    graphs = graphs_of(made)
    assert graphs.captures == len((1, 2, 4)) + len((64,))
    assert graphs.plan.mode.word == ceiling
    modes: list[Any] = [False, "last", True][: graphs.plan.mode + 1]
    for mode in (*modes, *reversed(modes), False):
        payload = {"input_ids": prompt(20), "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
        made.run([{**payload, "return_hidden_states": mode, **({"hidden_states_layers": [1]} if mode else {})}])
    made.run(company([["off"], ["off", "last"], ["off", "last", "full"]][graphs.plan.mode]))
    assert graphs.captures == 4


@pytest.mark.usefixtures("replayed")
def test_a_stronger_batch_is_an_error_that_names_both_modes(direct: Callable[..., Direct]) -> None:
    graphs = graphs_of(direct("llama", return_hidden_states_mode="last", **GRAPHS))
    with pytest.raises(InternalError, match="mode full reached graphs that were captured at mode last"):
        graphs.forward(None, CaptureMode.FULL, None, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("replayed")
def test_a_step_without_a_bucket_runs_eagerly_and_says_so_once(
    direct: Callable[..., Direct], caplog: pytest.LogCaptureFixture
) -> None:
    made = direct("llama", **{**GRAPHS, "cuda_graph_max_bs": 1, "piecewise_cuda_graph_max_tokens": 0})
    wanted = direct("llama").run(company(["last"]))
    with caplog.at_level(logging.INFO, "wellhead"):
        for _ in range(2):
            all_same(made.run(company(["last"])), wanted)
    said = [r.message for r in caplog.records if "without" in r.message]
    assert sorted(said) == sorted(set(said)) and len(said) == 2  # a decode step, a prompt step


@pytest.mark.usefixtures("replayed")
def test_padding_rows_reach_nobody(direct: Callable[..., Direct]) -> None:
    """Three sequences in a bucket of four: the fourth row's page is no sequence's, and poison in it shows nowhere."""
    made, eager = direct("llama", dtype="float32", **GRAPHS), direct("llama", dtype="float32")
    runner = made.runner.inner
    runner.kv.data[graphs_of(made).plan.spare].fill_(float("nan"))
    payloads = [{"input_ids": prompt(9 + i), "sampling_params": sampling(i, 6), "return_hidden_states": True} for i in range(3)]
    all_same(made.run(payloads), eager.run(payloads))
    assert made.core.config.pages == graphs_of(made).plan.spare


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"enable_torch_compile": True, "disable_cuda_graph": True}, "contradicts disable_cuda_graph"),
        ({"cuda_graph_max_bs": 8}, "needs enable_torch_compile"),
        ({"piecewise_cuda_graph_max_tokens": 8}, "needs enable_torch_compile"),
        ({"cuda_graph_max_bs": 0, "enable_torch_compile": True}, "at least 1"),
        ({"enable_torch_compile": "yes"}, "true or false"),
    ],
    ids=str,
)
def test_contradictions_are_refused(options: dict[str, Any], part: str, family: Family) -> None:
    with pytest.raises(InvalidConfig, match=part):
        EngineConfig.from_options({"model_path": "x", **options}).graph_sizes("cpu", 512)


def test_the_sizes_on_a_gpu() -> None:
    config = EngineConfig.from_options({"model_path": "x", "max_running_requests": 48})
    assert config.graph_sizes("cuda", 4096) == ((1, 2, 4, 8, 16, 32, 48), (64, 128, 256, 512))
    off = EngineConfig.from_options({"model_path": "x", "disable_cuda_graph": True})
    assert off.graph_sizes("cuda", 4096) == ((), ())
    assert config.graph_sizes("cpu", 512) == ((), ())
    with pytest.raises(InvalidConfig, match="CUDA graphs do its work"):
        EngineConfig.from_options({"model_path": "x", "enable_torch_compile": True}).graph_sizes("cuda", 512)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_graphs_are_as_close_to_eager_as_kernels_allow(dtype: str, direct: Callable[..., Direct]) -> None:
    payloads = company(["last", "full"])
    eager = direct("qwen3", dtype=dtype, device="cuda", disable_cuda_graph=True)
    graphs = direct("qwen3", dtype=dtype, device="cuda", cuda_graph_max_bs=4, piecewise_cuda_graph_max_tokens=64)
    for mine, other in zip(graphs.run(payloads), eager.run(payloads), strict=True):
        a, b = (torch.from_numpy(rows_of(x).copy()).flatten()[-64:] for x in (mine, other))
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    assert graphs_of(graphs).replays > 0


def test_the_compiler_is_torchs() -> None:
    captured = Compiled()(lambda x: (x + 1,), torch.zeros(3))
    assert captured(torch.zeros(3))[0].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("algorithm", ["NGRAM", "SELF", "EAGLE", "EAGLE3"])
@pytest.mark.parametrize("ceiling", ["last", "full"])
def test_speculation_over_graphs_gives_the_bits_of_plain_eager(
    algorithm: str, ceiling: str, direct: Callable[..., Direct], family: Family
) -> None:
    payloads = company(["off", "last", "full"][: 3 if ceiling == "full" else 2])
    made = direct("llama", return_hidden_states_mode=ceiling, **GRAPHS, **options_for(algorithm, family, "llama"))
    all_same(made.run(payloads), direct("llama", return_hidden_states_mode=ceiling).run(payloads))
    graphs = graphs_of(made)
    assert graphs.replays > 0
    assert graphs.plan.mode.word == ("full" if algorithm.startswith("EAGLE") else ceiling)
