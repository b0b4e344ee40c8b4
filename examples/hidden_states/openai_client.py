"""OpenAI's own client: hidden states come as an extra field of each choice; embeddings as they always do.

pip install openai
python examples/hidden_states/openai_client.py [--model-path DIR]
"""

from __future__ import annotations

import openai
from common import model_path, serving


def main() -> None:
    with serving(model_path(__doc__), "--return-hidden-states-mode", "full") as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            done = client.completions.create(
                model="default",
                prompt="The capital of France is",
                max_tokens=4,
                temperature=0,
                extra_body={"return_hidden_states": "last"},
            )
            state = (done.choices[0].model_extra or {})["hidden_states"]
            print(f"completion: {done.choices[0].text!r}, state of {len(state)} numbers, usage {done.usage.total_tokens}")

            made = client.embeddings.create(model="default", input=["one text", "another"])
            print(f"embeddings: {len(made.data)} of {len(made.data[0].embedding)} numbers")


if __name__ == "__main__":
    main()
