"""What a model is asked beside text: labels, scores of pairs, vectors. Every door turns it into prompts, and rows into answers.

``Tasks`` makes a ``Work``: the prompts to run, the engine's fields for them, and what becomes of the rows that come back.
Scores are products of one row and the head's weights (``heads.products``), so that they depend on nothing but the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import EmptyPrompt, InvalidRequest, PromptTooLong, TaskNotServed
from wellhead.heads.products import aligned, products
from wellhead.heads.program import sigmoid, softmax
from wellhead.models.sentence import DenseSpec
from wellhead.models.task import Kind
from wellhead.requests.tokenizer import Tokenizer
from wellhead.types import HiddenStates

if TYPE_CHECKING:
    from wellhead.core.assemble import Assembled

T = TypeVar("T")
Array = NDArray[np.float64]
#: The rows of one prompt, by the name of the read.
Rows = Mapping[str, HiddenStates]
Finish = Callable[[Sequence[Rows]], list[T]]

#: Qwen3-Reranker's prompt, as it was trained; one word changed changes the scores.
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"

_ACTIVATION: Mapping[str, Callable[[Array], Array]] = {
    "Identity": lambda z: z,
    "Tanh": lambda z: np.asarray(np.tanh(z)),
    "ReLU": lambda z: np.maximum(z, 0.0),
    "Sigmoid": sigmoid,
    "SiLU": lambda z: np.asarray(z * sigmoid(z)),
}
#: What is asked, and what a model needs to have for it.
_NEEDS: Mapping[Kind, str] = {
    "classify": "a head with labels, such as a *ForSequenceClassification checkpoint has",
    "token_classify": "a head with labels for each token, such as a *ForTokenClassification checkpoint has",
    "reward": "a head with one score, such as a reward model has",
    "rerank": "a head for pairs: a cross encoder's, two tokens of the LM head that judge, or the modules of an embedding model",
}


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """``prompts`` run as token ids with ``fields``; ``finish`` makes the answers out of their rows. ``tokens``: of the prompts,
    those included that need not run."""

    prompts: list[list[int]]
    fields: dict[str, Any]
    finish: Finish[T]
    tokens: int

    @property
    def payload(self) -> dict[str, Any]:
        """In the engine's words."""
        return {"input_ids": self.prompts, "sampling_params": {"max_new_tokens": 0}, **self.fields}


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """``scores``: float64 ``[C]`` as the head gives them, ``[tokens, C]`` of a token classifier; ``values``: what the model's
    problem type makes of them, float64 of the same shape. ``token_ids``: of a token classifier."""

    scores: Array
    values: Array
    labels: tuple[str, ...]
    token_ids: NDArray[np.int32] | None = None

    def to_dict(self) -> dict[str, Any]:
        """``label``, ``values``, ``scores``, ``labels``; of a token classifier ``label`` is a list, with ``token_ids``."""
        best = self.values.argmax(axis=-1)
        label: Any = self.labels[int(best)] if best.ndim == 0 else [self.labels[i] for i in best.tolist()]
        shown: dict[str, Any] = {"label": label, "values": self.values, "scores": self.scores, "labels": list(self.labels)}
        return shown if self.token_ids is None else {**shown, "token_ids": self.token_ids}


