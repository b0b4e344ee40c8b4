"""An EAGLE3 draft in torch, for training: one Llama layer that reads three of its target's layers. Li et al. 2025."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from wellhead.models.decoder import GetTensor
from wellhead.models.eagle_files import EagleSpec, expected_tensors
from wellhead.models.names import EMBEDDING, FINAL_NORM, HEAD
from wellhead.models.rope import rope_table
from wellhead.models.spec import ModelSpec


class Draft(nn.Module):
    """Parameters have the names of the file: ``fc``, ``midlayer.self_attn.q_proj``, ..., ``norm``, ``lm_head``."""

    def __init__(self, spec: EagleSpec, positions: int) -> None:
        super().__init__()
        model, dim = spec.model, spec.model.head_dim
        self.spec = spec
        hidden, inner = model.hidden_size, model.ffn_size
        self.fc = linear(3 * hidden, hidden)
        heads = {"q_proj": model.heads, "k_proj": model.kv_heads, "v_proj": model.kv_heads}
        attention = {name: linear(2 * hidden, count * dim) for name, count in heads.items()}
        mlp = {"gate_proj": linear(hidden, inner), "up_proj": linear(hidden, inner), "down_proj": linear(inner, hidden)}
        self.midlayer = nn.ModuleDict(
            {
                "self_attn": nn.ModuleDict({**attention, "o_proj": linear(model.heads * dim, hidden)}),
                "mlp": nn.ModuleDict(mlp),
                "input_layernorm": norm(model),
                "hidden_norm": norm(model),
                "post_attention_layernorm": norm(model),
            }
        )
        self.norm = norm(model)
        self.lm_head = linear(hidden, spec.draft_vocab)
        self.register_buffer("rope", rope_table(model.rope_tables[0], positions), persistent=False)

    @torch.no_grad()
    def begin_as(self, target: ModelSpec, get: GetTensor, tokens: torch.Tensor) -> None:
        """Start as the target's last block, final norm and head (rows ``tokens``), on the highest of the three layers.

        ``get``: the target's tensors. What is new, the two lower layers and the next token's embedding, starts near zero.
        """
        hidden, own = target.hidden_size, dict(self.named_parameters())
        nn.init.zeros_(self.fc.weight)
        self.fc.weight[:, 2 * hidden :] = torch.eye(hidden)
        last = f"model.layers.{target.layers - 1}."
        for name in expected_tensors(self.spec):
            at = name.removeprefix("midlayer.")
            if at.startswith(("self_attn.q", "self_attn.k", "self_attn.v")):
                nn.init.normal_(own[name], std=0.02)
                own[name][:, hidden:] = get(last + at)
            elif at.startswith(("self_attn.o", "mlp.", "post_attention")):
                own[name].copy_(get(last + at))
        self.midlayer["hidden_norm"].weight.copy_(get(last + "input_layernorm.weight"))
        self.norm.weight.copy_(get(FINAL_NORM))
        self.lm_head.weight.copy_(get(EMBEDDING if target.tied_head else HEAD)[tokens])

    def forward(self, features: torch.Tensor, embedded: list[torch.Tensor]) -> list[torch.Tensor]:
        """Drafting at every position at once, as it is when serving: step after step from the draft's own states.

        ``features`` ``[B, T, 3H]``: the target's rows; ``embedded[s]`` ``[B, T, H]``: of token p + 1 + s. Logits of token
        p + 2 + s over the draft's vocabulary, ``[B, T, V]`` each.
        """
        layer, logits = self.midlayer, []
        keys: list[tuple[torch.Tensor, torch.Tensor]] = []
        x = self.fc(features).float()
        for token in embedded:
            h = torch.cat((layer["input_layernorm"](token), layer["hidden_norm"](x)), dim=-1)
            x = x + layer["self_attn"]["o_proj"](self._attend(h, keys))
            h = layer["post_attention_layernorm"](x)
            mlp = layer["mlp"]
            x = x + mlp["down_proj"](F.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))
            logits.append(self.lm_head(self.norm(x)))
        return logits

    def _attend(self, h: torch.Tensor, keys: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """A chain that began at p sees the target's positions up to p, and of the drafts its own alone; adds to ``keys``."""
        model, step, (batch, length, _) = self.spec.model, len(keys), h.shape
        q, k, v = (
            self.midlayer["self_attn"][f"{x}_proj"](h).view(batch, length, -1, model.head_dim).transpose(1, 2) for x in "qkv"
        )
        table = self.rope[step : step + length]
        q, k = rotate(q.float(), table) * model.attn_scale, rotate(k.float(), table)
        group = model.heads // model.kv_heads
        keys.append((k.repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)))
        first, values = keys[0]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ first.transpose(-1, -2)).masked_fill(~seen, -torch.inf)
        own = [(q * key).sum(-1, keepdim=True) for key, _ in keys[1:]]
        weights = torch.cat((scores, *own), dim=-1).softmax(-1)
        mixed = weights[..., :length] @ values
        for i, (_, value) in enumerate(keys[1:]):
            mixed = mixed + weights[..., length + i, None] * value
        return mixed.transpose(1, 2).reshape(batch, length, -1)

    def save(self, folder: Path, tokens: torch.Tensor, dtype: torch.dtype) -> None:
        """``model.safetensors``. ``tokens``: the target's ids of the draft's vocabulary, in ascending order."""
        tensors = {name: t.detach().to(dtype).contiguous() for name, t in self.state_dict().items()}
        there = torch.zeros(self.spec.model.vocab_size, dtype=torch.bool).index_fill_(0, tokens, True)
        save_file({**tensors, "d2t": tokens - torch.arange(len(tokens)), "t2d": there}, folder / "model.safetensors")


def linear(into: int, out: int) -> nn.Linear:
    return nn.Linear(into, out, bias=False)


def norm(spec: ModelSpec) -> nn.RMSNorm:
    return nn.RMSNorm(spec.hidden_size, eps=spec.norm_eps)


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = table.chunk(2, dim=-1)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def write_config(folder: Path, target: ModelSpec, vocabulary: int) -> None:
    """``config.json`` of a draft of the target's sizes, as the EAGLE repositories have it."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": target.vocab_size,
        "draft_vocab_size": min(vocabulary, target.vocab_size),
        "hidden_size": target.hidden_size,
        "intermediate_size": target.ffn_size,
        "num_hidden_layers": 1,
        "num_attention_heads": target.heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": target.norm_eps,
        "rope_theta": target.rope_tables[0].theta,
        "max_position_embeddings": target.context_length,
        "tie_word_embeddings": False,
        "torch_dtype": target.dtype,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
