"""Which replica has seen how much of a prompt: beginnings of requests, in blocks, and who was sent them."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from wellhead.encoding import json

#: Bytes of a block: some sixteen tokens of text, the smallest page.
BLOCK_BYTES = 64
#: Blocks of a prompt that are looked at, and blocks that are remembered.
MOST_BLOCKS = 256
REMEMBERED = 1 << 17
#: Larger bodies are batches; to look into them would cost more than the prefix of one of their prompts saves.
MOST_BODY = 1 << 20
#: A replica is overloaded when it has more requests than ``SPILL_TIMES`` those of the idlest one and ``SPILL_MORE`` on top.
SPILL_TIMES = 2
SPILL_MORE = 8
_FIELDS = ("input_ids", "text", "prompt", "input", "messages")

Blocks = tuple[bytes, ...]


def blocks_of(body: bytes) -> Blocks:
    """Digests of the beginnings of a request's first prompt, each a block longer; none if it has no prompt to speak of."""
    if len(body) > MOST_BODY:
        return ()
    try:
        payload = json.loads(body)
    except ValueError:
        return ()  # the engine's own door will say what is wrong
    value = next((payload[f] for f in _FIELDS if payload.get(f)), None) if isinstance(payload, dict) else None
    prompt = "".join(_texts(value))[: MOST_BLOCKS * BLOCK_BYTES].encode("utf-8", "surrogatepass")
    digest, found = hashlib.blake2b(digest_size=8), []
    for at in range(0, len(prompt), BLOCK_BYTES):
        digest.update(prompt[at : at + BLOCK_BYTES])
        found.append(digest.digest())
    return tuple(found[:MOST_BLOCKS])


def _texts(value: Any) -> Iterator[str]:
    """What the first prompt says: a text, token ids, or messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and value:
        if isinstance(value[0], int):
            yield from (f"{token} " for token in value[: MOST_BLOCKS * BLOCK_BYTES])
        elif isinstance(value[0], dict):
            for message in value:
                yield f"<{message.get('role')}>{message.get('content')}" if isinstance(message, dict) else ""
        else:
            yield from _texts(value[0])


class Fleet:
    """The replicas that are known, what each has to do, and what each has seen. One thread.

    ``policy``: ``prefix`` (who has seen most of the prompt, unless it is overloaded; else the idlest, of these the one that has
    seen least of all) or ``random``.
    """

    def __init__(self, policy: str = "prefix", remembered: int = REMEMBERED) -> None:
        self._policy, self._remembered = policy, remembered
        self.loads: dict[str, int] = {}
        self._seen: OrderedDict[bytes, set[str]] = OrderedDict()
        self._held = Counter[str]()  # blocks of ``_seen``, by replica

    def update(self, names: Sequence[str]) -> None:
        """These are there, and no others."""
        self.loads = {name: self.loads.get(name, 0) for name in names}

    def gone(self, name: str | None) -> None:
        """A replica is not there any more."""
        self.loads.pop(name or "", None)

    def choose(self, blocks: Blocks) -> str | None:
        """Who should get a request; None if nobody is known."""
        if not self.loads:
            return None
        if self._policy == "random":
            return random.choice(list(self.loads))
        most = SPILL_TIMES * min(self.loads.values()) + SPILL_MORE
        matched = self._matched(blocks)
        able = [name for name, load in self.loads.items() if load <= most]
        return max(able, key=lambda n: (matched.get(n, 0), -self.loads[n], -self._held[n], _draw(blocks[:1], n)))

    def _matched(self, blocks: Blocks) -> dict[str, int]:
        """Blocks from the beginning on, by replica."""
        matched: dict[str, int] = {}
        for count, block in enumerate(blocks, 1):
            names = self._seen.get(block)
            if not names:
                break
            matched.update(dict.fromkeys(names, count))
        return matched

    def begin(self, name: str, blocks: Blocks) -> None:
        """A replica has got a request."""
        if name in self.loads:
            self.loads[name] += 1
        for block in blocks:
            names = self._seen.setdefault(block, set())
            self._held[name] += name not in names
            names.add(name)
            self._seen.move_to_end(block)
        for old in list(itertools.islice(self._seen, max(0, len(self._seen) - self._remembered))):
            self._held.subtract(self._seen.pop(old))

    def end(self, name: str) -> None:
        """A replica is through with a request."""
        if self.loads.get(name):
            self.loads[name] -= 1


def _draw(block: Blocks, name: str) -> bytes:
    """Rendezvous hashing: where nothing else decides, the same beginning draws the same replica, whoever asks."""
    return hashlib.blake2b(b"".join(block) + name.encode(), digest_size=8).digest()
