"""From tokens to text while a request runs: what is certain, and whether a stop string has come."""

from __future__ import annotations

from wellhead.requests.detokenizer import IncrementalDetokenizer, StopMatcher
from wellhead.requests.tokenizer import Tokenizer
from wellhead.types import Request, SamplingParams


class TextStream:
    """One request's text. What ``push`` returned is final: it is a prefix of the whole text, and no part of a stop string."""

    def __init__(self, detokenizer: IncrementalDetokenizer, matcher: StopMatcher | None) -> None:
        self._detokenizer = detokenizer
        self._matcher = matcher

    def push(self, token: int, *, stops: bool) -> tuple[str, str | None]:
        """Take one token; the text that is now certain, and the stop string or pattern that ended it.

        ``stops=False``: do not look for stop strings yet (``min_new_tokens``).
        """
        text = self._detokenizer.push([token])
        return self._match(text) if stops else (text, None)

    def finish(self) -> tuple[str, str | None]:
        """The rest of the text, at the end of the tokens; a stop string may still be completed by it."""
        text, matched = self._match(self._detokenizer.finish())
        if matched is None and self._matcher is not None:
            text += self._matcher.finish()
        return text, matched

    def _match(self, text: str) -> tuple[str, str | None]:
        return (text, None) if self._matcher is None else self._matcher.push(text)


class TextStreams:
    """Opens a stream for each request that needs text on the way."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def open(self, request: Request) -> TextStream | None:
        """A stream if the request streams or has stop strings; others are decoded once, at their end."""
        params = request.sampling
        stops = bool(params.stop or params.stop_regex)
        if not (request.stream or stops):
            return None
        matcher = StopMatcher(params.stop, params.stop_regex, keep=params.no_stop_trim) if stops else None
        return TextStream(
            IncrementalDetokenizer(
                self._tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            ),
            matcher,
        )

    def decode(self, ids: list[int], params: SamplingParams) -> str:
        """The text of all output ids at once."""
        return self._tokenizer.decode(
            ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
