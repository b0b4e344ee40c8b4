"""Clients that leave, read slowly or come in crowds; nothing of it may stay in the engine, and nobody else may notice."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from support.families import HIDDEN, VOCAB
from support.live import LiveServer, read_events, wait_for
from support.runners import put_around
from wellhead.step import Plan, Runner, StepResult

LONG = {"max_new_tokens": 500, "ignore_eos": True}


@pytest.fixture
def stepped(shared: LiveServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the steps of the shared engine, for tests that must see it work."""
    counters = shared.engine.assembled.core.counters
    return lambda: counters.steps


def raw_post(server: LiveServer, path: str, body: dict[str, Any], receive_buffer: int | None = None) -> socket.socket:
    """A request on a socket of our own, that we can drop or leave unread as we like."""
    where = urlsplit(server.url)
    assert where.hostname is not None and where.port is not None
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((where.hostname, where.port))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def works(server: LiveServer, count: int = 1) -> Callable[[], bool]:
    return lambda: bool(server.engine.loop.call(lambda core: len(core.scheduler.running)).result() >= count)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_is_aborted_within_a_step(live: Callable[..., LiveServer], path: str, stream: bool) -> None:
    server = live()
    body: dict[str, Any] = (
        {"text": "abc", "sampling_params": LONG} if path == "/generate" else {"prompt": "abc", "max_tokens": 500}
    )
    body |= {"stream": stream} | ({} if path == "/generate" else {"ignore_eos": True})
    core = server.engine.assembled.core
    steps: list[int] = []
    abort = core.abort_keys

    def note(keys: Iterable[str]) -> int:
        steps.append(core.counters.steps)
        return abort(keys)

    core.abort_keys = note  # type: ignore[method-assign]
    connection = raw_post(server, path, body)
    if stream:
        while b"data: " not in connection.recv(4096):
            pass
    wait_for(works(server))
    connection.close()
    wait_for(lambda: bool(steps))
    wait_for(server.idle)
    assert core.counters.aborted == 1 and core.counters.steps <= steps[0] + 1
    assert core.counters.steps < 500
    server.check_all_given_back()


def test_a_client_that_goes_away_while_it_waits_in_the_queue(live: Callable[..., LiveServer]) -> None:
    server = live(max_running_requests=1)
    first = raw_post(server, "/generate", {"text": "a", "stream": True, "sampling_params": LONG})
    wait_for(works(server))
    waits = raw_post(server, "/generate", {"text": "b", "sampling_params": LONG})
    wait_for(lambda: server.engine.loop.call(lambda core: len(core.scheduler.waiting)).result() == 1)
    waits.close()
    wait_for(lambda: server.engine.loop.call(lambda core: len(core.scheduler.waiting)).result() == 0)
    first.close()
    server.check_all_given_back()


def test_a_batch_is_aborted_as_a_whole(live: Callable[..., LiveServer]) -> None:
    server = live()
    connection = raw_post(server, "/generate", {"text": ["a", "b", "c"], "sampling_params": {**LONG, "n": 2}})
    wait_for(works(server, 6))
    connection.close()
    wait_for(server.idle)
    assert server.engine.assembled.core.counters.aborted == 6
    server.check_all_given_back()


def test_who_reads_slowly_holds_nobody_up(live: Callable[..., LiveServer]) -> None:
    """Two megabytes for a client that reads none of them; others are served, and the engine is done with it."""
    server = live(max_total_tokens=8192)
    body = {"input": [[i % VOCAB] * 400 for i in range(16)], "mode": "full", "layers": [-1]}
    lazy = raw_post(server, "/v1/hidden_states", body, receive_buffer=4096)
    stream = raw_post(server, "/generate", {"text": "a", "stream": True, "sampling_params": LONG}, receive_buffer=4096)
    wait_for(lambda: server.engine.assembled.core.counters.finished >= 17)
    for i in range(20):
        assert server.ok("/generate", text=f"{i}", sampling_params={"max_new_tokens": 2, "ignore_eos": True})["output_ids"]
    counts = server.pages()
    assert counts["free"] + counts["cached"] == server.engine.assembled.config.pages  # none is held by the two
    content = b""
    while not content.endswith(b"0\r\n\r\n"):
        part = stream.recv(65536)
        assert part
        content += part
    assert content.count(b"data: [DONE]") == 1
    lazy.close()
    stream.close()
    server.check_all_given_back()


def test_a_body_that_never_comes_whole(live: Callable[..., LiveServer]) -> None:
    server = live({"stall_timeout": 0.2})
    where = urlsplit(server.url)
    with socket.create_connection((str(where.hostname), int(where.port or 0))) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        connection.settimeout(60)
        assert b" 408 " in connection.recv(4096)
    server.check_all_given_back()


