"""What ``wellhead extract`` is told: its arguments, and from them one frozen object, checked."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wellhead.errors import InvalidConfig
from wellhead.frontends.bulk.input.carry import Carry
from wellhead.frontends.bulk.input.readers import TEXT_KINDS
from wellhead.frontends.bulk.input.template import Template
from wellhead.frontends.bulk.wish import MODES, Wish
from wellhead.frontends.cluster import ADDRESS_HELP, load_ray
from wellhead.frontends.options import add_engine_arguments, engine_options, layer_name
from wellhead.reductions import REDUCTIONS
from wellhead.types import DTYPES, DType

#: Options of an engine that decide bits, or which prompts are too long.
_DECIDING = ("dtype", "device", "context_length", "page_size", "native_kernels", "quantization", "tp_size")
Format = Literal["parquet", "safetensors", "npy"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``wellhead extract``."""
    # A value such as -8: or -1:pre_norm looks like an option to argparse, which lets no more than negative numbers pass.
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    add_input_arguments(parser)
    _add_output_arguments(parser)
    _add_run_arguments(parser)
    remote = parser.add_argument_group("server", "extract through a running server instead of an engine of one's own")
    remote.add_argument("--url", help="address of a server, for example http://127.0.0.1:30000; then no --model-path")
    remote.add_argument("--api-key", help="the server's key")
    _add_ray_arguments(parser)
    add_engine_arguments(parser, model_required=False)


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument(
        "--input", required=True, nargs="+", metavar="PATH",
        help="files (.jsonl, .csv, .tsv, .parquet, .arrow, .txt with one text a line; .gz, .bz2, .xz of the text ones), globs, "
        "a folder saved by datasets, or - for stdin",
    )  # fmt: skip
    group.add_argument("--input-format", choices=TEXT_KINDS, help="for stdin, or instead of the suffix")
    group.add_argument("--text-column", default="text")
    group.add_argument("--id-column", help="column of ids (default: the row number)")
    group.add_argument("--carry", nargs="+", default=[], metavar="COLUMN[:TYPE]", help="columns that go along into the output")
    group.add_argument(
        "--template", action="append", default=[],
        help='the prompt, for example "Review: {text}\\nOverall, this movie was"; any column may stand in braces. '
        "Several: one vector column each",
    )  # fmt: skip
    group.add_argument(
        "--truncate", choices=["left", "right"], help="cut texts that are too long, on this side (default: refuse)"
    )
    group.add_argument("--max-length", type=int, metavar="TOKENS", help="tokens a prompt may have (default: the context)")
    group.add_argument("--shard", metavar="I/N", help="only this part of the rows: 0/8 .. 7/8, all into one --output folder")


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--output", required=True, type=Path, help="a folder, or one file: .parquet, or .npy with --strict")
    group.add_argument("--format", choices=["parquet", "safetensors"], help="of a folder's files (default: parquet)")
    group.add_argument(
        "--rows", metavar="WORDS",
        help='which rows of each prompt: last, all, -8:, 0,5,17, \'{"last": 8, "exclude": "special"}\', ... (default: last)',
    )  # fmt: skip
    group.add_argument("--reduce", choices=REDUCTIONS, help="what becomes of them; without --rows, of all")
    group.add_argument("--mode", choices=MODES, help="short for rows and reduce: the last row, the mean of all, or all of them")
    group.add_argument(
        "--layers", type=layer_name, nargs="+", metavar="LAYER",
        help="numbered as in Hugging Face, or L:pre_norm: before the final norm (default: the final one)",
    )  # fmt: skip
    group.add_argument("--token-ids", action="store_true", help="a column of the tokens at the positions of --rows")
    group.add_argument("--output-dtype", default="float32", choices=DTYPES)
    group.add_argument("--save-token-ids", action="store_true", help="a column of the tokens of each prompt")
    group.add_argument("--save-texts", action="store_true", help="a column of each prompt as the model read it")
    group.add_argument("--rows-per-part", type=int, metavar="N", help="rows in each file of a folder (default: about 64 MiB)")


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument("--strict", action="store_true", help="stop at the first row that cannot be embedded")
    group.add_argument("--retry-failed", action="store_true", help="try again the parts in which rows have failed")
    group.add_argument("--overwrite", action="store_true", help="throw away what --output holds, and begin anew")
    group.add_argument("--dry-run", action="store_true", help="count rows and tokens, say how long and how large, write nothing")


