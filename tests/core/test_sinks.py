"""Sinks by themselves: they take the next position, ignore earlier ones, refuse a gap, and own what they keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from wellhead.capture.sink import Sink, make_sink
from wellhead.errors import InternalError
from wellhead.types import CaptureMode, CaptureSpec, DType, Pooling, narrow, widen

NULL, LAST, FULL = CaptureMode
P, NEW, H = 5, 4, 3
ROWS = np.random.default_rng(0).standard_normal((P + NEW - 1, H)).astype(np.float32)


def sink(mode: CaptureMode, pooling: Pooling = Pooling.NONE, *, dtype: DType = "float32", **more: Any) -> Sink:
    made = make_sink(CaptureSpec(mode=mode, layers=(2,), pooling=pooling, **more), dtype, H, P, NEW)
    assert made is not None
    return made


def write(target: Sink, first: int, last: int, rows: NDArray[np.float32] = ROWS) -> None:
    """Rows ``first .. last - 1``, spoilt afterwards."""
    part = rows[first:last].copy()
    target.write(first, {2: part})
    part.fill(np.nan)


MEAN = ROWS.mean(axis=0, dtype=np.float64).astype(np.float32)
KINDS: list[tuple[CaptureMode, Pooling, NDArray[np.float32]]] = [
    (LAST, Pooling.NONE, ROWS[-1]),
    (FULL, Pooling.NONE, ROWS),
    (LAST, Pooling.MEAN, MEAN),
    (FULL, Pooling.MEAN, MEAN),
]


@pytest.mark.parametrize(("mode", "pooling", "wanted"), KINDS)
@pytest.mark.parametrize(
    "writes",
    [
        [(0, 8)],
        [(0, 3), (3, 5), (5, 6), (6, 8)],
        [(0, 5), (5, 6), (0, 4), (4, 6), (6, 8)],
        [(0, 5), (2, 7), (0, 8)],
        [(0, 8), (0, 3)],
    ],
)
def test_chunks_and_rows_computed_again(
    writes: list[tuple[int, int]], mode: CaptureMode, pooling: Pooling, wanted: NDArray[np.float32]
) -> None:
    made = sink(mode, pooling)
    for first, last in writes:
        write(made, first, last)
    made.cut(len(ROWS))
    states = made.result()
    np.testing.assert_array_equal(states.numpy(), wanted)
    assert states.total_rows == len(ROWS)
    assert states.prompt_rows == P


@pytest.mark.parametrize(("mode", "pooling"), [(FULL, Pooling.NONE), (LAST, Pooling.MEAN)])
def test_a_gap_is_refused(mode: CaptureMode, pooling: Pooling) -> None:
    made = sink(mode, pooling)
    write(made, 0, 3)
    with pytest.raises(InternalError, match="3 was expected"):
        write(made, 4, 6)


def test_what_each_sink_wants_of_the_rows_so_far() -> None:
    last, full, mean = sink(LAST), sink(FULL), sink(LAST, Pooling.MEAN)
    assert [s.wants(P) for s in (last, full, mean)] == [(P - 1, P), (0, P), (0, P)]
    for made in (last, full, mean):
        write(made, 0, P)
        assert made.wants(P) == (P, P)
        assert made.wants(3)[0] == made.wants(3)[1]
        assert made.wants(P + 1) == (P, P + 1)


def test_rows_past_a_stop_are_cut_from_full_and_are_an_error_elsewhere() -> None:
    full = sink(FULL)
    write(full, 0, 8)
    full.cut(6)
    np.testing.assert_array_equal(full.result().numpy(), ROWS[:6])
    for made in (sink(LAST), sink(LAST, Pooling.MEAN)):
        write(made, 0, 8)
        with pytest.raises(InternalError):
            made.cut(6)


def test_pieces_add_up_and_the_last_one_says_how_many_there_were() -> None:
    made = sink(FULL, incremental=True)
    write(made, 0, P)
    first = made.piece()
    assert made.piece() is None
    write(made, P, P + 2)
    second = made.piece()
    write(made, P + 2, P + 3)
    final = made.result()
    assert first is not None
    assert second is not None
    assert [s.first_row for s in (first, second, final)] == [0, P, P + 2]
    assert final.total_rows == P + 3
    entries = [entry for s in (first, second, final) for entry in s.entries()]
    assert [e.shape for e in entries] == [(P, H), (H,), (H,), (H,)]
    np.testing.assert_array_equal(np.concatenate([entries[0], np.stack(entries[1:])]), ROWS)


def test_nothing_asked_needs_no_sink() -> None:
    assert make_sink(CaptureSpec(), "float32", H, P, NEW) is None


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
    made = make_sink(CaptureSpec(mode=LAST, layers=(2,), pooling=Pooling.MEAN), "bfloat16", H, 3000, 0)
    assert made is not None
    rows = np.full((3000, H), 1.0, np.float32)
    rows[0] = 1024.0
    for start in range(0, 3000, 7):
        made.write(start, {2: narrow(rows[start : start + 7], "bfloat16")})
    np.testing.assert_array_equal(made.result().numpy(), np.full(H, (2999 + 1024) / 3000, np.float32))
    assert made.result().dtype == "float32"
