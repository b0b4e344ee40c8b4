"""OpenAI's fields -> the engine's payload. What asks for something that is not served is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from wellhead.errors import InvalidRequest, UnsupportedField
from wellhead.frontends.http.native import Show, take_format
from wellhead.frontends.http.payload import Payload

#: OpenAI's and SGLang's name on these routes -> the engine's sampling parameter
SAMPLING: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: name
            for name in (
                "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "n",
                "stop", "stop_token_ids", "stop_regex", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
                "no_stop_trim", "logit_bias",
            )
        },
        "seed": "sampling_seed",
        "min_tokens": "min_new_tokens",
    }
)  # fmt: skip

#: Fields that go to the engine as they are.
PASSED = (
    "return_hidden_states", "hidden_states_layers", "hidden_states_pooling", "hidden_states_rows", "hidden_states_reduce",
    "hidden_states_token_ids", "reads", "hidden_states_format", "hidden_states_dtype", "rid", "timeout", "stream",
)  # fmt: skip

#: Values that ask for nothing. Any other value of these fields is refused.
IDLE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "store": (False,),
        "metadata": ({},),
        "service_tier": ("auto", "default"),
        "suffix": ("",),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "tools": ([],),
        "tool_choice": ("none",),
        "functions": ([],),
        "function_call": ("none",),
        "parallel_tool_calls": (True, False),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "chat_template": (),
    }
)

#: The engine's name of a field -> what callers of these routes call it
CALLED: Mapping[str, str] = MappingProxyType(
    {
        **{f"sampling_params.{name}": called for called, name in SAMPLING.items()},
        "sampling_params.max_new_tokens": "max_tokens",
        "max_new_tokens": "max_tokens",
        "return_logprob": "logprobs",
        "top_logprobs_num": "logprobs",
    }
)


def split(payload: Payload, own: tuple[str, ...]) -> tuple[Payload, Show]:
    """The engine's payload without its prompt, and how hidden states are shown. ``own``: fields that the route reads itself."""
    check_names(payload, own)
    params = {SAMPLING[name]: value for name, value in payload.items() if name in SAMPLING}
    check_bias(params.get("logit_bias"))
    passed = {name: payload[name] for name in PASSED if name in payload}
    for name in ("return_hidden_states", "rid"):
        if isinstance(passed.get(name), list):
            raise InvalidRequest(f"{name} takes one value here, not a list", param=name)
    passed, show = take_format(passed)
    return {**passed, "sampling_params": params}, show


def check_names(payload: Payload, own: tuple[str, ...]) -> None:
    """Refuse fields that are not known, and those that ask for what is not served."""
    for name, value in payload.items():
        if name in own or name in SAMPLING or name in PASSED:
            continue
        if name == "user":
            if not isinstance(value, str):
                raise InvalidRequest("user must be a string", param="user")
        elif name not in IDLE:
            raise InvalidRequest(f"unknown field {name!r}", param=name)
        elif not any(type(value) is type(idle) and value == idle for idle in IDLE[name]):
            raise UnsupportedField(f"{name} is not served by this engine", param=name)


def check_bias(bias: Any) -> None:
    """OpenAI's bounds; everything else about it is checked at the engine's door."""
    if not isinstance(bias, dict):
        return
    for value in bias.values():
        if isinstance(value, (int, float)) and not -100 <= value <= 100:
            raise InvalidRequest(f"logit_bias must lie between -100 and 100, not {value!r}", param="logit_bias")


def whole(payload: Payload, name: str, low: int, high: int | None, default: int | None = None) -> int | None:
    """A whole number between bounds."""
    value = payload.get(name)
    if value is None:
        return default
    if type(value) is not int or value < low or (high is not None and value > high):
        bound = f"of at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequest(f"{name} must be a whole number {bound}, not {value!r:.80}", param=name)
    return value


def flag(payload: Payload, name: str, default: bool = False) -> bool:
    """A field that is true or false."""
    value = payload.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r:.80}", param=name)
    return value


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
