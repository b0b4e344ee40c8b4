"""Hidden states without a server: one engine, and a batch in which every prompt wants something else.

python examples/hidden_states/engine.py [--model-path DIR]
"""

from __future__ import annotations

from common import model_path

import wellhead as wh

PROMPTS = ["The capital of France is", "Water boils at", "To be, or not to be"]


def main() -> None:
    with wh.Engine(model_path=model_path(__doc__), return_hidden_states_mode="full") as engine:
        # Vectors of texts, nothing generated.
        print("last:", engine.extract(PROMPTS).shape)
        print("mean:", engine.extract(PROMPTS, "mean").shape)
        print("full:", [rows.shape for rows in engine.extract(PROMPTS, "full")])

        # Generation, with a mode for each prompt: none, the last state, all of them.
        params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
        for out in engine.generate(PROMPTS, params, return_hidden_states=[False, "last", True]):
            states = out["meta_info"].get("hidden_states")
            shown = None if states is None else [e.shape for e in states] if isinstance(states, list) else states.shape
            print(repr(out["text"]), "->", shown)


if __name__ == "__main__":
    main()
