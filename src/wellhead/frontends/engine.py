"""The Python way in: ``wellhead.Engine``, with SGLang's names, and ``extract`` for what Wellhead is for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from wellhead import on_error as on_error_rule
from wellhead.config import EngineConfig, Resolved
from wellhead.core.assemble import Assembled, assemble
from wellhead.core.courier import Courier
from wellhead.core.job import Job, work_through
from wellhead.core.loop import EngineLoop
from wellhead.errors import InvalidRequest, RequestAborted, WellheadError
from wellhead.frontends.native import Reply
from wellhead.frontends.tasks import T, Tasks, Work
from wellhead.heads.head import Head
from wellhead.on_error import OnError
from wellhead.requests.normalize import Batch, normalize, reads_of
from wellhead.requests.tokenizer import Tokenizer
from wellhead.requests.words import speaking
from wellhead.types import DTYPES, DType, HeadOutput, HiddenStates, Output, Read, Request, Scorer

ExtractMode = Literal["last", "full", "mean"]
Extracted = tuple[int, HiddenStates | Mapping[str, HiddenStates] | WellheadError]

#: What ``extract`` calls the fields that its arguments become.
EXTRACT_WORDS = {
    "return_hidden_states": "mode", "hidden_states_pooling": "mode", "hidden_states_rows": "rows",
    "hidden_states_reduce": "reduce", "hidden_states_layers": "layers",
}  # fmt: skip
#: Texts that are tokenised and submitted at once, and requests that may be in flight, in bulk extraction.
BULK_BATCH = 128
BULK_IN_FLIGHT = 512


class Engine:
    """A model, ready to be asked for hidden states and text.

    Options are the fields of ``EngineConfig``. Methods may be called from any thread; requests of all callers are
    batched together. Use it as a context manager, or call ``shutdown``.

    >>> with Engine(model_path="path/to/model", return_hidden_states_mode="full") as engine:  # doctest: +SKIP
    ...     X = engine.extract(["one text", "another"])          # float32 [2, hidden_size]
    """

    def __init__(self, model_path: str, **options: Any) -> None:
        self.config = EngineConfig.from_options({"model_path": model_path, **options})
        self._assembled: Assembled = assemble(self.config)
        self.tasks = Tasks(self._assembled)
        self._seeds = itertools.count(self._assembled.config.random_seed * 1_000_003)
        self.loop = EngineLoop(self._assembled.core)
        self._assembled.watch(self.loop.fail)

    # --- context ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Stop; requests that still run end with ``EngineClosed``. Harmless if repeated."""
        self.loop.close()
        self._assembled.close()

    # --- facts --------------------------------------------------------------------------------------------------

    @property
    def hidden_size(self) -> int:
        return self._assembled.spec.hidden_size

    @property
    def resolved(self) -> Resolved:
        """The configuration that holds: ``config`` with everything decided that it leaves open."""
        return self._assembled.config

    @property
    def tokenizer(self) -> Tokenizer | None:
        """``None`` with ``skip_tokenizer_init``."""
        return self._assembled.tokenizer

    @property
    def vocab_size(self) -> int:
        """Token ids are in ``[0, vocab_size)``."""
        return self._assembled.limits.vocab_size

    @property
    def assembled(self) -> Assembled:
        """What the engine is made of: resolved configuration, model spec, tokenizer, kernels."""
        return self._assembled

    def info(self) -> dict[str, Any]:
        """Model, dtype, ceiling, pages, kernels, ``batch_invariant``."""
        return self._assembled.info()

    def flush_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while requests run."""
        return bool(self.loop.call(lambda core: core.flush_cache()).result())

    def abort(self, rid: str) -> int:
        """End all samples of a request; how many sequences that were."""
        return self.loop.abort(rid).result()

    def check_integrity(self) -> None:
        """Raise ``InternalError`` unless all pages are accounted for."""
        self.loop.call(lambda core: core.check_integrity()).result()

    # --- heads --------------------------------------------------------------------------------------------------

    @property
    def heads(self) -> Mapping[str, Head]:
        """The heads that requests may use now, by name."""
        return self._assembled.heads

    def add_head(self, head: Head | str | Path | bytes) -> Head:
        """Add a head, its file, or the bytes of that; one of the same name is replaced, and requests that have begun keep it.

        Needs ``allow_head_upload``. Raises ``HeadUploadDisabled``, ``InvalidHead``.
        """
        self._assembled.heads.check_upload()
        return self._assembled.heads.add(Head.load(head) if isinstance(head, (str, Path)) else head)

    def remove_head(self, name: str) -> Head:
        """Take a head away; requests that have begun keep it. Raises ``HeadNotFound``, ``HeadUploadDisabled``."""
        return self._assembled.heads.remove(name)

    # --- generate -----------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        *,
        return_hidden_states: Any = False,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """One prompt or a batch, as SGLang's ``Engine.generate``: a dict per prompt and sample, or an iterator of them.

        ``return_hidden_states``: ``False``, ``"last"`` or ``True``, one for all or one per prompt. Further fields are
        those of ``/generate``: ``return_logprob``, ``logprob_start_len``, ``top_logprobs_num``, ``token_ids_logprob``,
        ``hidden_states_layers``, ``hidden_states_rows``, ``hidden_states_reduce``, ``reads``, ``hidden_states_pooling``,
        ``hidden_states_token_ids``, ``incremental_hidden_states``, ``heads``, ``stop_on``, ``rid``, ``timeout``.

        ``meta_info["hidden_states"]`` holds float32 numpy arrays: ``"last"`` ``[H]``; ``True`` a list of N entries,
        the prompt's ``[P, H]`` and one ``[H]`` for each further output token; rows by any other words (an object with
        ``rows``, ``reduce``, ``layers``, see docs/hidden-states.md) ``[k, H]``, or ``[H]`` if reduced; with their
        ``hidden_states_positions`` beside them. ``meta_info["reads"]`` has the same of each of ``reads``, by name;
        ``meta_info["heads"]`` what each of ``heads`` says, see docs/heads.md.

        Raises ``InvalidRequest`` before anything runs, or the error of the first request that failed.
        """
        batch = self._normalize(prompt, sampling_params, input_ids, return_hidden_states, stream, fields)
        job = Job(self.loop)
        outputs = job.outputs()
        job.submit(batch.requests)
        if stream:
            return self._iterate(batch, outputs)
        replies = self._replies(batch)
        for output in outputs:
            replies[output.key].update(output)
        results = [reply.to_dict() for reply in replies.values()]
        return results[0] if batch.single else results

    def _iterate(self, batch: Batch, outputs: Iterator[Output]) -> Iterator[dict[str, Any]]:
        replies = self._replies(batch)
        for output in outputs:
            yield self._event(replies, output, batch)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        *,
        return_hidden_states: Any = False,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """``generate`` for coroutines; with ``stream`` it returns an async iterator. Cancelling aborts the request."""
        batch = self._normalize(prompt, sampling_params, input_ids, return_hidden_states, stream, fields)
        events = self._async_events(batch)
        if stream:
            return events
        last: dict[str, dict[str, Any]] = {}
        async for event in events:
            last[event.pop("_key")] = event
        results = [last[r.key] for r in batch.requests]
        return results[0] if batch.single else results

    async def _async_events(self, batch: Batch) -> AsyncIterator[dict[str, Any]]:
        replies = self._replies(batch)
        with Job(self.loop, Courier(asyncio.get_running_loop())) as job:
            job.submit(batch.requests)
            async for output in job.aoutputs():
                event = self._event(replies, output, batch)
                yield event if batch.requests[0].stream else {**event, "_key": output.key}

    def _normalize(
        self, prompt: Any, sampling_params: Any, input_ids: Any, return_hidden_states: Any, stream: bool, fields: dict[str, Any]
    ) -> Batch:
        payload = {
            "text": prompt,
            "input_ids": input_ids,
            "sampling_params": sampling_params,
            "return_hidden_states": return_hidden_states,
            "stream": stream,
            **fields,
        }
        return self.normalize(payload)

    def normalize(self, payload: dict[str, Any]) -> Batch:
        """A payload of ``/generate`` -> validated requests."""
        tokenizer = self._assembled.tokenizer
        encode, spans = (tokenizer.encode_batch, tokenizer.token_spans) if tokenizer else (_no_tokenizer, None)
        return normalize(payload, self._assembled.limits, encode, self._next_seed, spans)

    def _next_seed(self) -> int:
        return next(self._seeds)

    def _replies(self, batch: Batch) -> dict[str, Reply]:
        tokenizer = self._assembled.tokenizer
        return {r.key: Reply(r, tokenizer.token_text if tokenizer else None) for r in batch.requests}

    def _event(self, replies: dict[str, Reply], output: Output, batch: Batch) -> dict[str, Any]:
        replies[output.key].update(output)
        event = replies[output.key].to_dict()
        if not batch.single:
            event["index"] = list(replies).index(output.key)
        return event

    # --- extract ------------------------------------------------------------------------------------------------

    def extract(
        self,
        texts: Iterable[str] | Iterable[list[int]],
        mode: ExtractMode | None = None,
        *,
        rows: Any = None,
        reduce: str | None = None,
        layers: list[int | str] | None = None,
        reads: Mapping[str, Mapping[str, Any]] | None = None,
        heads: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
        dtype: DType = "float32",
        return_positions: bool = False,
        progress: bool = False,
        on_error: OnError = "raise",
    ) -> Any:
        """Hidden states of texts (or of token id lists), no token generated.

        ``rows``: which rows of each text, in any words of docs/hidden-states.md: ``"last"`` (default), ``"all"``, ``-8``,
        ``slice(-8, None)``, ``[0, 5]``, ``{"last": 8, "exclude": "special"}``, ... One row -> an array ``[n, H]``; others -> a
        list of arrays ``[k_i, H]``. ``reduce``: what becomes of them (of all rows, if none are named): ``"mean"``, ``"sum"``,
        ``"max"``, ``"first"``, ``"weighted_mean"``, ``"mean_sqrt"`` -> ``[n, H]`` (NaN for a text in which no row is wanted).
        ``mode`` is short for both: ``"last"``, ``"mean"`` (of all rows), ``"full"`` (all of them).
        ``layers``: a dict from each layer to such a result. ``reads``: several such wishes by name, each an object with
        ``rows``, ``reduce``, ``layers``, from one pass; a dict of results. ``return_positions``: a pair of the result and, per
        text, the int64 positions of its rows (by name with ``reads``; ``None`` for a text whose error is returned).
        ``dtype``: ``float32`` and ``float16`` give numpy arrays; ``bfloat16``, which numpy lacks, torch tensors.

        ``heads``, in place of all these: what heads say of the texts, and no rows. By name a dict of ``version``, ``labels``,
        ``label`` (a list of n), ``scores`` float32 ``[n, C]`` and ``probabilities`` float32 ``[n, labels]``; for a text that has
        none of the rows that a head looks at the label is ``None`` and the numbers are NaN. (``on_error="return"``: a list of
        such dicts of single texts, with the errors in their places.)

        Row i belongs to text i.

        ``on_error``, for a text that cannot be served: ``"raise"`` its error, with its ``index``; ``"skip"`` it, and give
        ``(result, indices)``, int64 ``[k]``: the texts whose rows these are; ``"return"``: a list of ``[H]`` or
        ``[tokens_i, H]`` in which the error stands in the text's place. An engine that closes is raised all the same.
        """
        if dtype not in DTYPES:
            raise InvalidRequest(f"dtype must be {', '.join(DTYPES)}, not {dtype!r}", param="dtype")
        items: Any = texts if isinstance(texts, (str, bytes)) else list(texts)
        on_error_rule.check(on_error)
        if heads is not None:
            if return_positions or any(value is not None for value in (mode, rows, reduce, layers, reads)):
                raise InvalidRequest("extract gives rows, or what heads say of them: leave the other words out", param="heads")
            return self._judged(items, heads, on_error, progress)
        found: list[Mapping[str, HiddenStates] | WellheadError] = [{}] * len(items)
        wish = {"rows": rows, "reduce": reduce, "layers": layers, "reads": reads}
        for i, states in self.extract_iter(items, mode, **wish, progress=progress):
            if isinstance(states, WellheadError):
                found[i] = on_error_rule.met(i, states, on_error)
            else:
                found[i] = {"": states} if isinstance(states, HiddenStates) else states
        stand = [one for one in found if not isinstance(one, WellheadError)]
        results, positions = {}, {}
        for read in reads_of(self._extract_fields(mode, **wish), self._assembled.limits):
            mine = [one[read.name] for one in stand]
            results[read.name] = self._gather(mine, read, dtype)
            placed = found if on_error == "return" else stand
            positions[read.name] = [None if isinstance(one, WellheadError) else one[read.name].positions for one in placed]
        result = results if reads is not None else results[""]
        told = on_error_rule.settled(result, found, on_error)
        return (told, positions if reads is not None else positions[""]) if return_positions else told

    def _judged(self, items: Any, heads: Any, on_error: OnError, progress: bool) -> Any:
        """``extract`` with ``heads``."""
        fields = {"sampling_params": {"max_new_tokens": 0}, "heads": heads}
        wishes = self.normalize({"input_ids": [0], **fields}).requests[0].heads
        found: list[Mapping[str, HeadOutput] | WellheadError] = [{}] * len(items)
        bar = tqdm(desc="extract", unit=" texts", total=len(items), disable=not progress)
        for i, output in self._outputs(_checked_texts(items), fields, bar):
            if isinstance(output, WellheadError):
                found[i] = on_error_rule.met(i, output, on_error)
            elif output.error is not None or not output.heads:
                found[i] = on_error_rule.met(i, output.error or _aborted(output), on_error)
            else:
                found[i] = output.heads
        stand = [one for one in found if not isinstance(one, WellheadError)]
        result: dict[str, Any] = {}
        for wish in wishes:
            said = [one[wish.head.name] for one in stand]
            result[wish.head.name] = [_one(o) for o in said] if on_error == "return" else _scores_of(wish.head, said)
        return on_error_rule.settled(result, found, on_error)

    def _gather(self, found: list[HiddenStates], read: Read, dtype: DType) -> Any:
        if read.asked is not None:
            return {layer: self._of_layer(found, read, layer, dtype) for layer in read.asked}
        return self._of_layer(found, read, None, dtype)

    def _of_layer(self, found: list[HiddenStates], read: Read, layer: int | str | None, dtype: DType) -> Any:
        if not read.vector:
            return [as_dtype(s, layer, dtype) for s in found]
        if dtype == "bfloat16":
            rows = [as_dtype(s, layer, dtype) for s in found]
            return torch.stack(rows) if rows else torch.empty(0, self.hidden_size, dtype=torch.bfloat16)
        rows_np: NDArray[Any] = np.empty((len(found), self.hidden_size), dtype)
        for i, states in enumerate(found):
            rows_np[i] = states.numpy(layer)
        return rows_np

    def extract_iter(
        self,
        texts: Iterable[str] | Iterable[list[int]],
        mode: ExtractMode | None = None,
        *,
        rows: Any = None,
        reduce: str | None = None,
        layers: list[int | str] | None = None,
        reads: Mapping[str, Mapping[str, Any]] | None = None,
        progress: bool = False,
    ) -> Iterator[Extracted]:
        """The same one by one, as they get ready: ``(index, HiddenStates or the error of that text)``; with ``reads`` a dict
        of ``HiddenStates`` by name.

        Any number of texts in bounded memory: only some hundred are in flight at once. A text that cannot be served
        gives an error in its place and the others go on; a queue that others have filled is waited for. Options that are
        wrong for all raise at once.
        """
        wish = {"rows": rows, "reduce": reduce, "layers": layers, "reads": reads}
        fields = self._extract_fields(mode, **wish)
        with speaking(EXTRACT_WORDS):
            reads_of(fields, self._assembled.limits)
        total = len(texts) if isinstance(texts, Sized) else None
        return self._extract_all(
            _checked_texts(texts), fields, tqdm(desc="extract", unit=" texts", total=total, disable=not progress)
        )

    @staticmethod
    def _extract_fields(mode: ExtractMode | None, rows: Any, reduce: Any, layers: Any, reads: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {"sampling_params": {"max_new_tokens": 0}, "hidden_states_token_ids": True}
        if mode is not None and mode not in ("last", "full", "mean"):
            raise InvalidRequest(f"mode must be last, full or mean, not {mode!r}", param="mode")
        if reads is not None:
            if any(value is not None for value in (mode, rows, reduce, layers)):
                raise InvalidRequest("each of reads says its rows, reduce and layers for itself", param="reads")
            return {**fields, "reads": reads}
        if mode is not None and (rows is not None or reduce is not None):
            raise InvalidRequest("mode is short for rows and reduce: give one or the other", param="mode")
        fields["hidden_states_layers"] = layers
        if rows is None and reduce is None:
            pooling = {"hidden_states_pooling": "mean"} if mode == "mean" else {}
            return {**fields, "return_hidden_states": True if mode == "full" else "last", **pooling}
        return {**fields, "hidden_states_rows": rows, "hidden_states_reduce": reduce}

    def _extract_all(self, texts: Iterator[Any], fields: dict[str, Any], bar: tqdm[Any]) -> Iterator[Extracted]:
        for index, result in self._outputs(texts, fields, bar):
            yield index, result.reads or result_of(result) if isinstance(result, Output) else result

    def _outputs(
        self, texts: Iterator[Any], fields: dict[str, Any], bar: tqdm[Any]
    ) -> Iterator[tuple[int, Output | WellheadError]]:
        def prepare(part: list[Any]) -> tuple[Request, ...]:
            kind = "text" if isinstance(part[0], str) else "input_ids"
            if not all(isinstance(text, (str, list, tuple, np.ndarray)) for text in part):
                raise InvalidRequest("each text must be a string or a list of token ids", param=kind)
            with speaking(EXTRACT_WORDS):
                return self.normalize({kind: part, **fields}).requests

        most = self._assembled.config.max_queued
        size, in_flight = min(BULK_BATCH, most), min(BULK_IN_FLIGHT, most)
        with bar:
            for index, result in work_through(self.loop, texts, prepare, at_once=size, in_flight=in_flight):
                bar.update(isinstance(result, Output))
                yield index, result

    # --- what the model is for, beside text ---------------------------------------------------------------------

    def classify(self, texts: Iterable[Any]) -> list[dict[str, Any]]:
        """Labels of texts, token id lists or chats (lists of messages), by the head that the model brings.

        A dict each: ``label``; ``values`` (float64 ``[C]``): what the config's ``problem_type`` makes of the scores, softmax for
        one label among several, a sigmoid for each of many, the scores themselves for a regression (also where nothing is said
        and there is one label); ``scores`` (float64 ``[C]``), the logits; ``labels``, their order. Raises ``TaskNotServed`` where
        the model has no such head.
        """
        return [verdict.to_dict() for verdict in self._work(self.tasks.classify(_listed(texts)))]

    def classify_tokens(self, texts: Iterable[Any]) -> list[dict[str, Any]]:
        """The same for every token, of a token classifier: ``label`` a list, ``values`` and ``scores`` ``[tokens, C]``, and
        ``token_ids``. Needs the ceiling ``full``."""
        return [verdict.to_dict() for verdict in self._work(self.tasks.classify_tokens(_listed(texts)))]

    def reward(self, texts: Iterable[Any]) -> NDArray[np.float64]:
        """One score each, as the reward model gives it; float64 ``[n]``. Texts are best given as chats, which its template was
        made for. P(a is better than b) is the sigmoid of the difference."""
        return np.array(self._work(self.tasks.reward(_listed(texts))), np.float64)

    def embed(
        self, texts: Iterable[Any], *, prompt_name: str | None = None, prompt: str | None = None, dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Vectors of texts (or token id lists), float32 ``[n, W]``: by the model's own modules (pooling, dense layers, scaling,
        as sentence-transformers has them) or, where it has none, the last row scaled to length 1.

        ``prompt_name``: one of the model's prompts, such as ``"query"``; ``prompt``: a text of one's own in front of each.
        ``dimensions``: keep so many first numbers, then scale. ``normalize``: scale to length 1, or not; by default as the
        modules say.
        """
        options = {"prompt_name": prompt_name, "prompt": prompt, "dimensions": dimensions, "normalize": normalize}
        found = self._work(self.tasks.embed(_listed(texts), **options))  # type: ignore[arg-type]
        return np.stack(found)

    def score(
        self, queries: str | Iterable[str], documents: Iterable[str], *, instruct: str | None = None, raw: bool = False,
        truncate: bool = True,
    ) -> NDArray[np.float64]:  # fmt: skip
        """How well each document fits its query, float64 ``[n]``; one query for all, or one each.

        A probability; with ``raw`` the logit behind it; of an embedding model the cosine. ``instruct``: what the query is about,
        for models that take it. A document that is too long for the context is cut, unless ``truncate`` is false.
        """
        texts = _listed(documents)
        asked = [queries] * len(texts) if isinstance(queries, str) else _listed(queries)
        if len(asked) != len(texts):
            raise InvalidRequest(f"{len(asked)} queries for {len(texts)} documents", param="queries")
        if not texts:
            raise InvalidRequest("documents is empty", param="documents")
        pairs = list(zip(asked, texts, strict=True))
        return np.array(self._work(self.tasks.pairs(pairs, instruct=instruct, raw=raw, truncate=truncate)), np.float64)

    def rerank(
        self, query: str, documents: Iterable[str], *, top_n: int | None = None, instruct: str | None = None, raw: bool = False,
        truncate: bool = True,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """The documents in the order of their scores, best first (equal ones by index): dicts of ``index``, ``score``,
        ``document``. ``top_n``: so many at most. The rest as in ``score``; the query's part of the prompts is computed once."""
        texts = _listed(documents)
        scores = self.score(query, texts, instruct=instruct, raw=raw, truncate=truncate)
        order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: top_n or None]
        return [{"index": i, "score": float(scores[i]), "document": texts[i]} for i in order]

    def _work(self, work: Work[T]) -> list[T]:
        """Run the prompts, any number of them, and make answers of their rows; the first error is raised, with its index."""

        def prepare(part: list[Any]) -> tuple[Request, ...]:
            return self.normalize({**work.payload, "input_ids": part}).requests

        most = self._assembled.config.max_queued
        size, in_flight = min(BULK_BATCH, most), min(BULK_IN_FLIGHT, most)
        rows: list[Mapping[str, HiddenStates]] = [{}] * len(work.prompts)
        for index, output in work_through(self.loop, iter(work.prompts), prepare, at_once=size, in_flight=in_flight):
            states = (output.reads or result_of(output)) if isinstance(output, Output) and output.error is None else output
            error = states.error if isinstance(states, Output) else states
            if isinstance(error, WellheadError):
                error.index = index
                raise error
            rows[index] = {"": states} if isinstance(states, HiddenStates) else states  # type: ignore[assignment]
        return work.finish(rows)


