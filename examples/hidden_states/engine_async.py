"""The same for coroutines: requests at the same time, one of them as a stream.

python examples/hidden_states/engine_async.py [--model-path DIR]
"""

from __future__ import annotations

import asyncio

from common import model_path

import wellhead as wh

PARAMS = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}


async def last_state(engine: wh.Engine, prompt: str) -> None:
    out = await engine.async_generate(prompt, PARAMS, return_hidden_states="last")
    print(f"{prompt!r}: {out['text']!r}, state {out['meta_info']['hidden_states'].shape}")


async def stream(engine: wh.Engine, prompt: str) -> None:
    """Each event carries only the states that are new since the one before it."""
    events = await engine.async_generate(prompt, PARAMS, return_hidden_states=True, stream=True, incremental_hidden_states=True)
    async for event in events:
        entries = event["meta_info"].get("hidden_states", [])
        print(f"stream: {event['text']!r}, new states {[e.shape for e in entries]}")


async def main() -> None:
    with wh.Engine(model_path=model_path(__doc__), return_hidden_states_mode="full") as engine:
        await asyncio.gather(
            last_state(engine, "The capital of France is"),
            last_state(engine, "Water boils at"),
            stream(engine, "Once upon a time"),
        )


if __name__ == "__main__":
    asyncio.run(main())
