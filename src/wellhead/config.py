"""What the user says (``EngineConfig``), and what holds (``Resolved``): frozen, without a None that means "guess"."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

from wellhead.errors import InvalidConfig
from wellhead.reads import PRE_NORM, layer_number
from wellhead.speculation import PLAIN, Speculation, SpeculativeOptions, effective_capture
from wellhead.types import DTYPES, CaptureMode, DType

SchedulePolicy = Literal["fcfs", "lpm"]
Quantization = Literal["int8"]
PAGE_SIZES = (16, 32, 64, 128)
SWITCHES = (
    *("skip_tokenizer_init", "enable_return_hidden_states", "disable_radix_cache"),
    *("enable_torch_compile", "disable_cuda_graph", "force_heads", "allow_head_upload"),
)
QUANTIZATIONS = ("int8", "w8a8_int8")  # two names of one thing
CHOICES = ("native_kernels", "disable_overlap_schedule")  # switches whose default depends on the machine
#: The longest sequence that a decode graph on a GPU can see; longer ones decode without a graph.
GRAPH_CONTEXT = 8192


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of an engine, under the names that SGLang has for them where it has them.

    Every field is an option of ``Engine(...)`` and, with dashes, of the command line. ``None`` and ``"auto"`` mean
    "derive it"; ``resolve`` does so once.

    =========================== =====================================================================================
    model_path                  directory, ``.gguf`` file or hub id
    tokenizer_path              default: the model's own
    skip_tokenizer_init         token ids in, token ids out
    dtype                       ``auto`` (the checkpoint's), ``float32``, ``bfloat16``, ``float16``
    device                      ``auto``, ``cpu``, ``cuda``
    context_length              tokens a sequence may have; default and upper bound: the model's
    return_hidden_states_mode   ceiling of the capture mode: ``off``, ``last`` (default), ``full``
    enable_return_hidden_states SGLang's older switch: the same as ``full``; the mode wins if both are given
    capture_layers              layers that requests may ask for, numbered as in Hugging Face, or ``"L:pre_norm"``: the last
                                block before the final norm; default ``(-1,)``
    heads                       head files, or folders of them, that requests may use, see docs/heads.md; whatever the ceiling is
    force_heads                 take heads that say that they were made on another model
    allow_head_upload           heads may be added and removed while the engine runs
    max_total_tokens            size of the KV pool; default: what ``mem_fraction_static`` of free memory holds, at most
                                the larger of 32,768 and the context
    mem_fraction_static         share of free memory that the KV pool may take at most; not beside ``max_total_tokens``
    page_size                   tokens per page, also the key block of the attention: 16, 32, 64, 128
    chunked_prefill_size        prompt tokens computed in one step; -1: whole prompts
    max_running_requests        sequences that are in flight at once
    max_queued_requests         sequences that may wait; more are refused as overloaded
    schedule_policy             ``fcfs`` or ``lpm`` (longest prefix first)
    disable_radix_cache         forget every prefix
    random_seed                 from which requests without a ``sampling_seed`` get theirs
    disable_overlap_schedule    plan a step only when the one before it is done; default: on the CPU, where planning has no
                                processor to itself. A step that judges drafts is waited for in any case
    enable_torch_compile        on the CPU: run steps as compiled graphs (a GPU has CUDA graphs without being asked)
    disable_cuda_graph          on a GPU: run every step operator by operator
    cuda_graph_max_bs           sequences in the largest decode graph, CPU graphs included; default: the running limit, at
                                most 64
    piecewise_cuda_graph_max_tokens  tokens in the largest prefill graph, CPU graphs included; 0: none; default: 512 on a
                                GPU, 0 on the CPU
    tp_size                     processes that share the model, see docs/parallel.md; 1: this one
    dist_timeout                seconds that they wait for each other (default: 60)
    quantization                ``int8`` (SGLang's ``w8a8_int8`` is the same): blocks' weights and their inputs are rounded to
                                8 bits, on the CPU, see docs/quantization.md; default: as the checkpoint has them
    native_kernels              ``None``: compiled kernels where they can be had; True: or fail; False: torch operators
    speculative_...             speculative decoding, see docs/speculative.md: ``algorithm`` (``EAGLE``, ``EAGLE3``,
                                ``STANDALONE``, ``NGRAM``), ``draft_model_path``, ``num_steps``, ``num_draft_tokens``
                                (drafts and the token before them), ``eagle_topk`` (1), and the shortest and longest run
                                that NGRAM looks up
    =========================== =====================================================================================
    """

    model_path: str
    tokenizer_path: str | None = None
    skip_tokenizer_init: bool = False
    served_model_name: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    context_length: int | None = None
    return_hidden_states_mode: str | None = None
    enable_return_hidden_states: bool = False
    capture_layers: tuple[int | str, ...] = (-1,)
    heads: tuple[str, ...] = ()
    force_heads: bool = False
    allow_head_upload: bool = False
    max_total_tokens: int | None = None
    mem_fraction_static: float = 0.5
    page_size: int = 64
    chunked_prefill_size: int | None = None
    max_running_requests: int = 64
    max_queued_requests: int = 4096
    schedule_policy: str = "fcfs"
    disable_radix_cache: bool = False
    random_seed: int = 0
    disable_overlap_schedule: bool | None = None
    enable_torch_compile: bool = False
    disable_cuda_graph: bool = False
    cuda_graph_max_bs: int | None = None
    piecewise_cuda_graph_max_tokens: int | None = None
    quantization: str | None = None
    native_kernels: bool | None = None
    tp_size: int = 1
    dist_timeout: int | None = None
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_num_steps: int | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_ngram_min_match_window_size: int | None = None
    speculative_ngram_max_match_window_size: int | None = None

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> EngineConfig:
        """Build from keyword options; an unknown one is an error that lists what there is."""
        names = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(options) - names)
        if unknown:
            raise InvalidConfig(f"unknown option {unknown[0]!r}; options are {', '.join(sorted(names))}", param=unknown[0])
        if "capture_layers" in options:
            options = {**options, "capture_layers": _layer_tuple(options["capture_layers"])}
        if "heads" in options:
            options = {**options, "heads": _path_tuple(options["heads"])}
        return cls(**options)

    def __post_init__(self) -> None:
        _check_str(self, "model_path")
        if not self.model_path:
            raise InvalidConfig("model_path is empty", param="model_path")
        for name in ("tokenizer_path", "served_model_name"):
            if getattr(self, name) is not None:
                _check_str(self, name)
        for name in (*SWITCHES, *CHOICES):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name in CHOICES and value is None):
                raise InvalidConfig(f"{name} must be true or false, not {value!r}", param=name)
        if self.dtype not in ("auto", *DTYPES):
            raise InvalidConfig(f"dtype must be auto, {', '.join(DTYPES)}, not {self.dtype!r}", param="dtype")
        if self.device not in ("auto", "cpu", "cuda"):
            raise InvalidConfig(f"device must be auto, cpu or cuda, not {self.device!r}", param="device")
        if self.schedule_policy not in get_args(SchedulePolicy):
            raise InvalidConfig(f"schedule_policy must be fcfs or lpm, not {self.schedule_policy!r}", param="schedule_policy")
        if self.quantization not in (None, *QUANTIZATIONS):
            raise InvalidConfig(f"quantization must be int8 (or w8a8_int8), not {self.quantization!r}", param="quantization")
        if type(self.page_size) is not int or self.page_size not in PAGE_SIZES:
            raise InvalidConfig(f"page_size must be one of {PAGE_SIZES}, not {self.page_size!r}", param="page_size")
        for name, low in (("max_running_requests", 1), ("max_queued_requests", 1), ("random_seed", 0), ("tp_size", 1)):
            _check_int(self, name, low)
        if self.random_seed >= 2**63:
            raise InvalidConfig(f"random_seed must be below 2**63, not {self.random_seed}", param="random_seed")
        for name, low in (
            *(("context_length", 1), ("max_total_tokens", 1)),
            *(("cuda_graph_max_bs", 1), ("piecewise_cuda_graph_max_tokens", 0), ("dist_timeout", 1)),
        ):
            if getattr(self, name) is not None:
                _check_int(self, name, low)
        if self.chunked_prefill_size is not None and self.chunked_prefill_size != -1:
            _check_int(self, "chunked_prefill_size", 1)
        if isinstance(self.mem_fraction_static, bool) or not isinstance(self.mem_fraction_static, (int, float)):
            raise InvalidConfig("mem_fraction_static must be a number", param="mem_fraction_static")
        if not 0 < self.mem_fraction_static < 1:
            raise InvalidConfig(
                f"mem_fraction_static must lie between 0 and 1, not {self.mem_fraction_static}", param="mem_fraction_static"
            )
        if not self.capture_layers:
            raise InvalidConfig(
                "capture_layers is empty; use return_hidden_states_mode='off' to capture nothing", param="capture_layers"
            )
        self._check_together()

    def _check_together(self) -> None:
        """Refuse what another option would make idle. (``capture_layers`` stay: a ceiling of ``off`` says that they do.)"""
        self.ceiling()
        if self.skip_tokenizer_init and self.tokenizer_path is not None:
            raise InvalidConfig("tokenizer_path is given, but skip_tokenizer_init says to load none", param="tokenizer_path")
        if self.force_heads and not (self.heads or self.allow_head_upload):
            raise InvalidConfig("force_heads is given, but there are no heads", param="force_heads")
        if self.disable_radix_cache and self.schedule_policy == "lpm":
            raise InvalidConfig(
                "schedule_policy lpm needs the prefixes that disable_radix_cache forgets", param="schedule_policy"
            )
        if self.max_total_tokens is not None and self.mem_fraction_static != EngineConfig.mem_fraction_static:
            raise InvalidConfig(
                f"mem_fraction_static is given, but max_total_tokens {self.max_total_tokens} says how large the KV pool is",
                param="mem_fraction_static",
            )
        algorithm = self.speculation().algorithm
        if self.tp_size == 1 and self.dist_timeout is not None:
            raise InvalidConfig("dist_timeout is given, but tp_size is 1: nobody waits", param="dist_timeout")
        if self.tp_size > 1 and (algorithm.has_model or self.enable_torch_compile):
            what = f"speculative_algorithm {self.speculative_algorithm}" if algorithm.has_model else "enable_torch_compile"
            raise InvalidConfig(f"tp_size {self.tp_size} does not go with {what}", param="tp_size")
        if self.quantization and self.tp_size > 1:  # a row would be rounded by the largest number of each part
            raise InvalidConfig(f"tp_size {self.tp_size} does not go with quantization {self.quantization}", param="quantization")

    def overlaps(self, device: str) -> bool:
        """Are steps planned ahead? ``device``: the resolved one."""
        if self.disable_overlap_schedule is None:
            return device == "cuda"
        return not self.disable_overlap_schedule

    def speculation(self) -> Speculation:
        """The speculation that these options ask for."""
        names = [f.name for f in dataclasses.fields(SpeculativeOptions)]
        return SpeculativeOptions(**{name: getattr(self, f"speculative_{name}") for name in names}).resolve()

    def ceiling(self) -> CaptureMode:
        """The ceiling that these options ask for."""
        mode = self.return_hidden_states_mode
        if mode is None:
            return CaptureMode.FULL if self.enable_return_hidden_states else CaptureMode.LAST
        for known in CaptureMode:
            if mode == known.word and isinstance(mode, str):
                return known
        raise InvalidConfig(
            f"return_hidden_states_mode must be 'off', 'last' or 'full', not {mode!r}", param="return_hidden_states_mode"
        )

    def resolve(
        self, *, model_dtype: DType, model_context: int, layers: int, device: str, bytes_per_token: int, free_bytes: int,
        head_layers: tuple[int, ...] = (),
    ) -> Resolved:  # fmt: skip
        """Derive what was left open.

        ``bytes_per_token``: of KV and kept rows together; ``free_bytes``: memory left after the weights; ``head_layers``: those
        that heads read.

        Raises ``InvalidConfig`` if the options contradict the model or the machine.
        """
        context = self.context_length or model_context
        if context > model_context:
            raise InvalidConfig(f"context_length {context} exceeds the model's {model_context}", param="context_length")
        speculation = self.speculation()
        if speculation.drafts >= context:
            raise InvalidConfig(
                f"speculative_num_draft_tokens {speculation.drafts + 1} exceeds the context of {context} tokens",
                param="speculative_num_draft_tokens",
            )
        chunk = self.chunked_prefill_size
        if chunk is None:
            chunk = 512 if device == "cpu" else 4096
        decode_graphs, prefill_graphs = self.graph_sizes(device, chunk)
        affordable = int(free_bytes * self.mem_fraction_static) // max(1, bytes_per_token)
        tokens = self.max_total_tokens or min(affordable, max(32768, context))
        pages = tokens // self.page_size
        if pages < 2:
            raise InvalidConfig(
                f"a KV pool of {tokens} tokens is less than two pages of {self.page_size}; "
                "raise max_total_tokens or mem_fraction_static",
                param="max_total_tokens",
            )
        if tokens > free_bytes // max(1, bytes_per_token):
            raise InvalidConfig(
                f"max_total_tokens {tokens} needs {tokens * bytes_per_token >> 20} MiB, {free_bytes >> 20} MiB are free",
                param="max_total_tokens",
            )
        return Resolved(
            model_path=self.model_path,
            served_model_name=self.served_model_name or self.model_path,
            dtype=model_dtype,
            device=device,
            context_length=context,
            ceiling=self.ceiling(),
            capture_layers=resolve_layers(self.capture_layers, layers, "capture_layers"),
            layers=layers,
            head_layers=head_layers,
            judges=bool(self.heads or self.allow_head_upload),
            pages=pages,
            page_size=self.page_size,
            chunk=pages * self.page_size if chunk == -1 else chunk,
            max_running=self.max_running_requests,
            max_queued=self.max_queued_requests,
            policy="lpm" if self.schedule_policy == "lpm" else "fcfs",
            prefix_cache=not self.disable_radix_cache,
            random_seed=self.random_seed,
            decode_graphs=decode_graphs,
            prefill_graphs=prefill_graphs,
            graph_context=GRAPH_CONTEXT if device == "cuda" else context,
            tp_size=self.tp_size,
            quantization="int8" if self.quantization else None,
            speculation=speculation,
            overlap=self.overlaps(device),
        )

    def graph_sizes(self, device: str, chunk: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Batch sizes of decode graphs, and token counts of prefill graphs; raises ``InvalidConfig`` for contradictions."""
        if self.enable_torch_compile and (device == "cuda" or self.disable_cuda_graph):
            why = "disable_cuda_graph" if self.disable_cuda_graph else "device cuda, where CUDA graphs do its work"
            raise InvalidConfig(f"enable_torch_compile contradicts {why}", param="enable_torch_compile")
        on = self.enable_torch_compile if device == "cpu" else not self.disable_cuda_graph and self.tp_size == 1
        sizes = {
            "cuda_graph_max_bs": self.cuda_graph_max_bs,
            "piecewise_cuda_graph_max_tokens": self.piecewise_cuda_graph_max_tokens,
        }
        for name, size in sizes.items():
            if size and not on:
                need = "needs enable_torch_compile on the CPU" if device == "cpu" else "contradicts disable_cuda_graph or tp_size"
                raise InvalidConfig(f"{name} {size} {need}", param=name)
        if not on:
            return (), ()
        batch = self.cuda_graph_max_bs or min(64, self.max_running_requests)
        tokens = self.piecewise_cuda_graph_max_tokens
        if tokens is None:
            tokens = min(512, chunk) if device == "cuda" else 0
        return _buckets(1, batch), _buckets(64, tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What the engine runs with; every room reads its numbers from here and nowhere else."""

    model_path: str
    served_model_name: str
    dtype: DType
    device: str
    context_length: int
    ceiling: CaptureMode
    capture_layers: tuple[int, ...]
    layers: int
    pages: int
    page_size: int
    chunk: int
    max_running: int
    max_queued: int
    policy: SchedulePolicy
    prefix_cache: bool
    random_seed: int
    head_layers: tuple[int, ...] = ()
    judges: bool = False
    decode_graphs: tuple[int, ...] = ()
    prefill_graphs: tuple[int, ...] = ()
    graph_context: int = GRAPH_CONTEXT
    tp_size: int = 1
    quantization: Quantization | None = None
    speculation: Speculation = PLAIN
    overlap: bool = False

    @property
    def max_total_tokens(self) -> int:
        return self.pages * self.page_size

    @property
    def capture(self) -> CaptureMode:
        """The mode at which the target's forward pass must be able to capture: the ceiling, or what heads or drafts need."""
        return effective_capture(self.strongest, self.speculation.algorithm, is_draft=False)

    @property
    def strongest(self) -> CaptureMode:
        """The highest mode of a request. Heads may look at any row, whatever may leave."""
        return CaptureMode.FULL if self.judges else self.ceiling

    @property
    def shown_layers(self) -> tuple[int, ...]:
        """Layers that the forward pass must be able to show: those that may be asked for, and those that heads read."""
        return tuple(dict.fromkeys((*self.capture_layers, *self.head_layers)))

    @property
    def rows_in_pages(self) -> bool:
        """Are hidden rows kept beside the KV, so that they survive a prefix hit?"""
        return self.ceiling is CaptureMode.FULL


def _buckets(first: int, largest: int) -> tuple[int, ...]:
    """``first``, doubled up to ``largest``, which is the last; none if there is nothing to hold."""
    sizes = []
    while first < largest:
        sizes.append(first)
        first *= 2
    return (*sizes, largest) if largest else ()


def resolve_layers(layers: tuple[int | str, ...], count: int, param: str) -> tuple[int, ...]:
    """Layers as users write them -> their numbers in ``Read``, refusing strangers and repeats."""
    found: list[int] = []
    for layer in layers:
        number = layer_number(layer, count)
        if number is None:
            raise InvalidConfig(
                f"{param}: layer {layer!r} is not in -{count + 1} .. {count} (0 = embeddings, {count} or -1 = final), nor "
                "L:pre_norm (before the final norm)",
                param=param,
            )
        if number in found:
            raise InvalidConfig(f"{param}: layer {layer} is named twice", param=param)
        found.append(number)
    return tuple(found)


def _layer_tuple(value: Any) -> tuple[int | str, ...]:
    layers = value if isinstance(value, (list, tuple)) else (value,)
    if all(
        (isinstance(v, int) and not isinstance(v, bool)) or (isinstance(v, str) and v.endswith(f":{PRE_NORM}")) for v in layers
    ):
        return tuple(layers)
    raise InvalidConfig(f"capture_layers must be a list of layer numbers, not {value!r}", param="capture_layers")


def _path_tuple(value: Any) -> tuple[str, ...]:
    paths = value if isinstance(value, (list, tuple)) else (value,)
    if all(isinstance(path, (str, os.PathLike)) and str(path) for path in paths):
        return tuple(str(path) for path in paths)
    raise InvalidConfig(f"heads must be a list of head files or folders of them, not {value!r:.80}", param="heads")


def _check_str(config: EngineConfig, name: str) -> None:
    if not isinstance(getattr(config, name), str):
        raise InvalidConfig(f"{name} must be a string, not {getattr(config, name)!r}", param=name)


def _check_int(config: EngineConfig, name: str, low: int) -> None:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidConfig(f"{name} must be a whole number of at least {low}, not {value!r}", param=name)
