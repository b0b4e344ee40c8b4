"""``Head``: what becomes of rows of hidden states. A value; whoever changes one makes another.

k rows, W = hidden size times layers (several layers' rows are concatenated), C scores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidHead, NonFinite
from wellhead.heads import aggregate as aggregates
from wellhead.heads.kinds.evaluator import Evaluator, Plan
from wellhead.heads.kinds.pooled import Pooled
from wellhead.heads.kinds.registry import evaluator
from wellhead.heads.link import Link

Layer = int | Literal["L:pre_norm"]
#: How rows become one before the head sees them; ``rows``: they do not, each is scored.
REDUCTIONS = ("rows", "mean", "sum", "max", "first", "weighted_mean", "mean_sqrt")
MOST_LABELS = 4096
#: Rows that are held in float64 at once.
_BLOCK = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A head and all that is known of it.

    ``layers``: where its rows are taken (numbers as Hugging Face's ``hidden_states``), concatenated in this order; ``width`` W.
    ``rows`` and ``reduce`` are the words of ``extract``. ``steps`` and ``body`` belong to the kind, with ``tensors`` beside them.
    ``labels``: one for each score, or two for one score, which is then the second label's. ``thresholds``: label -> the
    probability
    (score, where the activation is ``identity``) from which it holds. ``provenance["model"]`` names the model it was made on.

    Raises ``InvalidHead`` where the parts do not fit together.
    """

    name: str
    kind: str
    layers: tuple[Layer, ...]
    width: int
    labels: tuple[str, ...]
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    rows: Any = "last"
    reduce: str = "rows"
    steps: tuple[Mapping[str, Any], ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    activation: str = "identity"
    aggregate: Any = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    calibration: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    _evaluator: Evaluator = field(init=False, repr=False)
    _link: Link = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_words()
        for name, t in self.tensors.items():
            if t.dtype not in (np.float64, np.float32, np.float16):
                raise self._wrong(f"tensor {name!r:.80} is {t.dtype}; weights are float64, float32 or float16")
            if not np.isfinite(t).all():
                raise self._wrong(f"tensor {name!r:.80} holds NaN or infinity")
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                made = evaluator(self.kind, Plan(self.width, self.labels, self.steps, self.body, self.tensors))
            link = Link.of(self.activation, self.calibration, made.columns, self.labels, self.tensors)
            self._check_aggregate(made)
        except InvalidHead as error:
            raise self._wrong(error.message) from None
        object.__setattr__(self, "_evaluator", made)
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __reduce__(self) -> tuple[object, ...]:
        # What was computed from the fields is made anew elsewhere: its arrays lie on boundaries that a copy would lose.
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return (_rebuild, ({**said, "tensors": dict(self.tensors)},))

    def _wrong(self, why: str) -> InvalidHead:
        return InvalidHead(f"head {self.name!r:.80}: {why}")

    def _check_words(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            said = "1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or digit"
            raise InvalidHead(f"a head's name is {said}, not {self.name!r:.80}")
        if not self.layers or len(self.layers) > 1024 or len(set(self.layers)) != len(self.layers):
            raise self._wrong(f"layers must name one layer or several different ones, not {self.layers!r:.80}")
        for layer in self.layers:
            if layer != "L:pre_norm" and (isinstance(layer, bool) or not isinstance(layer, int) or layer < -1):
                raise self._wrong(f"a layer is a number from 0 on, -1 or 'L:pre_norm', not {layer!r:.80}")
        if isinstance(self.width, bool) or not isinstance(self.width, int) or not 0 < self.width <= 1 << 24:
            raise self._wrong(f"width must be a number of at least 1, not {self.width!r:.80}")
        if self.width % len(self.layers):
            raise self._wrong(f"a width of {self.width} does not divide among {len(self.layers)} layers")
        if not 0 < len(self.labels) <= MOST_LABELS:
            raise self._wrong(f"{len(self.labels)} labels; a head has 1 to {MOST_LABELS}")
        for label in self.labels:
            if not isinstance(label, str) or not 0 < len(label) <= 512:
                raise self._wrong(f"a label is a text of 1 to 512 characters, not {label!r:.80}")
        if len(set(self.labels)) != len(self.labels):
            twice = next(label for i, label in enumerate(self.labels) if label in self.labels[:i])
            raise self._wrong(f"label {twice!r:.80} is there twice")
        if self.reduce not in REDUCTIONS:
            raise self._wrong(f"reduce must be one of {', '.join(REDUCTIONS)}, not {self.reduce!r:.80}")
        if not isinstance(self.rows, (str, Mapping, list, tuple, int)) or isinstance(self.rows, bool) or not self.rows:
            raise self._wrong(f"rows must say which rows, as 'last' or {{'last': 8}}, not {self.rows!r:.80}")
        for label, at in self.thresholds.items():
            if label not in self.labels or isinstance(at, bool) or not isinstance(at, (int, float)) or not np.isfinite(at):
                raise self._wrong(f"threshold {label!r:.80}: {at!r:.80} is not a number for one of its labels")

    def _check_aggregate(self, made: Evaluator) -> None:
        if self.aggregate is None:
            return
        kind, _ = aggregates.checked(self.aggregate)
        if made.streams is None and kind in ("attention", "multimax"):
            raise InvalidHead(f"aggregate {kind!r} needs a head of that kind, this one is {self.kind!r}")
        if made.streams is not None and kind != made.streams:
            raise InvalidHead(f"a head of kind {self.kind!r} is its own aggregate, not {kind!r}")

    # --- scores -------------------------------------------------------------------------------------------------

    @property
    def hidden_size(self) -> int:
        """Of the model it is for."""
        return self.width // len(self.layers)

    @property
    def columns(self) -> int:
        """C."""
        return self._evaluator.columns

    @property
    def evaluator(self) -> Evaluator:
        """What computes its features; for those who evaluate several heads together."""
        return self._evaluator

    def features(self, rows: NDArray[np.floating]) -> NDArray[np.float32]:
        """What the head's aggregate takes of each row: ``[k, W]`` -> float32 ``[k, F]``. ``NonFinite`` for NaN or infinity."""
        return self._checked(self.exact(rows, self._evaluator.features))

    def scores(self, rows: NDArray[np.floating]) -> NDArray[np.float32]:
        """Scores before calibration and activation: ``[k, W]`` -> float32 ``[k, C]``.

        Computed in float64, row by row, and rounded once: a row's bits do not depend on the rows beside it.
        Raises ``InvalidHead`` for another width, ``NonFinite`` where a score is NaN or infinite.
        """
        return self._checked(self.logits(rows))

    def logits(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """``scores`` before they are rounded; not checked for NaN. For comparisons with what the head was made from."""
        return self.exact(rows, lambda x: self._evaluator.scores(self._evaluator.features(x)))

    def exact(
        self, rows: NDArray[np.floating], function: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """A row-wise function over checked rows, some at a time."""
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise self._wrong(f"rows of shape {list(rows.shape)} instead of [k, {self.width}]")
        with np.errstate(over="ignore", invalid="ignore"):
            parts = [function(rows[at : at + _BLOCK].astype(np.float64)) for at in range(0, len(rows), _BLOCK)]
            return np.concatenate(parts) if parts else function(np.zeros((0, self.width)))

    def _checked(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float32)  # what float64 holds may be infinite in float32
        if not np.isfinite(rounded).all():
            raise NonFinite(f"head {self.name!r}: a score is NaN or infinite")
        return rounded

    def scores_of(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """``features`` -> scores of each row alone ``[k, C]``."""
        return self._evaluator.scores(features.astype(np.float64)).astype(np.float32)

    def probabilities(self, scores: NDArray[np.floating]) -> NDArray[np.float32]:
        """Calibrated: scores ``[k, C]`` (of rows, or of an aggregate) -> float32 ``[k, labels]``.

        With the activation ``identity`` and no calibration the scores come back: a margin has no probability.
        """
        if scores.ndim != 2 or scores.shape[1] != self.columns:
            raise self._wrong(f"scores of shape {list(scores.shape)} instead of [k, {self.columns}]")
        return self._link(scores.astype(np.float64)).astype(np.float32)

    def winners(self, scores: NDArray[np.floating]) -> list[str]:
        """The label of each row of scores ``[k, C]``: the highest score's (after Platt's or an isotonic calibration the most
        probable one), of two labels with one score the second if its score is above 0 (its probability above one half)."""
        said = (self.calibration or {}).get("kind")
        best = scores if said in (None, "temperature") else self.probabilities(scores)
        if best.shape[1] == 1 and len(self.labels) == 2:
            return [self.labels[int(v > 0)] for v in best[:, 0]]
        return [self.labels[i] for i in best.argmax(axis=1)]

    def accumulator(self, aggregate: Any = None) -> aggregates.Aggregate:
        """A fresh aggregate over ``features``: the head's own, or the one named here."""
        said = aggregate if aggregate is not None else self.aggregate
        made = self._evaluator
        if isinstance(made, Pooled):
            kind, fields = aggregates.checked(said if said is not None else made.streams)
            if kind != made.streams:
                raise self._wrong(f"a head of kind {self.kind!r} is its own aggregate, not {kind!r}")
            return aggregates.pooled(kind, made.heads, made.bias, fields.get("window", 0))
        return aggregates.plain(said if said is not None else "mean", self.columns)

    # --- models -------------------------------------------------------------------------------------------------

    def check_model(self, model: Any, hidden_size: int, num_layers: int, force: bool = False) -> None:
        """Refuse, by name, a head that was made on another model.

        ``model``: what identifies the model at hand, in the form of ``provenance["model"]``; ``num_layers``: N, its blocks.
        ``force`` lifts the comparison of identities. A width or a layer that the model does not have cannot be forced.
        """
        if self.hidden_size != hidden_size:
            raise self._wrong(f"it was made for rows of width {self.hidden_size}; this model's are {hidden_size} wide")
        for layer in self.layers:
            if isinstance(layer, int) and layer > num_layers:
                raise self._wrong(f"it reads layer {layer}; this model's layers are 0 to {num_layers}")
        made_on = self.provenance.get("model")
        if made_on is not None and made_on != model and not force:
            raise self._wrong(
                f"it was made on another model ({_short(made_on)}; this is {_short(model)}); force it if you know better"
            )

    def resolve(self, row: Callable[[int | str], NDArray[np.floating]]) -> Head:
        """With the weights of a token difference, from the model's LM head; any other head as it is.

        ``row(token)``: the LM head's row ``[W]`` of a token id or of the text of one token; raises ``InvalidHead`` for a text
        that is
        not one token.
        """
        if self.kind != "token_difference" or "weight" in self.tensors:
            return self
        weight = np.asarray(row(self.body["positive"]), np.float64)
        if self.body.get("negative") is not None:
            weight = weight - np.asarray(row(self.body["negative"]), np.float64)
        return replace(self, tensors={**self.tensors, "weight": weight.reshape(1, -1)})

    # --- files and other libraries --------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the head file; an existing one is replaced at once or not at all. Raises ``OutputFileError``."""
        from wellhead.heads.file import save

        return save(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> Head:
        """Read a head file. ``InvalidHead`` for anything torn, hostile or too large."""
        from wellhead.heads.file import load

        return load(Path(path))

    @staticmethod
    def from_sklearn(
        fitted: Any, *, layer: Layer | Sequence[Layer], rows: Any = "last", name: str = "head", **fields: Any
    ) -> Head:
        """A fitted scikit-learn classifier, regressor or pipeline, from the object in memory. ``fields``: those of ``Head``."""
        from wellhead.heads.sklearn_objects import convert

        return convert(fitted, layers=as_layers(layer), rows=rows, name=name, fields=fields)

    @staticmethod
    def from_torch(
        module: Any,
        *,
        layer: Layer | Sequence[Layer],
        labels: Sequence[str],
        rows: Any = "last",
        name: str = "head",
        **fields: Any,
    ) -> Head:
        """An ``nn.Linear`` or ``nn.Sequential``, a state dict of one, or a PEFT adapter's tensors with its ``score``.

        A state dict of several layers does not say what stands between them: give ``between="relu"`` (or another activation).
        """
        from wellhead.heads.torch_objects import convert

        return convert(module, layers=as_layers(layer), labels=tuple(labels), rows=rows, name=name, fields=fields)


def _rebuild(said: dict[str, Any]) -> Head:
    return Head(**said)


def as_layers(layer: Any) -> tuple[Layer, ...]:
    """One layer or several, as a tuple."""
    found: tuple[Layer, ...] = (layer,) if isinstance(layer, (int, str)) else tuple(layer)  # type: ignore[assignment]
    return found


def _short(facts: Any) -> str:
    if isinstance(facts, Mapping):
        facts = facts.get("name") or facts.get("identity") or facts
    return f"{facts!r:.120}"
