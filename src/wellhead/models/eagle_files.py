"""EAGLE checkpoints on disk, as the EAGLE repositories and SpecForge publish them; held against their target.

==========================  ======================  =========================================================
EAGLE                       EAGLE3
==========================  ======================  =========================================================
``fc.weight`` (``.bias``)   ``[H, 2H]``             ``[H, 3H]``: embedding and row; rows of three layers
``layers.{i}.*``            ``midlayer.*``          Llama's layer; see ``expected``
                            ``norm.weight``         before the head
                            ``lm_head.weight``      ``[draft_vocab_size, H]``
                            ``d2t``                 ``[draft_vocab_size]``: the target's id less the draft's
                            ``t2d``                 ``[vocab_size]``: which of the target's ids the draft has
==========================  ======================  =========================================================

Copies of the target's embedding and (EAGLE) head, which some files carry, are not read: these are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from wellhead.errors import UnsupportedModel, WeightsError
from wellhead.models.fields import Fields, refuse_what_no_family_has
from wellhead.models.json_file import read_json
from wellhead.models.llama import llama
from wellhead.models.spec import ModelSpec
from wellhead.models.tensors import layer_tensors
from wellhead.models.weights import Handle, open_shard, shards

_FLOATS = ("F32", "BF16", "F16")
_SHARED = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class EagleSpec:
    """A draft's layers, in a ``ModelSpec``, and what is around them.

    ``draft_vocab``: rows of its own head (EAGLE3), 0 if it uses the target's. ``draws_on``: the target's layers, as Hugging
    Face numbers them. ``fc_bias``: is there one?
    """

    model: ModelSpec
    draft_vocab: int
    draws_on: tuple[int, ...]
    fc_bias: bool = False

    @property
    def three(self) -> bool:
        return self.draft_vocab > 0


def eagle_spec(folder: Path, target_layers: int, *, three: bool) -> EagleSpec:
    """``config.json`` of a draft. Errors: ModelError and UnsupportedModel, by name."""
    config = read_json(folder / "config.json")
    fields = Fields(config, "LlamaForCausalLMEagle3" if three else "LlamaForCausalLMEagle")
    refuse_what_no_family_has(fields)
    for key in ("norm_before_residual", "norm_before_fc"):
        if config.get(key):
            raise fields.refuse(f"{key} is not supported")
    model = llama(fields)
    if not three:
        return EagleSpec(model, 0, (target_layers,))
    if model.layers != 1:
        raise fields.refuse(f"num_hidden_layers {model.layers} is not supported: EAGLE3 drafts here have 1")
    return EagleSpec(model, fields.integer("draft_vocab_size", model.vocab_size), _read_layers(fields, config, target_layers))


def _read_layers(fields: Fields, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The three layers whose output the draft reads: those that the config names (blocks from 0), or the usual ones."""
    named = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if named is None:
        found = sorted({2, layers // 2, layers - 3})
    elif isinstance(named, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in named):
        found = [i + 1 for i in named]
    else:
        raise fields.refuse(f"eagle_aux_hidden_state_layer_ids must be a list of layers, not {named!r}")
    if len(found) != 3 or not all(0 <= i < layers for i in found):
        raise fields.refuse(f"layers {found} of a target with {layers} were to be read; three below {layers} are needed")
    return tuple(found)


class EagleFiles:
    """The tensors of a draft, checked from the headers alone. ``spec`` is as the files bear it out (biases)."""

    def __init__(self, folder: Path, spec: EagleSpec) -> None:
        self._folder = folder
        self._where: dict[str, tuple[Handle, str]] = {}
        for file in shards(folder):
            handle = open_shard(file)
            for name in handle.keys():  # noqa: SIM118 - not a dict
                self._where[name.removeprefix("model.")] = (handle, name)
        layer = "midlayer" if spec.three else "layers.0"
        model = replace(spec.model, qkv_bias=f"{layer}.self_attn.q_proj.bias" in self._where)
        self.spec = replace(spec, model=model, fc_bias="fc.bias" in self._where)
        self._check()

    def get(self, name: str) -> torch.Tensor:
        """A tensor on the CPU, in the file's dtype."""
        handle, stored = self._where[name]
        return handle.get_tensor(stored)

    def target_ids(self) -> torch.Tensor:
        """EAGLE3: the target's id of each of the draft's, int64 ``[draft_vocab]``. Raises WeightsError for an impossible map."""
        spec = self.spec
        own = torch.arange(spec.draft_vocab)
        ids = own + self.get("d2t").long() if "d2t" in self._where else own
        different = len(set(ids.tolist()))
        if ids.min() < 0 or ids.max() >= spec.model.vocab_size or different != len(ids):
            raise WeightsError(
                f"{self._folder}: d2t maps {spec.draft_vocab} ids to {different} different ones in {int(ids.min())} .. "
                f"{int(ids.max())}; the target has {spec.model.vocab_size}"
            )
        if "t2d" in self._where:
            there = self.get("t2d").bool().nonzero()[:, 0]
            if not torch.equal(there, ids.sort().values):
                raise WeightsError(f"{self._folder}: t2d names {len(there)} ids, and not those {len(ids)} that d2t has")
        return ids

    def _check(self) -> None:
        expected = expected_tensors(self.spec)
        maps = ("d2t", "t2d") if self.spec.three else ()
        for name in expected:
            if name not in self._where:
                raise WeightsError(f"{self._folder}: tensor {name} is missing")
        if self.spec.three and "d2t" not in self._where and self.spec.draft_vocab != self.spec.model.vocab_size:
            have = f"draft_vocab_size {self.spec.draft_vocab} and vocab_size {self.spec.model.vocab_size}"
            raise WeightsError(f"{self._folder}: the map d2t is missing, with {have}")
        for name, (handle, stored) in self._where.items():
            header = handle.get_slice(stored)
            shape, dtype = tuple(header.get_shape()), header.get_dtype()
            wanted: tuple[int, ...]
            if name in maps:
                wanted = (self.spec.draft_vocab if name == "d2t" else self.spec.model.vocab_size,)
            elif name in expected:
                wanted = expected[name]
                if dtype not in _FLOATS:
                    raise UnsupportedModel(f"{self._folder}: tensor {stored} has dtype {dtype}; supported: {', '.join(_FLOATS)}")
            elif name in _SHARED:
                continue
            else:
                raise WeightsError(f"{self._folder}: tensor {stored} is left over: such a draft has none")
            if shape != wanted:
                raise WeightsError(f"{self._folder}: tensor {stored} is {list(shape)}, the config asks for {list(wanted)}")


def expected_tensors(spec: EagleSpec) -> dict[str, tuple[int, ...]]:
    """The floating-point tensors that are read, with their shapes.

    EAGLE's first layer has no ``input_layernorm``. EAGLE3's one layer reads embedding and row side by side, each with a
    norm of its own (``input_layernorm``, ``hidden_norm``), so that its queries, keys and values come from ``2H``.
    """
    model, hidden = spec.model, spec.model.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, (3 if spec.three else 2) * hidden)}
    if spec.fc_bias:
        shapes["fc.bias"] = (hidden,)
    if not spec.three:
        for i in range(model.layers):
            shapes |= {f"layers.{i}.{t.name}": t.shape for t in layer_tensors(model) if i or t.role != "attn_norm"}
        return shapes
    for t in layer_tensors(model):
        wide = t.kind == "matrix" and t.role in ("q", "k", "v")
        shapes[f"midlayer.{t.name}"] = (t.shape[0], 2 * hidden) if wide else t.shape
    shapes["midlayer.hidden_norm.weight"] = shapes["norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (spec.draft_vocab, hidden)
    return shapes
