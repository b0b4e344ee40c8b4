"""Every row of every layer against transformers in float32, and the tokens that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.checks import rows_of
from support.direct import Direct
from support.families import FAMILIES, VOCAB, WINDOW
from support.ggufs import write_llama
from support.reference import furthest, truth
from wellhead.frontends.engine import Engine

Family = Callable[..., Path]
NEW = 12


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 256, length)]


def compare(folder: Path, prompts: list[list[int]], **options: object) -> None:
    """All prompts in one engine, all layers of every position, generated ones too."""
    direct = Direct(folder, capture_layers=list(range(1 + layers_of(folder))), **options)
    layers = list(direct.made.config.capture_layers)
    params = {"max_new_tokens": NEW, "temperature": 0, "ignore_eos": True}
    payloads = [
        {"input_ids": p, "sampling_params": params, "return_hidden_states": True, "hidden_states_layers": layers} for p in prompts
    ]
    for reply, ids in zip(direct.run(payloads), prompts, strict=True):
        assert len(reply.output_ids) == NEW
        fed = ids + reply.output_ids[:-1]
        reference = truth(folder, fed)
        assert reference.logits[len(ids) - 1 :].argmax(-1).tolist() == reply.output_ids
        for layer in layers:
            ours = rows_of(reply, layer)
            assert ours.shape == (len(fed), direct.hidden_size)
            assert furthest(ours, reference.layers[layer]) < 1e-4, f"layer {layer}"


def layers_of(folder: Path) -> int:
    from wellhead.models.locate import load_spec

    return load_spec(folder).layers


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_of_every_layer_and_the_greedy_tokens(name: str, family: Family) -> None:
    compare(family(name), [prompt(70), prompt(1, 1), prompt(16, 2), prompt(33, 3)])


@pytest.mark.parametrize("chunk", [7, 64, -1])
@pytest.mark.parametrize("name", ["mistral", "gemma3", "qwen2-window"])
def test_sliding_windows_see_the_same_keys_in_prefill_and_decode(name: str, chunk: int, family: Family) -> None:
    lengths = [WINDOW - NEW // 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW, 3 * WINDOW + 5]
    compare(family(name), [prompt(n, n) for n in lengths], chunked_prefill_size=chunk)


@pytest.mark.parametrize("name", ["llama3-rope", "yarn-rope", "linear-rope"])
def test_rope_variants_past_their_original_context(name: str, family: Family) -> None:
    compare(family(name), [prompt(300)])


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
        ({}, {"rope_type": "default"}),
    ],
    ids=str,
)
def test_rope_scaling_of_gguf_files(metadata: dict[str, Any], scaling: dict[str, Any], family: Family, tmp_path: Path) -> None:
    """A file that says no more than those of 2023 gives the rows of the model that transformers scales alike."""
    folder = family("llama", rope_parameters={"rope_theta": 10_000.0, **scaling})
    file = write_llama(folder, tmp_path / "model.gguf", metadata)
    layers = list(range(layers_of(folder) + 1))
    prompts = [prompt(9), prompt(200, 1)]
    with Engine(
        model_path=str(file), skip_tokenizer_init=True, capture_layers=layers, return_hidden_states_mode="full"
    ) as engine:
        rows = engine.extract(prompts, "full", layers=layers)
    for i, ids in enumerate(prompts):
        reference = truth(folder, ids)
        for layer in layers:
            assert furthest(rows[layer][i], reference.layers[layer]) < 1e-4, f"layer {layer}"
    if metadata:
        assert furthest(rows[-1 % len(layers)][1], truth(family("llama"), prompts[1]).layers[-1]) > 1e-2, "scaling must show"


def test_a_window_is_not_full_attention_in_these_models(family: Family) -> None:
    """The windowed tests would say nothing if the window did not matter."""
    ids = prompt(3 * WINDOW)
    with_window, without = truth(family("mistral"), ids), truth(family("mistral", sliding_window=None), ids)
    assert furthest(with_window.layers[-1], without.layers[-1]) > 1e-2


def test_the_final_row_is_behind_exactly_one_norm(family: Family) -> None:
    """With norm weights of one, a norm applied twice would not show; with these it would."""
    folder = family("llama")
    reference = truth(folder, prompt(20))
    from support.reference import load

    with torch.inference_mode():
        twice = load(folder).model.norm(torch.from_numpy(reference.layers[-1]).clone()).numpy()
    assert furthest(twice, reference.layers[-1]) > 0.1


def test_a_tied_checkpoint_whose_file_has_another_head_uses_the_files(family: Family, tmp_path: Path) -> None:
    """Such files exist; the head in the file wins (and transformers is told so for the comparison)."""
    import json
    import shutil

    folder = family("llama")
    told = tmp_path / "told"
    shutil.copytree(folder, told)
    config = json.loads((told / "config.json").read_text())
    (told / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    params = {"max_new_tokens": 8, "temperature": 0}
    one, other = (Direct(f).run([{"input_ids": prompt(9), "sampling_params": params}])[0] for f in (told, folder))
    assert one.output_ids == other.output_ids
    assert max(one.output_ids) < VOCAB
