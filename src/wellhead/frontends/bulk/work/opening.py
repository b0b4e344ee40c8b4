"""The source that the options name: an engine in this process, a pool of engines, or a server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.work.pool import open_pool
from wellhead.frontends.bulk.work.source import Source
from wellhead.frontends.bulk.work.sources import Local, Remote, open_client, open_engine


@contextlib.contextmanager
def open_source(options: Options) -> Iterator[Source]:
    """What the options name. Raises what keeps it from starting, or from doing what is asked."""
    if options.ray is not None:
        with open_pool(options) as pool:
            yield pool
        return
    if options.url is None:
        with open_engine(options) as engine:
            yield Local(engine, options)
        return
    with open_client(options) as client:
        yield Remote(client, options)
