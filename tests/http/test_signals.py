"""``wellhead serve`` as a process: its start-up line, its signals, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.live import read_events

Start = Callable[..., tuple[subprocess.Popen[str], str, str]]


@pytest.fixture
def start(chat_model: Path) -> Iterator[Start]:
    """``start(*flags)``: the process, its start-up line, its address."""
    made: list[subprocess.Popen[str]] = []

    def run(*flags: str) -> tuple[subprocess.Popen[str], str, str]:
        command = [
            sys.executable,
            "-m",
            "wellhead.frontends.cli",
            "serve",
            "--model-path",
            str(chat_model),
            "--port",
            "0",
            *flags,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
        made.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        return process, line, line.split()[-1]

    yield run
    for process in made:
        process.kill()
        process.wait(60)


def test_the_start_up_line_says_what_is_served(start: Start) -> None:
    _, line, url = start("--return-hidden-states-mode", "full", "--max-total-tokens", "2048", "--served-model-name", "tiny")
    for word in ("tiny", "float32", "full", "pages", "2048", "batch_invariant", "http://127.0.0.1:"):
        assert word in line or (word == "2048" and "32 x 64" in line), line
    assert httpx.get(url + "/health").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_end_and_exits_with_zero(start: Start, number: signal.Signals) -> None:
    process, _, url = start("--return-hidden-states-mode", "full", "--max-total-tokens", "2048")
    body: dict[str, Any] = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    children = psutil.Process(process.pid).children(recursive=True)
    with httpx.stream("POST", url + "/generate", json=body, timeout=60) as answer:
        events = read_events(answer)
        next(events)
        process.send_signal(number)
        rest = list(events)
    assert rest[-1] == "[DONE]" and '"type":"length"' in rest[-2]
    assert process.wait(60) == 0
    assert not [child for child in children if child.is_running()]
    assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_an_idle_server_ends_at_once(start: Start) -> None:
    process, _, url = start("--max-total-tokens", "2048")
    with httpx.Client(base_url=url) as kept_alive:
        assert kept_alive.get("/health").status_code == 200
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize("flags", [
    ("--return-hidden-states-mode", "all"), ("--tp-size", "3"), ("--speculative-algorithm", "EAGLE"), ("--quantization", "fp4"),
    ("--log-level", "loud"),
    ("--no-such-flag",), ("--max-body-bytes", "0"), ("--port", "99999"),
])  # fmt: skip
def test_bad_flags_are_refused_with_status_two(chat_model: Path, flags: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "wellhead.frontends.cli", "serve", "--model-path", str(chat_model), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert any(word in done.stderr for word in (flags[0], flags[0][2:].replace("-", "_"), flags[-1]))


def test_a_port_that_is_taken(start: Start, chat_model: Path) -> None:
    _, _, url = start("--max-total-tokens", "2048")
    command = [
        sys.executable,
        "-m",
        "wellhead.frontends.cli",
        "serve",
        "--model-path",
        str(chat_model),
        "--port",
        url.split(":")[-1],
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "cannot listen" in done.stderr


def test_the_parser_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys, wellhead.frontends.http.serve; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
