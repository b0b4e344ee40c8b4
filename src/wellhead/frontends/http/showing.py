"""What several endpoints need to show what came: the form of hidden states, outputs by request, when to leave the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wellhead.encoding import base64
from wellhead.errors import InvalidRequest, WellheadError
from wellhead.frontends.http.openai_choice import Choice
from wellhead.frontends.http.payload import Payload
from wellhead.frontends.http.service import Running
from wellhead.types import DTYPES, DType, HiddenStates, Output, Request

Show = Callable[[HiddenStates], Any]


def base64_wanted(payload: Payload) -> bool:
    """``hidden_states_format``: ``"base64"``, or ``"float"``, also called ``"list"``."""
    form = payload.get("hidden_states_format", "float")
    if form not in ("float", "list", "base64"):
        message = f'hidden_states_format must be "float" (also called "list") or "base64", not {form!r:.80}'
        raise InvalidRequest(message, param="hidden_states_format")
    return bool(form == "base64")


def shown_as(payload: Payload) -> Show:
    """How hidden states are shown, from ``hidden_states_format`` and ``hidden_states_dtype``."""
    packed, dtype = base64_wanted(payload), payload.get("hidden_states_dtype")
    if dtype is not None and (not packed or dtype not in DTYPES):
        raise InvalidRequest(
            f'hidden_states_dtype must be one of {", ".join(DTYPES)}, with hidden_states_format "base64"',
            param="hidden_states_dtype",
        )
    asked = payload.get("hidden_states_format", "float") not in ("float", "list") or dtype is not None
    wishes = ("return_hidden_states", "hidden_states_rows", "hidden_states_reduce", "reads")
    if asked and all(payload.get(name) is None or payload[name] is False for name in wishes):  # position 0 equals False
        raise InvalidRequest(
            "hidden_states_format is given, but return_hidden_states asks for none", param="hidden_states_format"
        )
    return show_base64(dtype or "float32") if packed else show_float


def show_float(states: HiddenStates) -> Any:
    """SGLang's shape, as arrays that the encoder writes as lists; layers by number under text keys, as JSON has them."""
    entries = states.entries()
    return {str(k): v for k, v in entries.items()} if isinstance(entries, dict) else entries


def show_base64(dtype: DType) -> Show:
    """The light alternative."""
    return lambda states: base64.encode(states, dtype)


def is_light(request: Request) -> bool:
    """Is the reply of this request small enough to be put together on the event loop?"""
    spec = request.logprobs
    tokens = request.sampling.max_new_tokens + (request.prompt_tokens if spec is not None and spec.start is not None else 0)
    values = tokens * (1 + (spec.top + len(spec.token_ids) if spec is not None else 0))
    return values <= 2048 and all(read.vector for read in request.reads) and sum(len(r.layers) for r in request.reads) <= 4


def by_request(outputs: list[Output]) -> dict[str, list[Output]]:
    """Outputs by request, in order of arrival."""
    found: dict[str, list[Output]] = {}
    for output in outputs:
        found.setdefault(output.key, []).append(output)
    return found


async def gather(running: Running[Any], choices: dict[str, Choice]) -> None:
    """All outputs; OpenAI's answer has no place for the error of one of several prompts, so the first one is raised."""
    while running.open:
        for key, outputs in by_request(await running.take()).items():
            choice = choices[key]
            try:
                choice.take(outputs)
            except WellheadError as error:
                if running.batch.prompts == 1:
                    raise
                raise type(error)(f"prompt {choice.request.prompt_index}: {error.message}", param=error.param) from None
