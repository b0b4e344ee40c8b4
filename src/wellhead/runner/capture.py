"""Two ways to capture a function of tensors: compiled code on the CPU, a CUDA graph on a GPU.

A captured function is called with the very tensors that it was captured with; what they hold may change, their places and
shapes may not.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Protocol

import psutil
import torch

Function = Callable[..., tuple[torch.Tensor, ...]]


class Capture(Protocol):
    """How a function becomes a graph."""

    name: str

    def __call__(self, function: Function, *inputs: torch.Tensor) -> Function:
        """Capture ``function(*inputs)``, running it at least once; the result is called with the same ``inputs``.

        What a replay returns may be overwritten by the next replay.
        """
        ...

    def memory(self) -> int:
        """Bytes that this process, or its device, holds now."""
        ...


class Compiled:
    """``torch.compile``: one piece of code instead of one Python call per operator. torch keeps it between starts."""

    name = "torch.compile"

    def __call__(self, function: Function, *inputs: torch.Tensor) -> Function:
        # Fixed shapes and places are this class's contract, so torch need not look at hundreds of weights per call.
        options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        # Trap: torch files compiled code under the code object, which all closures of one `def` share; without guards it
        # would take one for the other. A copy is an object of its own.
        own = types.FunctionType(
            function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        compiled: Function = torch.compile(own, fullgraph=True, dynamic=False, options=options)
        compiled(*inputs)
        return compiled

    def memory(self) -> int:
        return int(psutil.Process().memory_info().rss)


class CudaGraph:
    """``torch.cuda.CUDAGraph``; all graphs of one instance share a memory pool, as they never run at the same time."""

    name = "CUDA graph"

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, function: Function, *inputs: torch.Tensor) -> Function:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up in their first runs, which no graph may hold
            for _ in range(2):
                function(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = function(*inputs)
        self._pool = self._pool or graph.pool()

        def replay(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
            graph.replay()
            return outputs

        return replay

    def memory(self) -> int:
        return int(torch.cuda.memory_reserved())
