"""A process of rank 1 or above: it loads its part of the model and does what rank 0 says, until that goes away.

Started as ``python -m wellhead.parallel.rank PIPE PARENT``: the descriptor of its pipe, and the process of rank 0.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from wellhead.errors import InternalError, RankDied, WellheadError
from wellhead.kernels import select_ops
from wellhead.kernels.ops import KVPages
from wellhead.models.decoder import Decoder
from wellhead.models.draft import NoTap
from wellhead.parallel.group import Group, connect
from wellhead.parallel.messages import Copy, Failed, Forward, Head, Hello, Message, Pages, Ready, Start
from wellhead.parallel.part import load_part

#: Exit status of a rank that lost the others: it is not the one to blame.
LOST = 75
#: Seconds between two looks at whether rank 0 still lives.
LOOK = 0.5


class Rank:
    """One rank's model and pages."""

    def __init__(self, group: Group, decoder: Decoder) -> None:
        self._group, self._decoder = group, decoder
        self._kv: KVPages | None = None

    @staticmethod
    def load(start: Start) -> Rank:
        """Meet the others, then read this rank's part of the weights. Errors: as ``assemble``."""
        torch.set_num_threads(start.threads)
        device = torch.device(start.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        group = connect(start.store, start.rank, start.size, device, start.timeout)
        ops = select_ops(start.dtype, device, native=start.native)
        return Rank(group, load_part(start.path, ops, group, start.positions)[1])

    def carry_out(self, message: Message) -> None:
        """One thing that rank 0 asks for."""
        ops, kv = self._decoder.ops, self._kv
        if isinstance(message, Pages):
            spec = self._decoder.spec
            self._kv = ops.new_kv(
                pages=message.pages, page_size=message.page_size,
                layers=spec.layers, kv_heads=spec.kv_heads, head_dim=spec.head_dim,
            )  # fmt: skip
        elif isinstance(message, Forward) and kv is not None:
            ids, packing, out = message.on(ops.device)
            self._decoder.final_rows(ids, packing, kv, NoTap(), out)
        elif isinstance(message, Head):
            rows = torch.empty((message.rows, self._decoder.spec.hidden_size), dtype=ops.dtype, device=ops.device)
            self._group.share(rows)
            self._group.gather(self._decoder.logits(rows))
        elif isinstance(message, Copy) and kv is not None:
            ops.copy_page(kv, message.source, message.target)
        else:
            raise InternalError(f"a rank was told {type(message).__name__} out of turn")

    @torch.inference_mode()
    def run(self, pipe: Connection[Any, Any]) -> None:
        """Until rank 0 goes away."""
        self._decoder.ops.prepare_thread()
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                self._group.close()
                return
            self.carry_out(message)


def serve(pipe: Connection[Any, Any]) -> int:
    """A rank's life; its exit status."""
    try:
        pipe.send(Hello())
        start: Start = pipe.recv()
    except (EOFError, OSError):
        return 0
    try:
        rank = Rank.load(start)
        free = torch.cuda.mem_get_info(start.device)[0] if start.device != "cpu" else None
        pipe.send(Ready(free))
        rank.run(pipe)
        return 0
    except RankDied:
        return LOST
    except Exception as error:
        traceback.print_exc()
        with suppress(OSError):
            pipe.send(Failed(error if isinstance(error, WellheadError) else InternalError(repr(error))))
        return 1


def _end_with(parent: int) -> None:
    """Die with rank 0, wherever this process may hang; being told so by a signal would depend on the thread that started it."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(LOST)


def main(arguments: list[str]) -> int:
    """Signals to the whole process group (Ctrl-C, a service that is stopped) are rank 0's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(int(arguments[1]),), daemon=True).start()
    return serve(Connection(int(arguments[0])))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a group that broke may not end its threads in order
