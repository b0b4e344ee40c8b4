"""Decoding: output tokens per second at batch 1, 8 and 32, and what capture costs, beside transformers' generate.

    python bench/decode.py                       # 64 in, 64 out, Qwen3-0.6B's shape
    python bench/decode.py --no-transformers --batches 1

The floor of batch 1 is the time to read every weight once, at the memory rate that this run measures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch

import wellhead as wh


def memory_rate(size_mb: int = 512) -> float:
    """GB/s that a plain sum over a large tensor reaches on all threads."""
    x = torch.ones(size_mb << 18)
    x.sum()
    return size_mb * 1.048576e6 / min(common.seconds(lambda: x.sum()) for _ in range(5)) / 1e9


def transformers_side(folder: Path, new: int, dtype: str) -> Callable[[list[list[int]]], Any]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=common.torch_dtype(dtype)).eval()

    @torch.inference_mode()
    def run(prompts: list[list[int]]) -> Any:
        ids = torch.tensor(prompts)
        return model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
        )

    return run


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64, help="prompt tokens, and new tokens")
    parser.add_argument("--no-transformers", action="store_true")
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    print(common.machine())
    vocab = common.vocab_size(folder)
    hf = None if args.no_transformers else transformers_side(folder, args.tokens, args.dtype)
    options = {"skip_tokenizer_init": True, "dtype": args.dtype, "max_total_tokens": 16384, "return_hidden_states_mode": "full"}
    weights = common.weight_bytes(folder, args.dtype)
    rate = memory_rate()
    floor = f"floor {weights / rate / 1e6:.1f} ms per step at batch 1"
    print(f"weights {weights / 1e9:.2f} GB in {args.dtype}, memory reads {rate:.1f} GB/s: {floor}")
    with wh.Engine(str(folder), **options) as engine:
        for batch in args.batches:
            prompts = common.distinct_prompts(batch, vocab, args.tokens, args.tokens, seed=batch)
            sides: dict[str, Callable[[], Any]] = {
                f"wellhead {word}": lambda mode=mode, prompts=prompts: generate(engine, prompts, args.tokens, mode)
                for word, mode in (("off", False), ("last", "last"), ("full", True))
            }
            if hf is not None:
                sides["transformers"] = lambda prompts=prompts: hf(prompts)
            sides["wellhead off"]()
            times = common.alternate(sides, args.rounds)
            rates = {name: batch * args.tokens / statistics.median(t) for name, t in times.items()}
            line = " | ".join(f"{name} {r:,.1f} tok/s" for name, r in rates.items())
            cost = " | ".join(
                f"{w} over off {common.ratio(times, f'wellhead {w}', 'wellhead off'):.3f}" for w in ("last", "full")
            )
            against = f" | ratio {common.ratio(times, 'transformers', 'wellhead off'):.2f}" if hf is not None else ""
            print(f"batch {batch:3} | {line} | {cost}{against}", flush=True)


def generate(engine: wh.Engine, prompts: list[list[int]], new: int, mode: Any) -> Any:
    engine.flush_cache()
    params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
    return engine.generate(input_ids=prompts, sampling_params=params, return_hidden_states=mode)


if __name__ == "__main__":
    main()
