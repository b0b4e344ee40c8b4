"""Start a server, ask it through the client, and see what the formats of an answer weigh.

python examples/hidden_states/server.py [--model-path DIR]
"""

from __future__ import annotations

import httpx
from common import model_path, serving

from wellhead.client import Client
from wellhead.encoding.registry import FORMATS

TEXTS = ["The capital of France is Paris.", "Water boils at 100 degrees.", "To be, or not to be."] * 8


def main() -> None:
    with serving(model_path(__doc__), "--return-hidden-states-mode", "full") as url, Client(url) as client:
        print("last:", client.extract(TEXTS).shape)
        print("full:", [rows.shape for rows in client.extract(TEXTS, "full")][:3], "...")
        out = client.generate("The capital of France is", {"max_new_tokens": 4, "temperature": 0}, return_hidden_states="last")
        print("generate:", repr(out["text"]), out["meta_info"]["hidden_states"].shape)

        print(f"\n{len(TEXTS)} last vectors in each format:")
        for media_type in FORMATS:
            for dtype in ("float32",) if media_type == "application/json" else ("float32", "bfloat16"):
                answer = httpx.post(
                    f"{url}/v1/hidden_states", json={"input": TEXTS, "dtype": dtype}, headers={"Accept": media_type}, timeout=300
                )
                answer.raise_for_status()
                print(f"  {media_type:40} {dtype:9} {len(answer.content):9,} bytes")


if __name__ == "__main__":
    main()
