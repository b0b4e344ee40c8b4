"""What a head must beat to be worth anything: a bag of words, and the length alone. One pass over the texts each way."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.heads.fit.closed import lda
from wellhead.heads.fit.judge import macro_auroc
from wellhead.heads.fit.moments import Moments
from wellhead.heads.fit.sources import Source

_WORD = re.compile(r"\w+")
_BUCKETS = 1 << 16


def _words(text: str) -> NDArray[np.int64]:
    return np.fromiter((zlib.crc32(w.encode("utf-8", "replace")) % _BUCKETS for w in _WORD.findall(text.lower())), np.int64)


def _lengths(texts: list[str]) -> NDArray[np.float64]:
    size = np.array([[len(t)] for t in texts], np.float64)
    return np.concatenate([size, np.log1p(size)], axis=1)


def baselines(source: Source, learn: NDArray[np.bool_], judge: NDArray[np.bool_]) -> dict[str, Any]:
    """Accuracy and AUROC of both on the rows ``judge``, learned on the rows ``learn``; a reason if there are no texts.

    The bag of words is multinomial naive Bayes over 65,536 hashed words, the length linear discriminant analysis on characters
    and their logarithm.
    """
    texts = source.texts()
    if texts is None:
        return {"missing": "the rows come without their texts (name a text column)"}
    classes = len(source.labels)
    counts = np.ones((classes, _BUCKETS))
    lengths = Moments(2, classes)
    for at, part in texts:
        mine = np.flatnonzero(learn[at : at + len(part)])
        codes = source.codes[at : at + len(part)]
        lengths.update(_lengths(part)[mine], codes[mine])
        for i in mine:
            np.add.at(counts[codes[i]], _words(part[i]), 1)
    weights = np.log(counts) - np.log(counts.sum(axis=1, keepdims=True))
    prior = np.log(np.maximum(lengths.counts, 1e-300) / lengths.count)
    w, b = lda(lengths)
    said: dict[str, list[Any]] = {"bag_of_words": [], "length": []}
    for at, part in source.texts() or ():
        mine = np.flatnonzero(judge[at : at + len(part)])
        said["bag_of_words"] += [prior + weights[:, _words(part[i])].sum(axis=1) for i in mine]
        said["length"] += list(_lengths(part)[mine] @ w.T + b)
    codes = source.codes[judge]
    return {name: _figures(np.array(scores).reshape(len(codes), -1), codes) for name, scores in said.items()}


def _figures(scores: NDArray[np.float64], codes: NDArray[np.int32]) -> dict[str, Any]:
    one = scores[:, 1:] - scores[:, :1] if scores.shape[1] == 2 else scores
    if one.shape[1] > 1:
        one = one - np.logaddexp.reduce(one, axis=1)[:, None]
    best = (one[:, 0] > 0).astype(int) if one.shape[1] == 1 else one.argmax(axis=1)
    return {"accuracy": float((best == codes).mean()) if len(codes) else None, "auroc": macro_auroc(codes, one)}
