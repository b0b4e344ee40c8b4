"""What both clients share besides the exchange: addresses, keys, fixed calls, the progress bar."""

from __future__ import annotations

from typing import Any

import httpx
from tqdm import tqdm

import wellhead
from wellhead.client.exchange import Call
from wellhead.errors import InvalidRequest

HEALTH = Call("GET", "/health", retry=False)
INFO = Call("GET", "/server_info")


def check_url(url: str) -> str:
    """The address of a server; ``InvalidRequest`` for anything but http(s)."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise InvalidRequest(f"not an address of a server: {url!r} ({error})", param="url") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequest(f"the address of a server looks like http://host:port, not {url!r}", param="url")
    return url.rstrip("/")


def headers(api_key: str | None) -> dict[str, str]:
    """Headers of every request."""
    key = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    return {"User-Agent": f"wellhead-client/{wellhead.__version__}", **key}


def progress_bar(shown: bool) -> Any:
    """A bar on stderr that counts texts, or one that shows nothing."""
    return tqdm(desc="extract", unit=" texts", disable=not shown)
