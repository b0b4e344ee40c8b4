"""What the benchmarks share: models of a known shape, prompts, alternating timings, and a word about the machine."""

from __future__ import annotations

import argparse
import bz2
import csv
import io
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
        "rope_theta": 1e6, "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096,
        "rope_theta": 1e6, "tie_word_embeddings": True,
    },
}  # fmt: skip


def fast_dtype(flags: Collection[str] | None = None, limit: str | None = None) -> str:
    """The dtype in which this processor multiplies fastest: ``bfloat16`` where it has instructions for it, else ``float32``.

    Elsewhere libraries imitate bfloat16, at a fraction of float32's rate, so that neither a peer nor a ceiling in it says
    anything. ``flags``: as in ``/proc/cpuinfo``; ``limit``: what ``ONEDNN_MAX_CPU_ISA`` leaves of them (tests give both).
    """
    flags = cpu_flags() if flags is None else flags
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA", "") if limit is None else limit).upper()
    if limit in ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"):
        return "float32"
    return "bfloat16" if {"amx_bf16", "avx512_bf16", "bf16"}.intersection(flags) else "float32"


def torch_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def cpu_flags() -> set[str]:
    """Of the first processor; none where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), []))


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--model", default="qwen3-0.6b", help=f"a shape with random weights ({', '.join(SHAPES)}) or a model folder"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--dtype", default=fast_dtype(), choices=("float32", "bfloat16", "float16"),
        help="of all sides; default: what this processor multiplies fastest, %(default)s",
    )  # fmt: skip
    return parser


def film_reviews() -> list[dict[str, str]]:
    """The rows of the demo's reviews that have a text: ``text``, ``category`` (fresh or rotten) and more."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
    import assets

    with bz2.open(assets.fetch_rotten_tomatoes()) as file:
        return [row for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")) if row["text"].strip()]


def model_folder(name: str) -> Path:
    """A Hugging Face folder: the one named, or one with random weights of a known shape, made once."""
    if name not in SHAPES:
        return Path(name)
    folder = Path(tempfile.gettempdir()) / f"wellhead-bench-{name}"
    if (folder / "model.safetensors").is_file():
        return folder
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPES[name])).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def vocab_size(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def distinct_prompts(count: int, vocab: int, low: int = 32, high: int = 512, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(10, vocab, int(n)).tolist() for n in np.linspace(low, high, count).round()]


def shared_prompts(count: int, vocab: int, shared: int = 256, low: int = 32, high: int = 96, seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    prefix = rng.integers(10, vocab, shared).tolist()
    return [prefix + rng.integers(10, vocab, int(n)).tolist() for n in np.linspace(low, high, count).round()]


def seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def alternate(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Time the sides in turn, ``rounds`` times."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            times[name].append(seconds(run))
    return times


def ratio(times: dict[str, list[float]], slow: str, fast: str) -> float:
    """Median over rounds of the time of ``slow`` over that of ``fast``."""
    return statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True))


def matmul_ceiling(dtype: str, size: int = 2048, repeats: int = 5) -> float:
    """The machine's own best matrix rate, GFLOP/s, as torch reaches it."""
    a, b = (torch.randn(size, size).to(torch_dtype(dtype)) for _ in range(2))
    a @ b
    return 2 * size**3 / min(seconds(lambda: a @ b) for _ in range(repeats)) / 1e9


def ceiling_line(dtype: str) -> str:
    return f"matrix-multiply ceiling, {dtype} 2048^3: {matmul_ceiling(dtype):,.0f} GFLOP/s"


def weight_bytes(folder: Path, dtype: str) -> int:
    """Of a folder's weights when they are held in ``dtype``."""
    count = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            count += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118 (not a dict)
    return count * torch_dtype(dtype).itemsize


def machine() -> str:
    """Processor, cores, load: a number is worth something only with these."""
    cpu = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    present = cpu_flags()
    flags = "amx" if "amx_bf16" in present else "avx512-bf16" if "avx512_bf16" in present else "no bf16 instructions"
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    return f"{cpu} ({flags}), {os.cpu_count()} cores, {threads} threads, load {load:.2f}, torch {torch.__version__}"
