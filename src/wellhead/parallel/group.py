"""What the ranks of one engine say to each other in a step: sums, gathers and broadcasts of tensors.

Process groups are built directly, not through ``torch.distributed``'s default group, so that a process may have several
engines, and a program that uses ``torch.distributed`` itself keeps its own group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import FileStore
from torch.distributed import (
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroupGloo,
)

from wellhead.errors import RankDied


class Group(Protocol):
    """Every rank makes the same calls in the same order. All raise ``RankDied`` if another rank died or does not answer.

    Tensors are contiguous; what has no elements is not sent.
    """

    rank: int
    size: int

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, on each of them; ``x`` may be written to."""
        ...

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """On rank 0 everybody's ``x`` (of one shape), by rank; elsewhere nothing."""
        ...

    def share(self, x: torch.Tensor) -> None:
        """Rank 0's ``x`` into everybody's."""
        ...

    def abort(self) -> None:
        """Another rank is known to be dead: let nobody here wait for it. From any thread."""
        ...

    def close(self) -> None:
        """Let go of the connections. Not while another thread is in a call."""
        ...


def connect(store: Path, rank: int, size: int, device: torch.device, timeout: float) -> Group:
    """Meet the other ranks at the file ``store``, in a folder that they alone use; ``timeout``: seconds to wait for anybody."""
    with _failures():
        meeting = FileStore(str(store), size)
        meeting.set_timeout(timedelta(seconds=timeout))
        kind = NcclGroup if device.type == "cuda" else GlooGroup
        return kind(meeting, rank, size, timeout)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankDied(f"the ranks lost each other: {str(error).splitlines()[0]}") from error


class GlooGroup:
    """Over TCP on the loopback device, tensor by tensor from each rank to each other.

    Every rank adds up in the order of the ranks. gloo's own all-reduce starts each piece of a tensor at another rank, so that
    with three ranks a row's bits would depend on where in the batch it stands; and it takes ten times as long for one row.
    """

    def __init__(self, store: FileStore, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size = rank, size
        # torch's stubs know little of these classes; this constructor is the one that lets us name the device.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=timeout)
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self._backend: Any = ProcessGroupGloo(store, rank, size, options)
        self._others = [other for other in range(size) if other != rank]

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """In the order of the ranks, everywhere."""
        if not x.numel():
            return x
        parts = [x if rank == self.rank else torch.empty_like(x) for rank in range(self.size)]
        self._exchange(dict.fromkeys(self._others, x), {other: parts[other] for other in self._others})
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total += part
        return total

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """By rank, on rank 0."""
        if self.rank:
            self._exchange({0: x}, {})
            return []
        parts = [torch.empty_like(x) if rank else x for rank in range(self.size)]
        self._exchange({}, {other: parts[other] for other in self._others})
        return parts

    def share(self, x: torch.Tensor) -> None:
        """From rank 0."""
        self._exchange({}, {0: x}) if self.rank else self._exchange(dict.fromkeys(self._others, x), {})

    def _exchange(self, out: dict[int, torch.Tensor], into: dict[int, torch.Tensor]) -> None:
        with _failures():
            works = [self._backend.send([x], to, 0) for to, x in out.items()]
            works += [self._backend.recv([x], whom, 0) for whom, x in into.items()]
            for work in works:
                work.wait()

    def abort(self) -> None:
        """Nothing to do: a connection to a dead process is closed, which ends every wait for it."""

    def close(self) -> None:
        """Its threads must have ended before the interpreter does."""
        del self._backend


class NcclGroup:
    """Between GPUs: rank r is on device r."""

    def __init__(self, store: FileStore, rank: int, size: int, timeout: float) -> None:
        from torch.distributed import ProcessGroupNCCL

        self.rank, self.size = rank, size
        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout)
        self._backend: Any = ProcessGroupNCCL(store, rank, size, options)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """In place."""
        if x.numel():
            with _failures():
                self._backend.allreduce([x], AllreduceOptions()).wait()
        return x

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """By rank, on rank 0."""
        options = GatherOptions()
        options.rootRank = 0
        parts = [] if self.rank else [torch.empty_like(x) for _ in range(self.size)]
        with _failures():
            self._backend.gather([parts] if parts else [], [x], options).wait()
        return parts

    def share(self, x: torch.Tensor) -> None:
        """From rank 0."""
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        with _failures():
            self._backend.broadcast([x], options).wait()

    def abort(self) -> None:
        """Kernels that wait for a dead rank would wait for ever."""
        self._backend.abort()

    def close(self) -> None:
        """Abort, which is how NCCL lets go."""
        self._backend.abort()
