"""What HTTP costs: 256 concurrent last-vector requests against ``Engine.extract`` on the same prompts, in turn; then open loop.

    python bench/serve.py                              # Qwen3-0.6B's shape, random weights
    python bench/serve.py --model PATH/TO/MODEL        # with a tokenizer: texts; without: token ids

The server is a process of its own (``wellhead serve``); the load comes from this one, over loopback, on one connection per
request under way. Caches are flushed before every round. Open loop: requests arrive at fixed rates, drawn from a Poisson
process, whether or not earlier ones are done; the times count from the moment at which a request was due.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import common
import httpx
import numpy as np

import wellhead as wh

Prompt = str | list[int]


@contextlib.contextmanager
def server(folder: str, *flags: str) -> Iterator[str]:
    """``wellhead serve`` on a free port; its address."""
    command = [sys.executable, "-m", "wellhead.frontends.cli", "serve", "--model-path", folder, "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "ready on" not in line:
            raise RuntimeError("the server did not start")
        print(line.strip(), flush=True)
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(60)


class Load:
    """Bare HTTP/1.1 over kept connections: what the load generator itself costs would count against the server."""

    def __init__(self, url: str, prompts: list[Prompt]) -> None:
        where = urlsplit(url)
        self._host, self._port = str(where.hostname), int(where.port or 80)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._requests = [self._request(prompt) for prompt in prompts]

    @staticmethod
    def _request(prompt: Prompt) -> bytes:
        kind = "text" if isinstance(prompt, str) else "input_ids"
        body = json.dumps({kind: prompt, "sampling_params": {"max_new_tokens": 0}, "return_hidden_states": "last"}).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def connect(self, count: int) -> None:
        """Fresh connections: a server closes those that were idle for long."""
        for _, writer in self._idle:
            writer.close()
        self._idle = [await self._open() for _ in range(count)]

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=1 << 20)

    async def one(self, index: int) -> bytes:
        """The body of the answer to request ``index``."""
        reader, writer = self._idle.pop() if self._idle else await self._open()
        writer.write(self._requests[index])
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        body = await reader.readexactly(length)
        self._idle.append((reader, writer))
        return body

    async def all(self) -> list[bytes]:
        """All requests at once."""
        return await asyncio.gather(*(self.one(i) for i in range(len(self._requests))))

    async def open_loop(self, rate: float, seconds: float, seed: int = 0) -> list[float]:
        """Latencies of requests that arrive at ``rate`` per second."""
        rng = np.random.default_rng(seed)
        due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds)))
        started = time.perf_counter()

        async def arrive(at: float, index: int) -> float:
            await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
            await self.one(index)
            return time.perf_counter() - started - at

        return list(await asyncio.gather(*(arrive(at, i % len(self._requests)) for i, at in enumerate(due))))


def closed(engine: wh.Engine, load: Load, url: str, prompts: list[Prompt], rounds: int, loop: asyncio.AbstractEventLoop) -> float:
    """HTTP beside Python; requests per second over HTTP."""

    def flush() -> None:
        engine.flush_cache()
        httpx.post(f"{url}/flush_cache").raise_for_status()
        loop.run_until_complete(load.connect(len(prompts)))

    def over_http() -> list[bytes]:
        return loop.run_until_complete(load.all())

    flush()
    vectors = np.array([json.loads(b)["meta_info"]["hidden_states"] for b in over_http()], np.float32)
    same = np.array_equal(vectors, engine.extract(prompts))
    times: dict[str, list[float]] = {"python": [], "http": []}
    for _ in range(rounds):
        for name, run in (("python", lambda: engine.extract(prompts)), ("http", over_http)):
            flush()
            times[name].append(common.seconds(run))
    medians = {name: statistics.median(found) for name, found in times.items()}
    print(
        f"{len(prompts)} concurrent last vectors | Engine.extract {medians['python']:.3f} s | HTTP {medians['http']:.3f} s"
        f" | HTTP / extract {common.ratio(times, 'http', 'python'):.3f} | same bits: {same}",
        flush=True,
    )
    return len(prompts) / medians["http"]


def prompts_of(engine: wh.Engine, folder: Any, count: int) -> list[Prompt]:
    """Distinct prompts of 16 to 64 tokens; as texts if there is a tokenizer."""
    ids = common.distinct_prompts(count, common.vocab_size(folder), 16, 64)
    tokenizer = engine.assembled.tokenizer
    return [tokenizer.decode(row) for row in ids] if tokenizer is not None else list(ids)


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each open-loop rate")
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    print(common.machine())
    plain = [] if (folder / "tokenizer.json").is_file() else ["--skip-tokenizer-init"]
    flags = [*plain, "--dtype", args.dtype, "--max-total-tokens", "65536"]
    loop = asyncio.new_event_loop()
    options: dict[str, Any] = {"skip_tokenizer_init": bool(plain), "dtype": args.dtype, "max_total_tokens": 65536}
    with wh.Engine(str(folder), **options) as engine, server(str(folder), *flags) as url:
        prompts = prompts_of(engine, folder, args.requests)
        load = Load(url, prompts)
        most = closed(engine, load, url, prompts, args.rounds, loop)
        for share in (0.3, 0.6, 0.9):
            httpx.post(f"{url}/flush_cache").raise_for_status()
            loop.run_until_complete(load.connect(32))
            times = sorted(loop.run_until_complete(load.open_loop(most * share, args.seconds)))
            p50, p99 = (times[int(len(times) * q)] for q in (0.5, 0.99))
            print(
                f"open loop at {most * share:6.1f} requests/s ({share:.0%} of the rate above), {len(times)} requests"
                f" | p50 {p50 * 1e3:.0f} ms | p99 {p99 * 1e3:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
