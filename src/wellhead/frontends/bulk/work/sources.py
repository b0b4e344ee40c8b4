"""Where vectors come from: an engine in this process, or a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wellhead.core.job import Job, submit_each
from wellhead.errors import EngineClosed, InvalidConfig, WellheadError
from wellhead.frontends.bulk.input.inputs import Row
from wellhead.frontends.bulk.input.prompts import Item, Prompts
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.work.order import Done, Line, Slot, departures, windows
from wellhead.frontends.bulk.work.source import Usage
from wellhead.requests.normalize import reads_of
from wellhead.types import STORAGE, Request

if TYPE_CHECKING:
    from wellhead.client import Client
    from wellhead.frontends.engine import Engine

#: What an engine says of itself that decides the bits of a vector.
DECIDING = ("architecture", "dtype", "quantization", "device", "page_size", "tp_size", "kernels", "batch_invariant")


def open_engine(options: Options) -> Engine:
    """An engine in this process; ``Local`` extracts with it."""
    from wellhead.frontends.engine import Engine

    return Engine(**_engine_options(options))


def _engine_options(options: Options) -> dict[str, Any]:
    """The engine's options; ceiling and layers follow from what is extracted, unless they are given."""
    engine = dict(options.engine)
    if not {"return_hidden_states_mode", "enable_return_hidden_states"} & set(engine):
        engine["return_hidden_states_mode"] = options.wish.cost.word
    if options.wish.layers is not None:
        engine.setdefault("capture_layers", list(options.wish.layers))
    return engine


class Local:
    """An engine. The next window is on its way before the last one has been taken out, so that the engine never waits."""

    def __init__(self, engine: Engine, options: Options) -> None:
        config = engine.resolved
        self._engine, self._templates = engine, len(options.templates)
        self._wish, self._fields = options.wish, options.wish.fields()
        (self._read,) = reads_of(self._fields, engine.assembled.limits)
        self._limit = min(config.context_length, config.max_total_tokens, options.max_length or config.context_length)
        self.prompts = Prompts(options, engine.tokenizer, self._limit)
        self.hidden_size = engine.hidden_size
        self.usage = Usage()
        self._width = STORAGE[config.dtype].itemsize * self.hidden_size * len(self._read.layers)

    def facts(self) -> dict[str, Any]:
        info = self._engine.info()
        return {**{name: info[name] for name in DECIDING}, "prompt_tokens_limit": self._limit}

    def rows_of(self, item: Item) -> int:
        """How many rows an item's prompts have, a vector counted as one. Raises ``RowOutOfRange`` if one does not exist."""
        found = [self._read.rows.of(np.array(p.ids, np.int32), 0).bound for p in item.prompts]
        return sum(1 if self._read.vector else bound for bound in found)

    def _weigh(self, item: Item) -> int:
        return self._width * sum(self._wish.most_rows(len(p.ids or ())) for p in item.prompts)

    def extract(self, rows: Iterator[Row]) -> Iterator[Done]:
        line, way = Line(), dict[str, tuple[Slot, int]]()
        with Job(self._engine.loop) as job:
            for window in windows(self.prompts.items(rows), self._weigh):
                slots = [line.join(item) for item in window]
                self._submit(departures(slots, self._templates), job, way)
                while len(line) > len(window):  # the window before this one is not through
                    if way:
                        self._take(job, way)
                    yield from line.leave()
            while way:
                self._take(job, way)
                yield from line.leave()
            yield from line.leave()

    def _take(self, job: Job, way: dict[str, tuple[Slot, int]]) -> None:
        from wellhead.frontends.engine import result_of

        output = job.take()
        if isinstance(output.error, EngineClosed):
            raise output.error
        slot, template = way.pop(output.key)
        self.usage.tokens += output.usage.prompt_tokens
        self.usage.cached += output.usage.cached_tokens
        slot.put(template, result_of(output))

    def _submit(self, prompts: list[tuple[Slot, int]], job: Job, way: dict[str, tuple[Slot, int]]) -> None:
        def prepare(part: list[tuple[Slot, int]]) -> tuple[Request, ...]:
            ids = [slot.item.prompts[template].ids for slot, template in part]
            return self._engine.normalize({"input_ids": ids, **self._fields}).requests

        for (slot, template), made in submit_each(job, prompts, prepare):
            if isinstance(made, EngineClosed):
                raise made
            if isinstance(made, WellheadError):
                slot.put(template, made)
            else:
                way[made.key] = slot, template


def open_client(options: Options) -> Client:
    """A client of the server at ``--url``; ``Remote`` extracts with it. Raises ``InvalidConfig`` without its packages."""
    try:
        from wellhead.client import Client
    except ImportError as missing:
        raise InvalidConfig(f"--url needs more packages ({missing.name}): pip install 'wellhead[client]'", param="url") from None
    assert options.url is not None
    return Client(options.url, api_key=options.api_key)


class Remote:
    """A server, through the client; it tokenises, so that nothing is known here of tokens."""

    def __init__(self, client: Client, options: Options) -> None:
        self._client, self._options = client, options
        self._info = client.server_info()
        self._prompts = Prompts(options, None, 0)
        self.hidden_size = int(self._info["hidden_size"])
        self.usage = Usage()

    def facts(self) -> dict[str, Any]:
        return {name: self._info.get(name) for name in ("model_path", *DECIDING, "context_length")}

    def extract(self, rows: Iterator[Row]) -> Iterator[Done]:
        line, way = Line(), dict[int, tuple[Slot, int]]()
        wish: Any = self._options.wish
        words = {} if wish.mode else {"rows": wish.words, "reduce": wish.reduce}
        texts = self._texts(rows, line, way)
        found = self._client.extract_iter(texts, wish.mode, layers=wish.layers, dtype=self._options.dtype, **words)
        for index, result in found:
            slot, template = way.pop(index)
            slot.put(template, result)
            yield from line.leave()
        yield from line.leave()

    def _texts(self, rows: Iterator[Row], line: Line, way: dict[int, tuple[Slot, int]]) -> Iterator[str]:
        sent = 0
        for item in self._prompts.items(rows):
            slot = line.join(item)
            for template, prompt in enumerate(item.prompts):
                way[sent] = slot, template
                sent += 1
                yield prompt.text
