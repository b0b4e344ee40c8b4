"""GGUF: specs, tensors bit for bit, permutations under grouped heads, and headers made to do harm."""

from __future__ import annotations

import contextlib
import random
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from wellhead.errors import ModelError, UnsupportedModel, WeightsError
from wellhead.gguf_file import read_gguf
from wellhead.models.gguf import _hugging_face_name
from wellhead.models.locate import load_spec, locate
from wellhead.models.names import expected_tensors
from wellhead.models.spec import ModelSpec
from wellhead.models.weights import open_weights

QTYPE = gguf.GGMLQuantizationType
SIZES = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
VOCAB = 48
LLAMA_NAMES = [
    "token_embd.weight",
    "output_norm.weight",
    *[f"blk.{i}.{kind}.weight" for i in range(2) for kind in ("attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v")],
    *[f"blk.{i}.{kind}.weight" for i in range(2) for kind in ("attn_output", "ffn_gate", "ffn_up", "ffn_down")],
]
GEMMA_NAMES = [
    *LLAMA_NAMES,
    *[f"blk.{i}.{kind}.weight" for i in range(2) for kind in ("post_attention_norm", "post_ffw_norm")],
    *[f"blk.{i}.attn_{kind}_norm.weight" for i in range(2) for kind in "qk"],
]


