from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def check_no_torch() -> Callable[[str], None]:
    """Run code in a fresh process and fail if it imports torch."""

    def check(code: str) -> None:
        test = f"import sys\n{code}\nassert 'torch' not in sys.modules, 'torch was imported'"
        subprocess.run([sys.executable, "-c", test], check=True, timeout=120)

    return check
