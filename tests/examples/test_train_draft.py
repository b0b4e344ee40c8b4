"""``examples/train_draft``: from end to end at toy size, and that training sees what serving computes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.eagles import DRAFT_VOCAB, Eagle
from support.families import HIDDEN, VOCAB
from wellhead.models.eagle_files import eagle_spec
from wellhead.models.locate import load_spec

FOLDER = Path(__file__).parents[2] / "examples" / "train_draft"


def test_it_writes_extracts_trains_and_serves(family: Callable[..., Path], tmp_path: Path) -> None:
    """A random model with a tied head likes to say a token again, which its draft can learn."""
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"{i} is a number of which the model has something to say" for i in range(64)))
    command = [sys.executable, str(FOLDER / "train.py"), "--model-path", str(family("llama-tied")), "--texts", str(lines)]
    sizes = ["--prompts", "48", "--words", "3", "--new", "24", "--vocabulary", "200", "--epochs", "6", "--lr", "0.005"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *sizes, "--out", str(tmp_path / "out")],
        capture_output=True, text=True, check=False, timeout=240, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    agreed = [float(found) for found in re.findall(r"same token ([0-9.]+)", done.stdout)]
    assert len(agreed) == 6
    assert agreed[-1] > agreed[0] + 0.05
    assert "the same tokens and hidden states" in done.stdout
    length = re.search(r"acceptance length ([0-9.]+) tokens per step, of at most 4", done.stdout)
    assert length is not None
    assert float(length[1]) > 1.3
    assert load_file(tmp_path / "out" / "draft" / "model.safetensors")["lm_head.weight"].shape == (200, HIDDEN)


def test_training_drafts_as_an_independent_draft_does(
    family: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains of three, each from its own states, out of the saved file."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from draft import Draft, write_config

    target = load_spec(family("llama"))
    write_config(tmp_path, target, DRAFT_VOCAB)
    torch.manual_seed(1)
    draft = Draft(eagle_spec(tmp_path, target.layers, three=True), 40)
    for parameter in draft.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.2)
    tokens = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    draft.save(tmp_path, tokens, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    oracle = Eagle(True, load_file(tmp_path / "model.safetensors"), config)
    embedding, ids = torch.randn(VOCAB, HIDDEN), torch.randint(0, VOCAB, (32,)).tolist()
    layers = [torch.randn(31, HIDDEN) for _ in range(3)]
    said = set()
    for length in (1, 2, 9, 31):
        drafts = oracle.chain([rows[:length] for rows in layers], ids[: length + 1], embedding, embedding, 3)
        known = torch.tensor(ids[: length + 1] + drafts)
        features = torch.cat([rows[:length] for rows in layers], dim=-1)[None]
        told = draft(features, [embedding[known[1 + s : 1 + s + length]][None] for s in range(3)])
        assert [int(tokens[logits[0, -1].argmax()]) for logits in told] == drafts
        said |= set(drafts)
    assert len(said) > 6, "a draft that always says the same would agree as well"


def test_an_out_of_other_options_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import train

    def begin(*options: str, model: str = "a-model") -> None:
        monkeypatch.setattr(sys, "argv", ["train.py", "--out", str(tmp_path / "out"), *options])
        train.begin(model, train.arguments())

    begin("--epochs", "2")
    begin("--epochs", "2", "--steps", "5")
    with pytest.raises(SystemExit, match=r"--epochs 2 there, 3 here; --lr 0\.001 there, 0\.01 here"):
        begin("--epochs", "3", "--lr", "0.01")
    with pytest.raises(SystemExit, match="--model-path a-model there, b-model here"):
        begin("--epochs", "2", model="b-model")


def test_it_is_listed() -> None:
    assert "train_draft/train.py" in (FOLDER.parent / "README.md").read_text(encoding="utf-8")
