"""From options to a running core: model, kernels, pages, threads of numbers that must agree."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from wellhead.capture.tap import TORCH_DTYPE, RowStore
from wellhead.config import EngineConfig, Resolved, resolve_layers
from wellhead.core.draft import DraftFiles
from wellhead.core.engine import Core
from wellhead.core.heads import Heads, TokenRow, layers_of, loaded
from wellhead.errors import InvalidConfig, InvalidHead, RankDied, UnsupportedModel
from wellhead.kernels import select_ops
from wellhead.kernels.ops import Ops
from wellhead.models.brought import Brought, load_brought
from wellhead.models.decoder import Decoder
from wellhead.models.locate import load_spec, locate
from wellhead.models.names import EMBEDDING, HEAD
from wellhead.models.spec import ModelSpec
from wellhead.models.task import Task, load_task
from wellhead.models.weights import open_weights
from wellhead.parallel.leader import lead, start_ranks
from wellhead.parallel.ranks import Ranks
from wellhead.reads import layer_word
from wellhead.requests.limits import Limits
from wellhead.requests.text import TextStreams
from wellhead.requests.tokenizer import Tokenizer
from wellhead.runner.capture import Compiled, CudaGraph
from wellhead.runner.eager import EagerRunner, Model
from wellhead.runner.speculative import SpeculativeRunner
from wellhead.step import Runner
from wellhead.types import DTYPES, DType

log = logging.getLogger("wellhead")

#: Seconds that ranks wait for each other if nothing is said.
DIST_TIMEOUT = 60


@dataclass(frozen=True, slots=True)
class Assembled:
    """Everything that one engine is made of. ``task``, ``brought``: what the model is for, and its own heads.

    ``timings``: seconds by phase of the start. ``ranks``: its other processes.
    """

    core: Core
    config: Resolved
    spec: ModelSpec
    ops: Ops
    tokenizer: Tokenizer | None
    limits: Limits
    heads: Heads
    task: Task
    brought: Brought
    timings: dict[str, float] = field(default_factory=dict)
    ranks: Ranks | None = None

    def watch(self, on_death: Callable[[RankDied], object]) -> None:
        """Call this, from another thread, if a process dies that the engine needs; it may have died already."""
        if self.ranks is not None:
            self.ranks.watch(on_death)

    def close(self) -> None:
        """End the engine's other processes, when nothing is computed any more. Harmless if repeated."""
        if self.ranks is not None:
            self.ranks.close()

    def info(self) -> dict[str, Any]:
        """What ``/server_info`` and the start-up line say."""
        config = self.config
        return {
            "model_path": config.model_path,
            "served_model_name": config.served_model_name,
            "architecture": self.spec.architecture,
            "is_generation": self.spec.has_head,
            "tasks": list(self.task.kinds),
            "dtype": config.dtype,
            "quantization": config.quantization,
            "device": config.device,
            "return_hidden_states_mode": config.ceiling.word,
            "capture_layers": [layer_word(n, config.layers) for n in config.capture_layers],
            "heads": {name: head.version for name, head in self.heads.items()},
            "num_layers": config.layers,
            "tp_size": config.tp_size,
            "hidden_size": self.spec.hidden_size,
            "vocab_size": self.spec.vocab_size,
            "context_length": config.context_length,
            "page_size": config.page_size,
            "pages": config.pages,
            "max_total_tokens": config.max_total_tokens,
            "max_running_requests": config.max_running,
            "chunked_prefill_size": config.chunk,
            "schedule_policy": config.policy,
            "disable_radix_cache": not config.prefix_cache,
            "disable_overlap_schedule": not config.overlap,
            "graphs": {"decode": list(config.decode_graphs), "prefill": list(config.prefill_graphs)},
            "speculative_algorithm": config.speculation.algorithm or None,
            "speculative_num_draft_tokens": config.speculation.drafts + 1 if config.speculation.algorithm else None,
            "kernels": self.ops.describe(),
            "batch_invariant": self.ops.batch_invariant,
            "start_seconds": self.timings,
        }


def assemble(options: EngineConfig) -> Assembled:
    """Load the model and put an engine together; raises a child of ``WellheadError`` if any of it cannot be."""
    clock = _Clock()
    path = locate(options.model_path)
    spec = load_spec(path)
    task = load_task(path, spec)
    _check_early(options, spec)
    files = loaded(options)
    head_layers = layers_of(files, spec)
    device = _device(options.device)
    if options.quantization and device.type != "cpu":
        raise InvalidConfig(f"quantization {options.quantization} runs on the CPU, not on {device.type}", param="quantization")
    dtype: DType = spec.dtype if options.dtype == "auto" else _dtype(options.dtype)
    draft_files = DraftFiles.find(options, spec, dtype)
    with ExitStack() as undo:
        ranks = None
        if options.tp_size > 1:
            ranks = start_ranks(options.tp_size, options.dist_timeout or DIST_TIMEOUT, spec, device)
            undo.callback(ranks.close)
        tokenizer = _tokenizer(options, path)
        clock.lap("tokenizer")
        ops = select_ops(TORCH_DTYPE[dtype], device, native=options.native_kernels)
        clock.lap("kernels")
        positions = options.context_length or spec.context_length
        model: Model
        draft = free = None
        if ranks is not None:
            model = leader = lead(ranks, path, ops, positions)
            spec, free = leader.whole, leader.free
        else:
            with open_weights(path, spec) as weights:
                spec = weights.spec  # the file may settle what the config leaves open: a head apart from a "tied" embedding
                model = decoder = Decoder(spec, ops, weights.get, positions, int8=options.quantization is not None)
            draft = draft_files.load(decoder, ops, positions) if draft_files is not None else None
        brought = load_brought(path, spec, task, _verdict(task, tokenizer), TORCH_DTYPE[dtype])
        clock.lap("weights")
        config = _resolve(options, [model.spec, *([draft.spec] if draft is not None else [])], dtype, device, free, head_layers)
        heads = Heads(files, options, config, spec, _lm_rows(path, spec, dtype, tokenizer))
        target = EagerRunner(model, config, frozenset(draft.draws_on) if draft is not None else frozenset())
        runner: Runner = SpeculativeRunner(target, draft, config) if draft is not None else target
        texts = TextStreams(tokenizer) if tokenizer is not None else None
        core = Core(config, runner, spec.hidden_size, spec.eos_token_ids, texts)
        clock.lap("pages")
        if config.decode_graphs or config.prefill_graphs:
            target.capture_graphs(Compiled() if device.type == "cpu" else CudaGraph())
            clock.lap("graphs")
        undo.pop_all()
    special = tokenizer.special_ids if tokenizer is not None else frozenset[int]()
    limits = Limits(config, spec.vocab_size, tokenizer is not None, special, spec.has_head, heads)
    return Assembled(core, config, spec, ops, tokenizer, limits, heads, task, brought, clock.laps, ranks)


