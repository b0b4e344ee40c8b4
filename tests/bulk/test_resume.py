"""Whatever ends a run, the same command run again ends with every row once, and with the bytes of an undisturbed run."""

from __future__ import annotations

import errno
import json
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support.bulk import TEXTS, arguments, column, contents, extract, killed_at, start, write_jsonl
from wellhead.errors import OutputFileError
from wellhead.frontends.bulk.run import run
from wellhead.frontends.cli import build_parser

PARTS = ("--rows-per-part", "7", "--carry", "label", "--id-column", "id")


def mixed(path: Path) -> Path:
    """Rows of which some fail."""
    rows: list[Any] = [{"text": t, "id": f"k{i}", "label": i} for i, t in enumerate(TEXTS)]
    rows[3]["text"], rows[20]["text"], rows[41]["text"] = "", "y" * 600, 5
    return write_jsonl(path, rows)


def files_only(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if ".lock" not in name}


@pytest.mark.slow
@pytest.mark.parametrize(("point", "time"), [("group", 3), ("data", 1), ("data", 4), ("commit", 2), ("finished", 1)])
def test_killed_at_a_named_point(model: Path, tmp_path: Path, point: str, time: int) -> None:
    source = mixed(tmp_path / "in.jsonl")
    assert extract(model, source, tmp_path / "whole", *PARTS) == 1
    killed_at(point, time, arguments(model, source, tmp_path / "broken", *PARTS))
    assert extract(model, source, tmp_path / "broken", *PARTS) == 1
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert column(tmp_path / "broken", "row") == [i for i in range(60) if i not in (3, 20, 41)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "kind"), [("data", "parquet"), ("merged", "parquet"), ("finished", "parquet"), ("merged", "npy")]
)
def test_a_single_file_killed_at_a_named_point(model: Path, tmp_path: Path, point: str, kind: str) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": t} for t in TEXTS])
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    killed_at(point, 1, arguments(model, source, tmp_path / "broken" / f"out.{kind}", "--strict"))
    for folder in ("whole", "broken"):
        assert extract(model, source, tmp_path / folder / f"out.{kind}", "--strict") == 0
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert sorted(contents(tmp_path / "whole")) == [f"out.{kind}", f"out.{kind}.manifest.jsonl"]