def test_many_at_once_each_get_their_own(shared: LiveServer) -> None:
    """Concurrent batches, all modes mixed: the same bits as through Python, one by one."""
    prompts = [[(7 * i + k) % 256 for k in range(3 + i % 30)] for i in range(64)]
    expected = [shared.engine.extract([p])[0] for p in prompts]

    def ask(i: int) -> np.ndarray:
        mode = ("last", True)[i % 2]
        reply = shared.ok("/generate", input_ids=prompts[i], sampling_params={"max_new_tokens": 0}, return_hidden_states=mode)
        states = reply["meta_info"]["hidden_states"]
        return np.array(states if mode == "last" else states[0][-1], np.float32)

    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(ask, range(64)))
    if shared.engine.info()["batch_invariant"]:
        np.testing.assert_array_equal(np.array(found), np.array(expected))
    else:
        np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-4)


def test_metrics_tell_what_happened(live: Callable[..., LiveServer]) -> None:
    server = live()
    server.ok(
        "/generate", text="abcdefgh" * 8, sampling_params={"max_new_tokens": 3, "ignore_eos": True}, return_hidden_states="last"
    )
    server.ok(
        "/generate", text="abcdefgh" * 8, sampling_params={"max_new_tokens": 3, "ignore_eos": True}, return_hidden_states="last"
    )
    server.refused("/generate", text="")
    from prometheus_client.parser import text_string_to_metric_families

    samples: dict[str, float] = {}

    def read() -> dict[str, float]:
        for family in text_string_to_metric_families(server.http.get("/metrics").text):
            for sample in family.samples:
                samples[sample.name + "".join(f"|{v}" for v in sample.labels.values())] = sample.value
        return samples

    wait_for(lambda: read()["wellhead_finished_total"] == 2)
    assert samples["wellhead_prompt_tokens_total"] == 128 and samples["wellhead_output_tokens_total"] == 6
    assert samples["wellhead_cached_tokens_total"] > 0
    assert samples["wellhead_row_bytes_total"] == 2 * HIDDEN * 4
    assert samples["wellhead_http_requests_total|/generate|200"] == 2
    assert samples["wellhead_http_requests_total|/generate|400"] == 1
    for name in ("queue", "prefill", "total"):
        assert samples[f"wellhead_{name}_seconds_count"] == 2
    assert samples["wellhead_up"] == 1
    assert sum(v for k, v in samples.items() if k.startswith("wellhead_pages|")) >= server.engine.assembled.config.pages


def test_two_servers_in_one_process_count_apart(live: Callable[..., LiveServer]) -> None:
    one, other = live(), live()
    one.ok("/generate", text="a", sampling_params={"max_new_tokens": 1})
    assert 'endpoint="/generate"' in one.http.get("/metrics").text
    assert 'endpoint="/generate"' not in other.http.get("/metrics").text


# --- stopping ---------------------------------------------------------------------------------------------------------------


def test_draining_lets_running_requests_end_and_takes_no_more(live: Callable[..., LiveServer]) -> None:
    server = live()
    found: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
        with httpx.stream("POST", server.url + "/generate", json=body, timeout=60) as answer:
            for event in read_events(answer):
                found.append(event)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    server.server.should_exit = True
    reader.join(60)
    assert found[-1] == "[DONE]"
    assert json.loads(found[-2])["meta_info"]["finish_reason"]["type"] == "length"
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health")


def test_what_does_not_end_in_time_is_told_so(live: Callable[..., LiveServer]) -> None:
    server = live({"drain_timeout": 0.05})
    release = threading.Event()

    def slow(inner: Runner, plan: Plan) -> StepResult:
        release.wait(0.05)
        return inner.run(plan)

    put_around(server.engine, slow)
    found: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = {"text": "abc", "stream": True, "sampling_params": LONG}
        with httpx.stream("POST", server.url + "/generate", json=body, timeout=60) as answer:
            for event in read_events(answer):
                found.append(event)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    server.server.should_exit = True
    reader.join(60)
    assert found[-1] == "[DONE]" and json.loads(found[-2])["error"]["code"] == "engine_closed"


# --- the soak ----------------------------------------------------------------------------------------------------------------