def _checked_texts(texts: Any) -> Iterator[Any]:
    if isinstance(texts, (str, bytes)):
        raise InvalidRequest("texts must be a list of texts, not one text", param="texts")
    return iter(texts)


def _one(said: HeadOutput) -> dict[str, Any]:
    return {"version": said.version, "labels": said.labels, **(said.prompt.to_dict() if said.prompt is not None else {})}


def _scores_of(head: Scorer, said: list[HeadOutput]) -> dict[str, Any]:
    """What a head said of n prompts, as arrays."""
    width = head.probabilities(np.zeros((1, head.columns), np.float32)).shape[1]
    scores = np.full((len(said), head.columns), np.nan, np.float32)
    probabilities = np.full((len(said), width), np.nan, np.float32)
    for i, one in enumerate(said):
        if one.prompt is not None:
            scores[i], probabilities[i] = one.prompt.scores, one.prompt.probabilities
    label = [None if one.prompt is None else one.prompt.label for one in said]
    return {
        "version": head.version, "labels": head.labels, "label": label, "scores": scores, "probabilities": probabilities,
    }  # fmt: skip


def _listed(texts: Iterable[Any]) -> list[Any]:
    if isinstance(texts, (str, bytes)):
        raise InvalidRequest("texts must be a list of texts, not one text", param="texts")
    return list(texts)


def result_of(output: Output) -> HiddenStates | WellheadError:
    """The hidden states that a finished extraction carries, or its error."""
    if output.error is not None:
        return output.error
    return _aborted(output) if output.hidden_states is None else output.hidden_states


def _aborted(output: Output) -> RequestAborted:
    return RequestAborted(f"request {output.rid!r} was aborted")


def as_dtype(states: HiddenStates, layer: int | str | None, dtype: DType) -> Any:
    """One layer in ``dtype``: numpy for float32 and float16, a torch tensor for bfloat16; no copy where the dtypes agree."""
    stored = states.stored(layer, dtype)
    return torch.from_numpy(stored).view(torch.bfloat16) if dtype == "bfloat16" else stored


def _no_tokenizer(texts: list[str]) -> list[list[int]]:
    raise InvalidRequest("this engine has no tokenizer; send token ids", param="text")
