"""What must hold of every reply, and how replies are compared."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from support.direct import Direct
from wellhead.frontends.engine import Engine
from wellhead.frontends.native import Reply
from wellhead.types import CaptureMode, HiddenStates


def rows_of(reply: Reply, layer: int | None = None) -> NDArray[np.float32]:
    """The rows of a layer as float32."""
    assert reply.hidden_states is not None
    return reply.hidden_states.numpy(layer)


def matrix(entries: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """SGLang's entries ``[[P, H], [H], ...]`` -> ``[P + N - 1, H]``."""
    assert entries[0].ndim == 2
    assert all(entry.ndim == 1 for entry in entries[1:])
    return np.concatenate([entries[0], *(entry[None] for entry in entries[1:])])


def check_shape(reply: Reply, hidden_size: int) -> None:
    """Row counts and shapes follow from P, N and the mode alone."""
    request, states = reply.request, reply.hidden_states
    if request.mode is CaptureMode.NULL:
        assert states is None
        assert "hidden_states" not in reply.to_dict()["meta_info"]
        return
    assert states is not None
    prompt, new = request.prompt_tokens, len(reply.output_ids)
    rows = prompt + max(0, new - 1)
    assert states.total_rows == rows
    assert states.prompt_rows == prompt
    (read,) = request.reads
    assert len(states.arrays) == len(read.layers)
    full = not read.vector
    for array in states.arrays:
        assert array.shape == ((rows, hidden_size) if full else (hidden_size,))
        assert array.flags.c_contiguous
        assert (array.base if array.base is not None else array).nbytes == array.nbytes, "a view keeps more memory than it shows"
        assert not np.isnan(states.numpy()).any()


def same(a: Reply, b: Reply) -> None:
    """Two replies agree in ids, text, finish, rows and logprobs, bit for bit."""
    assert a.output_ids == b.output_ids
    one, other = a.to_dict(), b.to_dict()
    assert one["text"] == other["text"]
    assert one["meta_info"]["finish_reason"] == other["meta_info"]["finish_reason"]
    assert (a.hidden_states is None) == (b.hidden_states is None)
    assert list(a.reads) == list(b.reads)
    for mine, theirs in zip(_states_of(a), _states_of(b), strict=True):
        same_states(mine, theirs)
    for name in ("input_token_logprobs", "output_token_logprobs", "input_top_logprobs", "output_top_logprobs"):
        assert one["meta_info"].get(name) == other["meta_info"].get(name), name


def _states_of(reply: Reply) -> list[HiddenStates]:
    return [*([reply.hidden_states] if reply.hidden_states is not None else []), *reply.reads.values()]


def same_states(a: HiddenStates, b: HiddenStates) -> None:
    """Two replies to one read agree in layers, positions, tokens and bits."""
    assert (a.layers, a.asked, a.reduce, a.total_rows) == (b.layers, b.asked, b.reduce, b.total_rows)
    assert a.positions.tolist() == b.positions.tolist()
    assert (a.token_ids is None) == (b.token_ids is None)
    if a.token_ids is not None and b.token_ids is not None:
        assert a.token_ids.tolist() == b.token_ids.tolist()
    for x, y in zip(a.arrays, b.arrays, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        bits = np.uint32 if x.dtype.itemsize == 4 else np.uint16
        different = np.nonzero((x.view(bits) != y.view(bits)).reshape(-1, x.shape[-1]).any(-1))[0]
        assert not len(different), f"rows {different[:8]} of {x.shape} differ"


def all_same(mine: list[Reply], theirs: list[Reply]) -> None:
    """``same`` for each pair, saying which failed."""
    assert len(mine) == len(theirs)
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        try:
            same(a, b)
        except AssertionError as error:
            error.add_note(f"request {i}: prompt of {a.request.prompt_tokens}, {a.request.sampling.max_new_tokens} new")
            raise


def head_check(reply: Reply, direct: Direct) -> None:
    """The head on row P - 1 + k gives token k's logprob, and under greedy its id. Needs ``return_logprob``."""
    decoder = direct.runner.inner.decoder
    states = reply.hidden_states
    assert states is not None
    raw = torch.from_numpy(np.atleast_2d(states.raw()).copy())
    rows = raw.view(torch.bfloat16) if states.dtype == "bfloat16" else raw
    first = 0 if len(rows) == 1 else reply.request.prompt_tokens - 1
    ids = reply.output_ids if len(rows) > 1 or len(reply.output_ids) == 1 else reply.output_ids[-1:]
    with torch.inference_mode():
        logprobs = torch.log_softmax(decoder.logits(rows[first:].contiguous()), dim=-1)
    said = output_values(reply)[-len(ids) :]
    assert len(logprobs) == len(ids) == len(said)
    for row, token, value in zip(logprobs, ids, said, strict=True):
        assert float(row[token]) == value
        if reply.request.sampling.greedy:
            assert int(row.argmax()) == token


def output_values(reply: Reply) -> list[float]:
    """Logprobs of the output tokens."""
    triples: list[tuple[Any, int, str | None]] = reply.to_dict()["meta_info"]["output_token_logprobs"]
    return [triple[0] for triple in triples]


def wait_until_idle(made: Engine) -> None:
    """Until nothing of any request is left in the engine."""
    for _ in range(2000):
        if made.loop.call(lambda core: core.idle).result():
            return
        time.sleep(0.005)
    raise AssertionError("still busy")