class Tasks:
    """The tasks of one engine's model. Immutable once made; any number of threads may share it."""

    def __init__(self, assembled: Assembled) -> None:
        self.task, self._spec = assembled.task, assembled.spec
        self._tokenizer, self._config = assembled.tokenizer, assembled.config
        brought = assembled.brought
        self._score = [_Product(matrix.weight, matrix.bias) for matrix in brought.score]
        self._verdict = _Product(brought.verdict) if brought.verdict is not None else None
        self._dense = [(_Product(m.weight, m.bias), _Product(r) if r is not None else None) for m, r in brought.dense]
        pieces = self.task.judge is not None and self.task.judge.qwen3 and self._tokenizer is not None
        self._before = self._plain(_BEFORE) if pieces else []
        self._after = self._plain(_AFTER) if pieces else []

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What the model is for."""
        return tuple(kind for kind in self.task.kinds if kind != "rerank" or self._pairs_by is not None)

    def need(self, kind: Kind) -> None:
        """Raise ``TaskNotServed`` unless the model is for this."""
        if kind in self.kinds:
            return
        why = f"{self._spec.architecture} is for: {', '.join(self.kinds)}. This needs {_NEEDS[kind]}"
        if kind == "rerank" and "rerank" in self.task.kinds:
            why = (
                "the tokens that judge are known, but not the prompt they were trained with: no chat template takes a query and "
                "a document"
            )
        raise TaskNotServed(f"this model gives no {_GIVEN[kind]}: {why}")

    @property
    def width(self) -> int:
        """Of the vectors that ``embed`` gives."""
        return self.task.embedding.width if self.task.embedding is not None else self._spec.hidden_size

    # --- labels -------------------------------------------------------------------------------------------------

    def classify(self, inputs: Sequence[Any], param: str = "texts") -> Work[Verdict]:
        """Texts, lists of token ids, or chats (lists of messages) -> a verdict each."""
        self.need("classify")
        whole = self._ids(inputs, param)
        return Work([self._to_pooled(ids) for ids in whole], _LAST, self._verdicts, sum(map(len, whole)))

    def reward(self, inputs: Sequence[Any], param: str = "texts") -> Work[float]:
        """The same -> the one score."""
        self.need("reward")
        whole = self._ids(inputs, param)

        def finish(rows: Sequence[Rows]) -> list[float]:
            return [float(self._scores(one[""])[0, 0]) for one in rows]

        if self._spec.score is not None and self._spec.score.each:
            raise TaskNotServed(
                "this model scores steps, not texts: ask for the verdicts of tokens, and take those of its step tag"
            )
        return Work([self._to_pooled(ids) for ids in whole], _LAST, finish, sum(map(len, whole)))

    def classify_tokens(self, inputs: Sequence[Any], param: str = "texts") -> Work[Verdict]:
        """The same -> a verdict of every token. Needs the ceiling ``full``."""
        self.need("token_classify")
        whole = self._ids(inputs, param)
        return Work(
            whole, {**_LAST, "return_hidden_states": True, "hidden_states_token_ids": True}, self._verdicts, sum(map(len, whole))
        )

    def _verdicts(self, rows: Sequence[Rows]) -> list[Verdict]:
        return [self._verdict_of(one[""]) for one in rows]

    def _verdict_of(self, states: HiddenStates) -> Verdict:
        scores = self._scores(states)
        values = self.activated(scores)
        if self._spec.score is not None and self._spec.score.each:
            return Verdict(scores, values, self.task.labels, states.token_ids)
        return Verdict(scores[0], values[0], self.task.labels)

    def _scores(self, states: HiddenStates) -> Array:
        z = np.atleast_2d(states.numpy()).astype(np.float64)
        for at, product in enumerate(self._score):
            z = product(np.maximum(z, 0.0) if at else z)
        return z

    def activated(self, scores: Array) -> Array:
        """Scores ``[k, C]`` -> what ``problem_type`` makes of them: probabilities, or the scores themselves."""
        problem, single = self.task.problem, scores.shape[1] == 1
        if problem == "regression" or (problem is None and single):
            return scores
        return sigmoid(scores) if single or problem == "multi_label_classification" else softmax(scores)

    def _to_pooled(self, ids: list[int]) -> list[int]:
        """Up to the rightmost token that is not the pad token, whose row is pooled: rows see nothing that comes after them."""
        pad = self.task.pad_token_id
        if pad is None:
            return ids
        return ids[: next((i + 1 for i in range(len(ids) - 1, -1, -1) if ids[i] != pad), 1)]

    # --- vectors ------------------------------------------------------------------------------------------------

    def embed(
        self, inputs: Sequence[Any], *, prompt_name: str | None = None, prompt: str | None = None, dimensions: int | None = None,
        normalize: bool | None = None, pooling: str | None = None, truncate: bool = False, param: str = "texts",
    ) -> Work[NDArray[np.float32]]:  # fmt: skip
        """A vector of each: by the model's own modules if it has them, else the last row (``pooling`` ``mean``: the mean of all
        rows), scaled to length 1. ``prompt_name``: of the model's prompts; ``prompt``: in one's own words. ``normalize``: scale,
        or not; by default as the modules say. ``dimensions``: keep so many first numbers, then scale.
        ``truncate``: cut texts that the context does not hold."""
        spec = self.task.embedding
        modules = spec is not None and pooling is None
        front = self._front(prompt_name, prompt)
        if front and not all(isinstance(one, str) for one in inputs):
            raise InvalidRequest("a prompt stands before texts, not before token ids", param="prompt")
        texts = [
            front + (one.lower() if spec is not None and spec.lower else one) if isinstance(one, str) else one for one in inputs
        ]
        for i, one in enumerate(inputs):
            if one == "":
                raise EmptyPrompt(f"{param}[{i}] is empty", param=param)
        prompts = self._ids(texts, param)
        if spec is not None and spec.max_tokens is not None:
            prompts = [self._cut_tokens(ids, spec.max_tokens) for ids in prompts]
        if truncate:
            prompts = [self._cut_tokens(ids, min(self._config.context_length, self._config.max_total_tokens)) for ids in prompts]
        most = self.width if modules else self._spec.hidden_size
        if dimensions is not None and not 1 <= dimensions <= most:
            raise InvalidRequest(f"dimensions must be a whole number between 1 and {most}, not {dimensions}", param="dimensions")
        modes = spec.pooling if spec is not None and modules else (pooling or "last",)
        skip = self._prompt_tokens(front) if spec is not None and modules and not spec.include_prompt and front else 0

        def finish(rows: Sequence[Rows]) -> list[NDArray[np.float32]]:
            return [self._vector(one, modes, modules, dimensions, normalize) for one in rows]

        return Work(prompts, {"reads": {mode: _read(mode, skip) for mode in modes}}, finish, sum(map(len, prompts)))

    def _vector(
        self, rows: Rows, modes: tuple[str, ...], modules: bool, dimensions: int | None, normalize: bool | None
    ) -> NDArray[np.float32]:
        spec = self.task.embedding
        z = np.concatenate([np.atleast_1d(rows[mode].numpy().reshape(-1)) for mode in modes]).astype(np.float64)[None]
        steps: tuple[DenseSpec | None, ...] = spec.steps if spec is not None and modules else (None,)
        scaled, dense = False, iter(self._dense)
        for at, step in enumerate(steps):
            scaled = step is None
            if step is not None:
                product, residual = next(dense)
                out = _ACTIVATION[step.activation](product(z))
                z = out + (residual(z) if residual is not None else z) if step.residual else out
            elif normalize is not False or at < len(steps) - 1:
                z = _unit(z)
        if dimensions is not None:
            z = z[:, :dimensions]
        if normalize or (normalize is None and scaled and dimensions is not None):
            z = _unit(z)
        return np.ascontiguousarray(z[0], dtype=np.float32)

    def _front(self, name: str | None, prompt: str | None) -> str:
        """The text of a prompt: one's own, one of the model's by its name, or the model's default."""
        spec = self.task.embedding
        if name is not None and prompt is not None:
            raise InvalidRequest("give prompt or prompt_name, not both", param="prompt_name")
        if prompt is not None:
            return prompt
        prompts = spec.prompts if spec is not None else {}
        if name is None:
            name = spec.default_prompt if spec is not None else None
            return "" if name is None else prompts[name]
        if name not in prompts:
            known = f"it has {', '.join(prompts)}" if prompts else "it has none"
            raise InvalidRequest(f"this model has no prompt named {name!r:.80}; {known}", param="prompt_name")
        return prompts[name]

    def _prompt_tokens(self, front: str) -> int:
        """How many tokens a prompt takes, as sentence-transformers counts: by itself, without the closing special token."""
        _, after = self._special()
        return len(self._need_tokenizer().encode(front)) - after

    def _cut_tokens(self, ids: list[int], most: int) -> list[int]:
        if len(ids) <= most:
            return ids
        _, after = self._special()
        return [*ids[: most - after], *ids[len(ids) - after :]] if after < most else ids[:most]

    def _special(self) -> tuple[int, int]:
        """How many tokens the tokenizer puts before and behind a text."""
        if self._tokenizer is None:
            return 0, 0
        whole, plain = self._tokenizer.encode("a"), self._plain("a")
        before = next((i for i in range(len(whole) - len(plain) + 1) if whole[i : i + len(plain)] == plain), 0)
        return before, len(whole) - len(plain) - before

    # --- pairs --------------------------------------------------------------------------------------------------

    def pairs(
        self, pairs: Sequence[tuple[str, str]], *, instruct: str | None = None, raw: bool = False, truncate: bool = True,
        max_query_tokens: int | None = None, max_document_tokens: int | None = None,
    ) -> Work[float]:  # fmt: skip
        """Queries and documents -> how well they fit: a probability, or with ``raw`` the score behind it; of an embedding model
        the cosine. ``truncate``: cut a document that is too long for the context, and nothing but the document."""
        self.need("rerank")
        for what, one in (("query", q) for q, _ in pairs):
            if not isinstance(one, str) or not one:
                raise InvalidRequest(f"a {what} must be a text that is not empty", param=what)
        if not all(isinstance(document, str) for _, document in pairs):
            raise InvalidRequest("a document must be a text", param="documents")
        if max_query_tokens is not None or max_document_tokens is not None:
            pairs = [(self._first(q, max_query_tokens), self._first(d, max_document_tokens)) for q, d in pairs]
        if self._pairs_by == "embed":
            return self._cosines(pairs, instruct)
        if instruct is not None and self._pairs_by == "tokenizer":
            raise InvalidRequest("this model joins query and document and takes no instruction", param="instruct")
        prompts = [self._fitting(query, document, instruct, truncate) for query, document in pairs]
        tokens = sum(map(len, prompts))
        if self.task.judge is None:
            prompts = [self._to_pooled(ids) for ids in prompts]

        def finish(rows: Sequence[Rows]) -> list[float]:
            scores = np.array([[self._pair_score(one[""])] for one in rows])
            shown = scores if raw or not self.task.pair_sigmoid else sigmoid(scores)
            return [float(score) for score in shown[:, 0]]

        return Work(prompts, _LAST, finish, tokens)

    def _pair_score(self, states: HiddenStates) -> float:
        if self._verdict is None:
            return float(self._scores(states)[0, 0])
        z = self._verdict(np.atleast_2d(states.numpy()).astype(np.float64))[0]
        cap = self._spec.logit_softcap
        z = z if cap is None else np.tanh(z / cap) * cap
        return float(z[0] - z[1]) if len(z) == 2 else float(z[0])

    @property
    def _pairs_by(self) -> str | None:
        """How a query and a document become a prompt: ``template``, ``qwen3``, ``tokenizer``, ``embed``; or not at all."""
        task = self.task
        if "rerank" not in task.kinds or self._tokenizer is None:
            return None
        if task.judge is None and not task.paired:
            return "embed"
        if task.pair_template:
            return "template"
        if task.judge is not None:
            return "qwen3" if task.judge.qwen3 else None
        return "tokenizer"

    def _pair(self, query: str, document: str, instruct: str | None) -> list[int]:
        tokenizer = self._need_tokenizer()
        if self._pairs_by == "qwen3":
            middle = f"<Instruct>: {instruct or _INSTRUCT}\n<Query>: {query}\n<Document>: {document}"
            return [*self._before, *self._plain(middle), *self._after]
        if self._pairs_by == "tokenizer":
            return tokenizer.encode_pairs([(query, document)])[0]
        system = [{"role": "system", "content": instruct}] if instruct is not None else []
        return tokenizer.encode_chat(
            [*system, {"role": "query", "content": query}, {"role": "document", "content": document}], add_generation_prompt=True
        )

    def _fitting(self, query: str, document: str, instruct: str | None, truncate: bool) -> list[int]:
        most = min(self._config.context_length, self._config.max_total_tokens)
        ids = self._pair(query, document, instruct)
        over = len(ids) - most
        if over <= 0:
            return ids
        if not truncate:
            raise PromptTooLong(
                f"a query and its document have {len(ids)} tokens together; the context is {most}", param="documents"
            )
        kept = len(self._plain(document))
        while over > 0 and kept > 0:
            kept = max(0, kept - over)
            ids = self._pair(query, self._first(document, kept), instruct)
            over = len(ids) - most
        if over > 0:
            raise PromptTooLong(f"the query alone leaves no room for a document; the context is {most}", param="query")
        return ids

    def _first(self, text: str, tokens: int | None) -> str:
        """The beginning of a text, so many tokens of it."""
        if tokens is None:
            return text
        spans = [span for span in self._need_tokenizer().token_spans(text) if span[1] > span[0]]
        return text if len(spans) <= tokens else text[: spans[tokens - 1][1]] if tokens else ""

    def _cosines(self, pairs: Sequence[tuple[str, str]], instruct: str | None) -> Work[float]:
        """Each text is embedded once, under the prompts that sentence-transformers takes for queries and for documents."""
        spec = self.task.embedding
        names = spec.prompts if spec is not None else {}
        queries, documents = (list(dict.fromkeys(pair[side] for pair in pairs)) for side in (0, 1))
        asked = self.embed(
            queries, normalize=True, param="query",
            **({"prompt": f"Instruct: {instruct}\nQuery:"} if instruct is not None else _named(names, "query")),
        )  # fmt: skip
        told = self.embed(documents, normalize=True, param="documents", **_named(names, "document", "passage", "corpus"))
        at_query, at_document = ({text: i for i, text in enumerate(texts)} for texts in (queries, documents))

        def finish(rows: Sequence[Rows]) -> list[float]:
            left, right = asked.finish(rows[: len(queries)]), told.finish(rows[len(queries) :])
            return [float(left[at_query[q]].astype(np.float64) @ right[at_document[d]].astype(np.float64)) for q, d in pairs]

        reads = {**asked.fields, **told.fields}
        return Work(asked.prompts + told.prompts, reads, finish, asked.tokens + told.tokens)

    # --- prompts ------------------------------------------------------------------------------------------------

    def _ids(self, inputs: Sequence[Any], param: str) -> list[list[int]]:
        """Texts, token ids and chats -> token ids."""
        if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Sequence):
            raise InvalidRequest(f"{param} must be a list", param=param)
        if not inputs:
            raise EmptyPrompt(f"{param} is empty", param=param)
        return [self._one(one, f"{param}[{i}]", param) for i, one in enumerate(inputs)]

    def _one(self, one: Any, where: str, param: str) -> list[int]:
        if isinstance(one, str):
            if not one:
                raise EmptyPrompt(f"{where} is empty", param=param)
            return self._need_tokenizer().encode(one)
        ids = one.tolist() if isinstance(one, np.ndarray) else list(one) if isinstance(one, (list, tuple)) else None
        if ids is None:
            raise InvalidRequest(f"{where} must be a text, a list of token ids or a list of messages", param=param)
        if not ids:
            raise EmptyPrompt(f"{where} is empty", param=param)
        if isinstance(ids[0], Mapping):
            return self._need_tokenizer().encode_chat(ids, add_generation_prompt=False)
        if any(type(i) is not int for i in ids):
            raise InvalidRequest(f"{where} must hold whole numbers, which are token ids", param=param)
        return ids

    def _plain(self, text: str) -> list[int]:
        return self._need_tokenizer().encode(text, add_special_tokens=False)

    def _need_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidRequest("this engine has no tokenizer; send token ids", param="input_ids")
        return self._tokenizer


