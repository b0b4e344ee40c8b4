"""What ``extract`` does with a text that cannot be served: one rule for the engine and the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import EngineClosed, InvalidRequest, WellheadError

OnError = Literal["raise", "skip", "return"]


class Kept(NamedTuple):
    """What ``on_error="skip"`` gives: the result without the texts that failed, and int64 ``[k]``, the indices of the others."""

    result: Any
    indices: NDArray[np.int64]


def check(on_error: str) -> None:
    """Raise ``InvalidRequest`` for a word that is none of the three."""
    if on_error not in get_args(OnError):
        raise InvalidRequest(f"on_error must be raise, skip or return, not {on_error!r}", param="on_error")


def met(index: int, error: WellheadError, on_error: str) -> WellheadError:
    """The error of a text, with its ``index``. Raises it if that is asked, or if it concerns all texts (``EngineClosed``)."""
    told = type(error)(f"text {index}: {error.message}", param=error.param)
    told.code, told.index = error.code, index
    if on_error == "raise" or isinstance(error, EngineClosed):
        raise told
    return told


def settled(result: Any, found: Sequence[Any], on_error: str) -> Any:
    """The result of the texts that stand, as it is handed over. ``found``: by index, the error of each that does not.

    ``raise``: as it is. ``skip``: ``Kept``. ``return``: a list of rows or matrices with the errors in their places; a dict
    of those for layers by number.
    """
    if on_error == "raise":
        return result
    if on_error == "skip":
        return Kept(result, np.array([i for i, one in enumerate(found) if not isinstance(one, WellheadError)], np.int64))
    if isinstance(result, dict):
        return {layer: settled(one, found, on_error) for layer, one in result.items()}
    rows = iter(result)
    return [one if isinstance(one, WellheadError) else next(rows) for one in found]
