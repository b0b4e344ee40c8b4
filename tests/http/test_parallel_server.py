"""``wellhead serve --tp-size 2`` as a process: served, stopped, and brought down by a rank that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from support.live import read_events, wait_for
from wellhead.frontends.engine import Engine

GENERATE: dict[str, Any] = {"text": "abc", "sampling_params": {"max_new_tokens": 450, "ignore_eos": True}}


@pytest.fixture
def served(chat_model: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[psutil.Process]]]:
    """The process, its address, its ranks."""
    flags = ["--tensor-parallel-size", "2", "--return-hidden-states-mode", "full", "--max-total-tokens", "4096", "--port", "0"]
    command = [sys.executable, "-m", "wellhead.frontends.cli", "serve", "--model-path", str(chat_model), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    line = process.stdout.readline()
    yield process, line.split()[-1], psutil.Process(process.pid).children()
    process.kill()
    process.wait(60)


def test_it_answers_as_one_process_does_and_ends_with_zero(served: Any, chat_model: Path) -> None:
    process, url, ranks = served
    assert len(ranks) == 1
    ask = {"text": "a text", "return_hidden_states": "last", "sampling_params": {"max_new_tokens": 0}}
    row = httpx.post(url + "/generate", json=ask, timeout=60).json()["meta_info"]["hidden_states"]
    with Engine(str(chat_model), max_total_tokens=4096) as one:
        np.testing.assert_allclose(row, one.extract(["a text"])[0], rtol=0, atol=1e-4)
    assert httpx.get(url + "/server_info").json()["tp_size"] == 2
    for victim in (ranks[0].pid, process.pid):  # a rank leaves signals to rank 0, as when a whole service is told to stop
        os.kill(victim, signal.SIGTERM)
    assert process.wait(60) == 0
    assert not ranks[0].is_running()
    assert "Traceback" not in process.stderr.read()


def test_a_rank_that_is_killed_brings_the_server_down(served: Any) -> None:
    process, url, ranks = served
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(url + "/generate", json={**GENERATE, "text": ["abc", "abd"]}, timeout=60))

    thread = threading.Thread(target=ask)
    with httpx.stream("POST", url + "/generate", json={**GENERATE, "stream": True}, timeout=60) as stream:
        events = read_events(stream)
        next(events)
        thread.start()
        wait_for(lambda: httpx.get(url + "/server_info").json()["state"]["running"] == 3)
        ranks[0].kill()
        rest = list(events)
    thread.join(60)
    errors = [json.loads(rest[-2])["error"], answers[0].json()["error"]]
    assert [(error["code"], error["message"]) for error in errors] == [("rank_died", "rank 1 died (signal 9)")] * 2
    assert rest[-1] == "[DONE]" and answers[0].status_code == 503
    assert process.wait(60) == 1
    assert process.stderr.read().rstrip().endswith("wellhead: rank_died: rank 1 died (signal 9)")


def test_a_rank_that_is_killed_while_nobody_asks_brings_it_down_too(served: Any) -> None:
    process, _, ranks = served
    ranks[0].kill()
    assert process.wait(60) == 1
    assert "rank 1 died (signal 9)" in process.stderr.read()
