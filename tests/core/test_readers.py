"""Readers by themselves: they take the next rows, ignore earlier ones, refuse a gap, and own what they keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.tags import reads_of
from wellhead.capture.readers import Reader, make_readers
from wellhead.errors import InternalError
from wellhead.types import CaptureMode, DType, Pooling, Read, Request, Rows, SamplingParams, narrow, widen

NULL, LAST, FULL = CaptureMode
P, NEW, H = 5, 4, 3
ROWS = np.random.default_rng(0).standard_normal((P + NEW - 1, H)).astype(np.float32)
TOKENS = np.arange(100, 100 + P + NEW, dtype=np.int32)


def reader(read: Read, *, dtype: DType = "float32", prompt: int = P, new: int = NEW) -> Reader:
    tokens = np.arange(100, 100 + prompt, dtype=np.int32)
    (made,) = make_readers(Request("k", "k", tokens, SamplingParams(max_new_tokens=new), reads=(read,)), dtype, H)
    return made


def old(mode: CaptureMode, pooling: Pooling = Pooling.NONE, **more: Any) -> Reader:
    (read,) = (replace(r, token_ids=True) for r in reads_of(mode, pooling, (2,), **more))
    return reader(read)


def write(target: Reader, first: int, last: int, rows: NDArray[np.float32] = ROWS) -> None:
    """Rows ``first .. last - 1``, spoilt afterwards."""
    part = rows[first:last].copy()
    target.take({2: np.arange(first, last, dtype=np.int64)}, {2: part}, last, TOKENS)
    part.fill(np.nan)


MEAN = ROWS.mean(axis=0, dtype=np.float64).astype(np.float32)
KINDS: list[tuple[CaptureMode, Pooling, NDArray[np.float32]]] = [
    (LAST, Pooling.NONE, ROWS[-1]),
    (FULL, Pooling.NONE, ROWS),
    (FULL, Pooling.MEAN, MEAN),
]
WRITES = [
    [(0, 8)],
    [(0, 3), (3, 5), (5, 6), (6, 8)],
    [(0, 5), (5, 6), (0, 4), (4, 6), (6, 8)],
    [(0, 5), (2, 7), (0, 8)],
    [(0, 8), (0, 3)],
]


@pytest.mark.parametrize(("mode", "pooling", "wanted"), KINDS)
@pytest.mark.parametrize("writes", WRITES)
def test_chunks_and_rows_computed_again(
    writes: list[tuple[int, int]], mode: CaptureMode, pooling: Pooling, wanted: NDArray[np.float32]
) -> None:
    made = old(mode, pooling)
    for first, last in writes:
        write(made, first, last)
    states = made.result(len(ROWS), TOKENS)
    np.testing.assert_array_equal(states.numpy(), wanted)
    assert states.total_rows == len(ROWS)
    assert states.prompt_rows == P
    assert states.positions.tolist() == ([7] if mode is LAST else list(range(8)))
    assert states.token_ids is not None and states.token_ids.tolist() == [100 + p for p in states.positions]


@pytest.mark.parametrize(("mode", "pooling"), [(FULL, Pooling.NONE), (FULL, Pooling.MEAN)])
def test_a_gap_is_refused(mode: CaptureMode, pooling: Pooling) -> None:
    made = old(mode, pooling)
    write(made, 0, 3)
    with pytest.raises(InternalError, match="3 to 5"):
        write(made, 4, 6)


def test_what_each_reader_wants_of_the_rows_so_far() -> None:
    last, full, mean = old(LAST), old(FULL), old(FULL, Pooling.MEAN)
    assert [r.wanted(0, P, TOKENS).tolist() for r in (last, full, mean)] == [[P - 1], list(range(P)), list(range(P))]
    for made in (last, full, mean):
        write(made, 0, P)
        assert made.wanted(0, P, TOKENS).tolist() == []
        assert made.wanted(0, 3, TOKENS).tolist() == []
        assert made.wanted(0, P + 1, TOKENS).tolist() == [P]


def test_rows_past_a_stop_are_cut_where_they_are_kept_and_an_error_where_they_were_added_up() -> None:
    for mode, wanted in ((FULL, ROWS[:6]), (LAST, None)):
        made = old(mode)
        write(made, 0, 6)
        write(made, 6, 8)
        if wanted is not None:
            np.testing.assert_array_equal(made.result(6, TOKENS).numpy(), wanted)
    mean = old(FULL, Pooling.MEAN)
    write(mean, 0, 8)
    with pytest.raises(InternalError):
        mean.result(6, TOKENS)


def test_pieces_add_up_and_the_last_one_says_how_many_there_were() -> None:
    made = old(FULL, each=True)
    write(made, 0, P)
    first = made.piece(TOKENS)
    assert made.piece(TOKENS) is None
    write(made, P, P + 2)
    second = made.piece(TOKENS)
    write(made, P + 2, P + 3)
    final = made.result(P + 3, TOKENS)
    assert first is not None
    assert second is not None
    assert [s.first_row for s in (first, second, final)] == [0, P, P + 2]
    assert final.total_rows == P + 3
    entries = [entry for s in (first, second, final) for entry in s.entries()]
    assert [e.shape for e in entries] == [(P, H), (H,), (H,), (H,)]
    np.testing.assert_array_equal(np.concatenate([entries[0], np.stack(entries[1:])]), ROWS)


def test_nothing_asked_needs_no_reader() -> None:
    assert make_readers(Request("k", "k", np.zeros(3, np.int32)), "float32", H) == ()


def test_of_no_rows_there_is_an_empty_array_and_a_reduction_is_nan() -> None:
    nothing = Rows(token_ids=(7,))
    for reduce, dtype in (
        ("rows", "bfloat16"),
        ("first", "bfloat16"),
        ("mean", "float32"),
        ("sum", "float32"),
        ("max", "float32"),
    ):
        made = reader(Read(nothing, (2,), reduce=reduce), dtype="bfloat16")
        made.take({}, {}, 8, TOKENS)
        states = made.result(8, TOKENS)
        assert states.positions.tolist() == []
        assert states.dtype == dtype
        values = states.numpy()
        assert values.shape == ((0, H) if reduce == "rows" else (H,))
        assert np.isnan(values).all()


def test_what_is_held_back_for_the_end_does_not_grow() -> None:
    made = reader(Read(Rows(last=2), (2,), reduce="mean"), new=1000)
    tokens = np.arange(2000, dtype=np.int32)
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((1004, H)).astype(np.float32)
    for end in range(P, 1004):
        first = made.next if made.next else P - 2
        made.take({2: np.arange(first, end, dtype=np.int64)}, {2: rows[first:end]}, end, tokens)
        assert made.nbytes == 2 * H * 4
    np.testing.assert_array_equal(
        made.result(1003, tokens).numpy(), rows[1001:1003].astype(np.float64).mean(0).astype(np.float32)
    )


def test_bfloat16_is_widened_exactly_and_narrowed_to_the_nearest_even() -> None:
    import torch

    values = np.concatenate(
        [ROWS.ravel(), np.array([0.0, -0.0, 1e-40, 3e38, np.inf, -np.inf, 1.00390625, 1.01171875], np.float32)]
    )
    raw = narrow(values, "bfloat16")
    assert raw.dtype == np.uint16
    wanted = torch.from_numpy(values).bfloat16()
    np.testing.assert_array_equal(raw, wanted.view(torch.uint16).numpy())
    np.testing.assert_array_equal(widen(raw, "bfloat16"), wanted.float().numpy())
    assert np.isnan(widen(narrow(np.array([np.nan], np.float32), "bfloat16"), "bfloat16")).all()


def test_a_mean_in_bfloat16_adds_in_float64() -> None:
    made = reader(Read(Rows(), (2,), reduce="mean"), dtype="bfloat16", prompt=3000, new=0)
    rows = np.full((3000, H), 1.0, np.float32)
    rows[0] = 1024.0
    tokens = np.zeros(3000, np.int32)
    for start in range(0, 3000, 7):
        end = min(start + 7, 3000)
        made.take({2: np.arange(start, end, dtype=np.int64)}, {2: narrow(rows[start:end], "bfloat16")}, end, tokens)
    states = made.result(3000, tokens)
    np.testing.assert_array_equal(states.numpy(), np.full(H, (2999 + 1024) / 3000, np.float32))
    assert states.dtype == "float32"


def test_all_rows_but_the_last_are_not_copied_again_with_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is the last is known at the end; until then every row is held, and moved once."""
    new, moved = 300, list[int]()
    join = np.concatenate

    def counted(parts: Any, *args: Any, **more: Any) -> Any:
        whole = join(parts, *args, **more)
        moved.append(whole.size if whole.ndim == 2 else 0)
        return whole

    target = reader(Read(Rows(stop=-1), (2,)), new=new)
    rows = np.random.default_rng(0).standard_normal((P + new - 1, H)).astype(np.float32)
    tokens = np.arange(P + new, dtype=np.int32)
    monkeypatch.setattr("wellhead.capture.readers.np.concatenate", counted)
    for first, last in [(0, P), *((p, p + 1) for p in range(P, P + new - 1))]:
        target.take({2: np.arange(first, last, dtype=np.int64)}, {2: rows[first:last].copy()}, last, tokens)
    np.testing.assert_array_equal(target.result(len(rows), tokens).numpy(), rows[:-1])
    assert sum(moved) <= 2 * rows.size
