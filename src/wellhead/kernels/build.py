"""Compile ``csrc/`` once for this machine and load it.

The library lies in the user's cache folder (``WELLHEAD_CACHE_DIR`` overrides it) under a name made of everything that it
depends on: sources, torch, compiler, processor. ``python -m wellhead.kernels.build`` builds ahead of time.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch

from wellhead.errors import BuildFailed

# The slowest to compile first.
UNITS = ("library.cpp", "attention.cpp", "linear.cpp", "rows.cpp", "int8.cpp", "bfloat16.cpp", "team.cpp")


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides what the library is, and where it will lie."""

    sources: Path
    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    target: Path


def source_folder() -> Path:
    """``wellhead/csrc`` of an installed package, else ``csrc`` of the repository; raises BuildFailed when neither is there."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "csrc", package.parent.parent / "csrc"):
        if (folder / UNITS[0]).is_file():
            return folder
    raise BuildFailed("the sources of the native kernels (csrc) are not installed")


def cache_folder() -> Path:
    """``$WELLHEAD_CACHE_DIR``, else the user's cache folder for Wellhead."""
    if named := os.environ.get("WELLHEAD_CACHE_DIR"):
        return Path(named).expanduser()
    return platformdirs.user_cache_path("wellhead")


def recipe() -> Recipe:
    """What would be built on this machine now; raises BuildFailed without sources, a compiler, or a processor with AVX2."""
    sources = source_folder()
    compiler = _compiler()
    flags = _flags()
    digest = hashlib.sha256()
    for part in sorted(sources.iterdir()):
        if part.suffix in (".cpp", ".h"):
            digest.update(part.name.encode() + b"\0" + part.read_bytes() + b"\0")
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest.update("\0".join((torch.__version__, version, _processor(), *flags)).encode())
    return Recipe(sources, compiler, flags, cache_folder() / f"kernels-{digest.hexdigest()[:24]}.so")


def build() -> Path:
    """Compile unless it is there already -> the library's path. Safe to call from several processes at once."""
    plan = recipe()
    if plan.target.exists():
        return plan.target
    try:
        plan.target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(plan.target.with_suffix(".lock")):
            if not plan.target.exists():
                _compile(plan)
    except OSError as error:
        raise BuildFailed(f"cannot build the native kernels in {plan.target.parent}: {error}") from error
    return plan.target


def load() -> None:
    """Build if needed and register ``torch.ops.wellhead``; raises BuildFailed, the same one at every call."""
    if failure := _load_once():
        raise BuildFailed(failure)


@functools.cache
def _load_once() -> str | None:
    """Why loading failed, or ``None``; remembered, so that a failed build is not tried again in this process."""
    try:
        torch.ops.load_library(str(build()))  # type: ignore[no-untyped-call]
    except (BuildFailed, OSError) as error:
        return str(error)
    return None


def _compiler() -> tuple[str, ...]:
    if named := os.environ.get("CXX"):
        command = tuple(shlex.split(named))
        if command and shutil.which(command[0]):
            return command
        raise BuildFailed(f"CXX names a compiler that is not there: {named}")
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return (name,)
    raise BuildFailed("no C++ compiler: neither g++ nor clang++ is installed, and CXX is not set")