def shape_of(name: str, sizes: dict[str, Any]) -> tuple[int, ...]:
    hidden, ffn, heads, kv = (
        sizes[key] for key in ("embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv")
    )
    dim = sizes.get("attention.key_length", hidden // heads)
    if name.endswith("bias"):
        return ({"attn_q": heads * dim, "attn_output": hidden}.get(name.split(".")[-2], kv * dim),)
    if "norm" in name:
        return (dim,) if "_q_norm" in name or "_k_norm" in name else (hidden,)
    rows = {"attn_q": heads * dim, "attn_k": kv * dim, "attn_v": kv * dim, "ffn_gate": ffn, "ffn_up": ffn}
    kind = name.split(".")[-2]
    if kind in ("token_embd", "output"):
        return (VOCAB, hidden)
    if kind in ("attn_output", "ffn_down"):
        return (hidden, heads * dim if kind == "attn_output" else ffn)
    return (rows[kind], hidden)


def write(
    path: Path,
    architecture: str = "llama",
    names: list[str] | None = None,
    metadata: dict[str, Any] | None = None,
    kind: QTYPE = QTYPE.F32,
) -> dict[str, np.ndarray[Any, Any]]:
    """A random model; returns what a reader of the file should get, by the file's names."""
    sizes = {**SIZES, **(metadata or {})}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {"attention.layer_norm_rms_epsilon": 1e-6, **sizes}.items():
        full = key if key.startswith(("tokenizer.", "split.")) else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, str):
            writer.add_string(full, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(full, value)
    rng, stored = np.random.default_rng(0), {}
    for name in names if names is not None else LLAMA_NAMES:
        values = rng.standard_normal(shape_of(name, sizes)).astype(np.float32)
        chosen = kind if values.ndim > 1 else QTYPE.F32
        data = quantize(values, chosen)
        stored[name] = dequantize(data, chosen)
        writer.add_tensor(name, data, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def opened(path: Path) -> tuple[ModelSpec, dict[str, torch.Tensor]]:
    spec = load_spec(locate(path))
    with open_weights(path, spec) as source:
        assert set(source.names()) == set(expected_tensors(spec))
        return spec, {name: source.get(name) for name in source.names()}


@pytest.mark.parametrize("kind", [QTYPE.F32, QTYPE.F16, QTYPE.BF16, QTYPE.Q8_0, QTYPE.Q4_0], ids=lambda kind: kind.name)
def test_tensors_are_dequantised_bit_for_bit(kind: QTYPE, tmp_path: Path) -> None:
    stored = write(
        tmp_path / "m.gguf", "qwen3", [*LLAMA_NAMES, *[n for n in GEMMA_NAMES if "_q_norm" in n or "_k_norm" in n]], kind=kind
    )
    spec, read = opened(tmp_path / "m.gguf")
    assert spec.qk_norm
    assert spec.dtype == {QTYPE.F32: "float32", QTYPE.F16: "float16"}.get(kind, "bfloat16")
    for name, values in stored.items():
        ours = read[_hugging_face_name(name, gemma=False)]
        assert ours.dtype == torch.float32
        assert torch.equal(ours, torch.from_numpy(values)), name


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=str)
def test_llamas_q_and_k_are_unpermuted_under_grouped_heads(heads: tuple[int, int], tmp_path: Path) -> None:
    names = [*LLAMA_NAMES, *[f"blk.{i}.attn_{kind}.bias" for i in range(2) for kind in "qkv"]]
    names += [f"blk.{i}.attn_output.bias" for i in range(2)]
    sizes = {"attention.head_count": heads[0], "attention.head_count_kv": heads[1]}
    stored = write(tmp_path / "m.gguf", names=names, metadata=sizes)
    _, read = opened(tmp_path / "m.gguf")
    for suffix in ("weight", "bias"):
        for kind, count in (("q", heads[0]), ("k", heads[1])):
            ours = read[f"model.layers.1.self_attn.{kind}_proj.{suffix}"].numpy()
            theirs, dim = stored[f"blk.1.attn_{kind}.{suffix}"], 16
            for head in range(count):  # written pair by pair: 2i and 2i+1 turn together; read in halves
                for i in range(dim // 2):
                    assert np.array_equal(ours[head * dim + i], theirs[head * dim + 2 * i])
                    assert np.array_equal(ours[head * dim + dim // 2 + i], theirs[head * dim + 2 * i + 1])
        assert np.array_equal(read[f"model.layers.1.self_attn.v_proj.{suffix}"].numpy(), stored[f"blk.1.attn_v.{suffix}"])


def test_gemma_norms_lose_their_one_and_missing_facts_are_known(tmp_path: Path) -> None:
    sizes = {"attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 16, "rope.freq_base": 1e6}
    stored = write(tmp_path / "m.gguf", "gemma3", GEMMA_NAMES, sizes)
    spec, read = opened(tmp_path / "m.gguf")
    assert np.array_equal(read["model.norm.weight"].numpy(), stored["output_norm.weight"] - 1)
    assert np.array_equal(read["model.layers.0.self_attn.q_norm.weight"].numpy(), stored["blk.0.attn_q_norm.weight"] - 1)
    ours = read["model.layers.1.pre_feedforward_layernorm.weight"].numpy()
    assert np.array_equal(ours, stored["blk.1.ffn_norm.weight"] - 1)
    assert (spec.norm_plus_one, spec.norm_eps, spec.windows) == (True, 1e-6, (16, 16))
    assert [table.theta for table in spec.rope_tables] == [1e4]
    assert (spec.attn_scale, spec.embed_scale, spec.tied_head) == (32**-0.5, 8.0, True)


def test_an_output_matrix_of_its_own_unties_the_head(tmp_path: Path) -> None:
    biases = [f"blk.{i}.attn_{kind}.bias" for i in range(2) for kind in "qkv"]
    stored = write(tmp_path / "m.gguf", "qwen2", [*LLAMA_NAMES, *biases, "output.weight"])
    spec, read = opened(tmp_path / "m.gguf")
    assert not spec.tied_head
    assert np.array_equal(read["lm_head.weight"].numpy(), stored["output.weight"])


def test_ends_of_turn_stop_too(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 6, "tokenizer.ggml.bos_token_id": 2}
    write(tmp_path / "m.gguf", metadata=ids)
    spec = load_spec(tmp_path / "m.gguf")
    assert (spec.eos_token_ids, spec.bos_token_id) == ((1, 6), 2)


def test_rope_scaling_of_the_metadata(tmp_path: Path) -> None:
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    write(tmp_path / "m.gguf", metadata={**scaling, "rope.freq_base": 5e5})
    (table,) = load_spec(tmp_path / "m.gguf").rope_tables
    assert (table.kind, table.factor, table.original_context, table.theta) == ("yarn", 4.0, 16, 5e5)


@pytest.mark.parametrize(
    ("metadata", "kind", "factor"),
    [
        ({"rope.scale_linear": 4.0}, "linear", 4.0),
        ({"rope.scaling.factor": 4.0}, "linear", 4.0),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, "linear", 2.0),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, "linear", 4.0),
        ({"rope.scaling.type": "yarn", "rope.scale_linear": 4.0}, "yarn", 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "default", 1.0),
        ({"rope.scaling.type": "linear"}, "default", 1.0),
        ({"rope.scaling.type": "yarn"}, "default", 1.0),
        ({"rope.scale_linear": 1.0}, "default", 1.0),
        ({"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0}, "default", 1.0),
        ({"rope.scaling.finetuned": True, "rope.scaling.original_context_length": 16}, "default", 1.0),
        ({"attention.causal": True, "rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0}, "default", 1.0),
    ],
    ids=str,
)
def test_rope_scaling_is_read_as_llama_cpp_reads_it(metadata: dict[str, Any], kind: str, factor: float, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", metadata=metadata)
    (table,) = load_spec(tmp_path / "m.gguf").rope_tables
    assert (table.kind, table.factor) == (kind, factor)


def test_a_key_of_another_architecture_is_not_understood_either(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", metadata={"tokenizer.rope.note": 1})  # nothing of the model's
    load_spec(tmp_path / "m.gguf")
    writer = gguf.GGUFWriter(tmp_path / "n.gguf", "llama")
    writer.add_float32("qwen2.rope.scaling.factor", 4.0)
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, 64), dtype=np.float32))
    for write_part in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write_part()
    with pytest.raises(UnsupportedModel, match=r"n\.gguf: the metadata's qwen2\.rope\.scaling\.factor \(4\.0\)"):
        load_spec(tmp_path / "n.gguf")


@pytest.mark.parametrize("good", [True, False], ids=["llama 3", "something else"])
def test_llama_3_frequency_factors_are_recognised_or_refused(good: bool, tmp_path: Path) -> None:
    from wellhead.models.rope import inverse_frequencies
    from wellhead.models.spec import RopeSpec

    wanted = RopeSpec(5e5, 16, "llama3", factor=8.0, original_context=8192, low_freq_factor=1.0, high_freq_factor=4.0)
    factors = (inverse_frequencies(RopeSpec(5e5, 16)) / inverse_frequencies(wanted)).numpy()
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in SIZES.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 5e5)
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, 64), dtype=np.float32))
    writer.add_tensor("rope_freqs.weight", factors if good else factors * np.float32(1.1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if good:
        assert load_spec(path).rope_tables == (wanted,)
    else:
        with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight"):
            load_spec(path)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architecture": "mamba"}, "mamba"),
    ({"metadata": {"expert_count": 8}}, "mixtures of experts"),
    ({"metadata": {"rope.dimension_count": 8}}, "rope.dimension_count 8"),
    ({"metadata": {"attention.sliding_window": 8}}, "sliding window"),
    ({"metadata": {"rope.scaling.type": "longrope"}}, "longrope"),
    ({"metadata": {"attention.scale": 0.5}}, r"attention.scale \(0.5\)"),
    ({"metadata": {"attention.causal": False}}, r"attention.causal \(False\) is not supported; only True is"),
    ({"metadata": {"attention.key_length_swa": 8}}, "attention.key_length_swa 8"),
    ({"metadata": {"attention.sliding_window_pattern": 6}}, "attention.sliding_window_pattern"),
    ({"metadata": {"attention.indexer.top_k": 8}}, "attention.indexer.top_k"),
    ({"metadata": {"rope.freq_base_swa": 1e4}}, "rope.freq_base_swa"),
    ({"metadata": {"rope.freq_scale": 0.5}}, "rope.freq_scale"),
    ({"metadata": {"rope.scaling.alpha": 1000.0}}, "rope.scaling.alpha"),
    ({"metadata": {"rope.scaling.attn_factor": 1.5}}, "rope.scaling.attn_factor"),
    ({"metadata": {"rope.scaling.yarn_ext_factor": 0.0}}, "rope.scaling.yarn_ext_factor"),
    ({"metadata": {"rope.scaling.factor": -2.0}}, "factor must be a number above 0"),
    ({"metadata": {"rope.scale_linear": "twice"}}, "factor must be a number above 0"),
    ({"architecture": "qwen2", "metadata": {"rope.dimension_sections": 16}}, "rope.dimension_sections"),
    ({"metadata": {"split.count": 3}}, "one of 3 parts"),
    ({"names": LLAMA_NAMES[:-1]}, "down_proj.weight is missing"),
    ({"names": [*LLAMA_NAMES, "blk.0.attn_q_norm.weight"]}, "attn_q_norm.weight is left over"),
    ({"names": [*LLAMA_NAMES, "output.weight"], "metadata": {"block_count": 1}}, "blk.1.* is left over"),
    ({"names": LLAMA_NAMES[1:]}, "token_embd.weight is missing"),
]


@pytest.mark.parametrize(("model", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_refused_by_name(model: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", **model)
    with pytest.raises(ModelError, match=said) as caught:
        opened(tmp_path / "m.gguf")
    assert "m.gguf" in caught.value.message or "LlamaForCausalLM" in caught.value.message


def test_a_shape_that_does_not_fit_is_named(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    spec = replace(load_spec(tmp_path / "m.gguf"), ffn_size=97)
    with pytest.raises(WeightsError, match=r"ffn_gate\.weight is \[96, 64\], the metadata asks for \[97, 64\]"):
        open_weights(tmp_path / "m.gguf", spec)


# -- harm


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def start(version: int = 3, tensors: int = 0, entries: int = 0, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries)


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


HOSTILE = {
    "empty": b"",
    "magic only": b"GGUF",
    "other magic": start(magic=b"GGML"),
    "version 1": start(version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "huge tensor count": start(tensors=2**63) + b"\0" * 64,
    "huge entry count": start(entries=2**63) + b"\0" * 64,
    "many entries": start(entries=2**20) + b"\0" * 64,
    "huge key": start(entries=1) + struct.pack("<Q", 2**62) + b"\0" * 64,
    "huge string": start(entries=1) + text("a") + struct.pack("<IQ", 8, 2**40) + b"\0" * 64,
    "huge array": start(entries=1) + text("a") + struct.pack("<IIQ", 9, 4, 2**61) + b"\0" * 64,
    "huge array of strings": start(entries=1) + text("a") + struct.pack("<IIQ", 9, 8, 2**60) + b"\0" * 64,
    "array of arrays": start(entries=1) + text("a") + struct.pack("<IIQ", 9, 9, 2) + b"\0" * 64,
    "unknown type": start(entries=1) + text("a") + struct.pack("<I", 99) + b"\0" * 64,
    "not UTF-8": start(entries=1) + struct.pack("<Q", 2) + b"\xff\xfe" + b"\0" * 64,
    "key twice": start(entries=2) + (text("a") + struct.pack("<II", 4, 1)) * 2 + b"\0" * 64,
    "alignment 0": start(entries=1) + text("general.alignment") + struct.pack("<II", 4, 0) + b"\0" * 64,
    "alignment 3": start(entries=1) + text("general.alignment") + struct.pack("<II", 4, 3) + b"\0" * 64,
    "too many dimensions": start(tensors=1) + tensor("a", [1] * 9) + b"\0" * 64,
    "huge dimensions": start(tensors=1) + tensor("a", [2**40, 2**40]) + b"\0" * 64,
    "no elements": start(tensors=1) + tensor("a", [0, 4]) + b"\0" * 64,
    "tensor twice": start(tensors=2) + tensor("a", [1]) * 2 + b"\0" * 128,
    "beyond the file": start(tensors=1) + tensor("a", [1], offset=2**40) + b"\0" * 64,
    "misaligned": start(tensors=1) + tensor("a", [1], offset=4) + b"\0" * 64,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_headers_are_refused_at_once(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    begun = time.perf_counter()
    with pytest.raises(WeightsError, match=r"m\.gguf is not a whole GGUF file"):
        read_gguf(path)
    with pytest.raises(WeightsError):
        load_spec(path)
    assert time.perf_counter() - begun < 1


def test_tensors_that_overlap_or_end_beyond_the_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    spec, file, whole = load_spec(path), read_gguf(path), path.read_bytes()
    names = sorted(file.tensors, key=lambda name: file.tensors[name].offset)
    at = whole.index(text(names[1])) + len(text(names[1])) + 4 + 8 * len(file.tensors[names[1]].shape) + 4
    path.write_bytes(whole[:at] + struct.pack("<Q", 0) + whole[at + 8 :])
    with pytest.raises(WeightsError, match="overlap"):
        open_weights(path, spec)
    for size in (len(whole) - 1, file.tensors[names[-1]].offset + 1):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsError, match="it is torn"):
            open_weights(path, spec)
    kind = at - 4
    path.write_bytes(whole[:kind] + struct.pack("<I", 77) + whole[kind + 4 :])
    with pytest.raises(UnsupportedModel, match="type 77"):
        open_weights(path, spec)


def test_every_cut_of_a_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    whole, first = path.read_bytes(), min(tensor.offset for tensor in read_gguf(path).tensors.values())
    for size in range(0, first, 37):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsError):
            read_gguf(path)


def test_no_damaged_header_does_more_than_be_refused(tmp_path: Path) -> None:
    path, rng = tmp_path / "m.gguf", random.Random(0)
    write(path, "gemma3", GEMMA_NAMES, {"attention.sliding_window": 8, "tokenizer.ggml.eos_token_id": 1})
    whole = path.read_bytes()
    end = min(tensor.offset for tensor in read_gguf(path).tensors.values())
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(24, end)] = rng.choice([0, 1, 2, 9, 255, rng.randrange(256)])
        path.write_bytes(damaged)
        begun = time.perf_counter()
        with contextlib.suppress(ModelError):
            open_weights(path, load_spec(path)).close()
        assert time.perf_counter() - begun < 1


# -- the real thing


@pytest.mark.real
def test_smollm2_is_read_as_what_it_is(smollm2_gguf: Path) -> None:
    spec = load_spec(smollm2_gguf)
    assert (spec.architecture, spec.layers, spec.hidden_size, spec.ffn_size) == ("LlamaForCausalLM", 30, 576, 1536)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocab_size) == (9, 3, 64, 49152)
    assert (spec.norm_eps, spec.rope_tables[0].theta, spec.context_length) == (1e-5, 1e5, 8192)
    assert (spec.tied_head, spec.dtype, spec.bos_token_id, spec.eos_token_ids) == (True, "bfloat16", 1, (2,))
    reader = {entry.name: entry for entry in gguf.GGUFReader(smollm2_gguf).tensors}
    with open_weights(smollm2_gguf, spec) as source:
        for ours, theirs, heads in [
            ("model.embed_tokens.weight", "token_embd.weight", 0),
            ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight", 0),
            ("model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight", 9),
            ("model.layers.3.self_attn.k_proj.weight", "blk.3.attn_k.weight", 3),
            ("model.layers.3.self_attn.v_proj.weight", "blk.3.attn_v.weight", 0),
            ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", 0),
        ]:
            values = dequantize(reader[theirs].data, reader[theirs].tensor_type)
            if heads:
                values = np.concatenate([half for head in np.split(values, heads) for half in (head[0::2], head[1::2])])
            assert torch.equal(source.get(ours), torch.from_numpy(values.copy())), ours


@pytest.mark.real
@pytest.mark.slow
def test_gemma_is_read_as_what_it_is(gemma_gguf: Path) -> None:
    spec = load_spec(gemma_gguf)
    assert (spec.architecture, spec.layers, spec.hidden_size, spec.head_dim) == ("Gemma3ForCausalLM", 18, 640, 256)
    assert [i for i, window in enumerate(spec.windows) if window is None] == [5, 11, 17]
    assert (spec.windows[0], spec.norm_eps, spec.tied_head) == (512, 1e-6, True)
    assert [spec.rope_tables[spec.ropes[i] or 0].theta for i in (0, 5)] == [1e4, 1e6]
    with open_weights(gemma_gguf, spec) as source:
        assert len(source.names()) == 236
        assert source.get("model.layers.17.mlp.down_proj.weight").shape == (640, 2048)
