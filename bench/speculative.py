"""Speculative decoding beside plain decoding, in one run: output tokens per second, their ratio, tokens per verify step.

    python bench/speculative.py --model DIR                       # NGRAM, and the model as its own draft
    python bench/speculative.py --model DIR --eagle3 OUT/draft --prompts OUT/held-out.jsonl     # of examples/train_draft
    python bench/speculative.py                                   # Qwen3-0.6B's shape; random weights, so no trained draft

Output must be the same, token for token; a line says if it is not. The model as its own draft accepts everything and saves
nothing: it shows that drafts and their positions are right, and what the machinery costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import common
import numpy as np

import wellhead as wh
from wellhead.requests.tokenizer import Tokenizer

REPEATING = "The quick brown fox, number 7341, jumps over the lazy dog and runs back home before the rain begins.\n" * 5
OPENING = "The old lighthouse keeper had not spoken to anyone for a month when"
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
DRAWN: dict[str, Any] = {"temperature": 1.0, "sampling_seed": 1, "ignore_eos": True}
Prompts = list[list[int]]


def engine(folder: Path, **options: Any) -> wh.Engine:
    return wh.Engine(
        str(folder), max_total_tokens=16384, return_hidden_states_mode="last", skip_tokenizer_init=True,
        **options,
    )  # fmt: skip


def encode(folder: Path, texts: list[str]) -> Prompts:
    """Ids of texts; without a tokenizer, which random weights have not, a run of ids for each, once or five times."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder).encode_batch(texts)
    runs = np.random.default_rng(0).integers(10, common.vocab_size(folder), (len(texts), 24)).tolist()
    return [run * (5 if text == REPEATING else 1) for run, text in zip(runs, texts, strict=True)]


def compare(name: str, plain: wh.Engine, fast: wh.Engine, prompts: Prompts, params: dict[str, Any], rounds: int) -> None:
    """Plain and speculative in turn, one prompt after the other; prints a line of the table."""
    replies: dict[str, list[dict[str, Any]]] = {}

    def run(side: str, engine: wh.Engine) -> None:
        engine.flush_cache()
        replies[side] = [
            engine.generate(input_ids=ids, sampling_params=params, return_hidden_states="last") for ids in prompts
        ]  # fmt: skip

    sides = {"plain": lambda: run("plain", plain), "speculative": lambda: run("speculative", fast)}
    common.alternate(sides, 1)  # what is set up once
    times = common.alternate(sides, rounds)
    tokens = sum(len(reply["output_ids"]) for reply in replies["plain"])
    same = all(a["output_ids"] == b["output_ids"] for a, b in zip(replies["plain"], replies["speculative"], strict=True))
    steps = sum(reply["meta_info"]["spec_verify_ct"] for reply in replies["speculative"])
    rates = {side: tokens / statistics.median(times[side]) for side in sides}
    print(
        f"{name:34} | plain {rates['plain']:6.1f} tok/s | speculative {rates['speculative']:6.1f} tok/s"
        f" | ratio {common.ratio(times, 'plain', 'speculative'):.2f} | {(tokens - len(prompts)) / steps:.2f} tokens per step"
        f" | {'same output' if same else 'OUTPUT DIFFERS'}",
        flush=True,
    )


def arguments() -> argparse.Namespace:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--steps", type=int, nargs="+", default=[3], help="lengths of a draft model's chains")
    parser.add_argument("--standalone", help="a smaller model with the same vocabulary (default: the model itself)")
    parser.add_argument("--eagle", help="an EAGLE draft of the model")
    parser.add_argument("--eagle3", help="an EAGLE3 draft of the model")
    parser.add_argument("--prompts", type=Path, help="a JSON string a line, for draft models")
    parser.add_argument("--skip", nargs="+", default=[], choices=["ngram", "standalone"])
    return parser.parse_args()


def main() -> None:
    args = arguments()
    folder = common.model_folder(args.model)
    print(common.machine())
    repeating, opening = encode(folder, [REPEATING, OPENING])
    prompts = [opening]
    if args.prompts is not None:
        prompts = encode(folder, [json.loads(line) for line in args.prompts.read_bytes().split(b"\n") if line.strip()])
    new = {"max_new_tokens": args.new}
    answers = {"temperature": 0, **new}  # a real model ends its answers itself
    drafts = [] if "standalone" in args.skip else [("STANDALONE", args.standalone or str(folder))]
    drafts += [(name, path) for name, path in (("EAGLE", args.eagle), ("EAGLE3", args.eagle3)) if path]
    with engine(folder, dtype=args.dtype) as plain:
        if "ngram" not in args.skip:
            with engine(folder, dtype=args.dtype, speculative_algorithm="NGRAM") as fast:
                compare("NGRAM, text that repeats", plain, fast, [repeating], GREEDY | new, args.rounds)
                compare("NGRAM, text that does not", plain, fast, [opening], DRAWN | new, args.rounds)
        for algorithm, path in drafts:
            for steps in args.steps:
                options = {"dtype": args.dtype, "speculative_algorithm": algorithm, "speculative_draft_model_path": path}
                with engine(folder, speculative_num_steps=steps, **options) as fast:
                    name = f"{algorithm}{' itself' if path == str(folder) else ''}, {steps} drafts"
                    compare(f"{name}, greedy", plain, fast, prompts, answers, args.rounds)
                    compare(f"{name}, drawn", plain, fast, prompts, DRAWN | new, args.rounds)


if __name__ == "__main__":
    main()
