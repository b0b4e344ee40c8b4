"""What an answer of hidden states costs on its way: bytes, encode, loopback, decode to float32 arrays, format by format.

    python bench/transport.py                      # 64 texts of 512 rows, 1024 wide
    python bench/transport.py --texts 8 --rounds 5
    python bench/transport.py --no-plain           # without json.dumps(tensor.tolist()), which takes most of the time

The rows are there beforehand: no model runs. The server is a process of its own and encodes on its workers, piece by piece,
as ``wellhead serve`` does. A third process asks for one small answer after another meanwhile and notes how long each took.
Sides take turns; each number is the median over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json as plain_json
import multiprocessing as mp
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import common
import httpx
import numpy as np
import orjson

from wellhead.encoding import arrow, base64, json, npy, safetensors
from wellhead.encoding.vectors import Vectors
from wellhead.types import DType, HiddenStates, narrow

SGLANG = "SGLang-shaped JSON"


@dataclass(frozen=True)
class Side:
    """``encode``: vectors -> pieces, run by the server; ``decode``: the body -> float32 arrays, run by the client."""

    encode: Callable[[Vectors], Iterator[bytes]]
    decode: Callable[[bytearray], list[Any]]


def made(texts: int, rows: int, width: int, dtype: DType) -> Vectors:
    rng = np.random.default_rng(0)
    states = []
    for _ in range(texts):
        array = narrow(rng.standard_normal((rows, width), np.float32), dtype)
        states.append(HiddenStates(dtype, (28,), (array,), np.arange(rows), rows, total_rows=rows, sglang=True))
    return Vectors(tuple(states), (None,), dtype, True, {"prompt_tokens": [rows] * texts})


def one_text(vectors: Vectors) -> Vectors:
    """The same rows as those of a single text: ``.npy`` holds one array."""
    rows = np.concatenate([s.arrays[0] for s in vectors.states])
    whole = HiddenStates(vectors.dtype, (28,), (rows,), np.arange(len(rows)), len(rows), total_rows=len(rows), sglang=True)
    return Vectors((whole,), (None,), vectors.dtype, True, {"prompt_tokens": [len(rows)]})


def sglang_value(vectors: Vectors, show: Callable[[HiddenStates], Any]) -> list[Any]:
    """The replies of ``/generate`` to a batch, as far as hidden states go."""
    return [{"text": "", "output_ids": [], "meta_info": {"hidden_states": show(s)}} for s in vectors.states]


def sglang_decode(body: bytearray) -> list[Any]:
    return [[np.array(e, np.float32) for e in one["meta_info"]["hidden_states"]] for one in orjson.loads(body)]


def plain_encode(vectors: Vectors) -> Iterator[bytes]:
    yield plain_json.dumps([s.numpy().tolist() for s in vectors.states]).encode()


def arrays(decode: Callable[[memoryview], Vectors]) -> Callable[[bytearray], list[Any]]:
    return lambda body: [s.numpy() for s in decode(memoryview(body)).states]


def sides(plain: bool) -> dict[str, Side]:
    def light(vectors: Vectors) -> Iterator[bytes]:
        return json.chunks(sglang_value(vectors, base64.encode))

    def from_light(body: bytearray) -> list[Any]:
        return [base64.entries(one["meta_info"]["hidden_states"]) for one in orjson.loads(body)]

    found = {
        "json.dumps(tensor.tolist())": Side(plain_encode, lambda b: [np.array(m, np.float32) for m in plain_json.loads(b)]),
        SGLANG: Side(lambda v: json.chunks(sglang_value(v, HiddenStates.entries)), sglang_decode),
        "the same in base64": Side(light, from_light),
        "safetensors": Side(lambda v: safetensors.encode(v)[1], arrays(safetensors.decode)),
        "safetensors bfloat16": Side(lambda v: safetensors.encode(v)[1], arrays(safetensors.decode)),
        "npy (one text)": Side(lambda v: npy.encode(one_text(v))[1], arrays(npy.decode)),
        "arrow stream": Side(lambda v: arrow.encode(v)[1], arrays(arrow.decode)),
    }
    return found if plain else {name: side for name, side in found.items() if "tolist" not in name}


def vectors_of(name: str, args: argparse.Namespace, cache: dict[str, Vectors]) -> Vectors:
    dtype: DType = "bfloat16" if "bfloat16" in name else "float32"
    if dtype not in cache:
        cache[dtype] = made(args.texts, args.rows, args.width, dtype)
    return cache[dtype]


# --- the server's process -------------------------------------------------------------------------------------------


def serve(args: argparse.Namespace, pipe: Any) -> None:
    import sys

    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    from wellhead.frontends.http.respond import pieces
    from wellhead.frontends.http.serve import SWITCH_INTERVAL, bind

    sys.setswitchinterval(SWITCH_INTERVAL)
    known, cache = sides(plain=True), dict[str, Vectors]()
    for name in known:
        vectors_of(name, args, cache)
    metrics = SimpleNamespace(encoding=lambda *spent: None)
    service: Any = SimpleNamespace(encoding=ThreadPoolExecutor(4), metrics=metrics)
    small = json.dumps({"hidden_states": made(1, 1, args.width, "float32").states[0].numpy()[0]})

    async def rows(request: Any) -> Response:
        name = request.query_params["name"]
        chunks = await asyncio.to_thread(known[name].encode, vectors_of(name, args, cache))
        return StreamingResponse(pieces(service, chunks, name), media_type="application/octet-stream")

    async def little(request: Any) -> Response:
        del request
        return Response(small, media_type="application/json")

    listening = bind("127.0.0.1", 0)
    app = Starlette(routes=[Route("/rows", rows), Route("/small", little)])
    pipe.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])


def probe(url: str, pipe: Any) -> None:
    """Small requests without a pause, until told to stop; each message gets the seconds since the message before it."""
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as http:
        http.get("/small")
        pipe.send("ready")
        spent: list[float] = []
        while True:
            spent.append(common.seconds(lambda: http.get("/small").raise_for_status()))
            if pipe.poll():
                if pipe.recv() == "stop":
                    return
                pipe.send(spent)
                spent = []
            time.sleep(0.002)


# --- the client's process -------------------------------------------------------------------------------------------


def fetch(http: httpx.Client, name: str, side: Side) -> tuple[int, float]:
    """One answer: its bytes, and the seconds until its arrays are there."""
    started = time.perf_counter()
    body = bytearray()
    with http.stream("GET", "/rows", params={"name": name}, headers={"Accept-Encoding": "identity"}) as answer:
        answer.raise_for_status()
        for piece in answer.iter_raw():
            body += piece
    result = side.decode(body)
    spent = time.perf_counter() - started
    assert result
    return len(body), spent


def measure(args: argparse.Namespace, url: str, ask: Any) -> dict[str, dict[str, list[float]]]:
    known, cache = sides(not args.no_plain), dict[str, Vectors]()
    found: dict[str, dict[str, list[float]]] = {name: {"bytes": [], "encode": [], "total": [], "small": []} for name in known}
    with httpx.Client(base_url=url, timeout=1800, trust_env=False) as http:
        for round_ in range(args.rounds):
            for name, side in known.items():
                if "tolist" in name and round_ > 0:
                    continue
                vectors = vectors_of(name, args, cache)
                encode = common.seconds(lambda side=side, vectors=vectors: sum(len(c) for c in side.encode(vectors)))
                ask.send("reset")
                ask.recv()
                size, total = fetch(http, name, side)
                ask.send("report")
                small = ask.recv()
                for key, value in (("bytes", [size]), ("encode", [encode]), ("total", [total]), ("small", small)):
                    found[name][key] += value
    return found


def show(found: dict[str, dict[str, list[float]]]) -> None:
    reference = statistics.median(found[SGLANG]["total"])
    most = found[SGLANG]["bytes"][0]
    print(f"{'':28} {'MB':>8} {'encode s':>9} {'total s':>9} {'faster':>8} {'bytes':>7}   small request: median, worst ms")
    for name, got in found.items():
        total, small = statistics.median(got["total"]), got["small"]
        print(
            f"{name:28} {got['bytes'][0] / 1e6:8.1f} {statistics.median(got['encode']):9.3f} {total:9.3f} "
            f"{reference / total:7.1f}x {got['bytes'][0] / most:7.1%}   "
            f"{statistics.median(small) * 1e3:10.1f} {max(small) * 1e3:10.1f}  (n={len(small)})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-plain", action="store_true", help="leave json.dumps(tensor.tolist()) out; otherwise it runs once")
    args = parser.parse_args()
    print(common.machine())
    context = mp.get_context("spawn")
    mine, its = context.Pipe()
    server = context.Process(target=serve, args=(args, its), daemon=True)
    server.start()
    url = mine.recv()
    ask, answer = context.Pipe()
    prober = context.Process(target=probe, args=(url, answer), daemon=True)
    prober.start()
    ask.recv()
    try:
        show(measure(args, url, ask))
        print(f"load at the end {os.getloadavg()[0]:.2f}")
        ask.send("stop")
        prober.join(10)
    finally:
        for process in (prober, server):
            process.terminate()
            process.join(10)


if __name__ == "__main__":
    main()
