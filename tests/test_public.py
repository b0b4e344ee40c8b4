"""What the package promises: its public names, and an error tree that says what it has."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

import wellhead
from wellhead import errors
from wellhead.errors import WellheadError


def error_classes() -> list[type[WellheadError]]:
    return [
        c
        for _, c in inspect.getmembers(errors, inspect.isclass)
        if issubclass(c, WellheadError) and c.__module__ == errors.__name__
    ]


def test_public_names_are_these_and_all_there() -> None:
    assert wellhead.__all__ == sorted(wellhead.__all__)
    assert set(wellhead.__all__) == {
        "AsyncClient", "CaptureMode", "Client", "Engine", "Head", "HiddenStates", "Pooling", "Read", "Retry", "Rows",
        "SamplingParams", "__version__", "fit", *(kind.__name__ for kind in error_classes()),
    }  # fmt: skip
    for name in wellhead.__all__:
        assert getattr(wellhead, name) is not None
        assert name in dir(wellhead)
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = wellhead.Motor


def test_what_needs_torch_or_httpx_is_imported_when_it_is_used() -> None:
    code = (
        "import sys, wellhead\n"
        "assert not {'torch', 'httpx'} & set(sys.modules)\n"
        "wellhead.Client, wellhead.AsyncClient, wellhead.Overloaded\n"
        "assert 'httpx' in sys.modules and 'torch' not in sys.modules\n"
        "wellhead.Engine\n"
        "assert 'torch' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_error_has_a_code_of_its_own_and_is_drawn_in_the_docstring() -> None:
    codes = [c.code for c in error_classes()]
    assert len(set(codes)) == len(codes)
    drawn = inspect.getdoc(errors) or ""
    for kind in error_classes():
        line = next(line for line in drawn.splitlines() if kind.__name__ in line.split())
        assert kind is WellheadError or kind.code in line.split()


@pytest.mark.parametrize("kind", error_classes(), ids=lambda c: c.__name__)
def test_errors_survive_pickling_and_keep_their_field(kind: type[WellheadError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what went wrong", param="text")))
    assert type(error) is kind
    assert (str(error), error.message, error.param) == ("what went wrong", "what went wrong", "text")


def test_what_a_caller_can_mend_is_a_value_error() -> None:
    for kind in error_classes():
        assert issubclass(kind, ValueError) == (
            issubclass(kind, (errors.InvalidRequest, errors.InvalidConfig, errors.InputFileError, errors.InvalidHead))
        )


@pytest.mark.parametrize("name", ["AsyncClient", "Client", "Engine", "HiddenStates", "SamplingParams", "CaptureMode"])
def test_public_names_have_docstrings(name: str) -> None:
    assert len(inspect.getdoc(getattr(wellhead, name)) or "") > 40


def test_every_public_method_of_the_engine_has_a_docstring() -> None:
    for name, member in inspect.getmembers(wellhead.Engine):
        if not name.startswith("_") and callable(member):
            assert inspect.getdoc(member), name
