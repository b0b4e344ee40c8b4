"""What is handed out: an sdist and a wheel that install and run where the checkout is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import wellhead

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """In an environment that does not lead back to the checkout; a failure shows what was said."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | more
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def empty_environment(folder: Path) -> Path:
    """A venv beside the packages that are installed here -> its Python. A line of a ``.pth`` adds a folder and not the ``.pth``
    files in it, so that an editable install of the checkout does not come along."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built out of it (which is what ``python -m build`` does)."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_the_wheel_holds_what_runs_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (wheel.read(n).decode() for n in names if n.endswith(".dist-info/METADATA"))
    kernels = {path.name for path in (ROOT / "csrc").iterdir()}
    code = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {"wellhead/py.typed", *code, *(f"wellhead/csrc/{name}" for name in kernels)} <= names
    extra = {name for name in names if ".dist-info/" not in name} - code
    assert extra == {"wellhead/py.typed", *(f"wellhead/csrc/{name}" for name in kernels)}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert f"\nVersion: {wellhead.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


@pytest.mark.slow
def test_the_sdist_holds_what_builds_and_tests_it(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml", "constraints.txt",
        "csrc/library.cpp",
        "src/wellhead/__main__.py", "scripts/test", "tests/test_package.py", "examples/assets.py", "docs/install.md",
    } <= names  # fmt: skip
    assert not [name for name in names if name.startswith((".venv", ".git/", "demo-out", "build/"))]


@pytest.mark.slow
def test_the_wheel_runs_in_another_folder_and_builds_its_kernels(
    built: tuple[Path, Path], family: Callable[..., Path], tmp_path: Path
) -> None:
    python = empty_environment(tmp_path / "env")
    install = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
    )
    run(*install, built[1], cwd=tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    where = run(python, "-c", "import wellhead; print(wellhead.__file__)", cwd=away).stdout.strip()
    assert Path(where).is_relative_to(tmp_path / "env")
    command = python.with_name("wellhead")
    for line in ((command, "--version"), (python, "-m", "wellhead", "--version")):
        assert run(*line, cwd=away).stdout == f"wellhead {wellhead.__version__}\n"

    (away / "texts.txt").write_text("one text\nanother one\n")
    job = (command, "extract", "--model-path", family("llama"), "--input", "texts.txt", "--max-total-tokens", "1024")
    told = run(*job, "--output", "plain.parquet", cwd=away, WELLHEAD_NATIVE="0").stderr
    assert "compiling" not in told
    assert pq.read_table(away / "plain.parquet").column_names == ["row", "id", "vector"]

    quick = away / "g++"  # without optimising: the wait is for nothing here
    quick.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    quick.chmod(0o755)
    cache = away / "cache"
    told = run(*job, "--output", "native.parquet", cwd=away, CXX=str(quick), WELLHEAD_CACHE_DIR=str(cache)).stderr
    assert "compiling the CPU kernels for this machine" in told
    assert len(list(cache.glob("kernels-*.so"))) == 1
    assert pq.read_table(away / "native.parquet").num_rows == 2
    assert "(there already)" in run(command, "build", cwd=away, CXX=str(quick), WELLHEAD_CACHE_DIR=str(cache)).stdout


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/wellhead/_version.py"
    line = (ROOT / "src/wellhead/_version.py").read_text(encoding="utf-8").splitlines()[-1]
    assert line == f'__version__ = "{wellhead.__version__}"'


def test_the_image_that_is_deployed_is_of_this_version() -> None:
    tags = re.findall(r"image: \S+:(\S+)", (ROOT / "deploy/kuberay.yaml").read_text(encoding="utf-8"))
    assert set(tags) == {wellhead.__version__}


def test_the_changelog_knows_this_version() -> None:
    assert f"\n## [{wellhead.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("paper", ["CONTRIBUTING.md", "SECURITY.md", "docs/install.md"])
def test_files_that_a_paper_names_exist(paper: str) -> None:
    text = (ROOT / paper).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src|tests|docs|bench|csrc|examples|scripts|deploy)/[\w./-]+)`", text))
    named |= {os.path.normpath(Path(paper).parent / link) for link in re.findall(r"\]\((?!http)([^)#]+)\)", text)}
    # names without a folder: there must be such a file somewhere in the tree
    bare = set(re.findall(r"`([\w-]+\.(?:py|md|txt|toml|cpp|h|yaml|yml|sh))`", text))
    here = {name for folder in ("src", "tests", "docs", "bench", "csrc", "examples", "scripts", "deploy", ".github")
            for _, _, names in os.walk(ROOT / folder) for name in names} | set(os.listdir(ROOT))  # fmt: skip
    assert sorted(bare - here) == []
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
