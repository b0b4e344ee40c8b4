"""Everything in docs/http.md that can be pasted, pasted; and what the two pages claim, held against the code."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from support.families import HIDDEN
from support.live import LiveServer
from wellhead.frontends.http.schemas import PLACES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "http.md").read_text()
SGLANG = (DOCS / "coming-from-sglang.md").read_text()
ADDRESS = "http://127.0.0.1:30000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


CURLS = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("curl ")]
PYTHON = blocks("python")


def by_hand(words: list[str], folder: Path) -> httpx.Response:
    """The few of curl's options that the page uses."""
    method, headers, body, target, url = "GET", {}, None, None, ""
    rest = iter(words[1:])
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif word == "-d":
            method, body = "POST", next(rest)
        elif word == "-o":
            target = next(rest)
        elif word.startswith("http"):
            url = word
        else:
            assert word in ("-s", "-sN"), word
    answer = httpx.request(method, url, headers=headers, content=body, timeout=60)
    if target is not None:
        (folder / target).write_bytes(answer.content)
    return answer


@pytest.mark.parametrize("line", CURLS, ids=lambda line: re.sub(rf".*{ADDRESS}(\S+).*", r"\1", line))
def test_each_shell_line_works(serving: Callable[[str], LiveServer], tmp_path: Path, line: str) -> None:
    path = next(word for word in line.split() if word.startswith(ADDRESS)).removeprefix(ADDRESS).partition("?")[0]
    shared = serving(PLACES.get(path, ""))
    words = shlex.split(line.replace(ADDRESS, shared.url))
    answer = by_hand(words, tmp_path)
    assert answer.status_code == 200 and answer.content, answer.text
    if shutil.which("curl"):
        done = subprocess.run([*words, "--fail"], capture_output=True, timeout=60, check=False, cwd=tmp_path)
        assert done.returncode == 0 and (done.stdout or "-o" in words), done.stderr


def test_each_python_line_works(shared: LiveServer) -> None:
    names: dict[str, Any] = {}
    for block in PYTHON:
        exec(block.replace(ADDRESS, shared.url), names)
    try:
        assert [np.shape(r) for r in names["rows"]] == [(8, HIDDEN), (7, HIDDEN)]
        assert np.shape(names["vector"]) == (HIDDEN,) and np.shape(names["vectors"]) == (2, HIDDEN)
        assert names["texts"] and names["ceiling"] == "full" and names["width"] == HIDDEN and names["well"] and names["works"]
        assert names["flushed"] is True and names["aborted"] == 0 and len(names["ids"]) == 8
        assert any(line.startswith("wellhead_pages") for line in names["lines"])
    finally:
        names["client"].close()
        names["http"].close()
        names["ai"].close()


def test_every_endpoint_has_a_line_of_each_kind(shared: LiveServer) -> None:
    others = {"/get_model_info", "/get_server_info", "/v1/models/{model}", "/v1/heads/{name}"}
    paths = set(shared.http.get("/openapi.json").json()["paths"]) - others
    asked = {
        re.sub(r"\S*?(/[^\s?]*)$", r"\1", word.removeprefix(ADDRESS)) for c in CURLS for word in c.split() if ADDRESS in word
    }
    assert asked == paths
    for section in PAGE.split("\n### ")[1:]:
        assert "```sh\ncurl" in section and "```python\n" in section, section.splitlines()[0]


def test_every_status_and_code_is_on_the_page() -> None:
    from wellhead.frontends.http.errors import STATUS

    silent = {
        "error",
        "invalid_config",
        "model_error",
        "unsupported_model",
        "weights_error",
        "tokenizer_error",
        "input_file_error",
        "output_file_error",
    }
    silent |= {"aborted", "client_gone", "server_unreachable", "build_failed"}  # nobody reads those
    table = PAGE.split("## Errors")[1].split("## Limits")[0]
    for code, status in STATUS.items():
        if code not in silent:
            row = next((line for line in table.splitlines() if f"`{code}`" in line), None)
            assert row is not None and str(status) in row.split("|")[1], code


def test_every_option_of_the_server_is_on_the_page_with_its_default() -> None:
    import dataclasses

    from wellhead.frontends.http.options import ServerOptions

    limits = PAGE.split("## Limits")[1]
    for field in dataclasses.fields(ServerOptions):
        if field.name == "enable_metrics":
            continue
        flag = f"--{field.name.replace('_', '-')}"
        row = next((line for line in limits.splitlines() if f"`{flag}`" in line and line.startswith("|")), None)
        assert row is not None, flag
        shown = {None: "none", (): "none", 64 << 20: "64 MiB"}.get(
            field.default, f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
        )  # type: ignore[call-overload]
        assert shown in row, (flag, shown)


def flags_of(part: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*[a-z]", part))


def known_flags() -> set[str]:
    from wellhead.frontends.cli import build_parser

    parser = build_parser()
    commands = next(a for a in parser._actions if hasattr(a, "choices") and a.choices and "serve" in a.choices)
    assert isinstance(commands.choices, dict)
    return {flag for action in commands.choices["serve"]._actions for flag in action.option_strings}


def test_flags_said_to_be_the_same_are_there_and_the_others_are_not() -> None:
    same = SGLANG.split("## The same")[1].split("## Better")[0]
    absent = SGLANG.split("## Not there")[1]
    assert len(flags_of(same)) > 20 and flags_of(same) <= known_flags()
    assert len(flags_of(absent)) > 5 and not flags_of(absent) & known_flags()


def test_what_is_not_there_is_refused_by_name(shared: LiveServer) -> None:
    for name in ("json_schema", "regex", "ebnf", "structural_tag"):
        error = shared.refused("/generate", text="a", sampling_params={name: "x"})
        assert error["code"] == "unsupported_field" and name in error["param"]
    for path in ("/encode", "/v1/responses", "/v1/decisions"):
        assert f"`{path}`" in SGLANG and shared.post(path).status_code == 404
