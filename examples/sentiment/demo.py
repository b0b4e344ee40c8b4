"""The demo: is a film review favourable? One hidden state per review, a linear classifier on it, two baselines beside it.

    scripts/demo            # or, in an environment with wellhead[demo]: python examples/sentiment/demo.py

Reads SmolLM2-135M-Instruct and the Rotten Tomatoes reviews out of published Python packages. Writes ``demo-out/``:
``vectors.parquet``, ``report.html``.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import io
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from report import write_report
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import wellhead as wh

sys.path.append(str(Path(__file__).resolve().parents[1]))
import assets

TEMPLATE = "Review: {text}\nOverall, this movie was"
CUT = 96  # tokens of a review that are read


@dataclass
class Reviews:
    texts: list[str]
    labels: np.ndarray

    @property
    def half(self) -> int:
        return len(self.texts) // 2


def read_reviews(path: Path, count: int, seed: int) -> Reviews:
    """``count`` reviews, half of them favourable, shuffled; the first half is for training."""
    with bz2.open(path) as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")))
    rng = np.random.default_rng(seed)
    by_label = {k: [r["text"] for r in rows if r["category"] == k and r["text"].strip()] for k in ("fresh", "rotten")}
    chosen = []
    for label, texts in enumerate((by_label["rotten"], by_label["fresh"])):
        chosen += [(texts[i], label) for i in rng.choice(len(texts), count // 2, replace=False)]
    rng.shuffle(chosen)
    return Reviews([str(t) for t, _ in chosen], np.array([int(label) for _, label in chosen]))


def cut(engine: wh.Engine, texts: list[str], tokens: int) -> list[str]:
    """The texts, each cut to its first ``tokens`` tokens: said here, since the engine never truncates on its own."""
    tokenizer = engine.assembled.tokenizer
    return [tokenizer.decode(ids[:tokens]) for ids in tokenizer.encode_batch(texts, add_special_tokens=False)]


def accuracy(features: np.ndarray | list[str], reviews: Reviews, model: object) -> float:
    half = reviews.half
    model.fit(features[:half], reviews.labels[:half])
    return float((model.predict(features[half:]) == reviews.labels[half:]).mean())


def probe() -> object:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", help="another model (folder, .gguf file or hub id)")
    parser.add_argument("--reviews", type=int, default=800, help="half of them train, half test")
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    print("== model and data", flush=True)
    model_path = args.model_path or str(assets.fetch_smollm2())
    reviews = read_reviews(assets.fetch_rotten_tomatoes(), args.reviews, args.seed)

    print("== engine", flush=True)
    started = time.perf_counter()
    with wh.Engine(model_path) as engine:
        info = engine.info()
        kernels = f"{info['kernels']['name']} kernels ({info['kernels']['why']})"
        print(f"{info['architecture']}, {info['dtype']}, {kernels}, batch_invariant {info['batch_invariant']},"
              f" ready in {time.perf_counter() - started:.1f} s", flush=True)  # fmt: skip
        texts = cut(engine, reviews.texts, CUT)
        print(f"== last vectors of {len(texts)} reviews, as they are and with a question after them", flush=True)
        started = time.perf_counter()
        raw = engine.extract(texts, progress=True)
        asked = engine.extract([TEMPLATE.format(text=t) for t in texts], progress=True)
        seconds = time.perf_counter() - started
        counters = engine.assembled.core.counters
        tokens, cached = counters.prompt_tokens, counters.cached_tokens
    print(f"{tokens:,} tokens in {seconds:.1f} s: {tokens / seconds:,.0f} tokens/s ({cached:,} of them from the prefix cache)")

    print("== classifiers", flush=True)
    scores = {
        "majority": accuracy(raw, reviews, DummyClassifier()),
        "TF-IDF + logistic regression": accuracy(texts, reviews, make_pipeline(TfidfVectorizer(), LogisticRegression())),
        "hidden state of the review": accuracy(raw, reviews, probe()),
        "hidden state after the question": accuracy(asked, reviews, probe()),
    }
    for name, score in scores.items():
        print(f"  {name:34} {score:.3f}")

    vectors = args.out / "vectors.parquet"
    write_vectors(vectors, texts, reviews.labels, asked)
    page = args.out / "report.html"
    run = {"tokens": tokens, "seconds": seconds, "cached": cached}
    write_report(page, info, scores, texts, reviews.labels, asked, run, TEMPLATE)
    print(f"== wrote {vectors} and {page}")


def write_vectors(path: Path, texts: list[str], labels: np.ndarray, vectors: np.ndarray) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    pq.write_table(pa.table({"text": texts, "fresh": labels.astype(bool), "vector": column}), path)


if __name__ == "__main__":
    main()
