"""EAGLE drafts: one small layer that reads the target's own rows (Li et al. 2024, 2025).

Both take, at position p, the target's row p and token p + 1, and draft token p + 2. Where the target's rows end, a draft's
own state stands in for them.
"""

from __future__ import annotations

import torch

from wellhead.kernels.ops import KVPages, Ops, Packed, Packing
from wellhead.models.decoder import Loader, run_block
from wellhead.models.eagle_files import EagleFiles
from wellhead.models.rope import rope_table


class EagleDraft:
    """EAGLE (1 and 2): reads the target's final row; shares its embedding and head."""

    def __init__(self, files: EagleFiles, ops: Ops, positions: int, embedding: Packed, head: Packed) -> None:
        self.spec, self.ops = files.spec.model, ops
        self.draws_on = files.spec.draws_on
        self._embedding, self._head = embedding, head
        load = Loader(self.spec, ops, files.get)
        ropes = [rope_table(r, positions).to(ops.device) for r in self.spec.rope_tables]
        self._fc = load.pack("fc.weight")
        self._fc_bias = load.vector("fc.bias") if files.spec.fc_bias else None
        self._blocks = [load.block(f"layers.{i}.", i, ropes, attn_norm=i > 0) for i in range(self.spec.layers)]

    def fuse(self, features: list[torch.Tensor]) -> torch.Tensor:
        """The target's final rows as they are."""
        return features[0]

    def forward(
        self, ids: torch.Tensor, features: torch.Tensor | None, packing: Packing, kv: KVPages, out: torch.Tensor
    ) -> torch.Tensor:
        """The residual after the last layer at ``out``, float32 ``[k, H]``: a guess at the target's next final rows."""
        assert features is not None
        embedded = self.ops.embed(ids, self._embedding, 1.0).to(self.ops.dtype)
        x = self.ops.linear(torch.cat((embedded, features), dim=-1), self._fc, self._fc_bias)
        for i, block in enumerate(self._blocks):
            x = run_block(self.spec, self.ops, block, i, x, packing, kv, out if i == len(self._blocks) - 1 else None)
        return x

    def best(self, state: torch.Tensor) -> torch.Tensor:
        """int64 ``[k]``. There is no norm before the head: the state is a guess at a row that has been normed."""
        return self.ops.linear(self.as_features(state), self._head).argmax(dim=-1)

    def as_features(self, state: torch.Tensor) -> torch.Tensor:
        """The guess in the place of the row."""
        return state.to(self.ops.dtype)


class Eagle3Draft:
    """EAGLE3: reads three layers; has its own head over a part of the vocabulary; shares the embedding."""

    def __init__(self, files: EagleFiles, ops: Ops, positions: int, embedding: Packed) -> None:
        self.spec, self.ops = files.spec.model, ops
        self.draws_on = files.spec.draws_on
        self._embedding = embedding
        load = Loader(self.spec, ops, files.get)
        ropes = [rope_table(r, positions).to(ops.device) for r in self.spec.rope_tables]
        self._fc = load.pack("fc.weight")
        self._fc_bias = load.vector("fc.bias") if files.spec.fc_bias else None
        self._block = load.block("midlayer.", 0, ropes, attn_norm=False)
        self._token_norm, self._row_norm = load.norm("midlayer.input_layernorm.weight"), load.norm("midlayer.hidden_norm.weight")
        self._final_norm = load.norm("norm.weight")
        self._head = load.pack("lm_head.weight")
        self._target_ids = files.target_ids().to(ops.device)

    def fuse(self, features: list[torch.Tensor]) -> torch.Tensor:
        """Rows of three layers -> one, ``[T, H]``."""
        return self.ops.linear(torch.cat(features, dim=-1), self._fc, self._fc_bias).to(self.ops.dtype)

    def forward(
        self, ids: torch.Tensor, features: torch.Tensor | None, packing: Packing, kv: KVPages, out: torch.Tensor
    ) -> torch.Tensor:
        """The residual after the layer at ``out``, float32 ``[k, H]``, before the norm."""
        assert features is not None
        ops, eps = self.ops, self.spec.norm_eps
        x = features.to(torch.float32, copy=True)  # the layer adds to it in place
        h = torch.cat(
            (ops.norm(ops.embed(ids, self._embedding, 1.0), self._token_norm, eps), ops.norm(x, self._row_norm, eps)), -1
        )
        return run_block(self.spec, ops, self._block, 0, x, packing, kv, out, h)

    def best(self, state: torch.Tensor) -> torch.Tensor:
        """The target's ids, int64 ``[k]``."""
        logits = self.ops.linear(self.ops.norm(state, self._final_norm, self.spec.norm_eps), self._head)
        return self._target_ids[logits.argmax(dim=-1)]

    def as_features(self, state: torch.Tensor) -> torch.Tensor:
        """The state in the place of the fused rows."""
        return state.to(self.ops.dtype)
