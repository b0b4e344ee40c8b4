"""Which operators are chosen, and the building and caching of the extension."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wellhead.errors import InvalidConfig
from wellhead.kernels import build, select_ops

CPU = torch.device("cpu")
SCRIPT = """
import torch
from wellhead.kernels import select_ops
ops = select_ops(torch.bfloat16, torch.device("cpu"))
print(ops.name, ops.describe()["why_not_native"])
try:
    select_ops(torch.float32, torch.device("cpu"), native=True)
except Exception as error:
    print(type(error).__name__, error)
"""


def run(script: str = SCRIPT, **env: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_native_where_it_can_be_had() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        ops = select_ops(dtype, CPU)
        described = ops.describe()
        assert ops.name == described["name"] == "native"
        assert ops.batch_invariant and described["batch_invariant"] and described["why_not_native"] is None


def flags() -> set[str]:
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return set()


UNIT = """
import torch
from wellhead.kernels import select_ops
for dtype in (torch.bfloat16, torch.float32, torch.float16):
    d = select_ops(dtype, torch.device("cpu"), native=True).describe()
    print(d["products"], d["unit"], d["int8_unit"], d["why"], sep="|")
"""


def test_the_unit_that_makes_the_products_is_named() -> None:
    """The widest unit that the processor has and oneDNN may use, not the widest instructions that torch was built for."""
    bfloat16, float32, float16 = (line.split("|") for line in run(UNIT, ONEDNN_MAX_CPU_ISA="DEFAULT"))
    here = flags()
    if "amx_bf16" in here:
        assert bfloat16[:2] == ["bfloat16", "AMX"]
    elif "avx512_bf16" in here:
        assert bfloat16[:2] == ["bfloat16", "AVX512-bf16"]
    else:
        assert bfloat16[0] == "float32" and "bfloat16 weights widened, since this processor does not" in bfloat16[3]
    assert float32[:2] == float16[:2] == ["float32", "AVX512" if "avx512f" in here else "AVX2"]
    assert float32[3] == f"products of float32 by {float32[1]}"
    assert float16[3] == f"products of float32 by {float16[1]}, float16 weights widened"
    assert float32[2] == ("AMX" if "amx_int8" in here else "AVX512-VNNI" if "avx512_vnni" in here else "AVX2")


def test_where_products_are_kept_to_avx2_float32_does_them() -> None:
    bfloat16, float32, float16 = (line.split("|") for line in run(UNIT, ONEDNN_MAX_CPU_ISA="AVX2"))
    assert bfloat16[:2] == float32[:2] == float16[:2] == ["float32", "AVX2"]
    assert "bfloat16 weights widened, since this processor does not multiply them as they are: " in bfloat16[3]
    assert "AMX" not in bfloat16[2]


INT8 = """
import torch
from wellhead.kernels import select_ops
torch.manual_seed(0)
ops = select_ops(torch.float32, torch.device("cpu"), native=True)
print(ops.linear(torch.randn(40, 64), ops.pack(torch.randn(96, 64), int8=True)).double().sum().item())
"""


def test_int8_gives_the_same_bits_without_the_matrix_unit() -> None:
    assert run(INT8, ONEDNN_MAX_CPU_ISA="AVX2") == run(INT8, ONEDNN_MAX_CPU_ISA="DEFAULT")


def test_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select_ops(torch.float32, CPU, native=False).name == "plain"
    monkeypatch.setenv("WELLHEAD_NATIVE", "0")
    ops = select_ops(torch.float32, CPU)
    assert ops.name == "plain" and not ops.batch_invariant and ops.describe()["why_not_native"] == "WELLHEAD_NATIVE=0"
    assert ops.describe()["why"] == "torch's own operators: WELLHEAD_NATIVE=0"
    assert select_ops(torch.float32, CPU, native=True).name == "native"


def test_impossible() -> None:
    assert "not on meta" in select_ops(torch.float32, torch.device("meta")).describe()["why_not_native"]
    with pytest.raises(InvalidConfig, match="meta"):
        select_ops(torch.float32, torch.device("meta"), native=True)
    with pytest.raises(InvalidConfig, match="float64"):
        select_ops(torch.float64, CPU)


def test_without_a_compiler_the_reason_is_told(tmp_path: Path) -> None:
    first, second = run(CXX="/nowhere/g++", WELLHEAD_CACHE_DIR=str(tmp_path))
    assert first.startswith("plain") and "/nowhere/g++" in first
    assert second.startswith("InvalidConfig") and "/nowhere/g++" in second


def test_a_failing_compiler_is_quoted(tmp_path: Path) -> None:
    fake = tmp_path / "compiler"
    fake.write_text('#!/bin/sh\necho called >> "$0.log"\necho "error: no such luck" >&2\nexit 1\n')
    fake.chmod(0o755)
    lines = run(CXX=str(fake), WELLHEAD_CACHE_DIR=str(tmp_path / "cache"))
    assert any("error: no such luck" in line for line in lines)
    assert not list((tmp_path / "cache").glob("*.so")) and not list((tmp_path / "cache").glob("build-*"))
    calls = (tmp_path / "compiler.log").read_text().splitlines()
    assert len(calls) <= 3, "one version, at most two units at once, and no second try"


def test_two_processes_at_once_compile_once(tmp_path: Path) -> None:
    """With a stand-in for the compiler that copies the library built before, counts links, and is slow."""
    built = build.build()
    fake = tmp_path / "compiler"
    fake.write_text(
        f'#!/bin/sh\ncase " $* " in *" -shared "*) echo link >> "$0.log"; sleep 0.5\n'
        f'while [ "$1" != -o ]; do shift; done; cp "{built}" "$2";; esac\n'
    )
    fake.chmod(0o755)
    env = {**os.environ, "CXX": str(fake), "WELLHEAD_CACHE_DIR": str(tmp_path / "cache")}
    both = [subprocess.Popen([sys.executable, "-c", SCRIPT], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0 and out.startswith("native")
    assert (tmp_path / "compiler.log").read_text().splitlines() == ["link"]
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1


def test_ahead_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main() == 0
    out = capsys.readouterr().out
    assert "compiler" in out and "there already" in out and "ready" in out


def test_the_key_covers_compiler_and_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = build.recipe().target
    assert here == build.recipe().target
    sources = tmp_path / "csrc"
    sources.mkdir()
    for file in build.source_folder().iterdir():
        (sources / file.name).write_bytes(file.read_bytes() + (b"// changed\n" if file.name == "numbers.h" else b""))
    monkeypatch.setattr(build, "source_folder", lambda: sources)
    assert build.recipe().target != here
