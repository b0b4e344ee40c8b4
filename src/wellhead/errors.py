"""Every error that Wellhead raises on purpose.

::

    WellheadError                     code                      who can mend it
    ├── InvalidRequest                invalid_request           the caller: a field, a value, a combination
    │   ├── UnsupportedField          unsupported_field         the caller: a field that we do not serve
    │   ├── EmptyPrompt               empty_prompt              the caller
    │   ├── TokenOutOfRange           token_out_of_range        the caller
    │   ├── RowOutOfRange             row_out_of_range          the caller
    │   ├── PromptTooLong             prompt_too_long           the caller (or a larger context or pool)
    │   ├── NoLMHead                  no_lm_head                whoever chose the model: it has rows, but no tokens
    │   ├── TaskNotServed             task_not_served           whoever chose the model: it has no head for what is asked
    │   ├── BatchTooLarge             batch_too_large           the caller: fewer prompts or samples per request
    │   ├── RequestTooLarge           request_too_large         the caller: fewer tokens per request
    │   ├── TooManyLogprobs           too_many_logprobs         the caller: fewer log-probabilities per request
    │   ├── ModelNotFound             model_not_found           the caller: another model is served
    │   ├── HeadNotFound              head_not_found            the caller: no head of that name is loaded
    │   ├── HeadUploadDisabled        head_upload_disabled      whoever starts the engine
    │   ├── Unauthorized              unauthorized              the caller: a key is missing or wrong
    │   ├── NotFound                  not_found                 the caller: a path that is not served
    │   ├── MethodNotAllowed          method_not_allowed        the caller: the path has another method
    │   ├── NotAcceptable             not_acceptable            the caller: ``Accept`` names none of the formats
    │   ├── BodyTooLarge              body_too_large            the caller (or ``--max-body-bytes``)
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
    │   └── BodyTooSlow               body_too_slow             the caller, or the network
    ├── NonFinite                     non_finite                a NaN or inf came out of the model for this request
    ├── EngineClosed                  engine_closed             the engine was shut down, or died
    │   ├── RankDied                  rank_died                 whoever has the machine: one of its processes is gone
    │   └── ServerUnreachable         server_unreachable        whoever has the server (or the network to it)
    ├── BuildFailed                   build_failed              whoever has the machine: no compiler, no AVX2, ...
    ├── CacheBusy                     cache_busy                time: requests run
    ├── ClientGone                    client_gone               nobody: whoever asked went away
    └── InternalError                 internal_error            us

``code`` is stable: clients may branch on it. ``param`` names the field at fault, and ``index`` the text, where there is one.
"""

from __future__ import annotations


class WellheadError(Exception):
    """Root of the tree; ``str(error)`` is a sentence for a person, ``error.code`` a word for a program."""

    code = "error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.index: int | None = None

    def to_dict(self) -> dict[str, object]:
        """``message``, ``code``, ``param``, and ``index`` where one text of several is at fault."""
        said: dict[str, object] = {"message": self.message, "code": self.code, "param": self.param}
        return said if self.index is None else {**said, "index": self.index}

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.param, self.code, self.index))


def _rebuild(kind: type[WellheadError], message: str, param: str | None, code: str, index: int | None) -> WellheadError:
    error = kind(message, param=param)
    error.code, error.index = code, index
    return error


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


class RowOutOfRange(InvalidRequest):
    """A row that was named by its position, and does not exist."""

    code = "row_out_of_range"


class PromptTooLong(InvalidRequest):
    """More tokens than the context, or than the whole KV pool, can hold."""

    code = "prompt_too_long"


class NoLMHead(InvalidRequest):
    """Tokens or log-probabilities asked of a model that was saved without its LM head."""

    code = "no_lm_head"


class TaskNotServed(InvalidRequest):
    """Labels, scores or an order of documents asked of a model that has nothing to give them with."""

    code = "task_not_served"


class BatchTooLarge(InvalidRequest):
    """More prompts or sequences in one request than the server takes."""

    code = "batch_too_large"


class RequestTooLarge(InvalidRequest):
    """More prompt and new tokens in one request than the server takes."""

    code = "request_too_large"


class TooManyLogprobs(InvalidRequest):
    """More log-probabilities of alternatives in one request than the server takes."""

    code = "too_many_logprobs"


class ModelNotFound(InvalidRequest):
    """A model of another name."""

    code = "model_not_found"


class HeadNotFound(InvalidRequest):
    """A head of that name is not loaded."""

    code = "head_not_found"


class HeadUploadDisabled(InvalidRequest):
    """A head is to be added or removed, and the engine was started without ``--allow-head-upload``."""

    code = "head_upload_disabled"


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


class ServerUnreachable(EngineClosed):
    """No connection to the server, or it was lost, and trying again did not help."""

    code = "server_unreachable"


class BuildFailed(WellheadError, RuntimeError):
    """The native kernels cannot be built; the message holds the reason, and the compiler's last words."""

    code = "build_failed"


class Unauthorized(InvalidRequest):
    """No key, or a wrong one."""

    code = "unauthorized"


class NotFound(InvalidRequest):
    """A path that is not served."""

    code = "not_found"


class MethodNotAllowed(InvalidRequest):
    """A path that is served, by another method."""

    code = "method_not_allowed"


class NotAcceptable(InvalidRequest):
    """An ``Accept`` header that names none of our formats."""

    code = "not_acceptable"


class BodyTooLarge(InvalidRequest):
    """More bytes than ``--max-body-bytes``."""

    code = "body_too_large"


class BodyTooSlow(RequestTimeout):
    """A body that did not arrive in time."""

    code = "body_too_slow"


class CacheBusy(WellheadError):
    """The cache cannot be flushed while requests run."""

    code = "cache_busy"


class ClientGone(WellheadError):
    """Nobody is there any more to answer."""

    code = "client_gone"


class InternalError(WellheadError):
    """An invariant of ours did not hold. Never the caller's fault."""

    code = "internal_error"
