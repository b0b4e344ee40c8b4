"""What a model path may be, and what is said when it is nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wellhead.errors import ModelError, WeightsError
from wellhead.models.locate import locate


def test_folders_and_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate(str(tmp_path)) == tmp_path
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert locate(tmp_path / "m.gguf") == tmp_path / "m.gguf"
    (tmp_path / "config.json").unlink()
    assert locate(tmp_path) == tmp_path / "m.gguf"
    (tmp_path / "n.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match=r"2 \.gguf files"):
        locate(tmp_path)


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"not a \.gguf file"):
        locate(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=r"neither config\.json nor"):
        locate(tmp_path)
    for name in (str(tmp_path / "absent"), "absent", "./a/b", "a/b.gguf", "a/b/c"):
        with pytest.raises(ModelError, match="no such file or folder"):
            locate(name)


def test_hub_ids_fetch_neither_pickles_nor_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(name: str, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        (tmp_path / "config.json").write_text("{}")
        return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    monkeypatch.chdir(tmp_path)
    assert locate("someone/model") == tmp_path
    assert not any(pattern.endswith((".bin", ".py", ".pt", "*")) for pattern in asked["someone/model"])


def test_an_unreachable_hub_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def snapshot_download(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("cannot reach the hub\nlong story")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"no folder someone/model here, and fetching .* failed: cannot reach the hub$"):
        locate("someone/model")
