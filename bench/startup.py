"""From the start of a process to its first vector, beside transformers, each in processes of its own, in turn.

    python bench/startup.py --model PATH/TO/MODEL

Also the peak memory of each process, and what ours holds beyond weights and the KV pool that was asked for.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import common

OURS = """
import json, resource, sys, time
import wellhead as wh
engine = wh.Engine(sys.argv[1], dtype=sys.argv[2], max_total_tokens=8192)
vector = engine.extract(["The first vector."])
at = time.time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
kv = engine.assembled.core.runner.kv.data
print(json.dumps({"at": at, "peak": peak, "kv": kv.nbytes, "phases": engine.info()["start_seconds"]}))
engine.shutdown()
"""
THEIRS = """
import json, resource, sys, time
import torch
from transformers import AutoModel, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModel.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[2])).eval()
with torch.inference_mode():
    vector = model(**tokenizer("The first vector.", return_tensors="pt")).last_hidden_state[0, -1].float().numpy()
print(json.dumps({"at": time.time(), "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def measure(code: str, folder: Path, dtype: str) -> dict[str, float]:
    started = time.time()
    done = subprocess.run([sys.executable, "-c", code, str(folder), dtype], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "seconds": found["at"] - started}


def main() -> None:
    parser = common.arguments(__doc__ or "")
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    print(common.machine(), flush=True)
    weights = common.weight_bytes(folder, args.dtype)
    runs: dict[str, list[dict[str, float]]] = {"transformers": [], "wellhead": []}
    for code in (THEIRS, OURS):
        measure(code, folder, args.dtype)  # files into the page cache, kernels built
    for _ in range(args.rounds):
        runs["transformers"].append(measure(THEIRS, folder, args.dtype))
        runs["wellhead"].append(measure(OURS, folder, args.dtype))
    for name, found in runs.items():
        seconds, peak = (statistics.median(run[key] for run in found) for key in ("seconds", "peak"))
        print(f"{name:12} first vector after {seconds:.2f} s, peak memory {peak / 2**20:,.0f} MiB")
    own = runs["wellhead"][-1]
    beyond = statistics.median(run["peak"] for run in runs["wellhead"]) - weights - own["kv"]
    print(f"weights {weights / 2**20:,.0f} MiB, KV pool {own['kv'] / 2**20:,.0f} MiB, beyond both {beyond / 2**20:,.0f} MiB")
    print(f"phases of the last start: {own['phases']}")


if __name__ == "__main__":
    main()
