"""Imports go down only, and what needs no torch imports none."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wellhead

PACKAGE = Path(wellhead.__file__).parent

#: Rooms from top to bottom. A room imports itself and rooms on lower lines; rooms of one line do not know each other.
LINES = (
    ("frontends",),
    ("core",),
    ("scheduler", "runner", "results"),
    ("speculative", "parallel"),
    ("models", "capture", "requests", "cache", "heads"),
    ("encoding", "metrics"),
    ("kernels",),
    ("gguf_file",),
    ("config", "step"),
    ("speculation",),
    ("types",),
    ("reads",),
    ("reductions",),
    ("on_error", "halving"),
    ("errors",),
)
#: The processor works on sequences, which belong to the scheduler's room.
ALLOWED = {("results", "scheduler.sequence")}
#: ``wellhead extract --url`` is the client's one caller in the house.
GUESTS = {("frontends.bulk.work.sources", "client")}
#: Apart from the house: these see nothing but what is named here.
APART = {
    "client": {"client", "types", "reads", "reductions", "errors", "encoding", "halving", "on_error"},
}

NO_TORCH = (
    "types", "step", "errors", "config", "requests", "scheduler", "cache", "encoding", "client", "frontends.http",
    "capture.readers", "reads", "reductions", "results", "metrics", "speculation", "speculative", "gguf_file",
    "halving", "on_error", "heads",
)  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module's name below ``wellhead``, with its file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> set[str]:
    """What a file imports of us, as dotted names below ``wellhead``, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names if f"{node.module}.{alias.name}" in _FULL_NAMES}
    return {name.removeprefix("wellhead.") for name in names if name.startswith("wellhead.")}


_FULL_NAMES = {f"wellhead.{name}" for name in modules()}


def line_of(room: str) -> int:
    for i, line in enumerate(LINES):
        if room in line:
            return i
    raise AssertionError(f"{room} is in no line of the picture")


def test_imports_go_down_only() -> None:
    wrong = []
    for name, path in modules().items():
        room = name.split(".")[0]
        if room not in ("", "__main__"):
            others = sorted(other for other in imports(path) if (name, other) not in GUESTS)
            wrong += [f"{name} imports {other}" for other in others if not may_import(room, other)]
    assert not wrong


def may_import(room: str, other: str) -> bool:
    target = other.split(".")[0]
    if room in APART:
        return target in APART[room]
    if target in APART:
        return False
    return target == room or line_of(room) < line_of(target) or (room, other) in ALLOWED


def test_the_acts_of_a_bulk_job_follow_each_other() -> None:
    """Input knows nothing of work, work nothing of output; and no two modules need each other, wherever in a file."""
    bulk = {name: imports(path) for name, path in modules().items() if name.startswith("frontends.bulk")}
    acts = ["frontends.bulk.input", "frontends.bulk.work", "frontends.bulk.output"]
    later = {act: tuple(acts[at + 1 :]) for at, act in enumerate(acts)}
    assert not [
        (n, o) for n, others in bulk.items() for act in acts if n.startswith(act) for o in others if o.startswith(later[act])
    ]
    left = dict(bulk)
    while free := [name for name, others in left.items() if not others & left.keys() - {name}]:
        for name in free:
            del left[name]
    assert not left, f"these are in a circle, or behind one: {sorted(left)}"


def test_models_see_the_tap_protocol_and_nothing_else_of_capture() -> None:
    assert not [name for name, path in modules().items() if name.startswith("models") and "capture" in str(imports(path))]


def test_heads_see_types_and_errors_and_nothing_else_of_the_house() -> None:
    seen = {other.split(".")[0] for name, path in modules().items() if name.startswith("heads") for other in imports(path)}
    assert seen == {"heads", "types", "errors"}


def test_the_picture_would_notice_an_import_upwards(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("def f():\n    from wellhead.core.engine import Core\n    import wellhead.frontends.engine\n")
    assert imports(file) == {"core.engine", "frontends.engine"}
    assert line_of("core") < line_of("scheduler") < line_of("models") < line_of("kernels") < line_of("errors")


BLOCK = """
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ImportError(f"{name} may not be imported here")
sys.meta_path.insert(0, Refuse())
for name in sys.argv[1:]:
    importlib.import_module(name)
assert "torch" not in sys.modules
"""


def without_torch(names: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK, *names]
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PATH": ""}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_these_rooms_import_no_torch() -> None:
    names = ["wellhead"]
    for name in modules():
        if any(name == room or name.startswith(room + ".") for room in NO_TORCH):
            names.append(f"wellhead.{name}")
    assert len(names) > 20
    done = without_torch(names)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["wellhead.runner.eager", "wellhead.frontends.engine"])
def test_the_check_itself_refuses_torch(name: str) -> None:
    assert "may not be imported here" in without_torch([name]).stderr


def test_the_files_of_models_import_each_other_in_no_circle() -> None:
    """Function-level imports count too: they hide a circle, they do not break it."""
    below = {name: imports(path) & set(modules()) for name, path in modules().items() if name.startswith("models")}
    while leaves := [name for name, others in below.items() if not (others - {name}) & set(below)]:
        for name in leaves:
            del below[name]
    assert not below
