"""Safetensors: strict from the headers, four kinds of heads, shards, and files made to do harm."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import TINY  # type: ignore[import-not-found]

from wellhead.errors import ModelError, UnsupportedModel, WeightsError
from wellhead.models.locate import load_spec
from wellhead.models.registry import spec_from_config
from wellhead.models.weights import WeightSource, open_weights

Folder = Callable[..., Path]
Tensors = dict[str, torch.Tensor]
NORM = "model.norm.weight"


def opened(folder: Path) -> WeightSource:
    return open_weights(folder, load_spec(folder))


def test_every_tensor_comes_back_as_it_is(tiny_folder: Folder) -> None:
    folder = tiny_folder()
    stored = load_file(folder / "model.safetensors")
    with opened(folder) as source:
        assert set(source.names()) == set(stored)
        assert all(torch.equal(source.get(name), stored[name]) for name in source.names())
        with pytest.raises(WeightsError, match="no tensor nothing"):
            source.get("nothing")
        kept = source.get(NORM)
    assert torch.equal(kept, stored[NORM])
    with pytest.raises(WeightsError):
        source.get(NORM)


def test_the_checkpoints_dtype_is_kept_and_found(tiny_folder: Folder) -> None:
    def halve(tensors: Tensors) -> None:
        tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()})

    folder = tiny_folder({"dtype": None}, tensors=halve)
    assert load_spec(folder).dtype == "bfloat16"
    assert opened(folder).get(NORM).dtype == torch.bfloat16


BROKEN: list[tuple[Callable[[Tensors], Any], str]] = [
    (lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"), r"model\.layers\.1\.mlp\.up_proj\.weight is missing"),
    (lambda tensors: tensors.pop(NORM), r"model\.norm\.weight is missing"),
    (lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}), "q_proj.bias is left over"),
    (lambda tensors: tensors.update({"model.layers.2.input_layernorm.weight": torch.zeros(32)}), "layers.2.* is left over"),
    (lambda tensors: tensors.update({NORM: torch.zeros(33)}), r"norm\.weight is \[33\], the config asks for \[32\]"),
    (lambda tensors: tensors.update({"norm.weight": torch.zeros(32)}), "there twice"),
]


@pytest.mark.parametrize(("edit", "said"), BROKEN, ids=["missing", "norm", "left-over", "extra layer", "shape", "twice"])
def test_tensors_that_do_not_fit_are_named(edit: Callable[[Tensors], Any], said: str, tiny_folder: Folder) -> None:
    folder = tiny_folder(tensors=edit)
    with pytest.raises(WeightsError, match=said) as caught:
        opened(folder)
    assert str(folder) in caught.value.message


def test_harmless_extras_and_missing_prefixes_are_read(tiny_folder: Folder) -> None:
    def edit(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
        tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    with opened(tiny_folder({"tie_word_embeddings": True}, tensors=edit)) as source:
        assert source.get("model.layers.0.input_layernorm.weight").shape == (32,)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_model_with_images(prefix: str, tiny_folder: Folder) -> None:
    def edit(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[prefix + name.removeprefix("model.")] = tensors.pop(name)
        outer = "model." if prefix.startswith("model.") else ""
        tensors[f"{outer}vision_tower.vision_model.embeddings.patch_embedding.weight"] = torch.zeros(3)
        tensors[f"{outer}multi_modal_projector.mm_soft_emb_norm.weight"] = torch.zeros(3)

    text = {key: value for key, value in TINY.items() if key != "architectures"}
    folder = tiny_folder({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}, tensors=edit)
    stored = load_file(folder / "model.safetensors")
    with opened(folder) as source:
        assert torch.equal(source.get(NORM), stored[f"{prefix}norm.weight"])
        assert len(source.names()) == len(stored) - 2


def test_integers_and_doubles_are_refused(tiny_folder: Folder) -> None:
    folder = tiny_folder(tensors=lambda tensors: tensors.update({NORM: torch.zeros(32, dtype=torch.float64)}))
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight has dtype F64"):
        opened(folder)


def head(make: Callable[[Tensors], torch.Tensor] | None, *, embedding: bool = True) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors.pop("lm_head.weight", None)
        if make is not None:
            tensors["lm_head.weight"] = make(tensors)
        if not embedding:
            del tensors["model.embed_tokens.weight"]

    return edit


def same(tensors: Tensors) -> torch.Tensor:
    return tensors["model.embed_tokens.weight"].clone()


def other(tensors: Tensors) -> torch.Tensor:
    return tensors["model.embed_tokens.weight"] + 1


@pytest.mark.parametrize(
    ("tied", "edit", "result"),
    [
        (True, head(None), True),
        (True, head(same), True),
        (True, head(other), False),
        (True, head(same, embedding=False), True),
        (False, head(same), False),
        (False, head(other), False),
        (False, head(None), WeightsError),
    ],
    ids=["tied absent", "tied same", "tied other", "tied head only", "untied same", "untied other", "untied absent"],
)
def test_heads(tied: bool, edit: Callable[[Tensors], None], result: Any, tiny_folder: Folder) -> None:
    folder = tiny_folder({"tie_word_embeddings": tied}, tensors=edit)
    if not isinstance(result, bool):
        with pytest.raises(result, match=r"lm_head\.weight is missing"):
            opened(folder)
        return
    with opened(folder) as source:
        assert source.spec.tied_head is result
        assert ("lm_head.weight" in source.names()) is not result
        assert source.get("model.embed_tokens.weight").shape == (48, 32)
        if not result:
            assert torch.equal(source.get("lm_head.weight"), load_file(folder / "model.safetensors")["lm_head.weight"])


# -- shards


def shard(folder: Path, edit: Callable[[dict[str, str]], Any] = lambda weight_map: None) -> None:
    """Cut the model in two; ``edit`` changes what the index says."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = [dict(list(tensors.items())[:10]), dict(list(tensors.items())[10:])]
    weight_map = {}
    for number, half in enumerate(halves, 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file(half, folder / file)
        weight_map.update(dict.fromkeys(half, file))
    edit(weight_map)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_read(tiny_folder: Folder) -> None:
    folder = tiny_folder()
    stored = load_file(folder / "model.safetensors")
    shard(folder)
    with opened(folder) as source:
        assert all(torch.equal(source.get(name), tensor) for name, tensor in stored.items())


INDICES: list[tuple[Callable[[dict[str, str]], Any], str]] = [
    (lambda index: index.update({NORM: "model-00003-of-00003.safetensors"}), "model-00003-of-00003.safetensors is missing"),
    (lambda index: index.update({"model.ghost": index[NORM]}), "model.ghost is missing"),
    (lambda index: index.pop(NORM), r"model\.norm\.weight is not in"),
    (lambda index: index.update({NORM: "../stolen.safetensors"}), "not a file of this folder"),
    (lambda index: index.update({NORM: "/etc/stolen.safetensors"}), "not a file of this folder"),
    (lambda index: index.update({NORM: "C:\\stolen.safetensors"}), "not a file of this folder"),
    (lambda index: index.update({NORM: "pytorch_model.bin"}), "not a file of this folder"),
    (lambda index: index.update({NORM: 7}), "not a file of this folder"),  # type: ignore[dict-item]
    (lambda index: index.clear(), "no weight_map"),
]


@pytest.mark.parametrize(("edit", "said"), INDICES, ids=[str(number) for number in range(len(INDICES))])
def test_an_index_that_lies_is_refused(edit: Callable[[dict[str, str]], Any], said: str, tiny_folder: Folder) -> None:
    folder = tiny_folder()
    shard(folder, edit)
    with pytest.raises(WeightsError, match=said):
        opened(folder)


def test_a_tensor_in_two_shards_is_refused(tiny_folder: Folder) -> None:
    folder = tiny_folder()
    shard(folder)
    second = folder / "model-00002-of-00002.safetensors"
    first_norm = "model.layers.0.input_layernorm.weight"
    assert first_norm in load_file(folder / "model-00001-of-00002.safetensors")
    save_file({**load_file(second), first_norm: torch.zeros(32)}, second)
    with pytest.raises(WeightsError, match=f"{first_norm} is not in"):
        opened(folder)


def test_a_missing_shard_is_refused(tiny_folder: Folder) -> None:
    folder = tiny_folder()
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors is missing"):
        opened(folder)


# -- harm


def header(entries: dict[str, Any], data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HOSTILE = {
    "empty": b"",
    "short": b"\x00\x01",
    "text": b"not a model at all, but long enough to look at",
    "huge header": header({"a": entry("F32", [1], 0, 4)}, b"\0" * 4, length=2**62),
    "large header": header({"a": entry("F32", [1], 0, 4)}, b"\0" * 4, length=2**31),
    "no JSON": struct.pack("<Q", 4) + b"{{{{",
    "nested": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "beyond the file": header({"a": entry("F32", [1000], 0, 4000)}, b"\0" * 8),
    "overlap": header({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, b"\0" * 12),
    "backwards": header({"a": entry("F32", [2], 8, 0)}, b"\0" * 8),
    "shape": header({"a": entry("F32", [2**40, 2**40], 0, 8)}, b"\0" * 8),
    "dtype": header({"a": entry("F77", [1], 0, 4)}, b"\0" * 4),
    "hole": header({"a": entry("F32", [1], 4, 8)}, b"\0" * 8),
    "left over": header({"a": entry("F32", [1], 0, 4)}, b"\0" * 64),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused_at_once(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    begun = time.perf_counter()
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a whole safetensors file"):
        open_weights(tmp_path, spec_from_config(TINY))
    assert time.perf_counter() - begun < 1


def test_a_torn_file_is_refused(tiny_folder: Folder) -> None:
    folder = tiny_folder()
    whole = (folder / "model.safetensors").read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 9):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(WeightsError, match=r"model\.safetensors"):
            opened(folder)


def test_no_damaged_header_does_more_than_be_refused(tiny_folder: Folder) -> None:
    folder, rng = tiny_folder(), random.Random(0)
    file, spec = folder / "model.safetensors", load_spec(folder)
    whole = file.read_bytes()
    end = 8 + struct.unpack_from("<Q", whole)[0]
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(end)] = rng.randrange(256)
        file.write_bytes(damaged)
        with contextlib.suppress(ModelError):
            open_weights(folder, spec).close()


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is a pickle"):
        open_weights(tmp_path, spec_from_config(TINY))


def test_broken_configs_are_refused(tmp_path: Path) -> None:
    for content in ("", "[]", "{", "[" * 100_000, "\xff"):
        (tmp_path / "config.json").write_text(content, encoding="latin-1")
        with pytest.raises(ModelError, match=r"config\.json"):
            load_spec(tmp_path)