def _tokenizer(options: EngineConfig, path: Path) -> Tokenizer | None:
    if options.skip_tokenizer_init:
        return None
    return Tokenizer.load(locate(options.tokenizer_path) if options.tokenizer_path else path)


def _lm_rows(path: Path, spec: ModelSpec, dtype: DType, tokenizer: Tokenizer | None) -> TokenRow:
    """Rows of the LM head as the engine has them, out of the model's files."""

    def row(token: int | str) -> NDArray[np.floating]:
        if not spec.has_head or spec.logit_softcap is not None:
            why = "caps its logits" if spec.has_head else "has no LM head"
            raise InvalidHead(
                f"token {token!r:.80}: {spec.architecture} {why}, so a difference of tokens is no product with a row"
            )
        index = _token(token, tokenizer)
        if not 0 <= index < spec.vocab_size:
            raise InvalidHead(f"token {index} is outside [0, {spec.vocab_size})")
        with open_weights(path, spec) as weights:
            weight = weights.get(EMBEDDING if spec.tied_head else HEAD)
        found: NDArray[np.floating] = weight[index].to(TORCH_DTYPE[dtype]).float().numpy()
        return found

    return row


def _token(token: int | str, tokenizer: Tokenizer | None) -> int:
    if isinstance(token, int):
        return token
    if tokenizer is None:
        raise InvalidHead(f"token {token!r:.80} is a text, and this engine has no tokenizer: name it by its id")
    ids = tokenizer.encode(token, add_special_tokens=False)
    if len(ids) != 1:
        raise InvalidHead(f"{token!r:.80} is {len(ids)} tokens of this model, not one")
    return ids[0]


def _verdict(task: Task, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """The ids of the tokens that a judge's verdict is made of; none without a judge, or without a tokenizer for its words."""
    if task.judge is None or (tokenizer is None and isinstance(task.judge.yes, str)):
        return ()
    ids = []
    for word in (task.judge.yes, task.judge.no):
        if isinstance(word, str) and tokenizer is not None:
            found = tokenizer.encode(word, add_special_tokens=False)
            if len(found) != 1:
                raise UnsupportedModel(f"the verdict {word!r} is {len(found)} tokens in this model's vocabulary, not one")
            ids += found
        elif isinstance(word, int):
            ids.append(word)
    return tuple(ids)


def _check_early(options: EngineConfig, spec: ModelSpec) -> None:
    """What can be refused before gigabytes are read."""
    resolve_layers(options.capture_layers, spec.layers, "capture_layers")
    if not spec.has_head and options.speculation().algorithm:
        raise InvalidConfig(
            f"speculative_algorithm {options.speculative_algorithm} drafts tokens, but {spec.architecture} has no LM head to "
            "judge them",
            param="speculative_algorithm",
        )
    if options.context_length is not None and options.context_length > spec.context_length:
        raise InvalidConfig(
            f"context_length {options.context_length} exceeds the model's {spec.context_length}", param="context_length"
        )


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InvalidConfig("device cuda was asked for, but torch finds no GPU", param="device")
    return torch.device(wanted)


def _dtype(name: str) -> DType:
    return next(d for d in DTYPES if d == name)


def _resolve(
    options: EngineConfig, specs: list[ModelSpec], dtype: DType, device: torch.device, free: int | None,
    head_layers: tuple[int, ...],
) -> Resolved:  # fmt: skip
    """``specs``: of the models that this process has keys of, the target (or its part of it) first. ``free``: bytes that
    another rank's GPU has left."""
    target, size = specs[0], TORCH_DTYPE[dtype].itemsize
    per_token = sum(2 * s.layers * s.kv_heads * s.head_dim * size for s in specs)
    if device.type == "cpu":
        per_token *= options.tp_size  # all ranks' keys are in the one memory
    if options.ceiling().word == "full":
        layers = tuple({*resolve_layers(options.capture_layers, target.layers, "capture_layers"), *head_layers})
        per_token += RowStore.bytes_per_token(layers, target.hidden_size, dtype)
    here = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return options.resolve(
        model_dtype=dtype,
        model_context=target.context_length,
        layers=target.layers,
        device=device.type,
        bytes_per_token=per_token,
        free_bytes=here if free is None else min(here, free),
        head_layers=head_layers,
    )


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._at, 3)
        self._at = now
