"""The demo's report: one HTML page without scripts, fonts or links to elsewhere."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667085; --line: #d7dce3; --paper: #fff; --a: #1f7a5c; --b: #b4472f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #343b47; --paper: #14181f; --a: #4cc29a; --b: #ef8a6f; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 46rem; margin: 3rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead, figcaption, td.note { color: var(--soft); } figure { margin: 1rem 0; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } text { fill: var(--ink); font: 13px system-ui, sans-serif; }
.bar { fill: var(--soft); opacity: .55; } .bar.ours { fill: var(--a); opacity: 1; } .axis { stroke: var(--line); }
.pos { fill: var(--a); } .neg { fill: var(--b); } circle { opacity: .65; } .fresh { color: var(--a); } .rotten { color: var(--b); }
"""


def write_report(
    path: Path, info: dict[str, Any], scores: dict[str, float], texts: list[str], labels: np.ndarray, vectors: np.ndarray,
    run: dict[str, float], template: str,
) -> None:  # fmt: skip
    """Write the page. ``vectors``: float32 ``[n, H]``, the first half of which trained the classifier."""
    half = len(texts) // 2
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)).fit(vectors[:half], labels[:half])
    chance = model.predict_proba(vectors[half:])[:, 1]
    rate = run["tokens"] / run["seconds"]
    body = f"""<h1>What a small model knows of a film review</h1>
<p class="lead">{len(texts)} Rotten Tomatoes reviews, one hidden state each ({vectors.shape[1]} numbers, the last token's, after the final
norm), a linear classifier on {half} of them, tested on the other {len(texts) - half}. No token was generated.</p>
<h2>Accuracy</h2>{_bars(scores)}
<p>The question is asked by wrapping each review as <code>{html.escape(template).replace(chr(10), "⏎ ")}</code>: its last row has to say what comes next.</p>
<h2>The vectors</h2>{_scatter(vectors[half:], labels[half:])}
<h2>The run</h2><table>
<tr><td>model</td><td>{html.escape(Path(str(info["model_path"])).name)} ({info["architecture"]}, {info["num_layers"]} layers, {info["dtype"]})</td></tr>
<tr><td>kernels</td><td>{info["kernels"]["name"]} ({html.escape(info["kernels"]["why"])}); a vector depends on its batch: {"no" if info["batch_invariant"] else "yes, in the last bits"}</td></tr>
<tr><td>tokens</td><td>{run["tokens"]:,} in {run["seconds"]:.1f} s, {rate:,.0f} per second; {run["cached"]:,} came from the prefix cache</td></tr></table>
<h2>Where it is sure, and where it is wrong</h2>{_examples(texts[half:], labels[half:], chance)}"""
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Wellhead demo</title><style>{STYLE}</style><body>{body}</body></html>",
        encoding="utf-8",
    )


def _bars(scores: dict[str, float]) -> str:
    rows = []
    for i, (name, score) in enumerate(scores.items()):
        y, ours = 34 * i, "ours" if name.startswith("hidden") else ""
        rows.append(
            f'<text x="0" y="{y + 18}">{html.escape(name)}</text><rect class="bar {ours}" x="250" y="{y + 4}" width="{score * 380:.1f}"'
            f' height="20" rx="3"/><text x="{258 + score * 380:.1f}" y="{y + 19}">{score:.3f}</text>'
        )
    height = 34 * len(scores)
    return f'<figure><svg viewBox="0 0 700 {height}" role="img" aria-label="accuracy of each classifier">{"".join(rows)}</svg></figure>'


def _scatter(vectors: np.ndarray, labels: np.ndarray) -> str:
    """The two main directions of the standardised vectors (principal components)."""
    scaled = StandardScaler().fit_transform(vectors.astype(np.float64))
    _, _, axes = np.linalg.svd(scaled - scaled.mean(0), full_matrices=False)
    flat = scaled @ axes[:2].T
    low, high = np.percentile(flat, 1, axis=0), np.percentile(flat, 99, axis=0)
    at = np.clip((flat - low) / (high - low), 0, 1) * [660, 300] + [20, 20]
    dots = "".join(
        f'<circle class="{"pos" if label else "neg"}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        for (x, y), label in zip(at, labels, strict=True)
    )
    return (
        f'<figure><svg viewBox="0 0 700 340" role="img" aria-label="test vectors in two dimensions">{dots}</svg><figcaption>Test reviews'
        ' along the two main directions of their vectors: <b class="fresh">favourable</b>, <b class="rotten">unfavourable</b>.'
        " The classifier sees all directions.</figcaption></figure>"
    )


def _examples(texts: list[str], labels: np.ndarray, chance: np.ndarray) -> str:
    order = np.argsort(chance)
    wrong = np.argsort(-np.abs(chance - labels))[:3]
    rows = []
    for kind, picks in (("surest", [*order[-3:][::-1], *order[:3]]), ("most wrong", wrong)):
        for i in picks:
            truth = '<span class="fresh">fresh</span>' if labels[i] else '<span class="rotten">rotten</span>'
            rows.append(
                f'<tr><td class="note">{kind}</td><td class="n">{chance[i]:.2f}</td><td>{truth}</td><td>{html.escape(texts[i][:220])}</td></tr>'
            )
    return f'<table><tr><th></th><th class="n">p(fresh)</th><th>truth</th><th>review</th></tr>{"".join(rows)}</table>'
