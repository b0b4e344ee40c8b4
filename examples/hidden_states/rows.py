"""Several readings of each text from one pass: a probe's vector, the mean of the end, the rows of one word, and where they are.

python examples/hidden_states/rows.py [--model-path DIR]
"""

from __future__ import annotations

import numpy as np
from common import model_path

import wellhead as wh

TEXTS = ["The film was not bad at all.", "Water boils at 100 degrees.", "To be, or not to be"]


def main() -> None:
    layers = [-1, "L:pre_norm"]
    with wh.Engine(model_path=model_path(__doc__), return_hidden_states_mode="full", capture_layers=layers) as engine:
        reads = {
            "probe": {"rows": "last", "layers": ["L:pre_norm"]},  # what a probe on resid_post of the last block reads
            "end": {"rows": {"last": 8, "exclude": "special"}, "reduce": "mean"},
            "word": {"rows": {"chars": [0, 3]}},  # the tokens of the first three characters
        }
        found, positions = engine.extract(TEXTS, reads=reads, return_positions=True)
        print("probe:", found["probe"]["L:pre_norm"].shape)
        print("end:", found["end"].shape)
        for text, rows, at in zip(TEXTS, found["word"], positions["word"], strict=True):
            print(f"word {text[:3]!r}: rows {at.tolist()} {rows.shape}")

        # The same words while text is generated: the mean over the answer alone.
        params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
        meta = engine.generate(TEXTS[0], params, hidden_states_rows="output", hidden_states_reduce="mean")["meta_info"]
        print("answer:", meta["hidden_states"].shape, "of", len(meta["hidden_states_positions"]), "rows")

        # A read alone is the same bits.
        alone = engine.extract(TEXTS, rows={"last": 8, "exclude": "special"}, reduce="mean")
        print("alone the same:", np.array_equal(alone, found["end"]))


if __name__ == "__main__":
    main()
