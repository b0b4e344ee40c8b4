"""What the benchmarks share, as far as a wrong answer would make every figure wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    import common  # type: ignore[import-not-found]

    yield common
    sys.modules.pop("common", None)


@pytest.mark.parametrize(
    ("flags", "limit", "dtype"),
    [
        ("fpu sse2 avx avx2 f16c fma", "", "float32"),
        ("fpu avx2 avx512f avx512_vnni", "", "float32"),
        ("fpu avx2 avx512f avx512_bf16", "", "bfloat16"),
        ("fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile amx_int8", "", "bfloat16"),
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", "AVX2", "float32"),
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", "avx512_core", "float32"),
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", "AVX512_CORE_BF16", "bfloat16"),
        ("fp asimd bf16 i8mm", "", "bfloat16"),
        ("", "", "float32"),
    ],
)
def test_the_dtype_of_peers_and_ceilings_is_the_processors(flags: str, limit: str, dtype: str, common: ModuleType) -> None:
    assert common.fast_dtype(set(flags.split()), limit) == dtype


def test_the_ceiling_is_of_the_dtype_that_is_asked_for(common: ModuleType) -> None:
    assert common.ceiling_line("float32").startswith("matrix-multiply ceiling, float32 2048^3: ")
    assert common.matmul_ceiling("float32", size=64, repeats=1) > 0


def test_weights_are_counted_in_the_dtype_that_runs(common: ModuleType, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(7)}, tmp_path / "model.safetensors")
    assert common.weight_bytes(tmp_path, "bfloat16") == 2 * 22
    assert common.weight_bytes(tmp_path, "float32") == 4 * 22


@pytest.mark.parametrize("script", ["extract", "decode", "peers", "quantization", "operators", "bulk", "gguf_model"])
def test_every_script_offers_that_dtype(script: str) -> None:
    command = [sys.executable, str(BENCH / f"{script}.py"), "--help"]
    env = {"ONEDNN_MAX_CPU_ISA": "AVX2", "PATH": "", "PYTHONPATH": str(BENCH.parent / "src"), "COLUMNS": "200"}
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert "--dtype" in text
    if script not in ("operators",):
        assert "float32" in text.split("--dtype")[-1]
