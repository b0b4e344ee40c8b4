"""A client for a Wellhead server. Needs httpx and numpy, not torch.

>>> from wellhead.client import Client
>>> with Client("http://127.0.0.1:30000") as client:  # doctest: +SKIP
...     X = client.extract(["one text", "another"])        # float32 [2, hidden_size]
"""

from wellhead.client.aio import AsyncClient
from wellhead.client.exchange import Retry
from wellhead.client.sync import Client
from wellhead.errors import ServerUnreachable

__all__ = ["AsyncClient", "Client", "Retry", "ServerUnreachable"]
