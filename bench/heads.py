"""What heads cost in the pass that makes the rows: decoding at batch 1 and 8 with one head and with sixteen on every generated
token, and prompts with a head on the last row of each; beside rows that go to the caller and are scored there.

    python bench/heads.py                # Qwen3-0.6B's shape, random weights
    python bench/heads.py --model ...    # another folder or file
"""

from __future__ import annotations

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np

import wellhead as wh

HEADS = 16


def random_heads(count: int, layer: int, width: int, folder: Path) -> list[str]:
    """Head files of two labels each, with random weights."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(count):
        tensors = {"weight": rng.normal(size=(1, width)) / width, "bias": rng.normal(size=1)}
        head = wh.Head(
            name=f"h{i}", kind="linear", layers=(layer,), width=width, labels=("no", "yes"), activation="sigmoid", tensors=tensors
        )
        paths.append(str(head.save(folder / f"h{i}.head")))
    return paths


def outside(rows: Any, head: wh.Head) -> None:
    """What a caller does with rows: here with our own products, which leaves out the time of a second program."""
    head.probabilities(head.scores(np.atleast_2d(rows)))


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--new", type=int, default=64, help="tokens to generate")
    args = parser.parse_args()
    model = common.model_folder(args.model)
    print(common.machine(), flush=True)
    options = {"skip_tokenizer_init": True, "dtype": args.dtype, "max_total_tokens": 16384}
    with wh.Engine(str(model), **options) as probe:
        layer, width, vocab = probe.resolved.layers // 2, probe.hidden_size, probe.vocab_size
    prompts = common.distinct_prompts(args.prompts, vocab, 32, 256)
    params = {"max_new_tokens": args.new, "temperature": 0, "ignore_eos": True}
    with (
        tempfile.TemporaryDirectory() as folder,
        wh.Engine(str(model), heads=random_heads(HEADS, layer, width, Path(folder)), capture_layers=[layer], **options) as engine,
    ):
        names = list(engine.heads)
        first = engine.heads["h0"]

        def decode(batch: int, **wish: Any) -> Any:
            return engine.generate(input_ids=prompts[:batch], sampling_params=params, **wish)

        def decode_outside(batch: int) -> None:
            for reply in decode(batch, hidden_states_rows="output"):
                outside(reply["meta_info"]["hidden_states"], first)

        def read(**wish: Any) -> Any:
            engine.flush_cache()
            return engine.extract(prompts, **wish)

        def read_outside() -> None:
            outside(read(layers=[layer])[layer], first)

        for batch in (1, 8):
            sides = {
                "no head": partial(decode, batch),
                "one head": partial(decode, batch, heads={"h0": {"on": "output"}}),
                "sixteen heads": partial(decode, batch, heads={name: {"on": "output"} for name in names}),
                "rows outside": partial(decode_outside, batch),
            }
            show(sides, f"decoding, batch {batch}", batch * args.new, args.rounds, "no head")
        tokens = sum(map(len, prompts))
        sides = {
            "rows": partial(read, layers=[layer]),
            "one head": partial(read, heads=["h0"]),
            "sixteen heads": partial(read, heads=names),
            "rows outside": read_outside,
        }
        show(sides, "prompts", tokens, args.rounds, "rows")


def show(sides: dict[str, Any], what: str, tokens: int, rounds: int, base: str) -> None:
    """Time the sides in turn; tokens a second, and the time over that of ``base``."""
    for side in sides.values():
        side()
    times = common.alternate(sides, rounds)
    for name in sides:
        rate = tokens / statistics.median(times[name])
        print(f"{what}: {name:14} {rate:8,.1f} tok/s | over {base} {common.ratio(times, name, base):.3f}", flush=True)


if __name__ == "__main__":
    main()
