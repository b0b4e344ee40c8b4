"""The heads of an engine: loaded, held against its model, and bound to requests in the version that these began with."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.config import EngineConfig, Resolved
from wellhead.errors import HeadNotFound, HeadUploadDisabled, InvalidHead, InvalidRequest
from wellhead.heads.file import decode, load_all
from wellhead.heads.head import Head
from wellhead.models.identity import file_facts
from wellhead.models.spec import ModelSpec
from wellhead.reads import layer_number, layer_word, parse_rows

TokenRow = Callable[[int | str], NDArray[np.floating]]
"""The LM head's row of a token id, or of the text of one token."""


def loaded(options: EngineConfig) -> dict[str, Head]:
    """The heads that the options name, by name. Raises ``InvalidHead``."""
    return load_all(options.heads)


def layers_of(heads: Mapping[str, Head], spec: ModelSpec) -> tuple[int, ...]:
    """The layers that heads read, by the numbers of ``Read``. Raises ``InvalidHead`` for one that the model does not have."""
    found: dict[int, None] = {}
    for head in heads.values():
        head.check_model(None, spec.hidden_size, spec.layers, force=True)
        found |= dict.fromkeys(layer_number(layer, spec.layers) or 0 for layer in head.layers)
    return tuple(found)


class Heads(Mapping[str, Head]):
    """Heads by name. Read from any thread; a request keeps the head that it found here, whatever becomes of the name."""

    def __init__(
        self, heads: Mapping[str, Head], options: EngineConfig, config: Resolved, spec: ModelSpec, row: TokenRow
    ) -> None:
        self._options, self._config, self._spec, self._row = options, config, spec, row
        self._lock = threading.Lock()
        self._heads: Mapping[str, Head] = {}
        for head in heads.values():
            self._put(self._checked(head))

    def __getitem__(self, name: str) -> Head:
        return self._heads[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)

    @functools.cached_property
    def _model(self) -> Any:
        """What identifies the model: its files are read only if a head says on which it was made."""
        tokenizer = [self._options.tokenizer_path] if self._options.tokenizer_path else []
        return file_facts([self._options.model_path, *tokenizer])

    def _checked(self, head: Head) -> Head:
        """The head with all that it takes from this model. Raises ``InvalidHead`` if it is not for it."""
        config, spec = self._config, self._spec
        made_on = head.provenance.get("model")
        mine = None if made_on is None or self._options.force_heads else self._model
        head.check_model(mine, spec.hidden_size, spec.layers, force=self._options.force_heads)
        for layer in head.layers:
            if layer_number(layer, spec.layers) not in config.shown_layers:
                shown = " ".join(str(layer_word(n, config.layers)) for n in config.shown_layers)
                raise InvalidHead(
                    f"head {head.name!r} reads layer {layer}, and this engine was started to show {shown}; add it to "
                    "capture_layers"
                )
        try:
            chars = parse_rows(head.rows, "rows", ())[2]
        except InvalidRequest as error:
            raise InvalidHead(f"head {head.name!r}: {error.message}") from None
        if chars:
            raise InvalidHead(f"head {head.name!r}: its rows are characters of one text")
        head = head.resolve(self._row)
        if head.kind == "model":
            raise InvalidHead(f"head {head.name!r} is a whole model: it does not read rows of this one")
        return head

    def _put(self, head: Head) -> None:
        self._heads = {**self._heads, head.name: head}

    def _check_open(self) -> None:
        if not self._options.allow_head_upload:
            raise HeadUploadDisabled("heads cannot be changed while this engine runs; start it with --allow-head-upload")

    def check_upload(self) -> None:
        """Raise ``HeadUploadDisabled`` unless heads may be added and removed."""
        self._check_open()

    def add(self, head: Head | bytes) -> Head:
        """Add a head, or the bytes of its file, or put it in the place of the one of its name. Raises ``InvalidHead``,
        ``HeadUploadDisabled``."""
        self._check_open()
        ready = self._checked(decode(head) if isinstance(head, bytes) else head)
        with self._lock:
            self._put(ready)
        return ready

    def remove(self, name: str) -> Head:
        """Take a head away; requests that have it finish with it. Raises ``HeadNotFound``, ``HeadUploadDisabled``."""
        self._check_open()
        with self._lock:
            if name not in self._heads:
                raise HeadNotFound(f"there is no head {name!r:.80} here", param="name")
            gone = self._heads[name]
            self._heads = {other: head for other, head in self._heads.items() if other != name}
        return gone


def card(head: Head) -> dict[str, Any]:
    """What ``GET /v1/heads`` says of a head."""
    return {
        "id": head.name, "object": "head", "version": head.version, "kind": head.kind, "layers": list(head.layers),
        "labels": list(head.labels), "rows": head.rows, "reduce": head.reduce, "activation": head.activation,
        "aggregate": head.aggregate, "thresholds": dict(head.thresholds), "calibration": (head.calibration or {}).get("kind"),
        "metrics": dict(head.metrics),
    }  # fmt: skip
