"""Which ``Ops`` a dtype and a device get."""

from __future__ import annotations

import os

import torch

from wellhead.errors import BuildFailed, InvalidConfig
from wellhead.kernels.ops import Ops
from wellhead.kernels.plain import PlainOps


def select_ops(dtype: torch.dtype, device: torch.device, *, native: bool | None = None) -> Ops:
    """The native kernels where they can be had, else torch's operators, with the reason in ``describe()``.

    ``native``: True insists (InvalidConfig when impossible), False declines, None takes what there is; the environment's
    ``WELLHEAD_NATIVE=0`` turns None into False. The first call on a machine compiles the kernels, which takes a while.
    """
    if native is None and os.environ.get("WELLHEAD_NATIVE") == "0":
        return PlainOps(dtype, device, why="WELLHEAD_NATIVE=0")
    if native is False:
        return PlainOps(dtype, device, why="not asked for")
    made = _native(dtype, device)
    if not isinstance(made, str):
        return made
    if native:
        raise InvalidConfig(f"the native kernels cannot be had: {made}", param="native_kernels")
    return PlainOps(dtype, device, why=made)


def _native(dtype: torch.dtype, device: torch.device) -> Ops | str:
    """The native kernels, or why not."""
    if torch.device(device).type != "cpu":
        return f"they run on the CPU, not on {device}"
    try:
        from wellhead.kernels.native import NativeOps
    except ImportError as error:
        return f"this system lacks {error.name}"
    try:
        return NativeOps(dtype)
    except (BuildFailed, InvalidConfig) as error:
        return str(error)