def _add_ray_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ray", "extract with many engines on a Ray cluster (needs: pip install 'wellhead[ray]')")
    group.add_argument("--ray", metavar="auto|local|ADDRESS", help=ADDRESS_HELP)
    group.add_argument("--ray-actors", type=int, metavar="N", help="engines (default: as many as the cluster has room for)")
    group.add_argument("--ray-cpus-per-actor", type=int, metavar="N", help="CPUs, and threads, of an engine (default: 1)")


@dataclass(frozen=True, slots=True)
class RayPool:
    """A pool of engines. ``address``: as in ``--ray``; ``actors``: None: as many as there is room for."""

    address: str
    actors: int | None
    cpus_per_actor: int

    @staticmethod
    def from_args(args: argparse.Namespace) -> RayPool | None:
        """None without ``--ray``. Raises ``InvalidConfig``."""
        for name in ("ray_actors", "ray_cpus_per_actor"):
            value = getattr(args, name)
            flag = f"--{name.replace('_', '-')}"
            if value is not None and args.ray is None:
                raise InvalidConfig(f"{flag} belongs to --ray", param=name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{flag} must be at least 1, not {value}", param=name)
        if args.ray is None:
            return None
        if args.dry_run:
            raise InvalidConfig("--dry-run looks at one engine, in this process: leave out --ray", param="ray")
        load_ray()
        return RayPool(args.ray, args.ray_actors, args.ray_cpus_per_actor or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A job. ``templates`` has at least one; ``columns`` are those that templates read; ``engine``: as for ``Engine``."""

    input: tuple[str, ...]
    input_format: str | None
    text_column: str
    id_column: str | None
    carry: tuple[Carry, ...]
    templates: tuple[Template, ...]
    truncate: str | None
    max_length: int | None
    shard: tuple[int, int] | None
    output: Path
    format: Format
    single: bool
    wish: Wish
    dtype: DType
    save_token_ids: bool
    save_texts: bool
    rows_per_part: int | None
    strict: bool
    retry_failed: bool
    overwrite: bool
    dry_run: bool
    url: str | None
    api_key: str | None
    ray: RayPool | None
    engine: dict[str, Any]

    @staticmethod
    def from_args(args: argparse.Namespace) -> Options:
        """Raises ``InvalidConfig``."""
        known = {name: getattr(args, name) for name in (
            "input_format", "text_column", "id_column", "truncate", "max_length", "output", "save_token_ids",
            "save_texts", "rows_per_part", "strict", "retry_failed", "overwrite", "dry_run", "url", "api_key",
        )}  # fmt: skip
        templates = tuple(Template.parse(t, args.text_column) for t in args.template)
        single = not args.output.is_dir() and bool(args.output.suffix)
        options = Options(
            **known,
            input=tuple(args.input),
            carry=tuple(Carry.parse(c) for c in args.carry),
            templates=templates or (Template.plain(args.text_column),),
            shard=_shard(args.shard),
            format=_format(args.output, args.format, single),
            single=single,
            wish=Wish.of(args.mode, args.rows, args.reduce, args.layers, args.token_ids),
            dtype=next(d for d in DTYPES if d == args.output_dtype),
            ray=RayPool.from_args(args),
            engine=engine_options(args),
        )
        options._check()
        return options

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for template in self.templates for name in template.columns))

    def deciding(self) -> dict[str, Any]:
        """The options that decide which bytes are written, as JSON has them."""
        return {
            **self.wish.deciding(), "output_dtype": self.dtype,
            "format": self.format, "single": self.single, "text_column": self.text_column, "id_column": self.id_column,
            "carry": [c.name if c.type is None else f"{c.name}:{c.type}" for c in self.carry],
            "templates": [t.source for t in self.templates], "truncate": self.truncate, "max_length": self.max_length,
            "shard": None if self.shard is None else list(self.shard), "save_token_ids": self.save_token_ids,
            "save_texts": self.save_texts, "rows_per_part": self.rows_per_part,
            "engine": {name: self.engine[name] for name in _DECIDING if name in self.engine},
        }  # fmt: skip

    def _check(self) -> None:
        self._check_source()
        self._check_output()
        for name in ("max_length", "rows_per_part"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"--{name.replace('_', '-')} must be at least 1, not {value}", param=name)
        if self.save_token_ids and self.wish.token_ids:
            raise InvalidConfig(
                "--save-token-ids and --token-ids both write a column token_ids: of the whole prompt, or of the rows. With the "
                "former, the tokens of the rows are token_ids[positions]",
                param="token_ids",
            )
        if self.shard is not None and "-" in self.input:
            raise InvalidConfig("--shard needs files: how many rows stdin has is not known beforehand", param="shard")
        if self.retry_failed and self.overwrite:
            raise InvalidConfig("--retry-failed goes on with what there is, --overwrite throws it away", param="overwrite")
        if len({c.name for c in self.carry}) != len(self.carry):
            raise InvalidConfig("--carry names a column twice", param="carry")

    def _check_source(self) -> None:
        """Either a server or an engine; options of the one are refused with the other."""
        if self.url is None:
            if self.api_key is not None:
                raise InvalidConfig("--api-key belongs to --url", param="api_key")
            if "model_path" not in self.engine:
                raise InvalidConfig("give --model-path, or --url of a running server", param="model_path")
            if self.engine.get("skip_tokenizer_init"):
                raise InvalidConfig("texts need a tokenizer: leave out --skip-tokenizer-init", param="skip_tokenizer_init")
            if self.wish.chars:
                raise InvalidConfig(
                    "--rows: chars are of a prompt's text, and an engine of one's own gets token ids; use --url, or token_ids",
                    param="rows",
                )
            return
        if self.ray is not None:
            raise InvalidConfig("--ray runs engines of its own; the server at --url has its own", param="ray")
        if self.engine:
            flag = next(iter(self.engine)).replace("_", "-")
            raise InvalidConfig(f"--{flag} belongs to an engine; the server at --url has its own", param="url")
        here = {name: getattr(self, name) for name in ("truncate", "max_length", "save_token_ids", "dry_run")}
        for name, asked in {**here, "token_ids": self.wish.token_ids}.items():
            if asked:
                raise InvalidConfig(
                    f"--{name.replace('_', '-')} needs a tokenizer here: give --model-path, not --url", param=name
                )

    def _check_output(self) -> None:
        if not self.output.absolute().parent.is_dir():
            raise InvalidConfig(f"--output: there is no folder {self.output.absolute().parent}", param="output")
        if self.single and self.shard is not None:
            raise InvalidConfig("--shard writes into a folder that all shards share; --output names a file", param="shard")
        if self.single and self.rows_per_part is not None:
            raise InvalidConfig("--rows-per-part is about the files of a folder; --output names a file", param="rows_per_part")
        if self.format != "npy":
            return
        if self.wish.full or self.wish.layers is not None or self.dtype == "bfloat16" or len(self.templates) > 1:
            raise InvalidConfig(
                "--output .npy holds one float32 or float16 vector per text; use .parquet for the rest", param="output"
            )
        if self.carry or self.save_token_ids or self.save_texts or self.wish.token_ids:
            raise InvalidConfig("--output .npy has no place for other columns; use .parquet", param="output")
        if not self.strict or self.truncate is not None:
            raise InvalidConfig(
                "--output .npy has no place for failed or cut rows; use --strict without --truncate, or .parquet", param="output"
            )


def _format(output: Path, asked: Format | None, single: bool) -> Format:
    if not single:
        return asked or "parquet"
    kind = output.suffix.lower()
    if kind == ".parquet" and asked in (None, "parquet"):
        return "parquet"
    if kind == ".npy" and asked is None:
        return "npy"
    raise InvalidConfig(
        f"--output {output}: cannot write {kind} as one file; use .parquet, .npy, or a folder (also for --format safetensors)",
        param="output",
    )


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise InvalidConfig(f"--shard must be I/N with 0 <= I < N, as 0/8 .. 7/8, not {text!r}", param="shard")
    return int(match[1]), int(match[2])
