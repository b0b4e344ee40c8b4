"""All formats by media type, and which of them a client accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wellhead.encoding import arrow, json, npy, safetensors
from wellhead.encoding.vectors import Vectors


@dataclass(frozen=True, slots=True)
class Format:
    """``encode`` gives the length in bytes, if it is known beforehand, and the pieces; ``decode`` takes the whole."""

    name: str
    media_type: str
    encode: Callable[[Vectors], tuple[int | None, Iterator[bytes]]]
    decode: Callable[[bytes | memoryview], Vectors]


#: By media type; the first is what a client gets that does not care.
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        module.MEDIA_TYPE: Format(name, module.MEDIA_TYPE, module.encode, module.decode)
        for name, module in (("json", json), ("safetensors", safetensors), ("npy", npy), ("arrow", arrow))
    }
)


def choose(accept: str | None) -> Format | None:
    """The format that an ``Accept`` header likes best; ``None`` if it likes none of ours. No header accepts all."""
    if accept is None or not accept.strip():
        return FORMATS[json.MEDIA_TYPE]
    wishes = [_wish(part) for part in accept.split(",") if part.strip()]
    best: tuple[float, Format] | None = None
    for media_type, form in FORMATS.items():
        matching = [(specific, q) for pattern, specific, q in wishes if _matches(pattern, media_type)]
        if not matching:
            continue
        quality = max(matching)[1]
        if quality > 0 and (best is None or quality > best[0]):
            best = (quality, form)
    return best[1] if best is not None else None


def _wish(part: str) -> tuple[str, int, float]:
    pattern, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = min(1.0, max(0.0, float(value)))
            except ValueError:
                quality = 0.0
    specific = 0 if pattern == "*/*" else 1 if pattern.endswith("/*") else 2
    return pattern, specific, quality


def _matches(pattern: str, media_type: str) -> bool:
    if pattern in ("*/*", media_type):
        return True
    return pattern.endswith("/*") and media_type.startswith(pattern[:-1])
