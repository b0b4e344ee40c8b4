"""The caller's words for the engine's fields.

``/v1/completions`` says ``max_tokens`` where the engine's door says ``sampling_params.max_new_tokens``. What is refused on
behalf of a route is refused in that route's words, from the start: messages are made with ``word``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from wellhead.errors import WellheadError

_CALLED: ContextVar[Mapping[str, str] | None] = ContextVar("called", default=None)


def word(name: str) -> str:
    """What the caller calls this field of the engine's; the engine's own name where nobody said otherwise.

    Trap: it is known on the thread that entered ``speaking``, not on the engine's; what is raised there names no field.
    """
    called = _CALLED.get()
    return called.get(name, name) if called else name


@contextmanager
def speaking(called: Mapping[str, str]) -> Iterator[None]:
    """Errors inside are made for a caller who says ``called[name]`` for the engine's ``name`` (see ``fields.called``)."""
    token = _CALLED.set(called)
    try:
        yield
    except WellheadError as error:
        raise renamed(error, called) from None
    finally:
        _CALLED.reset(token)


def renamed(error: WellheadError, called: Mapping[str, str]) -> WellheadError:
    """The same error, with the caller's name of its field as ``param``."""
    error.param = called.get(error.param, error.param) if error.param else error.param
    return error
