"""The Ray cluster that a command runs on: one that is there already, or one of its own on this machine."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from wellhead.errors import InvalidConfig

#: Bytes of the shared memory of a cluster that is started here; what does not fit goes to the disk.
OBJECT_STORE_BYTES = 256 << 20
ADDRESS_HELP = (
    "auto: the cluster that this machine belongs to (RAY_ADDRESS, if that is set); local: one of its own, on this machine; "
    "or the address of a cluster"
)


def load_ray(module: str = "ray") -> Any:
    """Ray, or one of its modules. Raises ``InvalidConfig`` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        told = f"--ray needs more packages ({missing.name}): pip install 'wellhead[ray]'"
        raise InvalidConfig(told, param="ray") from None


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """``ray``, connected to ``auto``, ``local`` or an address. A connection that was there before is used, and stays.

    Raises ``InvalidConfig`` if there is no such cluster.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    _reach(address)
    own: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    with _own_signals():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InvalidConfig(f"--ray {address}: {str(error).strip().splitlines()[0]}", param="ray") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Ray itself takes half a minute and more to say that nobody answers."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise InvalidConfig(f"--ray {address}: nobody answers there ({error})", param="ray") from None


def own_share(engine: dict[str, Any], cpus: int) -> dict[str, Any]:
    """Give this thread ``cpus`` torch threads; the options of an engine that takes the same share of the memory."""
    import torch

    from wellhead.config import EngineConfig

    torch.set_num_threads(cpus)
    if engine.get("device") == "cuda" or "max_total_tokens" in engine:
        return engine
    share = min(1.0, cpus / (os.cpu_count() or 1))
    return {"mem_fraction_static": EngineConfig.mem_fraction_static * share, **engine}


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray puts a handler of its own on SIGTERM; afterwards the one that was there is there again."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