@pytest.mark.slow
def test_killed_five_times_at_random(model: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": f"{t} {k}", "id": str(k)} for k in range(60) for t in TEXTS])
    more = ("--rows-per-part", "100", "--mode", "full", "--save-token-ids", "--format", "safetensors")
    assert extract(model, source, tmp_path / "whole", *more) == 0
    rng, kills = random.Random(5), 0
    while kills < 5:
        process = start(arguments(model, source, tmp_path / "broken", *more))
        before = len(list((tmp_path / "broken").glob("data/part-*")))
        while process.poll() is None and len(list((tmp_path / "broken").glob("data/part-*"))) < before + 2:
            time.sleep(0.01)  # until it has done something: a kill while it loads would be worth little
        time.sleep(rng.random() * 0.1)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it was through before it was killed"
        kills += 1
    assert not json.loads((tmp_path / "broken" / "manifest.jsonl").read_text().splitlines()[-1]).get("complete")
    assert extract(model, source, tmp_path / "broken", *more) == 0
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_committed_parts_are_not_computed_again(model: Path, source: Path, tmp_path: Path) -> None:
    assert extract(model, source, tmp_path / "out", *PARTS) == 0
    whole = contents(tmp_path / "out")
    lines = (tmp_path / "out" / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "out" / "manifest.jsonl").write_bytes(b"".join(lines[:4]))
    kept = tmp_path / "out" / "data" / "part-000001.parquet"
    before = kept.stat().st_mtime_ns
    assert extract(model, source, tmp_path / "out", *PARTS) == 0
    assert contents(tmp_path / "out") == whole
    assert kept.stat().st_mtime_ns == before


@pytest.mark.parametrize("tear", ["cut", "flip", "remove", "manifest"])
def test_torn_files_are_noticed_and_made_again(model: Path, tmp_path: Path, tear: str, caplog: pytest.LogCaptureFixture) -> None:
    source = mixed(tmp_path / "in.jsonl")
    assert extract(model, source, tmp_path / "out", *PARTS) == 1
    whole = contents(tmp_path / "out")
    victim = tmp_path / "out" / "data" / "part-000002.parquet"
    data = victim.read_bytes()
    if tear == "cut":
        victim.write_bytes(data[:-10])
    elif tear == "flip":
        victim.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif tear == "remove":
        victim.unlink()
    else:
        manifest = tmp_path / "out" / "manifest.jsonl"
        manifest.write_bytes(manifest.read_bytes()[:-150])
    assert extract(model, source, tmp_path / "out", *PARTS) == 1
    assert contents(tmp_path / "out") == whole
    assert ("computed again" in caplog.text) == (tear != "manifest")


def test_a_damaged_errors_file_or_single_file_is_made_again(model: Path, tmp_path: Path) -> None:
    source = mixed(tmp_path / "in.jsonl")
    assert extract(model, source, tmp_path / "out.parquet") == 1
    whole = contents(tmp_path)
    for name in ("out.parquet", "out.parquet.errors.parquet"):
        (tmp_path / name).write_bytes(whole[name][:-1])
        assert extract(model, source, tmp_path / "out.parquet") == 1
        assert contents(tmp_path) == whole


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_said_and_gone_on_from(model: Path, source: Path, tmp_path: Path, code: int) -> None:
    calls = 0

    def reach(point: str) -> None:
        nonlocal calls
        calls += point == "group"
        if calls == 4:
            raise OSError(code, "No space left on device")

    args = build_parser().parse_args(arguments(model, source, tmp_path / "out", *PARTS))
    with pytest.raises(OutputFileError, match="disk is full" if code == errno.ENOSPC else "out: "):
        run(args, reach)
    assert len(list((tmp_path / "out" / "data").iterdir())) == 3, "the unfinished part gives its room back"
    assert extract(model, source, tmp_path / "out", *PARTS) == 0
    assert column(tmp_path / "out", "row") == list(range(60))


def test_a_write_that_really_fails(model: Path, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, before[1]))
    try:
        assert extract(model, source, tmp_path / "out") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "output_file_error" in capfd.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]
    assert extract(model, source, tmp_path / "out") == 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_what_can_be_gone_on_with(model: Path, tmp_path: Path, number: int, status: int) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": f"{t} {k}"} for k in range(200) for t in TEXTS])
    more = ("--rows-per-part", "100")
    process = start(arguments(model, source, tmp_path / "out", *more), stderr=-1)
    while process.poll() is None and not list((tmp_path / "out").glob("data/part-000003*")):
        time.sleep(0.01)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, b"rows are safe" in told) == (status, True), told
    assert not [name for name in contents(tmp_path / "out") if name.endswith(".part") or "lock" in name]
    assert extract(model, source, tmp_path / "out", *more) == 0
    assert column(tmp_path / "out", "row") == list(range(200 * len(TEXTS)))


def test_failed_rows_are_tried_again_when_asked(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wellhead.errors import NonFinite
    from wellhead.frontends import engine

    assert extract(model, source, tmp_path / "whole", *PARTS) == 0
    right = engine.result_of
    monkeypatch.setattr(engine, "result_of", lambda o: NonFinite("for once") if o.usage.prompt_tokens == 16 else right(o))
    assert extract(model, source, tmp_path / "out", *PARTS) == 1
    failed = pq.read_table(tmp_path / "out" / "errors.parquet").to_pylist()
    assert failed and {f["code"] for f in failed} == {"non_finite"}
    monkeypatch.undo()
    assert extract(model, source, tmp_path / "out", *PARTS) == 1, "not without being asked"
    assert extract(model, source, tmp_path / "out", *PARTS, "--retry-failed") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_two_processes_do_not_write_one_output(model: Path, source: Path, tmp_path: Path) -> None:
    from wellhead.errors import InvalidConfig
    from wellhead.frontends.bulk.files import Lock

    (tmp_path / "out").mkdir()
    args = build_parser().parse_args(arguments(model, source, tmp_path / "out"))
    with Lock(tmp_path / "out" / ".lock"), pytest.raises(InvalidConfig, match="another process"):
        run(args)
    assert extract(model, source, tmp_path / "out") == 0


def test_an_engine_that_dies_ends_the_run_and_not_the_rows(model: Path, source: Path, tmp_path: Path) -> None:
    from wellhead.errors import EngineClosed
    from wellhead.frontends import engine

    class Dying(engine.Engine):
        def normalize(self, payload: dict[str, Any]) -> Any:
            batch = super().normalize(payload)
            if len(batch.requests) > 1:
                self.loop.close()
            return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Engine", Dying)
        with pytest.raises(EngineClosed):
            run(build_parser().parse_args(arguments(model, source, tmp_path / "out", *PARTS)))
    assert extract(model, source, tmp_path / "out", *PARTS) == 0
    assert column(tmp_path / "out", "row") == list(range(60))
