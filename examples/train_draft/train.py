"""A draft for speculative decoding, made with the engine itself: write, extract, train, serve.

    python examples/train_draft/train.py                        # the demo's model, 17 minutes on two cores
    python examples/train_draft/train.py --model-path DIR --texts lines.txt --out my-draft

1. The model answers questions about film reviews (or about the lines of ``--texts``): a draft has to know its own words.
2. ``wellhead extract --mode full`` gives every row of these texts, of the three layers that the draft reads and the final one.
3. One layer learns to say what the model says next (EAGLE3), several tokens ahead from its own states, as it is used.
4. The engine decodes with it and without, on questions about other reviews, and says what it gains.

A step whose result lies in ``--out`` is not done again; an ``--out`` that was begun with other options is refused.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import texts
import torch
from draft import Draft, write_config
from texts import Example
from torch.nn import functional as F

import wellhead as wh
from wellhead.models.eagle_files import EagleSpec, eagle_spec
from wellhead.models.locate import load_spec, locate
from wellhead.models.names import EMBEDDING, HEAD
from wellhead.models.spec import ModelSpec
from wellhead.models.weights import open_weights
from wellhead.requests.tokenizer import Tokenizer

HELD_OUT = 16


def batches(examples: list[Example], size: int, seed: int) -> Iterator[list[Example]]:
    """Texts of similar lengths, in random order."""
    order = sorted(examples, key=lambda e: len(e.ids))
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    np.random.default_rng(seed).shuffle(groups)
    yield from groups


def losses(
    draft: Draft, batch: list[Example], embedding: torch.Tensor, head: torch.Tensor, ahead: int
) -> tuple[torch.Tensor, list[float]]:
    """The loss, and for each draft of a chain how often it is the target's most likely token.

    ``head``: the target's, for the draft's vocabulary. What is learned is the target's distribution over it, at the positions
    where the model itself wrote the next token; a draft further ahead, which counts only if those before it stand, weighs less.
    """
    pad = torch.nn.utils.rnn.pad_sequence
    ids, features, final = (pad([getattr(e, x) for e in batch], batch_first=True) for x in ("ids", "features", "final"))
    lengths, prompts = (torch.tensor([[n] for n in ns]) for ns in ([len(e.ids) for e in batch], [e.prompt for e in batch]))
    starts = ids.shape[1] - ahead
    told = draft(features[:, :starts], [F.embedding(ids[:, s + 1 : s + 1 + starts], embedding) for s in range(ahead)])
    total, agreed = torch.zeros(()), []
    for s, logits in enumerate(told):
        row = torch.arange(starts)[None] + 1 + s
        counts = (row >= prompts - 1) & (row < lengths)
        with torch.no_grad():
            wanted = (final[:, 1 + s : 1 + s + starts][counts] @ head.T).float().softmax(-1)
        mine = logits[counts].float()
        total = total + 0.8**s * F.cross_entropy(mine, wanted)
        agreed.append((mine.argmax(-1) == wanted.argmax(-1)).float().mean().item())
    return total, agreed


def train(draft: Draft, examples: list[Example], embedding: torch.Tensor, head: torch.Tensor, args: argparse.Namespace) -> None:
    """Some epochs, each kept in ``training.pt``: an interrupted run goes on after the last whole one."""
    optimizer = torch.optim.AdamW(draft.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    total = args.epochs * math.ceil(len(examples) / args.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=total + 1, pct_start=0.1)
    parts, kept, first = {"draft": draft, "optimizer": optimizer, "schedule": schedule}, args.out / "training.pt", 0
    if kept.exists():
        state = torch.load(kept)
        first = state.pop("epoch")
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for epoch in range(first, args.epochs):
        started, recent = time.perf_counter(), []
        for batch in batches(examples, args.batch, epoch):
            with torch.autocast("cpu", torch.bfloat16, enabled=head.dtype is torch.bfloat16):
                loss, agreed = losses(draft, batch, embedding, head, args.ahead)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            recent.append((loss.item(), *agreed))
        loss_mean, *means = np.mean(recent, axis=0)
        same = " ".join(f"{mean:.3f}" for mean in means)
        print(f"  epoch {epoch + 1}: loss {loss_mean:.3f}, same token {same}, {time.perf_counter() - started:.0f} s", flush=True)
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"epoch": epoch + 1}, kept)


def make(model: str, asked: list[str], target: ModelSpec, args: argparse.Namespace) -> Path:
    """Texts, rows, draft: its folder."""
    folder, written, rows = args.out / "draft", args.out / "texts.jsonl", args.out / "rows"
    write_config(folder, target, args.vocabulary)
    spec = eagle_spec(folder, target.layers, three=True)
    if not written.exists():
        print(f"== the model answers {len(asked)} questions", flush=True)
        texts.write(model, asked, args.new, written)
    if not (rows / "manifest.jsonl").exists():
        print("== wellhead extract", flush=True)
    texts.extract(model, written, [*spec.draws_on, target.layers], target.dtype, rows)
    examples = texts.read(rows, spec.draws_on, target.layers)
    print(f"== training on {sum(len(e.ids) - e.prompt for e in examples):,} tokens of the model's own", flush=True)
    learn(model, target, spec, examples, folder, args)
    return folder


def learn(
    model: str, target: ModelSpec, spec: EagleSpec, examples: list[Example], folder: Path, args: argparse.Namespace
) -> None:
    """Train a draft whose vocabulary is what the texts use most, and save it."""
    torch.manual_seed(0)
    draft = Draft(spec, max(len(e.ids) for e in examples) + args.ahead)
    used = torch.bincount(torch.cat([e.ids for e in examples]), minlength=target.vocab_size)
    tokens = used.topk(spec.draft_vocab).indices.sort().values
    print(f"  the draft's {len(tokens)} tokens are {used[tokens].sum() / used.sum():.1%} of the texts", flush=True)
    with open_weights(locate(model), target) as weights:
        draft.begin_as(weights.spec, weights.get, tokens)
        embedding = weights.get(EMBEDDING)
        head = (embedding if weights.spec.tied_head else weights.get(HEAD))[tokens]
    dtype = examples[0].final.dtype
    train(draft, examples, embedding.float(), head.to(dtype), args)
    draft.save(folder, tokens, dtype)


def compare(model: str, draft: Path, asked: list[str], args: argparse.Namespace) -> None:
    """Plain and speculative decoding in turn, one request at a time."""
    params = {"max_new_tokens": args.new, "temperature": 0}
    options: dict[str, Any] = {"return_hidden_states_mode": "last", "max_total_tokens": 16384}
    speculative = {
        "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(draft), "speculative_num_steps": args.steps,
    }  # fmt: skip
    seconds, tokens, verified = {"plain": 0.0, "EAGLE3": 0.0}, 0, 0
    with wh.Engine(model, **options) as plain, wh.Engine(model, **options, **speculative) as fast:
        for engine in (plain, fast):
            engine.generate(asked[0], sampling_params=params)  # the first request pays for what is set up once
            engine.flush_cache()
        for prompt in asked:
            outputs = []
            for name, engine in (("plain", plain), ("EAGLE3", fast)):
                started = time.perf_counter()
                reply = engine.generate(prompt, sampling_params=params, return_hidden_states="last")
                seconds[name] += time.perf_counter() - started
                outputs.append((reply["output_ids"], reply["meta_info"]["hidden_states"].tobytes()))
            if outputs[0] != outputs[1]:
                raise SystemExit(f"speculation changed the output after {prompt!r}")
            tokens += len(reply["output_ids"]) - 1  # the prompt's own step draws the first
            verified += reply["meta_info"]["spec_verify_ct"]
    gain = seconds["plain"] / seconds["EAGLE3"]
    print(f"  plain decoding {tokens / seconds['plain']:8.1f} tokens/s")
    print(f"  with the draft {tokens / seconds['EAGLE3']:8.1f} tokens/s, {gain:.2f} x; the same tokens and hidden states")
    print(f"  acceptance length {tokens / verified:.2f} tokens per step, of at most {args.steps + 1}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", help="folder, .gguf file or hub id; Llama's kind of block (default: the demo's model)")
    parser.add_argument("--texts", type=Path, help="a file of texts, one a line (default: film reviews)")
    parser.add_argument("--out", type=Path, default=Path("draft-out"))
    parser.add_argument("--prompts", type=int, default=900)
    parser.add_argument("--words", type=int, default=48, help="words of each text that the model is asked about")
    parser.add_argument("--new", type=int, default=128, help="tokens that the model writes of each at most")
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens that the draft knows: the most common ones")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4, help="texts per training step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ahead", type=int, default=3, help="drafts of a chain, in training")
    parser.add_argument("--steps", type=int, default=3, help="drafts of a chain, when serving")
    return parser.parse_args()


def begin(model: str, args: argparse.Namespace) -> None:
    """Make ``--out``, or go on with it if it was begun with these options (``--steps`` is of serving alone)."""
    mine = {name: str(value) for name, value in vars(args).items() if name not in ("out", "steps")} | {"model_path": model}
    record = args.out / "options.json"
    args.out.mkdir(parents=True, exist_ok=True)
    if not record.exists():
        record.write_text(json.dumps(mine, indent=1))
        return
    theirs = json.loads(record.read_text())
    differ = [
        f"--{name.replace('_', '-')} {theirs.get(name)} there, {mine[name]} here"
        for name in mine
        if theirs.get(name) != mine[name]
    ]
    if differ:
        raise SystemExit(f"{args.out} was begun with other options: {'; '.join(differ)}. Take another --out")


def main() -> None:
    args = arguments()
    model = args.model_path or str(texts.assets.fetch_smollm2())
    target = load_spec(locate(model))
    if target.post_norms or target.norm_plus_one or target.embed_scale != 1.0:
        raise SystemExit(f"{target.architecture} has another kind of block than Llama's; this recipe knows no other")
    begin(model, args)
    asked = texts.prompts(Tokenizer.load(locate(model)), args.texts, args.words)[: args.prompts + HELD_OUT]
    (args.out / "held-out.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in asked[:HELD_OUT]))
    folder = args.out / "draft"
    if not (folder / "model.safetensors").exists():
        make(model, asked[HELD_OUT:], target, args)
    print(f"== decoding with {folder}, one request at a time", flush=True)
    compare(model, folder, asked[:HELD_OUT], args)


if __name__ == "__main__":
    main()
