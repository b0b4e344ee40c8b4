"""Last vectors per second, beside transformers, in one run: distinct prompts, and prompts with a shared prefix.

    python bench/extract.py                          # Qwen3-0.6B's shape, random weights
    python bench/extract.py --model PATH/TO/MODEL

transformers gets its best: the faster of batch sizes 1 and 8, prompts sorted by length, no LM head. The linear layers alone are
the engine's own products over as many tokens, with nothing between them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

import wellhead as wh


def transformers_side(folder: Path, dtype: str) -> Callable[[list[list[int]], int], np.ndarray]:
    """prompts, batch size -> last vectors, through transformers' base model (no head), padded on the right."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=common.torch_dtype(dtype)).eval()

    @torch.inference_mode()
    def run(prompts: list[list[int]], batch_size: int) -> np.ndarray:
        rows: list[Any] = [None] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for at in range(0, len(order), batch_size):
            part = order[at : at + batch_size]
            longest = max(len(prompts[i]) for i in part)
            ids = torch.zeros(len(part), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for k, i in enumerate(part):
                ids[k, : len(prompts[i])] = torch.tensor(prompts[i])
                mask[k, : len(prompts[i])] = 1
            hidden = model(ids, attention_mask=mask if batch_size > 1 else None, use_cache=False).last_hidden_state
            for k, i in enumerate(part):
                rows[i] = hidden[k, len(prompts[i]) - 1].float().numpy()
        return np.stack(rows)

    return run


def linears(engine: wh.Engine, tokens: int) -> Callable[[], None]:
    """The products of all blocks over this many tokens, in steps as large as the engine's."""
    runner: Any = engine.assembled.core.runner
    decoder, ops, step = runner.decoder, engine.assembled.ops, engine.assembled.config.chunk
    spec, sizes = decoder.spec, [step] * (tokens // step) + [tokens % step]

    def rows(n: int, width: int) -> torch.Tensor:
        return torch.randn(n, width).to(ops.dtype)

    given = [
        (rows(n, spec.hidden_size), rows(n, spec.heads * spec.head_dim), torch.zeros(n, spec.hidden_size)) for n in sizes if n
    ]

    def run() -> None:
        for h, mixed, x in given:
            for block in decoder.blocks:
                ops.linear(h, block.qkv)
                ops.linear_add_(x, mixed, block.o)
                ops.linear_add_(x, ops.glu(h, block.gate_up, spec.activation), block.down)

    return run


def compare(name: str, prompts: list[list[int]], engine: wh.Engine, hf: Callable[..., np.ndarray], rounds: int) -> None:
    tokens = sum(map(len, prompts))

    def ours() -> np.ndarray:
        engine.flush_cache()
        return engine.extract(prompts)

    engine.extract(prompts[::4])
    hf(prompts[:8], 8)
    ones, eights = common.seconds(lambda: hf(prompts[::4], 1)), common.seconds(lambda: hf(prompts[::4], 8))
    best = 1 if ones <= eights else 8
    sides = {"transformers": lambda: hf(prompts, best), "wellhead": ours}
    if name == "distinct":
        sides["linears"] = linears(engine, tokens)
    times = common.alternate(sides, rounds)
    ours_rate, hf_rate = (tokens / statistics.median(times[side]) for side in ("wellhead", "transformers"))
    a, b = ours(), hf(prompts, best)
    cosine = ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min()
    print(
        f"{name:16} {len(prompts)} prompts, {tokens} tokens | transformers (batch {best}) {hf_rate:,.0f} tok/s"
        f" | wellhead {ours_rate:,.0f} tok/s | ratio {common.ratio(times, 'transformers', 'wellhead'):.2f}"
        f" | lowest cosine between the two {cosine:.5f}",
        flush=True,
    )
    if "linears" in times:
        print(f"{'':16} of what its linear layers alone reach: {common.ratio(times, 'linears', 'wellhead'):.1%}", flush=True)


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--only", choices=["distinct", "shared"])
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    print(common.machine())
    print(common.ceiling_line(args.dtype), flush=True)
    vocab = common.vocab_size(folder)
    hf = transformers_side(folder, args.dtype)
    with wh.Engine(str(folder), skip_tokenizer_init=True, dtype=args.dtype, max_total_tokens=32768) as engine:
        print(f"model {args.model}, kernels {engine.info()['kernels']}")
        if args.only != "shared":
            compare("distinct", common.distinct_prompts(args.prompts, vocab), engine, hf, args.rounds)
        if args.only != "distinct":
            compare("shared prefix", common.shared_prompts(args.prompts, vocab), engine, hf, args.rounds)


if __name__ == "__main__":
    main()
