"""The processes of ranks 1 and above, as rank 0 sees them: started, told what to do, watched, ended."""

from __future__ import annotations

import atexit
import os
import queue
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import wellhead
from wellhead.errors import RankDied, WellheadError
from wellhead.parallel.group import Group
from wellhead.parallel.messages import Answer, Failed, Message, Start
from wellhead.parallel.rank import LOST

#: Seconds for a rank to end when it is told to, and for the cause of a broken step to become known.
GRACE = 5.0


class Ranks:
    """``size - 1`` processes. One that ends before ``close`` ends the engine: nothing can go on without it.

    A thread per process reads its pipe and waits for its end. ``group``: set once the ranks have met. ``threads``: of each
    rank on CPUs, rank 0 too: an equal share of what torch had here, and has again after ``close``.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self.group: Group | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="wellhead-ranks-"))
        self._process = os.getpid()
        self._threads_before = torch.get_num_threads()
        self.threads = max(1, self._threads_before // size)
        torch.set_num_threads(self.threads)
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._pipes: list[tuple[socket.socket, Connection[Any, Any]]] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._fallen: WellheadError | None = None
        self._known = threading.Event()
        self._on_death: Callable[[RankDied], object] = _nobody
        self._closing = False
        atexit.register(self.close)
        for rank in range(1, size):
            self._spawn(rank)

    # --- rank 0's threads -----------------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of ranks 1, 2, ..."""
        return [child.pid for child in self._children]

    def wait_for(self, kind: type[Answer]) -> list[Any]:
        """One answer of this kind from each; raises what became of the first that failed instead."""
        answers: list[Any] = []
        while len(answers) < self.size - 1:
            answer = self._answers.get()
            if isinstance(answer, Failed):
                raise answer.error
            assert isinstance(answer, kind)
            answers.append(answer)
        return answers

    def start(self, start: Callable[[int], Start]) -> None:
        """Send each rank what it starts with."""
        for rank, (_, pipe) in enumerate(self._pipes, 1):
            self._send(pipe, start(rank))

    def tell(self, message: Message) -> None:
        """Send to all; raises ``RankDied``."""
        for _, pipe in self._pipes:
            self._send(pipe, message)

    def watch(self, on_death: Callable[[RankDied], object]) -> None:
        """Call this, on a thread of ours, when a rank dies; at once if one has."""
        with self._lock:
            self._on_death = on_death
            fallen = self._fallen
        if isinstance(fallen, RankDied):
            on_death(fallen)

    def lost(self, error: Exception) -> RankDied:
        """A step failed in the middle: end all ranks, since each now waits for something else. Returns why it failed."""
        if not isinstance(error, RankDied):
            cause = RankDied(f"rank 0 failed in a step that {self.size} ranks share: {error!r}")
        elif self._known.wait(GRACE) and isinstance(self._fallen, RankDied):
            cause = self._fallen
        else:
            cause = error
        with self._lock:
            self._closing = True
            self._fallen = cause
        self._known.set()
        self._kill()
        return cause

    def close(self) -> None:
        """End them all, and clean up. Harmless if repeated, and in a forked child."""
        if os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        with self._lock:
            self._closing = True
        for plug, _ in self._pipes:
            _unplug(plug)
        if not self._gone():
            self._kill()
            self._gone()
        if self.group is not None:
            self.group.close()
            self.group = None
        for plug, pipe in self._pipes:
            plug.close()
            pipe.close()
        self._pipes = []
        shutil.rmtree(self.folder, ignore_errors=True)
        if torch.get_num_threads() == self.threads:
            torch.set_num_threads(self._threads_before)

    def _send(self, pipe: Connection[Any, Any], message: Message) -> None:
        try:
            pipe.send(message)
        except OSError as error:
            raise self.lost(RankDied(f"a rank cannot be told what to do: {error}")) from error

    def _gone(self) -> bool:
        for thread in self._threads:
            thread.join(GRACE)
        return not any(thread.is_alive() for thread in self._threads)

    def _kill(self) -> None:
        for child in self._children:
            child.kill()

    # --- one thread per process -----------------------------------------------------------------------------------

    def _spawn(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        # A rank that is stopped reads nothing: sending to it must end too.
        seconds = int(self.timeout)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))
        roots = [str(Path(wellhead.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "wellhead.parallel.rank", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
            )
        pipe: Connection[Any, Any] = Connection(os.dup(ours.fileno()))
        self._pipes.append((ours, pipe))
        self._children.append(child)
        thread = threading.Thread(target=self._attend, args=(rank, child, pipe), name=f"wellhead-rank-{rank}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _attend(self, rank: int, child: subprocess.Popen[bytes], pipe: Connection[Any, Any]) -> None:
        said: WellheadError | None = None
        with suppress(EOFError, OSError):
            while True:
                answer = pipe.recv()
                if isinstance(answer, Failed):
                    said = answer.error
                else:
                    self._answers.put(answer)
        self._bury(rank, child.wait(), said)

    def _bury(self, rank: int, status: int, said: WellheadError | None) -> None:
        """A process has ended. One that only lost the others is not the cause."""
        with self._lock:
            if self._closing or self._fallen is not None or status == LOST:
                return
            died = RankDied(describe(rank, status, said))
            self._fallen = died
            on_death = self._on_death
        self._known.set()
        # To whoever waits for an answer, the error as the rank had it: a missing file is a missing file.
        self._answers.put(Failed(died if said is None else type(said)(f"rank {rank}: {said.message}", param=said.param)))
        if self.group is not None:
            self.group.abort()
        on_death(died)


def describe(rank: int, status: int, said: WellheadError | None) -> str:
    """What became of a process, in words."""
    if said is not None:
        return f"rank {rank} failed: {said.message}"
    if status < 0:
        return f"rank {rank} died (signal {-status})"
    return f"rank {rank} ended with status {status}"


def _unplug(plug: socket.socket) -> None:
    """End of file on both sides, also for a thread that is reading."""
    with suppress(OSError):
        plug.shutdown(socket.SHUT_RDWR)


def _nobody(error: RankDied) -> None:
    del error
