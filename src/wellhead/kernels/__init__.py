"""What computes: ``Ops`` and its two implementations. Start at ``ops.py``; choose with ``select_ops``."""

from wellhead.kernels.select import select_ops

__all__ = ["select_ops"]
