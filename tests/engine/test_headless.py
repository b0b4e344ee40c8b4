"""Checkpoints without an LM head, as ``AutoModel.save_pretrained`` writes them: rows of every layer, and no tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from support.checks import rows_of
from support.direct import Direct
from support.families import COMMON, FAMILIES, LAYERS, randomise, tokenizer
from support.reference import furthest, headless_rows
from wellhead.config import EngineConfig
from wellhead.core.assemble import assemble
from wellhead.errors import InvalidConfig, NoLMHead, WeightsError
from wellhead.frontends.engine import Engine
from wellhead.models.locate import load_spec

Family = Callable[..., Path]
PROMPTS = [np.random.default_rng(n).integers(0, 256, n).tolist() for n in (1, 33, 70)]


def compare(folder: Path, direct: Direct) -> None:
    """Every row of every layer, of all prompts in one batch."""
    layers = list(direct.made.config.capture_layers)
    wish = {"sampling_params": {"max_new_tokens": 0}, "return_hidden_states": True, "hidden_states_layers": layers}
    replies = direct.run([{"input_ids": ids, **wish} for ids in PROMPTS])
    for reply, ids in zip(replies, PROMPTS, strict=True):
        for layer, theirs in zip(layers, headless_rows(folder, ids), strict=True):
            assert furthest(rows_of(reply, layer), theirs) < 1e-4, f"layer {layer}"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_of_every_layer(name: str, family: Family) -> None:
    folder = family(name, headless=True)
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    assert architecture.endswith("Model")
    spec = load_spec(folder)
    assert spec.architecture == architecture and not spec.has_head and not spec.tied_head
    compare(folder, Direct(folder, capture_layers=list(range(spec.layers + 1))))


def test_the_text_part_of_a_model_with_images(tmp_path: Path) -> None:
    text = {**COMMON, **FAMILIES["gemma3"][1]}
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    model = transformers.Gemma3Model(transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1))
    randomise(model, one_plus=True)
    model.save_pretrained(tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert load_spec(tmp_path).architecture == "Gemma3Model"
    compare(tmp_path, Direct(tmp_path, capture_layers=list(range(LAYERS + 1))))


@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
def test_two_processes(name: str, family: Family) -> None:
    folder = family(name, headless=True)
    direct = Direct(folder, capture_layers=list(range(LAYERS + 1)), tp_size=2)
    try:
        compare(folder, direct)
    finally:
        direct.made.close()


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({}, "max_new_tokens"),
        ({"sampling_params": {"max_new_tokens": 1}}, "max_new_tokens"),
        ({"sampling_params": {"max_new_tokens": 0}, "return_logprob": True}, "return_logprob"),
        ({"sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0}, "return_logprob"),
    ],
)
def test_tokens_and_logprobs_are_refused_before_anything_runs(more: dict[str, Any], param: str, family: Family) -> None:
    with Engine(model_path=str(family("llama-tied", headless=True)), max_total_tokens=1024) as engine:
        assert engine.info()["is_generation"] is False
        for prompts in ({"input_ids": [1, 2, 3]}, {"input_ids": [[1, 2], [3]]}, {"text": "abc"}):
            with pytest.raises(NoLMHead) as caught:
                engine.generate(**prompts, **more)
            assert (caught.value.code, caught.value.param) == ("no_lm_head", param)
        counters = engine.assembled.core.counters
        assert counters.requests == counters.prompt_tokens == 0
        assert len(engine.extract(["abc"])) == 1


@pytest.mark.parametrize("algorithm", ["NGRAM", "STANDALONE", "EAGLE", "EAGLE3"])
def test_speculation_is_refused(algorithm: str, family: Family) -> None:
    draft = {} if algorithm == "NGRAM" else {"speculative_draft_model_path": "/nowhere"}
    options = {"model_path": str(family("llama", headless=True)), "speculative_algorithm": algorithm, **draft}
    with pytest.raises(InvalidConfig, match="LlamaModel has no LM head") as caught:
        assemble(EngineConfig.from_options(options))
    assert caught.value.param == "speculative_algorithm"


def test_such_a_model_is_no_draft(family: Family) -> None:
    options = {
        "model_path": str(family("llama")), "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(family("llama", headless=True)),
    }  # fmt: skip
    with pytest.raises(InvalidConfig, match="LlamaModel, which has no LM head") as caught:
        assemble(EngineConfig.from_options(options))
    assert caught.value.param == "speculative_draft_model_path"


def renamed(folder: Path, to: Path, architecture: str) -> Path:
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return to


def test_a_file_that_contradicts_its_architecture_is_refused(family: Family, tmp_path: Path) -> None:
    promised = renamed(family("llama", headless=True), tmp_path / "promised", "LlamaForCausalLM")
    with pytest.raises(WeightsError, match=r"lm_head.weight is missing; .*LlamaModel"):
        Direct(promised)
    denied = renamed(family("llama"), tmp_path / "denied", "LlamaModel")
    with pytest.raises(WeightsError, match=r"lm_head.weight is left over: LlamaModel"):
        Direct(denied)


def test_a_head_under_a_model_prefix_is_not_needed_for_rows(family: Family, tmp_path: Path) -> None:
    """Both spellings of the tensors' names, with and without ``model.``, are one model."""
    folder = Path(shutil.copytree(family("qwen2", headless=True), tmp_path / "prefixed"))
    tensors = load_file(folder / "model.safetensors")
    save_file({f"model.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    wish = {"input_ids": PROMPTS[2], "sampling_params": {"max_new_tokens": 0}, "return_hidden_states": True}
    one, other = (rows_of(Direct(f).run([wish])[0]) for f in (folder, family("qwen2", headless=True)))
    assert np.array_equal(one, other)
    assert torch.equal(tensors["norm.weight"], load_file(folder / "model.safetensors")["model.norm.weight"])