_LAST: dict[str, Any] = {"return_hidden_states": "last", "hidden_states_layers": [-1]}
_GIVEN: Mapping[Kind, str] = {
    "classify": "labels",
    "token_classify": "labels of tokens",
    "reward": "rewards",
    "rerank": "scores of pairs",
}


class _Product:
    """A matrix in the form that ``products`` takes."""

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> None:
        self._weight = aligned(weight)
        self._bias = bias.astype(np.float64) if bias is not None else None

    def __call__(self, rows: Array) -> Array:
        """``[k, in]`` -> ``[k, out]``."""
        out = products(aligned(rows), self._weight)
        return out if self._bias is None else out + self._bias


def _unit(z: Array) -> Array:
    """Scaled to length 1; a row of zeros stays as it is."""
    norm = np.sqrt(np.square(z).sum(axis=1, keepdims=True))
    return z / np.where(norm > 0, norm, 1.0)


def _read(mode: str, skip: int) -> dict[str, Any]:
    """One way of pooling in the words of ``reads``; ``skip``: rows of a prompt that does not count."""
    if mode == "last":
        return {"rows": "last", "layers": [-1]}
    if mode == "cls":
        return {"rows": skip, "layers": [-1]}
    return {"rows": {"start": skip} if skip else "all", "reduce": mode, "layers": [-1]}


def _named(prompts: Mapping[str, str], *names: str) -> dict[str, Any]:
    """The first of these prompts that a model has."""
    return next(({"prompt_name": name} for name in names if name in prompts), {})
