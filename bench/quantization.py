"""``quantization="int8"`` beside the same model in ``--dtype``, in turn: speed, and what becomes of the vectors.

    python bench/quantization.py                        # Qwen3-0.6B's shape, random weights: speed alone
    python bench/quantization.py --model PATH/TO/MODEL  # and for a real one: cosine to float32, accuracy of a probe

The probe is a logistic regression on last vectors of film reviews (two thirds train it, the rest judge it).
"""

from __future__ import annotations

import statistics
from pathlib import Path

import common
import numpy as np
import torch

import wellhead as wh

PROMPT = "Review: {}\nOverall, this movie was"
TOKENS = 64


def speed(folder: Path, rounds: int, dtype: str) -> None:
    vocab = common.vocab_size(folder)
    distinct = common.distinct_prompts(32, vocab)
    options = {"skip_tokenizer_init": True, "dtype": dtype, "max_total_tokens": 16384}
    params = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    with wh.Engine(str(folder), **options) as plain, wh.Engine(str(folder), **options, quantization="int8") as small:

        def extract(engine: wh.Engine) -> None:
            engine.flush_cache()
            engine.extract(distinct)

        def decode(engine: wh.Engine, prompts: list[list[int]]) -> None:
            engine.flush_cache()
            engine.generate(input_ids=prompts, sampling_params=params)

        cases = {"last vectors of distinct prompts": (sum(map(len, distinct)), extract)}
        for batch in (1, 8, 32):
            prompts = common.distinct_prompts(batch, vocab, TOKENS, TOKENS, seed=batch)
            cases[f"decode, batch {batch}"] = batch * TOKENS, lambda engine, prompts=prompts: decode(engine, prompts)
        for name, (tokens, run) in cases.items():
            run(plain), run(small)
            times = common.alternate({"plain": lambda run=run: run(plain), "int8": lambda run=run: run(small)}, rounds)
            rates = {side: tokens / statistics.median(found) for side, found in times.items()}
            print(
                f"{name:32} {dtype} {rates['plain']:8,.1f} tok/s | int8 {rates['int8']:8,.1f} tok/s"
                f" | {common.ratio(times, 'plain', 'int8'):.2f} x",
                flush=True,
            )


def reviews(count: int) -> tuple[list[str], np.ndarray]:
    """Texts and labels, evenly over the file."""
    rows = common.film_reviews()
    rows = rows[:: len(rows) // count][:count]
    return [PROMPT.format(row["text"][:300]) for row in rows], np.array([int(row["category"] == "fresh") for row in rows])


def truth(folder: Path, ids: list[list[int]]) -> np.ndarray:
    """Last vectors of transformers in float32."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return np.stack([model(torch.tensor([one])).last_hidden_state[0, -1].numpy() for one in ids])


def probe(vectors: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    order = np.random.default_rng(0).permutation(len(labels))
    cut = len(labels) * 2 // 3
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    model.fit(vectors[order[:cut]], labels[order[:cut]])
    return float(model.score(vectors[order[cut:]], labels[order[cut:]]))


def vectors(folder: Path, count: int, dtype: str) -> None:
    texts, labels = reviews(count)
    found, exact = {}, None
    for name, more in {dtype: {}, "int8": {"quantization": "int8"}}.items():
        with wh.Engine(str(folder), dtype=dtype, max_total_tokens=16384, **more) as engine:
            found[name] = np.asarray(engine.extract(texts), np.float32)
            ids = engine.assembled.tokenizer.encode_batch(texts)
    exact = truth(folder, ids[:64])
    for name, ours in found.items():
        some = ours[: len(exact)]
        cosine = (some * exact).sum(1) / np.linalg.norm(some, axis=1) / np.linalg.norm(exact, axis=1)
        print(f"{name:9} cosine to float32: mean {cosine.mean():.5f}, worst {cosine.min():.5f} | probe {probe(ours, labels):.3f}")


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--reviews", type=int, default=3000)
    parser.add_argument("--only", choices=["speed", "vectors"])
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    print(common.machine(), f"| model {args.model}", flush=True)
    if args.only != "vectors":
        speed(folder, args.rounds, args.dtype)
    if args.only != "speed" and (folder / "tokenizer.json").is_file():
        vectors(folder, args.reviews, args.dtype)


if __name__ == "__main__":
    main()
