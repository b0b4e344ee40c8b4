"""Engine options on a command line: the fields of ``EngineConfig``, with dashes."""

from __future__ import annotations

import argparse
from typing import Any

from wellhead.config import PAGE_SIZES, QUANTIZATIONS
from wellhead.speculation import Algorithm


def layer_name(text: str) -> int | str:
    """A layer on a command line: a number, or a word."""
    try:
        return int(text)
    except ValueError:
        return text


#: flag -> keyword arguments of ``add_argument``. A flag that is not given is not passed on, so defaults live in one place.
ENGINE_FLAGS: dict[str, dict[str, Any]] = {
    "--tokenizer-path": {"help": "tokenizer folder or file (default: the model's own)"},
    "--skip-tokenizer-init": {"action": "store_true", "help": "token ids only"},
    "--served-model-name": {"help": "name under which clients see the model"},
    "--dtype": {"choices": ["auto", "float32", "bfloat16", "float16"], "help": "default: the checkpoint's"},
    "--device": {"choices": ["auto", "cpu", "cuda"]},
    "--context-length": {"type": int, "help": "tokens a sequence may have (default: the model's)"},
    "--return-hidden-states-mode": {"choices": ["off", "last", "full"], "help": "ceiling of the capture mode (default: last)"},
    "--enable-return-hidden-states": {"action": "store_true", "help": "the same as --return-hidden-states-mode full"},
    "--capture-layers": {
        "type": layer_name,
        "nargs": "+",
        "metavar": "LAYER",
        "help": "layers to be asked for (default: -1)",
    },
    "--heads": {"nargs": "+", "metavar": "FILE", "help": "head files, or folders of them, that requests may use"},
    "--force-heads": {"action": "store_true", "help": "take heads that were made on another model"},
    "--allow-head-upload": {"action": "store_true", "help": "let clients add and remove heads (POST, DELETE /v1/heads)"},
    "--tp-size": {"type": int, "metavar": "N", "help": "processes (on GPUs: devices) that share the model (default: 1)"},
    "--dist-timeout": {"type": int, "metavar": "S", "help": "seconds that these wait for each other (default: 60)"},
    "--max-total-tokens": {"type": int, "help": "tokens in the KV pool"},
    "--mem-fraction-static": {
        "type": float,
        "help": "share of free memory that the KV pool may take; not beside --max-total-tokens",
    },
    "--page-size": {"type": int, "choices": list(PAGE_SIZES), "help": "tokens per KV page (default: 64)"},
    "--chunked-prefill-size": {"type": int, "help": "prompt tokens per step; -1: whole prompts"},
    "--max-running-requests": {"type": int},
    "--max-queued-requests": {"type": int},
    "--schedule-policy": {"choices": ["fcfs", "lpm"]},
    "--disable-radix-cache": {"action": "store_true", "help": "keep no prefixes"},
    "--random-seed": {"type": int},
    "--disable-overlap-schedule": {
        "action": argparse.BooleanOptionalAction,
        "help": "plan a step only when the one before it is done (default: on the CPU)",
    },
    "--enable-torch-compile": {"action": "store_true", "help": "CPU: run decode steps as compiled graphs"},
    "--disable-cuda-graph": {"action": "store_true", "help": "GPU: run every step operator by operator"},
    "--cuda-graph-max-bs": {"type": int, "help": "sequences in the largest decode graph"},
    "--piecewise-cuda-graph-max-tokens": {"type": int, "help": "tokens in the largest prefill graph; 0: none"},
    "--quantization": {"choices": list(QUANTIZATIONS), "help": "CPU: round blocks' weights and their inputs to 8 bits"},
    "--native-kernels": {"action": argparse.BooleanOptionalAction, "help": "require, or do without, the compiled kernels"},
    "--speculative-algorithm": {
        "type": str.upper,
        "choices": [a.value for a in Algorithm if a],
        "help": "where drafts come from (default: no drafts)",
    },
    "--speculative-draft-model-path": {"metavar": "DIR", "help": "the draft model's folder (not for NGRAM)"},
    "--speculative-num-steps": {"type": int, "help": "drafts that a draft model proposes per step"},
    "--speculative-num-draft-tokens": {"type": int, "help": "tokens judged per step: the drafts and the one before them"},
    "--speculative-eagle-topk": {"type": int, "help": "only 1: chains"},
    "--speculative-ngram-min-match-window-size": {"type": int, "metavar": "N", "help": "shortest run that NGRAM looks up"},
    "--speculative-ngram-max-match-window-size": {"type": int, "metavar": "N", "help": "longest run that NGRAM looks up"},
}
#: SGLang's other names.
ALSO: dict[str, tuple[str, ...]] = {"--tp-size": ("--tensor-parallel-size",)}


def add_engine_arguments(parser: argparse.ArgumentParser, *, model_required: bool = True) -> None:
    """Add ``--model-path`` and every engine option to a parser."""
    group = parser.add_argument_group("engine")
    group.add_argument("--model-path", required=model_required, help="model folder, .gguf file or hub id")
    for flag, settings in ENGINE_FLAGS.items():
        group.add_argument(flag, *ALSO.get(flag, ()), default=argparse.SUPPRESS, **settings)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The engine options that were given, ready for ``EngineConfig.from_options``."""
    names = ["model_path", *(flag[2:].replace("-", "_") for flag in ENGINE_FLAGS)]
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
