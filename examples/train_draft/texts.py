"""What the draft learns from: the model's own answers, and the rows behind them as ``wellhead extract`` gives them."""

from __future__ import annotations

import bz2
import csv
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

import wellhead as wh
from wellhead.requests.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[1]))
import assets

ASKS = (
    "What did the critic think of this film?",
    "Write a short, friendly reply to this review.",
    "Explain in simple words what this film is about.",
    "Write an advertisement for this film.",
    "What could happen in a second part of this film?",
    "Write a letter to the director of this film.",
    "For whom is this film, and why?",
    "Make a list of the strengths and weaknesses of this film.",
)


@dataclass(frozen=True)
class Example:
    """One text. ``ids`` int64 ``[T]``, the first ``prompt`` of them not the model's own; ``features`` ``[T, 3H]``: the rows that
    the draft reads; ``final`` ``[T, H]``: the rows behind the target's own choice."""

    ids: torch.Tensor
    prompt: int
    features: torch.Tensor
    final: torch.Tensor


def prompts(tokenizer: Tokenizer, file: Path | None, words: int) -> list[str]:
    """A question about each of many film reviews (or the lines of ``file``), in an order that does not change.

    For a model without a chat template: the first words of the text, to be continued.
    """
    if file is not None:
        lines = file.read_text(encoding="utf-8").split("\n")
    else:
        with bz2.open(assets.fetch_rotten_tomatoes()) as packed:
            lines = [row["text"] for row in csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8"))]
    texts = list(dict.fromkeys(" ".join(line.split()[:words]) for line in lines if line.strip()))
    np.random.default_rng(0).shuffle(texts)
    if not tokenizer.has_chat_template:
        return texts
    asked = (f"{ASKS[i % len(ASKS)]}\n\n{text}" for i, text in enumerate(texts))
    return [tokenizer.apply_chat_template([{"role": "user", "content": question}]) for question in asked]


def write(model: str, asked: list[str], new: int, path: Path) -> None:
    """The model's answers, half of them greedy and half drawn, with their prompts, as JSON lines."""
    params = [
        {"max_new_tokens": new, "temperature": 0.8 * (i % 2), "sampling_seed": i, "skip_special_tokens": False}
        for i in range(len(asked))
    ]
    with wh.Engine(model, return_hidden_states_mode="off", max_running_requests=64) as engine:
        replies = engine.generate(asked, sampling_params=params)
    with path.open("w", encoding="utf-8") as file:
        for prompt, reply in zip(asked, replies, strict=True):
            line = {"text": prompt + reply["text"], "prompt_tokens": reply["meta_info"]["prompt_tokens"]}
            file.write(json.dumps(line) + "\n")


def extract(model: str, texts: Path, layers: list[int], dtype: str, out: Path) -> None:
    """Every row of every text, of these layers. Takes up where an interrupted run stopped."""
    command = [
        sys.executable, "-m", "wellhead.frontends.cli", "extract", "--model-path", model, "--input", str(texts),
        "--output", str(out), "--mode", "full", "--layers", *map(str, layers), "--output-dtype", dtype,
        "--format", "safetensors", "--save-token-ids", "--carry", "prompt_tokens:int64", "--strict",
    ]  # fmt: skip
    subprocess.run(command, check=True)


def read(rows: Path, reads: tuple[int, ...], final: int) -> list[Example]:
    """What ``extract`` has written."""
    examples = []
    for part in sorted((rows / "data").glob("part-*.safetensors")):
        tensors = load_file(part)
        beside = pq.read_table(part.with_suffix(".rows.parquet")).to_pydict()
        offsets = tensors[f"layer_{final}.offsets"].tolist()
        for i, (ids, prompt) in enumerate(zip(beside["token_ids"], beside["prompt_tokens"], strict=True)):
            span = slice(offsets[i], offsets[i + 1])
            features = torch.cat([tensors[f"layer_{layer}"][span] for layer in reads], dim=-1)
            examples.append(Example(torch.tensor(ids), prompt, features, tensors[f"layer_{final}"][span]))
    return examples