class Guest:
    """One of many: draws a request, asks it, and checks that the answer is an answer to it."""

    def __init__(self, server: LiveServer, seed: int) -> None:
        self.server = server
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.http = httpx.Client(base_url=server.url, timeout=120)

    def run(self, count: int) -> Counter[str]:
        kinds = [
            self.vector,
            self.rows,
            self.text,
            self.chat,
            self.stream,
            self.embed,
            self.binary,
            self.bad,
            self.leave,
            self.aborted,
        ]
        for _ in range(count):
            kind = self.rng.choice(kinds)
            kind()
            self.seen[kind.__name__] += 1
        self.http.close()
        return self.seen

    def prompt(self) -> list[int]:
        shared = list(range(40)) if self.rng.random() < 0.4 else []
        return shared + [self.rng.randrange(256) for _ in range(self.rng.randint(1, 60))]

    def params(self) -> dict[str, Any]:
        return {"max_new_tokens": self.rng.randint(1, 12), "ignore_eos": True, "temperature": self.rng.choice([0, 0.8])}

    def post(self, path: str, **body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def vector(self) -> None:
        found = self.post("/generate", input_ids=self.prompt(), sampling_params=self.params(), return_hidden_states="last")
        assert len(found["meta_info"]["hidden_states"]) == HIDDEN

    def rows(self) -> None:
        prompts, params = [self.prompt() for _ in range(self.rng.randint(1, 4))], self.params()
        found = self.post("/generate", input_ids=prompts, sampling_params=params, return_hidden_states=True)
        assert len(found) == len(prompts)
        for prompt, reply in zip(prompts, found, strict=True):
            entries = reply["meta_info"]["hidden_states"]
            assert len(entries[0]) == len(prompt) and len(entries) == params["max_new_tokens"]

    def text(self) -> None:
        n = self.rng.randint(1, 3)
        found = self.post("/v1/completions", prompt=self.prompt(), max_tokens=4, n=n, ignore_eos=True, logprobs=1)
        assert [c["index"] for c in found["choices"]] == list(range(n))

    def chat(self) -> None:
        found = self.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
        assert found["choices"][0]["finish_reason"] in ("stop", "length")

    def stream(self) -> None:
        body = {"input_ids": self.prompt(), "sampling_params": self.params(), "stream": True, "return_hidden_states": True}
        with self.http.stream("POST", "/generate", json=body) as answer:
            events = list(read_events(answer))
        assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
        reasons = [json.loads(e)["meta_info"]["finish_reason"] for e in events[:-1]]
        assert [r is not None for r in reasons] == [False] * (len(reasons) - 1) + [True]

    def embed(self) -> None:
        assert len(self.post("/v1/embeddings", input=[self.prompt(), self.prompt()])["data"]) == 2

    def binary(self) -> None:
        prompt = self.prompt()
        body = {"input": prompt, "mode": "full"}
        answer = self.http.post("/v1/hidden_states", json=body, headers={"Accept": "application/x-npy"})
        assert answer.status_code == 200 and answer.content[1:6] == b"NUMPY"
        assert len(answer.content) >= len(prompt) * HIDDEN * 4

    def bad(self) -> None:
        body = self.rng.choice([b"{", b"{}", b'{"text": ""}', b'{"text": "a", "wish": 1}', b'{"input_ids": [99999]}'])
        assert self.http.post("/generate", content=body).status_code == 400

    def leave(self) -> None:
        body = {"input_ids": self.prompt(), "sampling_params": {**LONG, "max_new_tokens": 300}, "stream": self.rng.random() < 0.7}
        connection = raw_post(self.server, "/generate", body)
        if body["stream"]:
            connection.recv(1024)
        connection.close()

    def aborted(self) -> None:
        rid = f"r{self.rng.getrandbits(60)}"
        body = {"input_ids": self.prompt(), "sampling_params": {**LONG, "max_new_tokens": 300}, "stream": True, "rid": rid}
        with self.http.stream("POST", "/generate", json=body) as answer:
            events = read_events(answer)
            first = next(events)
            httpx.post(self.server.url + "/abort_request", json={"rid": rid}, timeout=60)
            rest = [first, *events]
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["meta_info"]["finish_reason"]["type"] in ("abort", "length")


def resident() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def soak(server: LiveServer, requests: int, guests: int = 16) -> Iterator[int]:
    """Rounds of mixed requests; the resident bytes after each."""
    for part in range(4):
        with ThreadPoolExecutor(guests) as pool:
            crowd = [Guest(server, seed=100 * part + i) for i in range(guests)]
            seen = list(pool.map(lambda guest: guest.run(requests // 4 // guests), crowd))
        assert sum(sum(c.values()) for c in seen) == requests // 4 // guests * guests
        server.check_all_given_back()
        yield resident()


def test_a_short_soak(live: Callable[..., LiveServer]) -> None:
    assert len(list(soak(live(), 192, guests=12))) == 4


@pytest.mark.slow
def test_two_thousand_mixed_requests(live: Callable[..., LiveServer]) -> None:
    """Every request has exactly one answer, all pages come back, and memory stays flat once it has settled."""
    server = live(max_total_tokens=2048)
    sizes = list(soak(server, 2048))
    assert sizes[-1] - sizes[1] < 64 << 20
