"""What capture costs: prompts with one token drawn, under each mode alone and under all of them in one batch.

    python bench/modes.py                # Qwen3-0.6B's shape, random weights

One engine with the ceiling at full, and one with the ceiling off: the price of the ceiling itself shows between the two.
"""

from __future__ import annotations

import statistics
from typing import Any

import common

import wellhead as wh

CYCLE: list[Any] = [False, "last", True]


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, default=24)
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    print(common.machine(), flush=True)
    prompts = common.distinct_prompts(args.prompts, common.vocab_size(folder), 32, 256)
    tokens = sum(map(len, prompts))
    options = {"skip_tokenizer_init": True, "dtype": args.dtype, "max_total_tokens": 16384}
    params = {"max_new_tokens": 1, "temperature": 0}

    def run(engine: wh.Engine, modes: list[Any]) -> None:
        engine.flush_cache()
        engine.generate(input_ids=prompts, sampling_params=params, return_hidden_states=modes)

    with (
        wh.Engine(str(folder), return_hidden_states_mode="off", **options) as off,
        wh.Engine(str(folder), return_hidden_states_mode="last", **options) as last,
        wh.Engine(str(folder), return_hidden_states_mode="full", **options) as full,
    ):
        count = len(prompts)
        sides = {
            "none": lambda: run(off, [False] * count),
            "last": lambda: run(last, ["last"] * count),
            "none, ceiling full": lambda: run(full, [False] * count),
            "last, ceiling full": lambda: run(full, ["last"] * count),
            "full": lambda: run(full, [True] * count),
            "mixed": lambda: run(full, [CYCLE[i % 3] for i in range(count)]),
        }
        for side in sides.values():
            side()
        times = common.alternate(sides, args.rounds)
    for name in sides:
        print(
            f"{name:20} {tokens / statistics.median(times[name]):8,.0f} tok/s | over none {common.ratio(times, name, 'none'):.3f}"
        )
    print(f"mixed over full {common.ratio(times, 'mixed', 'full'):.3f}")


if __name__ == "__main__":
    main()
