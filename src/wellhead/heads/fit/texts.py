"""``wellhead.fit``: from texts and an engine to a head. The engine's rows wait in a temporary file, not in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest, WellheadError
from wellhead.heads.fit.run import Fitted, fit_rows
from wellhead.heads.fit.sources import ArraySource
from wellhead.heads.head import Head


def fit(engine: Any, texts: Sequence[str], labels: Sequence[Any], **options: Any) -> Head:
    """A head on an engine's rows of texts: ``fit_texts`` without its report."""
    return fit_texts(engine, texts, labels, **options).head


def fit_texts(
    engine: Any,
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    layers: str | Sequence[int] = "all",
    rows: Any = "last",
    groups: Sequence[Any] | None = None,
    reduce: str = "rows",
    provenance: Any = None,
    **options: Any,
) -> Fitted:
    """One pass over the texts serves all layers. ``layers``: numbers, or ``"all"`` that the engine captures.

    ``rows``: ``"last"``, or ``"all"`` with ``reduce="mean"``. ``groups``: texts of one group (a conversation, a document) stay
    on one side of a split.
    ``options``: ``name`` and the fields of ``Options``. Raises the first text's error, naming it by its number.
    """
    mode = {("last", "rows"): "last", ("all", "mean"): "mean"}.get((rows, reduce)) if isinstance(rows, str) else None
    if mode is None:
        raise InvalidRequest(
            f"fit takes rows='last', or rows='all' with reduce='mean', not {rows!r} with {reduce!r}", param="rows"
        )
    if isinstance(texts, (str, bytes)) or len(texts) != len(labels):
        raise InvalidRequest(f"{len(labels)} labels for {len(texts)} texts", param="labels")
    config = engine.assembled.config
    last = config.layers
    numbered = [layer for layer in config.capture_layers if layer <= last]  # not the rows before the final norm
    wanted = numbered if isinstance(layers, str) and layers == "all" else layers
    if isinstance(wanted, str):
        raise InvalidRequest(f"layers must be 'all' or a list of numbers, not {wanted!r}", param="layers")
    numbers = sorted({last if la == -1 else int(la) for la in wanted})
    with _gathered(engine, texts, numbers, mode) as arrays:
        plain = [t if isinstance(t, str) else "" for t in texts]
        source = ArraySource(arrays, labels, groups, plain if all(isinstance(t, str) for t in texts) else None)
        facts = engine.info()
        keys = ("model_path", "served_model_name", "architecture", "dtype", "quantization")
        model = {k: facts[k] for k in keys if facts.get(k) is not None}
        said = {"engine": model, **(provenance or {})}
        return fit_rows(source, rows=rows, reduce=reduce, provenance=said, **options)


@contextmanager
def _gathered(engine: Any, texts: Sequence[str], layers: list[int], mode: str) -> Iterator[dict[int, NDArray[np.float32]]]:
    shape = (len(texts), engine.hidden_size)
    with tempfile.TemporaryDirectory(prefix="wellhead-fit-") as folder:
        arrays = (
            {la: np.memmap(Path(folder) / f"{la}.rows", np.float32, "w+", shape=shape) for la in layers} if len(texts) else {}
        )
        for i, states in engine.extract_iter(texts, mode, layers=layers):
            if isinstance(states, WellheadError):
                raise type(states)(f"text {i}: {states.message}", param=states.param)
            for layer, array in arrays.items():
                array[i] = states.numpy(layer)
        yield dict(arrays)
