"""Chat templates: rendered in a sandbox, with what such templates may expect to find there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wellhead.errors import InvalidRequest, TokenizerError

_REASONING = ("reasoning_content", "thinking", "reasoning")
_MARK = "<continue-final-message> "  # ends in a space: a template that trims the message trims it, and that shows


class ChatTemplates:
    """The template of a model, or several by name (``default``, ``tool_use``), compiled when first used."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, jinja2.Template] = {}

    def __bool__(self) -> bool:
        return bool(self._sources)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a chat, as transformers renders it.

        Keys whose value is ``None`` are left out, as transformers does it. ``variables`` are the template's own, such
        as ``enable_thinking``. With ``continue_final_message`` the prompt ends with the last message's content, open.
        Errors: InvalidRequest for a model without a template, messages that are not objects, and whatever the
        template itself refuses; TokenizerError for a template that cannot be compiled.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest("continue_final_message excludes add_generation_prompt", param="continue_final_message")
        chat = _normalise(messages)
        if continue_final_message:
            _open_last(chat)
        given = dict(variables or {})
        values = {
            **self._special_tokens,
            "documents": None,
            **given,
            "messages": chat,
            "tools": [_plain(tool) for tool in tools] if tools is not None else None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._template(tools is not None)
        try:
            text = template.render(values)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}", param="messages") from error
        return _cut_at_mark(text) if continue_final_message else text

    def _template(self, with_tools: bool) -> jinja2.Template:
        if not self._sources:
            raise InvalidRequest("this model has no chat template; send a prompt instead of messages", param="messages")
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise InvalidRequest(f"this model has chat templates {sorted(self._sources)}, but no default one", param="messages")
        if name not in self._compiled:
            try:
                self._compiled[name] = _environment().from_string(self._sources[name])
            except jinja2.TemplateError as error:
                raise TokenizerError(f"the model's chat template {name!r} cannot be compiled: {error}") from error
        return self._compiled[name]


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's part for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _normalise(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    chat = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise InvalidRequest(f"a message must be an object with role and content, not {message!r:.60}", param="messages")
        entry = {key: _plain(value) for key, value in message.items() if value is not None}
        reasoning = next((entry[key] for key in _REASONING if key in entry), None)
        if reasoning is not None:
            entry = {"thinking": reasoning, **entry, "reasoning_content": reasoning}
        chat.append(entry)
    return chat


def _plain(value: Any) -> Any:
    """JSON's own types and nothing else: no object's methods are within a template's reach."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise InvalidRequest(f"messages may hold JSON values only, not {type(value).__name__}", param="messages")


def _open_last(chat: list[dict[str, Any]]) -> None:
    content = chat[-1].get("content")
    if isinstance(content, list):
        part = next((part for part in reversed(content) if isinstance(part, dict) and isinstance(part.get("text"), str)), None)
        if part is not None:
            part["text"] += _MARK
            return
    if not isinstance(content, str):
        raise InvalidRequest("continue_final_message needs a last message with text", param="continue_final_message")
    chat[-1]["content"] = content + _MARK


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_MARK.strip())
    if at < 0:
        raise InvalidRequest("the chat template drops the message to continue", param="continue_final_message")
    whole = text[at : at + len(_MARK)] == _MARK
    return text[:at] if whole else text[:at].rstrip()
