"""``wellhead fit``: from what ``extract`` has written, or from texts and a model, to a head file and its report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from wellhead.errors import InputFileError, InvalidConfig
from wellhead.frontends.bulk.input.inputs import expand
from wellhead.frontends.bulk.input.readers import records
from wellhead.frontends.options import ENGINE_FLAGS
from wellhead.heads.fit import report
from wellhead.heads.fit.calibrate import NEEDED
from wellhead.heads.fit.run import METHODS, Fitted, fit_rows
from wellhead.heads.fit.sources import ParquetSource
from wellhead.models.identity import file_facts

_OPTIONS = ("method", "c", "penalty", "shrinkage", "folds", "calibration", "false_alarm_rate", "positive", "seed")
_ENGINE = (
    "--dtype",
    "--device",
    "--tokenizer-path",
    "--quantization",
    "--native-kernels",
    "--context-length",
    "--max-total-tokens",
)
_NAMES = tuple(flag.removeprefix("--").replace("-", "_") for flag in _ENGINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag that is not given is not passed on, so that defaults live in one place."""
    parser.add_argument(
        "--input", required=True, nargs="+", metavar="PATH", help="Parquet files or folders (with a model: of texts)"
    )
    parser.add_argument("--label-column", required=True, metavar="COLUMN")
    parser.add_argument("--output", required=True, metavar="FILE", help="the head; its report is written beside it")
    parser.add_argument("--layers", nargs="+", metavar="N", help="numbers and ranges as 0-30 (default: all that are there)")
    parser.add_argument("--group-column", metavar="COLUMN", help="rows of one group are never on both sides of a split")
    parser.add_argument("--text-column", metavar="COLUMN", help="texts: for baselines and the report, or what the model reads")
    parser.add_argument("--name", help="the head's name (default: the output's)")
    parser.add_argument("--rows", help="which rows these are, as they were extracted (default: last)")
    parser.add_argument("--reduce", help="how they were reduced (default: rows, none)")
    parser.add_argument("--method", choices=METHODS, help="default: logistic")
    parser.add_argument("--c", type=float, help="logistic: inverse of the penalty (default: 1)")
    parser.add_argument("--penalty", type=float, help="ridge (default: the best of nine)")
    parser.add_argument("--shrinkage", type=float, help="lda: from 0 to 1 (default: 0.1)")
    parser.add_argument("--folds", type=int, help="of the sweep over layers (default: 5)")
    parser.add_argument("--calibration", choices=["auto", "none", *NEEDED], help="default: auto")
    parser.add_argument(
        "--false-alarm-rate", type=float, metavar="RATE", help="set a threshold that keeps this promise, or refuse"
    )
    parser.add_argument("--positive", metavar="LABEL", help="the label that raises the alarm (default: the last)")
    parser.add_argument("--seed", type=int, help="of the split (default: 0)")
    model = parser.add_argument_group("texts instead of vectors")
    model.add_argument("--model-path", metavar="DIR", help="a model that reads the texts of --text-column")
    for flag in _ENGINE:
        model.add_argument(flag, **ENGINE_FLAGS[flag])


def run(args: argparse.Namespace) -> int:
    """Exit status 0; what was found goes to stdout."""
    output = Path(args.output)
    if output.suffix != ".head":
        raise InvalidConfig(f"--output {output}: a head file ends in .head", param="output")
    if not output.parent.is_dir():
        raise InvalidConfig(f"--output {output}: there is no folder {output.parent}", param="output")
    layers = _layers(args.layers) if args.layers else None
    said: dict[str, Any] = {k: v for k in (*_OPTIONS, "rows", "reduce") if (v := getattr(args, k)) is not None}
    said["name"] = args.name or output.stem
    fitted = _from_texts(args, layers, said) if args.model_path else _from_rows(args, layers, said)
    fitted.head.save(output)
    page = report.write(fitted.report, output.with_suffix(".report.html"))
    print(_summary(fitted, output, page))
    return 0


def _from_rows(args: argparse.Namespace, layers: list[int] | None, said: dict[str, Any]) -> Fitted:
    for name in _NAMES:
        if getattr(args, name) is not None:
            raise InvalidConfig(f"--{name.replace('_', '-')} is an engine's: give --model-path, or leave it out", param=name)
    header = _header(args.input)
    if header is not None:
        options, mean = header["options"], header["options"].get("mode") == "mean"
        words = {"rows": "all" if mean else "last", "reduce": "mean" if mean else "rows"}
        if "rows" in options:
            words = {"rows": options["rows"], "reduce": options["reduce"]}
        said = {**words, **said}
        said["provenance"] = {"model": header["model"], "engine": header["engine"], "template": header["options"].get("template")}
    return fit_rows(ParquetSource(args.input, args.label_column, layers, args.group_column, args.text_column), **said)


