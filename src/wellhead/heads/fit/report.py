"""The figures of a fit on one page: HTML with drawings in it, no scripts, nothing from elsewhere."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from wellhead.errors import OutputFileError

_W, _H, _EDGE = 360, 220, 34
_STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}
svg{background:#fafafa;border:1px solid #ddd;margin:0 1em 1em 0}svg text{font:11px system-ui,sans-serif;fill:#555}
table{border-collapse:collapse;margin:0 0 1em}td,th{border:1px solid #ddd;padding:.2em .6em;text-align:right}td.t{text-align:left}
.note{color:#666}"""


def write(report: dict[str, Any], path: Path) -> Path:
    """``path`` (``.html``), and the same figures beside it as ``.json``. Raises ``OutputFileError``."""
    try:
        path.with_suffix(".json").write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise OutputFileError(f"{path}: {error.strerror or error}") from error
    return path


def page(report: dict[str, Any]) -> str:
    """The whole page. Everything from the data is escaped."""
    name, test = _text(report["name"]), report["test"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title><style>{_STYLE}</style><h1>{name}</h1>",
        f"<p>{_text(report['method'])} on layer {report['layer']}; {_counts(report)}.</p>",
        "<h2>On rows that nothing was fitted to</h2>", _summary(report),
        "<h2>Layers</h2>", _sweep(report["sweep"]),
        "<h2>Detections against false alarms</h2>", *(_roc(curve) for curve in report["roc"]),
        "<h2>Is what it says true?</h2>", _reliability(test.get("reliability", [])), _calibration(report),
        "<h2>Probabilities</h2>", *(_histogram(h) for h in report["histograms"]),
        "<h2>Confusion</h2>", _confusion(report["labels"], test.get("confusion", [])),
        "<h2>Hardest examples</h2>", _hardest(report["hardest"]),
    ]  # fmt: skip
    return "\n".join(parts) + "</html>\n"


def _text(value: Any) -> str:
    return html.escape(str(value).encode("utf-8", "replace").decode())


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else _text(value)


def _counts(report: dict[str, Any]) -> str:
    rows = report["rows"]
    used = f"{rows['learned']} rows learned from, {rows['calibrated']} to calibrate, {rows['judged']} to judge"
    return f"{used}, {report['groups']} groups"


def _table(head: list[str], rows: list[list[Any]], texts: tuple[int, ...] = (0,)) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{_text(h)}</th>" for h in head) + "</tr>"]
    for row in rows:
        cells = (f"<td{' class=t' if i in texts else ''}>{_number(v)}</td>" for i, v in enumerate(row))
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return "".join(lines) + "</table>"


def _summary(report: dict[str, Any]) -> str:
    test, base = report["test"], report["baselines"]
    keys = ("accuracy", "auroc", "log_loss", "brier", "ece")
    rows: list[list[Any]] = [["this head", *(test.get(k) for k in keys)]]
    if "missing" in base:
        return _table(["", *keys], rows) + f"<p class=note>No baselines: {_text(base['missing'])}.</p>"
    for name in ("bag_of_words", "length"):
        rows.append([name.replace("_", " "), *(base[name].get(k) for k in keys)])
    return _table(["", *keys], rows)


def _svg(body: str, x: str, y: str, low: float = 0.0, high: float = 1.0) -> str:
    return (
        f"<svg viewBox='0 0 {_W} {_H}' width={_W} height={_H}>{body}"
        f"<text x={_EDGE} y=14>{_text(y)}</text><text x={_W - 8} y={_H - 4} text-anchor=end>{_text(x)}</text>"
        f"<text x=2 y={_H - _EDGE}>{low:.2f}</text><text x=2 y=26>{high:.2f}</text></svg>"
    )


def _at(x: float, y: float) -> str:
    """A point of the unit square."""
    return f"{_EDGE + x * (_W - _EDGE - 8):.1f},{_H - _EDGE + 12 - y * (_H - _EDGE - 12):.1f}"


def _line(points: list[tuple[float, float]], colour: str = "#26c") -> str:
    return f"<polyline fill=none stroke='{colour}' stroke-width=1.5 points='{' '.join(_at(x, y) for x, y in points)}'/>"


def _dots(points: list[tuple[float, float]]) -> str:
    return "".join(f"<circle r=2.5 fill='#26c' cx={x} cy={y} />" for x, y in (_at(*p).split(",") for p in points))


def _sweep(sweep: list[dict[str, Any]]) -> str:
    keys = ("layer", "auroc", "spread", "accuracy", "penalty")
    table = _table(list(keys), [[s[k] for k in keys] for s in sweep], ())
    known = [(s["layer"], s["auroc"]) for s in sweep if s["auroc"] is not None]
    if len(known) < 2:
        return table
    low = min(0.5, *(a for _, a in known))
    first, last = known[0][0], known[-1][0]
    points = [((la - first) / max(last - first, 1), (a - low) / max(1 - low, 1e-9)) for la, a in known]
    return _svg(_line(points) + _dots(points), f"layer {first} to {last}", "AUROC, ridge, cross-validated", low) + table


def _roc(curve: dict[str, Any]) -> str:
    points = [(0.0, 0.0), *((p[0], p[1]) for p in curve["points"])]
    body = _line([(0, 0), (1, 1)], "#bbb") + _line(points)
    return _svg(body, "false alarms", f"{curve['label']}: detections (AUROC {_number(curve['auroc'])})")


def _reliability(bins: list[dict[str, float]]) -> str:
    points = [(b["said"], b["true"]) for b in bins]
    return _svg(_line([(0, 0), (1, 1)], "#bbb") + _line(points) + _dots(points), "said", "true")


def _calibration(report: dict[str, Any]) -> str:
    said = {**{k: v for k, v in report["calibration"].items() if v is not None}}
    threshold = report["threshold"]
    return f"<p class=note>Calibration: {_text(json.dumps(said))}. Threshold: {_text(json.dumps(threshold))}.</p>"


def _histogram(counts: dict[str, Any]) -> str:
    most = max(1, *counts["of_it"], *counts["of_others"])
    n = len(counts["of_it"])
    body = "".join(
        _line([(i / n, 0), (i / n, c / most), ((i + 1) / n, c / most), ((i + 1) / n, 0)], colour)
        for values, colour in ((counts["of_others"], "#aaa"), (counts["of_it"], "#c33"))
        for i, c in enumerate(values)
        if c
    )
    return _svg(body, f"probability of {counts['label']}", "rows of it (red), of others (grey)", 0, most)


def _confusion(labels: list[str], counts: list[list[int]]) -> str:
    if len(labels) > 30:
        return f"<p class=note>{len(labels)} labels: see the JSON.</p>"
    return _table(["true \\ said", *labels], [[label, *row] for label, row in zip(labels, counts, strict=False)])


def _hardest(rows: list[dict[str, Any]]) -> str:
    keys = ("row", "label", "said", "probability", "text")
    return _table(list(keys), [[r[k] for k in keys] for r in rows], (1, 2, 4))
