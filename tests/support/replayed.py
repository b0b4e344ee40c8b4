"""A capture for tests of graphs that need no compiler."""

from __future__ import annotations

import torch

from wellhead.runner.capture import Function


class Replayed:
    """A capture without a compiler: the function itself, with its outputs in static buffers, as a CUDA graph has them."""

    name = "replayed"

    def __call__(self, function: Function, *inputs: torch.Tensor) -> Function:
        outputs = tuple(out.clone() for out in function(*inputs))

        def replay(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            assert all(a is b or a.data_ptr() == b.data_ptr() for a, b in zip(given, inputs, strict=True)), "a moved input"
            for out, new in zip(outputs, function(*inputs), strict=True):
                out.copy_(new)
            return outputs

        return replay

    def memory(self) -> int:
        return 0