def _header(paths: list[str]) -> dict[str, Any] | None:
    """What the manifests beside the rows say of the model that made them; ``None`` if there are none.

    ``InputFileError`` where they name different models, or a manifest cannot be read.
    """
    found: dict[str, Any] | None = None
    for path in map(Path, paths):
        beside = path.with_name(f"{path.name}.manifest.jsonl")
        for manifest in sorted(path.glob("manifest*.jsonl")) if path.is_dir() else [beside] * beside.exists():
            try:
                with manifest.open(encoding="utf-8") as file:
                    header = json.loads(file.readline())
                header = {key: header[key] for key in ("options", "model", "engine")}
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputFileError(f"{manifest}: not a manifest of wellhead extract ({error!r:.80})") from error
            if found is not None and found["model"] != header["model"]:
                raise InputFileError(f"{manifest}: its vectors are of another model than those before it")
            found = header
    return found


def _from_texts(args: argparse.Namespace, layers: list[int] | None, said: dict[str, Any]) -> Fitted:
    from wellhead.frontends.engine import Engine
    from wellhead.heads.fit.texts import fit_texts

    if args.text_column is None:
        raise InvalidConfig("--model-path needs --text-column: what shall it read?", param="text_column")
    texts, labels, groups = _columns(args)
    options = {name: value for name in _NAMES if (value := getattr(args, name)) is not None}
    if layers is None:
        with Engine(model_path=args.model_path, **options) as probe:
            layers = list(range(probe.assembled.config.layers + 1))
    with Engine(model_path=args.model_path, capture_layers=tuple(layers), **options) as engine:
        paths = [args.model_path, *([args.tokenizer_path] if args.tokenizer_path else [])]
        provenance = {"model": file_facts(paths)}
        return fit_texts(engine, texts, labels, layers=layers, groups=groups, provenance=provenance, **said)


def _columns(args: argparse.Namespace) -> tuple[list[str], list[Any], list[Any] | None]:
    """Texts, labels and groups of files of any kind that ``extract`` reads. ``InputFileError`` names file and row."""
    names = [args.text_column, args.label_column, *([args.group_column] if args.group_column else [])]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for file in expand(tuple(args.input), None):
        for number, record in enumerate(records(file.path, file.kind, args.text_column, list(columns))):
            if isinstance(record, InputFileError):
                raise InputFileError(f"{file.path}, row {number}: {record.message}")
            for name, values in columns.items():
                if record.get(name) is None:
                    raise InputFileError(f"{file.path}, row {number}: column {name!r} is missing or null")
                values.append(record[name])
    return columns[args.text_column], columns[args.label_column], columns[args.group_column] if args.group_column else None


def _layers(words: list[str]) -> list[int]:
    """``["0-3", "7", "-1"]`` -> ``[0, 1, 2, 3, 7, -1]``."""
    found: list[int] = []
    for word in words:
        first, dash, last = word.partition("-") if not word.startswith("-") else (word, "", "")
        try:
            found += range(int(first), int(last) + 1) if dash else [int(word)]
        except ValueError:
            raise InvalidConfig(f"--layers {word!r} is neither a number nor a range as 0-30", param="layers") from None
    if not found or len(set(found)) != len(found):
        raise InvalidConfig(f"--layers {' '.join(words)}: no layer, or one twice", param="layers")
    return found


def _summary(fitted: Fitted, output: Path, page: Path) -> str:
    test, found = fitted.report["test"], fitted.report
    lines = [f"{output}: {found['method']} on layer {found['layer']}, labels {', '.join(found['labels'][:10])}"]
    for key in ("accuracy", "auroc", "log_loss", "ece"):
        if test.get(key) is not None:
            lines.append(f"  {key:9} {test[key]:.4f} on {test['rows']} rows that nothing was fitted to")
    for name, figures in found["baselines"].items():
        known = isinstance(figures, dict) and figures["auroc"] is not None
        lines.append(f"  {name}: auroc {figures['auroc']:.4f}" if known else f"  baseline {name}: {figures}")
    for what in ("calibration", "threshold"):
        if "why" in found[what]:
            lines.append(f"  no {what}: {found[what]['why']}")
        else:
            lines.append(
                f"  {what}: {', '.join(f'{k} {v:.6g}' if isinstance(v, float) else f'{k} {v}' for k, v in found[what].items())}"
            )
    return "\n".join([*lines, f"  report: {page}"])
