"""Every error that Wellhead raises on purpose.

::

    WellheadError                     code                      who can mend it
    ├── InvalidRequest                invalid_request           the caller: a field, a value, a combination
    │   ├── UnsupportedField          unsupported_field         the caller: a field that we do not serve
    │   ├── EmptyPrompt               empty_prompt              the caller
    │   ├── TokenOutOfRange           token_out_of_range        the caller
    │   ├── PromptTooLong             prompt_too_long           the caller (or a larger context or pool)
    │   ├── CaptureDisabled           capture_disabled          whoever starts the engine
    │   └── CaptureAboveCeiling       capture_above_ceiling     whoever starts the engine
    ├── InvalidConfig                 invalid_config            whoever starts the engine
    ├── ModelError                    model_error               whoever made or copied the checkpoint
    │   ├── UnsupportedModel          unsupported_model         nobody yet: an architecture we do not have
    │   ├── WeightsError              weights_error             missing, left-over, truncated, misshapen tensors
    │   └── TokenizerError            tokenizer_error           no tokenizer, or a broken one
    ├── InvalidHead                   invalid_head              whoever made the head, or chose it for this model
    ├── InputFileError                input_file_error          the caller: a line that is not JSON, not UTF-8, ...
    ├── OutputFileError               output_file_error         whoever has the disk: full, damaged, not ours
    ├── Overloaded                    overloaded                time: the queue is full, try again
    ├── RequestAborted                aborted                   the caller asked for it
    ├── RequestTimeout                timeout                   time
    ├── NonFinite                     non_finite                a NaN or inf came out of the model for this request
    ├── EngineClosed                  engine_closed             the engine was shut down, or died
    │   └── RankDied                  rank_died                 whoever has the machine: one of its processes is gone
    └── InternalError                 internal_error            us

``code`` is stable: clients may branch on it. ``param`` names the field at fault, where there is one.
"""

from __future__ import annotations


class WellheadError(Exception):
    """Root of the tree; ``str(error)`` is a sentence for a person, ``error.code`` a word for a program."""

    code = "error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.param))


def _rebuild(kind: type[WellheadError], message: str, param: str | None) -> WellheadError:
    return kind(message, param=param)


class InvalidRequest(WellheadError, ValueError):
    """A request that can never be served as it stands."""

    code = "invalid_request"


class UnsupportedField(InvalidRequest):
    """A field that other engines have and this one does not serve; refused rather than ignored."""

    code = "unsupported_field"


class EmptyPrompt(InvalidRequest):
    """A prompt of no tokens, or a batch of no prompts."""

    code = "empty_prompt"


class TokenOutOfRange(InvalidRequest):
    """A token id outside ``[0, vocab_size)``."""

    code = "token_out_of_range"


class PromptTooLong(InvalidRequest):
    """More tokens than the context, or than the whole KV pool, can hold."""

    code = "prompt_too_long"


class CaptureDisabled(InvalidRequest):
    """Hidden states asked of an engine that was started with the ceiling ``off``."""

    code = "capture_disabled"


class CaptureAboveCeiling(InvalidRequest):
    """A capture mode, layer or pooling above what the engine was started with."""

    code = "capture_above_ceiling"


class InvalidConfig(WellheadError, ValueError):
    """An unknown, contradictory or impossible option of the engine or the server."""

    code = "invalid_config"


class ModelError(WellheadError):
    """The model cannot be loaded."""

    code = "model_error"


class UnsupportedModel(ModelError):
    """An architecture, or a feature of one, that Wellhead does not have."""

    code = "unsupported_model"


class WeightsError(ModelError):
    """A weights file that is missing, torn, hostile, or does not fit its config; names file and tensor."""

    code = "weights_error"


class TokenizerError(ModelError):
    """No tokenizer where one is needed, or one that cannot be read."""

    code = "tokenizer_error"


class InvalidHead(WellheadError, ValueError):
    """A head that is torn, hostile, not finite, contradicts itself, or belongs to another model; names the head or the file."""

    code = "invalid_head"


class InputFileError(WellheadError, ValueError):
    """An input file that cannot be read as what it is said to be; names file and line."""

    code = "input_file_error"


class OutputFileError(WellheadError):
    """An output that cannot be written, or is not as it was written; names the file."""

    code = "output_file_error"


class Overloaded(WellheadError):
    """The queue is full. Nothing was started; the same request may be sent again later."""

    code = "overloaded"


class RequestAborted(WellheadError):
    """The request was aborted by its owner."""

    code = "aborted"


class RequestTimeout(WellheadError):
    """The request ran out of its time."""

    code = "timeout"


class NonFinite(WellheadError):
    """The model produced NaN or infinity for this request; its neighbours are not affected."""

    code = "non_finite"


class EngineClosed(WellheadError):
    """The engine was shut down, or its thread died; the message says which."""

    code = "engine_closed"


class RankDied(EngineClosed):
    """A process of an engine that runs over several (``tp_size``) died, failed or did not answer; the engine ends with it."""

    code = "rank_died"


class InternalError(WellheadError):
    """An invariant of ours did not hold. Never the caller's fault."""

    code = "internal_error"
