"""A pool of actors beside one plain process; prefix routing beside random routing.

    python bench/ray_extract.py --model PATH/TO/MODEL --rows 1200       # extraction: one process, then two actors, in turn
    python bench/ray_extract.py --model PATH/TO/MODEL --only routing    # cached prompt tokens and seconds under each policy
    python bench/ray_extract.py --model PATH/TO/MODEL --only front      # one small request; when a second replica helps

Extraction is timed inside the command, from the first row to the last commit, so that neither side pays for starting: the
engine of the plain side is made once, and the pool's actors are up before the clock starts.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import common
import httpx

import bulk as bulk_bench
import wellhead as wh
from wellhead.frontends.bulk import run as bulk
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.work.pool import open_pool
from wellhead.frontends.bulk.work.sources import Local
from wellhead.frontends.cli import build_parser
from wellhead.frontends.cluster import connected

QUESTIONS = ["Is it good?", "Is it long?", "Who plays in it?", "What is it about?", "Would you see it again?", "Is it sad?"]


def extraction(args: argparse.Namespace, scratch: Path) -> None:
    texts = bulk_bench.reviews(args.rows)
    source = bulk_bench.write(scratch / "in.jsonl", texts)
    fixed = ["extract", "--model-path", args.model, "--input", str(source), "--dtype", args.dtype, "--overwrite"]
    fixed.append("--disable-radix-cache")  # a second round would find the first one's prompts in the actors
    commands = {
        "plain": [*fixed, "--output", str(scratch / "plain")],
        "ray": [*fixed, "--output", str(scratch / "ray"), "--ray", "local", "--ray-actors", str(args.actors)],
    }
    options = {side: Options.from_args(build_parser().parse_args(command)) for side, command in commands.items()}
    with ExitStack() as held:
        engine = held.enter_context(wh.Engine(args.model, dtype=args.dtype, disable_radix_cache=True))
        pool = held.enter_context(open_pool(options["ray"]))
        while not all(place.up for place in pool._places):
            pool._wait()

        @contextmanager
        def ready(asked: Options) -> Iterator[Any]:
            yield pool if asked.ray is not None else Local(engine, asked)

        def side(name: str) -> None:
            assert bulk.run(build_parser().parse_args(commands[name])) == 0

        bulk.open_source = ready
        for name in commands:
            side(name)  # warm
        times = common.alternate({name: lambda name=name: side(name) for name in commands}, args.rounds)
        spent = time.process_time()
        side("ray")
        spent = time.process_time() - spent
    same = contents(scratch / "plain") == contents(scratch / "ray")
    size = sum(p.stat().st_size for p in (scratch / "ray").rglob("*") if p.is_file())
    rates = {name: len(texts) / statistics.median(t) for name, t in times.items()}
    print(
        f"{len(texts)} rows | plain {rates['plain']:.1f} rows/s | {args.actors} actors {rates['ray']:.1f} rows/s | Ray costs"
        f" {common.ratio(times, 'ray', 'plain') - 1:+.1%} | same bytes: {same} | {size / len(texts):,.0f} bytes a row"
        f" | the driver spends {spent / len(texts) * 1e6:.0f} us of CPU a row",
        flush=True,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@contextmanager
def served(args: argparse.Namespace, **scale: Any) -> Iterator[httpx.Client]:
    """A client of replicas on the cluster that this process is connected to."""
    from wellhead.frontends.http.options import ServerOptions
    from wellhead.frontends.scale.options import ScaleOptions
    from wellhead.frontends.scale.serve import Deployed

    deployed = Deployed({"model_path": args.model, "dtype": args.dtype}, ServerOptions(port=0), ScaleOptions(**scale))
    try:
        deployed.deploy()
        with httpx.Client(base_url=deployed.address, timeout=120) as client:
            yield client
    finally:
        deployed.close()


def routing(args: argparse.Namespace) -> None:
    """Documents with several questions each, in a random order, four clients."""
    reviews = bulk_bench.reviews(args.documents * 5)
    documents = [" ".join(reviews[i :: args.documents]) for i in range(args.documents)]
    prompts = [f"{document}\n{question}" for document in documents for question in QUESTIONS]
    random.Random(1).shuffle(prompts)
    with connected("local"):
        for policy in ("random", "prefix"):
            with served(args, replicas=2, routing_policy=policy) as client:
                ask = _asker(client)
                for k in range(8):
                    ask(f"{k} warms up")
                started = time.perf_counter()
                with ThreadPoolExecutor(4) as pool:
                    results = list(pool.map(ask, prompts))
                seconds = time.perf_counter() - started
            cached, tokens = (sum(column) for column in zip(*results, strict=True))
            print(
                f"{policy}: {cached / tokens:.1%} of {tokens:,} prompt tokens cached, {len(prompts)} requests in {seconds:.1f} s",
                flush=True,
            )


def front(args: argparse.Namespace) -> None:
    """One client and one small request at a time, then six clients until a second replica has answered one of them."""
    with connected("local"), served(args, replicas=1, max_replicas=2, target_ongoing_requests=1) as client:

        def generate(number: int, tokens: int) -> str:
            sampling = {"max_new_tokens": tokens, "ignore_eos": True}
            answer = client.post("/generate", json={"text": f"story {number}", "sampling_params": sampling})
            return str(answer.raise_for_status().headers["x-wellhead-replica"])

        for name, call in {
            "/v1/models": lambda _: client.get("/v1/models").raise_for_status(),
            "one generated token": lambda number: generate(number, 1),
        }.items():
            times = [common.seconds(lambda number=number, call=call: call(number)) for number in range(60)]
            print(f"{name}: median {statistics.median(times) * 1e3:.1f} ms", flush=True)
        started, seen, sent = time.perf_counter(), set[str](), 0
        with ThreadPoolExecutor(6) as pool:
            while len(seen) < 2 and time.perf_counter() - started < 180:
                seen.update(pool.map(lambda number: generate(number, 64), range(sent, sent + 6)))
                sent += 6
        seconds = time.perf_counter() - started
        print(f"six clients: {len(seen)} replicas have answered after {seconds:.0f} s, {sent} requests, none failed")


def _asker(client: httpx.Client) -> Any:
    def ask(prompt: str) -> tuple[int, int]:
        answer = client.post(
            "/generate", json={"text": prompt, "sampling_params": {"max_new_tokens": 0}, "return_hidden_states": "last"}
        )
        meta = answer.raise_for_status().json()["meta_info"]
        return meta["cached_tokens"], meta["prompt_tokens"]

    return ask


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, default=1200)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--only", choices=["extraction", "routing", "front"])
    args = parser.parse_args()
    args.model = str(common.model_folder(args.model))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    print(common.machine(), flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="wellhead-ray-"))
    try:
        if args.only in (None, "extraction"):
            extraction(args, scratch)
        if args.only in (None, "routing"):
            routing(args)
        if args.only in (None, "front"):
            front(args)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
