"""The README's Python code runs as it stands, on a tiny model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

README = Path(__file__).parents[1] / "README.md"


def test_the_code_of_the_readme_runs(family: Callable[..., Path]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    code = code.replace("path/to/model", str(family("llama"))).replace('_mode="full")', '_mode="full", max_total_tokens=4096)')
    scope: dict[str, Any] = {"texts": ["one text", "another one"]}
    exec(code, scope)
    hidden = scope["engine"].hidden_size
    try:
        assert scope["X"].shape == (2, hidden)
        assert [m.shape for m in scope["M"]] == [(8, hidden), (11, hidden)]
        np.testing.assert_array_equal(scope["X"], np.stack([m[-1] for m in scope["M"]]))
        assert scope["out"]["meta_info"]["hidden_states"].shape == (hidden,)
    finally:
        scope["engine"].shutdown()


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if not link.startswith("http") and not (README.parent / link).exists()]
    assert not missing
