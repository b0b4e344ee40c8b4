"""Random tiny EAGLE drafts as files, and what they compute in a few lines of torch that share nothing with ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from support.families import CONTEXT, HIDDEN, VOCAB

Tensors = dict[str, torch.Tensor]
HEADS, KV_HEADS, DIM, FFN, EPS, THETA = 4, 2, 16, 96, 1e-6, 10_000.0
DRAFT_VOCAB = 40

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": EPS, "rope_theta": THETA, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


@dataclass
class Eagle:
    """One draft. ``tensors`` as they are in the file."""

    three: bool
    tensors: Tensors
    config: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def random(*, three: bool, seed: int = 0, bias: bool = False, layers: int = 1) -> Eagle:
        generator = torch.Generator().manual_seed(seed)

        def matrix(out: int, into: int) -> torch.Tensor:
            return torch.randn(out, into, generator=generator) * 1.2 / into**0.5

        def norm() -> torch.Tensor:
            return torch.rand(HIDDEN, generator=generator) * 1.5 + 0.5

        tensors = {"fc.weight": matrix(HIDDEN, (3 if three else 2) * HIDDEN)}
        if bias:
            tensors["fc.bias"] = torch.randn(HIDDEN, generator=generator) * 0.3
        for i in range(layers):
            at, wide = ("midlayer.", 2 * HIDDEN) if three else (f"layers.{i}.", HIDDEN)
            for name, out in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                tensors[f"{at}self_attn.{name}_proj.weight"] = matrix(out * DIM, wide)
            tensors[f"{at}self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * DIM)
            for name in ("gate", "up"):
                tensors[f"{at}mlp.{name}_proj.weight"] = matrix(FFN, HIDDEN)
            tensors[f"{at}mlp.down_proj.weight"] = matrix(HIDDEN, FFN)
            tensors[f"{at}post_attention_layernorm.weight"] = norm()
            if three or i:
                tensors[f"{at}input_layernorm.weight"] = norm()
        config = {
            **CONFIG,
            "num_hidden_layers": layers,
            "architectures": ["LlamaForCausalLMEagle3" if three else "LlamaForCausalLM"],
        }
        if three:
            ids = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
            tensors |= {
                "midlayer.hidden_norm.weight": norm(), "norm.weight": norm(), "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN),
                "d2t": ids - torch.arange(DRAFT_VOCAB), "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True),
            }  # fmt: skip
            config["draft_vocab_size"] = DRAFT_VOCAB
        return Eagle(three, tensors, config)

    def write(self, folder: Path, **changes: Any) -> Path:
        """The draft as a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: t.contiguous() for name, t in self.tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**self.config, **changes}))
        return folder

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (HIDDEN,), self.tensors[name], EPS)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.tensors[name].T

    def states(self, rows: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """All states ``[T, H]``, from rows ``[T, H]`` (fused) and the embeddings of the tokens after them."""
        t = self.tensors
        if self.three:
            joined = torch.cat(
                (self._norm(embedded, "midlayer.input_layernorm.weight"), self._norm(rows, "midlayer.hidden_norm.weight")), -1
            )
            return self._layer(rows, joined, "midlayer.")
        x = torch.cat((embedded, rows), -1) @ t["fc.weight"].T + t.get("fc.bias", torch.zeros(HIDDEN))
        for i in range(self.config["num_hidden_layers"]):
            x = self._layer(x, self._norm(x, f"layers.{i}.input_layernorm.weight") if i else x, f"layers.{i}.")
        return x

    def _layer(self, x: torch.Tensor, h: torch.Tensor, at: str) -> torch.Tensor:
        count = len(x)
        q, k, v = (self._linear(h, f"{at}self_attn.{n}_proj.weight").view(count, -1, DIM).transpose(0, 1) for n in "qkv")
        angles = torch.arange(count)[:, None] * THETA ** (-torch.arange(0, DIM, 2) / DIM)[None]
        turn = torch.polar(torch.ones_like(angles), angles)

        def rotate(y: torch.Tensor) -> torch.Tensor:
            pairs = torch.complex(y[..., : DIM // 2], y[..., DIM // 2 :]) * turn
            return torch.cat((pairs.real, pairs.imag), -1)

        k, v = (y.repeat_interleave(HEADS // KV_HEADS, 0) for y in (rotate(k), v))
        scores = (rotate(q) @ k.transpose(1, 2)) / DIM**0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        x = x + self._linear(mixed, f"{at}self_attn.o_proj.weight")
        h = self._norm(x, f"{at}post_attention_layernorm.weight")
        gated = F.silu(self._linear(h, f"{at}mlp.gate_proj.weight")) * self._linear(h, f"{at}mlp.up_proj.weight")
        return x + self._linear(gated, f"{at}mlp.down_proj.weight")

    def fuse(self, layers: list[torch.Tensor]) -> torch.Tensor:
        """The target's rows of the layers that it reads -> one row each."""
        if not self.three:
            return layers[0]
        return torch.cat(layers, -1) @ self.tensors["fc.weight"].T + self.tensors.get("fc.bias", torch.zeros(HIDDEN))

    def logits(self, states: torch.Tensor, target_head: torch.Tensor) -> torch.Tensor:
        """Over the target's vocabulary; -inf where an EAGLE3 draft has no token."""
        if not self.three:
            return states @ target_head.T
        own = self._linear(self._norm(states, "norm.weight"), "lm_head.weight")
        full = torch.full((len(states), VOCAB), -torch.inf)
        full[:, torch.arange(DRAFT_VOCAB) + self.tensors["d2t"]] = own
        return full

    def chain(
        self, layers: list[torch.Tensor], tokens: list[int], embedding: torch.Tensor, head: torch.Tensor, count: int
    ) -> list[int]:
        """``count`` drafts after ``tokens``, whose first all but one have rows in ``layers``."""
        rows, drafts = self.fuse(layers), list[int]()
        for _ in range(count):
            following = torch.tensor([*tokens[1:], *drafts])
            state = self.states(rows, embedding[following])[-1:]
            drafts.append(int(self.logits(state, head)[0].argmax()))
            rows = torch.cat((rows, state))
        return drafts