def _flags() -> tuple[str, ...]:
    """Flags for one unit. Trap: the capability must match ``-march``, since torch's vectors take their width from it."""
    level = torch.backends.cpu.get_cpu_capability()
    capability = "AVX512" if level.startswith("AVX512") else "AVX2" if level == "AVX2" else None
    if capability is None:
        raise BuildFailed(f"the native kernels need a processor with AVX2 or AVX512; torch reports {level}")
    include = Path(torch.__file__).parent / "include"
    return (
        *("-O3", "-march=native", "-std=c++20", "-fPIC", "-fopenmp", "-fno-math-errno", "-fvisibility=hidden", "-w"),
        f"-DCPU_CAPABILITY={capability}",
        f"-DCPU_CAPABILITY_{capability}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{include}",
        f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}",
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(next((line for line in lines if line.startswith(field)), "") for field in ("model name", "flags"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(plan: Recipe) -> None:
    """Two compilers at a time, then link beside the target and rename: nobody ever sees half a file.

    Says on stderr what is being waited for, since it takes a minute and happens inside of something else.
    """
    began = time.perf_counter()
    progress = _Progress(len(UNITS))
    with tempfile.TemporaryDirectory(dir=plan.target.parent, prefix="build-") as scratch:
        waiting, running = list(UNITS), list[tuple[list[str], subprocess.Popen[str]]]()
        try:
            while waiting or running:
                while waiting and len(running) < 2:
                    unit = waiting.pop(0)
                    command = [*plan.compiler, *plan.flags, "-c", str(plan.sources / unit), "-o", f"{scratch}/{unit}.o"]
                    log = open(f"{scratch}/{unit}.log", "w+")  # noqa: SIM115 (closed with the process)
                    running.append((command, subprocess.Popen(command, stdout=log, stderr=log, text=True)))
                    log.close()
                _reap(running, scratch)
                progress.show(len(UNITS) - len(waiting) - len(running))
        finally:
            for _, process in running:
                process.kill()
                process.wait()
        libraries = Path(torch.__file__).parent / "lib"
        linked = f"{scratch}/linked.so"
        objects = [f"{scratch}/{unit}.o" for unit in UNITS]
        # No -fopenmp here: the one OpenMP runtime of the process must be torch's own, which libtorch_cpu brings along.
        command = [*plan.compiler, "-shared", *objects, "-o", linked, f"-L{libraries}", "-ltorch_cpu", "-lc10"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise _failure(command, done.stderr)
        os.replace(linked, plan.target)
    progress.end(time.perf_counter() - began)


class _Progress:
    """``wellhead: compiling the CPU kernels ...: 3 of 7``: one line that moves on a terminal, else only its beginning and end."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._moves = sys.stderr.isatty()
        self._say("compiling the CPU kernels for this machine, once (about a minute)", "")

    def show(self, done: int) -> None:
        if self._moves:
            self._say(f"compiling the CPU kernels for this machine, once: {done} of {self._total}", "\r")

    def end(self, seconds: float) -> None:
        self._say(f"the CPU kernels are ready, {seconds:.0f} s", "\r")
        if self._moves:
            print(file=sys.stderr)

    def _say(self, words: str, begin: str) -> None:
        if self._moves:
            print(f"{begin}wellhead: {words:<70}", end="", file=sys.stderr, flush=True)
        else:
            print(f"wellhead: {words}", file=sys.stderr, flush=True)


def _reap(running: list[tuple[list[str], subprocess.Popen[str]]], scratch: str) -> None:
    """Wait until a compiler ends and take it off the list; raises BuildFailed if it failed."""
    while True:
        for entry in running:
            command, process = entry
            if process.poll() is not None:
                running.remove(entry)
                if process.returncode:
                    raise _failure(command, Path(command[-1].removesuffix(".o") + ".log").read_text(errors="replace"))
                return
        time.sleep(0.02)


def _failure(command: list[str], output: str) -> BuildFailed:
    tail = "\n".join(output.strip().splitlines()[-15:])
    return BuildFailed(f"compiling the native kernels failed: {shlex.join(command)}\n{tail}")


def main() -> int:
    """Build ahead of time and say what was done; 1 when it failed."""
    try:
        plan = recipe()
        print(f"sources   {plan.sources}")
        print(f"compiler  {shlex.join(plan.compiler)}")
        print(f"flags     {shlex.join(plan.flags)}")
        print(f"library   {plan.target}", "(there already)" if plan.target.exists() else "(building)", flush=True)
        began = time.perf_counter()
        build()
        load()
        print(f"ready     in {time.perf_counter() - began:.1f} s")
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
