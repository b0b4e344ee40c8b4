"""Every format gives back what it was given, in every dtype, and refuses what is torn."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wellhead.encoding import base64, npy
from wellhead.encoding import json as json_format
from wellhead.encoding import safetensors as st_format
from wellhead.encoding.registry import FORMATS, Format, choose
from wellhead.encoding.vectors import Vectors
from wellhead.errors import InvalidRequest
from wellhead.types import DTYPES, STORAGE, DType, HiddenStates, narrow, widen

H = 24
BINARY = [f for f in FORMATS.values() if f.name != "json"]


def vectors(
    full: bool, rows: list[int], dtype: DType = "float32", sent: DType | None = None, layers: tuple[int, ...] | None = None
) -> Vectors:
    """Random rows of ``len(rows)`` prompts, held in ``dtype``, to be sent in ``sent``."""
    rng = np.random.default_rng([len(rows), full])
    made = []
    for count in rows:
        shape = (count, H) if full else (H,)
        arrays = tuple(narrow(rng.standard_normal(shape).astype(np.float32), dtype) for _ in layers or (None,))
        made.append(
            HiddenStates(
                dtype=dtype,
                layers=layers or (7,),
                arrays=arrays,
                positions=np.arange(count) if full else np.array([count - 1]),
                reduce="rows" if full else "first",
                sglang=full,
                prompt_rows=count,
                asked=layers,
                total_rows=count,
            )
        )
    facts = {"model": "tiny", "prompt_tokens": rows, "reduce": "rows" if full else "first"}
    return Vectors(tuple(made), layers or (None,), sent or dtype, full, facts)


def body_of(form: Format, what: Vectors) -> bytes:
    length, chunks = form.encode(what)
    body = b"".join(chunks)
    assert length is None or length == len(body)
    return body


def expected(what: Vectors, index: int, layer: int | None, dtype: DType) -> np.ndarray:
    return narrow(widen(what.states[index].raw(layer), what.states[index].dtype), dtype)


@pytest.mark.parametrize("layers", [None, (0, 3, -1)], ids=["default", "layers"])
@pytest.mark.parametrize("sent", DTYPES)
@pytest.mark.parametrize("held", DTYPES)
@pytest.mark.parametrize(
    ("form", "full"),
    [(f, full) for f in FORMATS.values() for full in (False, True) if f.name != "npy" or not full],
    ids=lambda x: x.name if isinstance(x, Format) else "full" if x else "last",
)
def test_what_goes_in_comes_out(form: Format, held: DType, sent: DType, full: bool, layers: tuple[int, ...] | None) -> None:
    what = vectors(full, [5, 1, 3], held, sent, layers)
    got = form.decode(body_of(form, what))
    dtype = "float32" if form.name == "json" else sent
    assert (got.dtype, got.full, len(got.states)) == (dtype, full, 3)
    for i in range(3):
        for k, layer in enumerate(what.layers):
            right = expected(what, i, layer, "float32" if form.name == "json" else sent)
            np.testing.assert_array_equal(got.states[i].arrays[k], right)
    if form.name != "npy":
        assert got.layers == what.layers
        assert got.facts["model"] == "tiny"
        assert [s.prompt_rows for s in got.states] == [5, 1, 3]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_safetensors_is_read_by_its_own_library(dtype: DType) -> None:
    what = vectors(True, [4, 2], dtype)
    tensors = safetensors.numpy.load(body_of(FORMATS[st_format.MEDIA_TYPE], what))
    assert tensors["offsets"].tolist() == [0, 4, 6]
    np.testing.assert_array_equal(tensors["hidden_states"], np.concatenate([s.arrays[0] for s in what.states]))


def test_safetensors_carries_bfloat16_as_bfloat16() -> None:
    from safetensors.torch import load

    what = vectors(False, [4, 2], "bfloat16")
    tensor = load(body_of(FORMATS[st_format.MEDIA_TYPE], what))["hidden_states"]
    assert str(tensor.dtype) == "torch.bfloat16"
    np.testing.assert_array_equal(tensor.float().numpy(), np.stack([s.numpy() for s in what.states]))


def test_npy_is_read_by_numpy(tmp_path: Any) -> None:
    for full, rows, layers, shape in (
        (False, [2, 3], None, (2, H)),
        (True, [6], None, (6, H)),
        (False, [2, 3], (0, 1), (2, 2, H)),
    ):
        what = vectors(full, rows, layers=layers)
        (tmp_path / "a.npy").write_bytes(body_of(FORMATS[npy.MEDIA_TYPE], what))
        got = np.load(tmp_path / "a.npy")
        assert (got.shape, got.dtype) == (shape, np.float32)
        np.testing.assert_array_equal(got.reshape(-1, H)[0], np.atleast_2d(what.states[0].arrays[0])[0])


def test_npy_never_lets_bfloat16_pass_for_numbers(tmp_path: Any) -> None:
    what = vectors(False, [2, 3], "bfloat16")
    (tmp_path / "a.npy").write_bytes(body_of(FORMATS[npy.MEDIA_TYPE], what))
    got = np.load(tmp_path / "a.npy")
    assert got.dtype.kind == "V"
    np.testing.assert_array_equal(got.view(np.uint16)[0], what.states[0].arrays[0])


def test_npy_has_no_room_for_several_matrices() -> None:
    with pytest.raises(InvalidRequest, match="one array"):
        FORMATS[npy.MEDIA_TYPE].encode(vectors(True, [2, 3]))


def test_arrow_batches_are_bounded_and_read_by_pyarrow() -> None:
    what = vectors(True, [9000, 9000, 2500, 1])
    length, chunks = FORMATS["application/vnd.apache.arrow.stream"].encode(what)
    assert length is None
    reader = pa.ipc.open_stream(b"".join(chunks))
    batches = list(reader)
    assert [b.num_rows for b in batches] == [1, 1, 2]
    assert json.loads(reader.schema.metadata[b"wellhead"])["model"] == "tiny"
    assert pa.types.is_fixed_size_list(reader.schema.field("hidden_states").type.value_type)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_large_answers_come_in_pieces(form: Format) -> None:
    what = vectors(True, [60_000])
    if form.name == "arrow":  # one text is the least that a record batch holds
        what = vectors(True, [9_000] * 7)
    sizes = [len(chunk) for chunk in form.encode(what)[1]]
    assert len(sizes) > 3
    assert max(sizes) < 2 << 20


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_torn_bytes_are_refused_or_read_but_never_crash(form: Format, data: st.DataObject) -> None:
    whole = body_of(form, vectors(form.name != "npy", [3, 2]))
    body = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = form.decode(bytes(body))
    except InvalidRequest:
        return
    assert all(a.nbytes <= len(whole) for s in got.states for a in s.arrays)


@pytest.mark.parametrize("claim", [[0, 1 << 40], [-8, 8], [8, 0], [4, 8]])
def test_safetensors_headers_claim_nothing_that_is_not_there(claim: list[int]) -> None:
    header = {
        "__metadata__": {"wellhead": json.dumps({"full": False})},
        "hidden_states": {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": claim},
    }
    text = json.dumps(header).encode()
    with pytest.raises(InvalidRequest):
        st_format.decode(len(text).to_bytes(8, "little") + text + b"\0" * 8)


# --- base64 -------------------------------------------------------------------------------------------------------


def test_base64_is_little_endian_float32() -> None:
    text = base64.encode_array(np.array([1, -0.5, 0.25], np.float32))
    assert text == "AACAPwAAAL8AAIA+"
    assert base64.encode_array(np.array([1, -0.5, 0.25], ">f4")) == text
    np.testing.assert_array_equal(base64.decode_array(text), np.array([1, -0.5, 0.25], np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("full", [False, True], ids=["last", "full"])
def test_base64_has_dtype_and_shape_beside_it(full: bool, dtype: DType) -> None:
    (states,) = vectors(full, [5]).states
    value = json.loads(json.dumps(base64.encode(states, dtype)))
    assert value["dtype"] == dtype
    assert value["shape"] == ([5, H] if full else [H])
    assert base64.decode(value).dtype == STORAGE[dtype]
    right = widen(narrow(states.numpy(), dtype), dtype)
    got = base64.entries(value)
    np.testing.assert_array_equal(got[0] if full else got, right)


def test_base64_entries_are_split_after_the_prompt() -> None:
    (states,) = vectors(True, [5]).states
    value = {**base64.encode(states), "prompt_rows": 3}
    assert [e.shape for e in base64.entries(value)] == [(3, H), (H,), (H,)]


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"dtype": "float64", "shape": [1], "data": ""},
        {"dtype": "float32", "shape": [9], "data": "AAAA"},
        {"dtype": "float32", "shape": [1], "data": "!!!!"},
        {"dtype": "float32", "shape": 3, "data": ""},
    ],
)
def test_base64_refuses_what_does_not_fit(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        base64.decode(bad)


# --- JSON in pieces -----------------------------------------------------------------------------------------------


def test_json_in_pieces_is_json_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_format, "GROUP", 50)
    monkeypatch.setattr(json_format, "PIECE_BYTES", 64)
    rng = np.random.default_rng(0)
    values: list[Any] = [
        rng.standard_normal((40, 7)).astype(np.float32),
        {
            "a": [rng.standard_normal((9, 30)).astype(np.float32), *rng.standard_normal((20, 30)).astype(np.float32)],
            "b": "x" * 3000,
        },
        [list(range(500)), {"c": {"d": [[0.5, 3, None]] * 200}}, [], {}, "", None],
        {str(i): np.arange(3, dtype=np.float32) for i in range(60)},
        [[]] * 300,
        np.zeros((0, 4), np.float32),
    ]
    for value in values:
        pieces = list(json_format.chunks(value))
        assert b"".join(pieces) == json_format.dumps(value)
    assert len(list(json_format.chunks(values[0]))) > 5


def test_json_writes_null_for_what_json_lacks() -> None:
    rows = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    assert json_format.dumps([rows, float("-inf")]) == b"[[1.0,null,null,null],null]"


# --- Accept -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "name"),
    [
        (None, "json"), ("", "json"), ("*/*", "json"), ("application/json", "json"), ("application/*", "json"),
        ("application/vnd.safetensors", "safetensors"), ("application/x-npy", "npy"),
        ("application/vnd.apache.arrow.stream", "arrow"), ("APPLICATION/X-NPY", "npy"),
        ("text/html, application/x-npy;q=0.5, application/vnd.safetensors;q=0.9", "safetensors"),
        ("application/json;q=0, */*", "safetensors"), ("*/*;q=0.1, application/x-npy", "npy"),
        ("application/x-npy;q=1;foo=bar", "npy"), ("text/html", None), ("application/x-parquet", None),
        ("application/json;q=0", None), ("application/json;q=nonsense", None),
    ],
)  # fmt: skip
def test_the_format_is_negotiated(accept: str | None, name: str | None) -> None:
    chosen = choose(accept)
    assert (chosen.name if chosen is not None else None) == name
