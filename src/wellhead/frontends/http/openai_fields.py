"""OpenAI's fields -> the engine's payload. What asks for something that is not served is refused by name."""

from __future__ import annotations

from typing import Any, Literal

from wellhead.errors import InvalidRequest, UnsupportedField
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.reading import check_names, flag
from wellhead.frontends.http.showing import Show, shown_as
from wellhead.requests.fields import handed_over


def split(payload: Payload, place: Literal["completions", "chat"]) -> tuple[Payload, Show]:
    """The engine's payload without its prompt, and how hidden states are shown."""
    check_names(payload, place)
    check_bias(payload.get("logit_bias"))
    for name in ("return_hidden_states", "rid"):
        if isinstance(payload.get(name), list):
            raise InvalidRequest(f"{name} takes one value here, not a list", param=name)
    return handed_over(payload, place), shown_as(payload)


def check_bias(bias: Any) -> None:
    """OpenAI's bounds; everything else about it is checked at the engine's door."""
    if not isinstance(bias, dict):
        return
    for value in bias.values():
        if isinstance(value, (int, float)) and not -100 <= value <= 100:
            raise InvalidRequest(f"logit_bias must lie between -100 and 100, not {value!r}", param="logit_bias")


def wants_usage(payload: Payload) -> bool:
    """``stream_options.include_usage``."""
    options = payload.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise InvalidRequest("stream_options must be an object", param="stream_options")
    if not flag(payload, "stream"):
        raise InvalidRequest("stream_options needs stream", param="stream_options")
    for name, value in options.items():
        if name == "include_obfuscation" and value in (None, False):
            continue
        if name != "include_usage":
            raise UnsupportedField(f"stream_options.{name} is not served by this engine", param=f"stream_options.{name}")
    return flag({k: v for k, v in options.items() if v is not None}, "include_usage")


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages whose content, if it comes in parts, is one text: parts are joined by line ends."""
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    plain = []
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{i}] must be an object with a role", param="messages")
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(_part(part, i) for part in content)
        elif content is not None and not isinstance(content, str):
            raise InvalidRequest(f"messages[{i}].content must be a string or a list of text parts", param="messages")
        plain.append({**message, "content": content})
    return plain


def _part(part: Any, i: int) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    raise InvalidRequest(f"messages[{i}].content: only parts of type text are served", param="messages")
