"""A pool of engines writes the bytes that one engine writes, whoever dies in between."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from support.bulk import TEXTS, arguments, column, contents, extract, start, write_jsonl
from support.cluster import SMALL, actors
from support.live import wait_for
from wellhead.frontends.bulk.run import run
from wellhead.frontends.cli import build_parser, main

MANY = [{"text": f"{t} {k}", "id": f"k{k}-{i}", "label": i % 3} for k in range(40) for i, t in enumerate(TEXTS)]
PARTS = ("--rows-per-part", "100", "--carry", "label", "--id-column", "id")


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--mode", "full", "--layers", "0", "-1", "--output-dtype", "float16", "--save-token-ids", "--save-texts"),
        ("--template", "Review: {text}\nIt was", "--template", "{text}?", "--truncate", "left", "--max-length", "40"),
        ("--mode", "mean", "--format", "safetensors", "--shard", "1/3"),
        ("--rows", '{"last": 8, "exclude": "special"}', "--token-ids", "--layers", "1", "L:pre_norm", "--format", "safetensors"),
        ("--rows", "0,20", "--reduce", "mean"),
    ],
    ids=["full", "templates", "shard", "rows", "reduce"],
)
def test_the_same_bytes_as_without(cluster: Any, model: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    rows: list[Any] = [dict(row) for row in MANY[:400]]
    rows[3]["text"], rows[200]["text"], rows[399]["text"] = "", "y" * 3000, 5
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    status = extract(model, source, tmp_path / "plain", *PARTS, *more)
    assert extract(model, source, tmp_path / "ray", *PARTS, *more, "--ray", cluster.address) == status
    assert contents(tmp_path / "ray") == contents(tmp_path / "plain")
    assert main(["verify", str(tmp_path / "ray")]) == (1 if "--shard" in more else 0)
    wait_for(lambda: not actors("Worker"))


@pytest.mark.slow
def test_actors_that_are_killed_cost_no_row(cluster: Any, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", MANY)
    assert extract(model, source, tmp_path / "plain", *PARTS) == 0
    commits = 0

    def reach(point: str) -> None:
        nonlocal commits
        commits += point == "commit"
        if point == "commit" and commits in (2, 6):
            actors("Worker")[0].kill()

    command = arguments(model, source, tmp_path / "ray", *PARTS, "--ray", cluster.address)
    with caplog.at_level(logging.WARNING, "wellhead"):
        assert run(build_parser().parse_args(command), reach) == 0
    assert caplog.text.count("another one takes its place") == 2
    assert contents(tmp_path / "ray") == contents(tmp_path / "plain")


@pytest.mark.slow
def test_a_node_that_is_lost_costs_no_row(cluster: Any, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", MANY)
    assert extract(model, source, tmp_path / "plain", *PARTS) == 0
    # The two nodes that have room for an engine of two CPUs, by the process of their raylet, which is an actor's parent.
    added = [cluster.add_node(**{**SMALL, "num_cpus": 2}) for _ in range(2)]
    wide = {node.all_processes["raylet"][0].process.pid: node for node in added}
    commits = 0

    def reach(point: str) -> None:
        nonlocal commits
        commits += point == "commit"
        if point == "commit" and commits == 2:
            cluster.remove_node(wide.pop(actors("Worker")[0].ppid()), allow_graceful=False)

    command = arguments(model, source, tmp_path / "ray", *PARTS, "--ray", cluster.address, "--ray-cpus-per-actor", "2")
    with caplog.at_level(logging.WARNING, "wellhead"):
        assert run(build_parser().parse_args([*command, "--ray-actors", "1"]), reach) == 0
    cluster.remove_node(*wide.values())
    assert caplog.text.count("another one takes its place") == 1
    assert contents(tmp_path / "ray") == contents(tmp_path / "plain")


@pytest.mark.slow
def test_a_killed_driver_goes_on_and_leaves_no_actor(cluster: Any, model: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", MANY)
    assert extract(model, source, tmp_path / "plain", *PARTS) == 0
    command = arguments(model, source, tmp_path / "ray", *PARTS, "--ray", cluster.address)
    assert start(command, kill=("commit", 3)).wait(timeout=120) < 0
    assert extract(model, source, tmp_path / "ray", *PARTS) == 0, "what Ray began, one process may end"
    assert contents(tmp_path / "ray") == contents(tmp_path / "plain")


@pytest.mark.slow
def test_sigterm_leaves_what_can_be_gone_on_with(cluster: Any, model: Path, tmp_path: Path) -> None:
    rows = [{**row, "text": f"{row['text']} {k}"} for k in range(10) for row in MANY]
    source, out = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out"
    process = start(arguments(model, source, out, *PARTS, "--ray", cluster.address), stderr=-1)
    wait_for(lambda: process.poll() is not None or list(out.glob("data/part-000003*")))
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, b"rows are safe" in told) == (143, True), told
    assert extract(model, source, out, *PARTS) == 0
    assert column(out, "row") == list(range(len(rows)))


def test_what_an_engine_refuses_is_said_as_without(
    cluster: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", MANY[:3])
    told = []
    for more in ([], ["--ray", cluster.address]):
        assert extract(model, source, tmp_path / "out", "--layers", "99", *more) == 2
        told.append(capsys.readouterr().err.strip().splitlines()[-1])
    assert told[0] == told[1] and "99" in told[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--ray-actors", "2"], "--ray-actors belongs to --ray"),
        (["--ray-cpus-per-actor", "2"], "--ray-cpus-per-actor belongs to --ray"),
        (["--ray", "local", "--ray-actors", "0"], "at least 1"),
        (["--ray", "local", "--dry-run"], "--dry-run"),
        (["--ray", "127.0.0.1:1"], "127.0.0.1:1: nobody answers"),
        (["--ray", "ray://[::1]:1"], "nobody answers"),
        (["--ray", "no-address"], "nothing listens on no-address"),
    ],
)
def test_flags_that_cannot_be(
    model: Path, tmp_path: Path, more: list[str], word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    source = write_jsonl(tmp_path / "in.jsonl", MANY[:3])
    assert extract(model, source, tmp_path / "out", *more) == 2
    error = capsys.readouterr().err
    assert "invalid_config" in error and word in error


def refuse(address: str, **_: Any) -> None:
    raise ConnectionError(f"nothing listens on {address}")


def test_without_ray_it_says_how_to_get_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    source = write_jsonl(tmp_path / "in.jsonl", MANY[:3])
    assert extract(model, source, tmp_path / "out", "--ray", "local") == 2
    assert "invalid_config" in (error := capsys.readouterr().err) and "pip install 'wellhead[ray]'" in error
