"""One process against several that share the model: tokens per second of extraction and of decoding, threads in all the same.

    python bench/parallel.py                     # --sizes 1 2, Qwen3-0.6B's shape

The sides run one after the other: the kernels' threads belong to the process, so two engines of one process would share them.
"""

from __future__ import annotations

import statistics
from typing import Any

import common

import wellhead as wh


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=48, help="prompt tokens, and new tokens, of decoding")
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    print(common.machine())
    vocab = common.vocab_size(folder)
    prompts = common.distinct_prompts(args.prompts, vocab)
    for size in args.sizes:
        options: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": args.dtype, "max_total_tokens": 16384}
        with wh.Engine(str(folder), tp_size=size, **options) as engine:
            line = f"tp_size {size}: loaded in {sum(engine.info()['start_seconds'].values()):.1f} s"
            engine.extract(prompts[:2])
            seconds = [timed_extract(engine, prompts) for _ in range(args.rounds)]
            line += f" | extract {sum(map(len, prompts)) / statistics.median(seconds):,.0f} tok/s"
            for batch in args.batches:
                ids = common.distinct_prompts(batch, vocab, args.tokens, args.tokens, seed=batch)
                seconds = [timed_decode(engine, ids, args.tokens) for _ in range(args.rounds)]
                line += f" | decode, batch {batch}: {batch * (args.tokens - 1) / statistics.median(seconds):,.1f} tok/s"
        print(line, flush=True)


def timed_extract(engine: wh.Engine, prompts: list[list[int]]) -> float:
    engine.flush_cache()
    return common.seconds(lambda: engine.extract(prompts))


def timed_decode(engine: wh.Engine, ids: list[list[int]], new: int) -> float:
    """Seconds of the new tokens after the first: the prompts' own time is taken off."""
    engine.flush_cache()
    first = common.seconds(lambda: generate(engine, ids, 1))
    engine.flush_cache()
    return common.seconds(lambda: generate(engine, ids, new)) - first


def generate(engine: wh.Engine, ids: list[list[int]], new: int) -> Any:
    return engine.generate(input_ids=ids, sampling_params={"max_new_tokens": new, "temperature": 0, "ignore_eos": True})


if __name__ == "__main__":
    main()
