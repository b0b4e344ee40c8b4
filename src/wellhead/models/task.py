"""What a checkpoint is for, beside text: its labels, whom it judges, how it embeds. No torch here.

A model may be for several things at once: any model with an LM head generates, any one embeds, and a head of its own, or two
rows of the LM head, make it a classifier, a reward model or a reranker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wellhead.errors import UnsupportedModel
from wellhead.models.json_file import read_json
from wellhead.models.scores import label_names
from wellhead.models.sentence import EmbeddingSpec, cross_encoder, logit_score, read_embedding
from wellhead.models.spec import ModelSpec

Kind = Literal["generate", "embed", "classify", "token_classify", "reward", "rerank"]
Problem = Literal["regression", "single_label_classification", "multi_label_classification"]
_PROBLEMS: tuple[Problem, ...] = ("regression", "single_label_classification", "multi_label_classification")
#: In the prompt with which Qwen3-Reranker was trained.
_JUDGING = "Judge whether the Document meets the requirements based on the Query and the Instruct provided"


@dataclass(frozen=True, slots=True)
class Judge:
    """A verdict out of the LM head: the logit of one token, ``yes``, less that of another, ``no`` (0 if there is none).

    Tokens are ids, or words that the tokenizer must know as one token. ``qwen3``: the prompt is Qwen3-Reranker's.
    """

    yes: int | str
    no: int | str | None
    qwen3: bool


@dataclass(frozen=True, slots=True)
class Task:
    """``labels``, in the order of the scores; ``problem`` says what scores become (``None``: the config does not say).

    ``pad_token_id``: the id that is skipped at the end of a text when its row is looked for. ``paired``: a text is a query and
    a document. ``pair_sigmoid``: their score is shown as a probability. ``template``: the text of the chat template, if any.
    """

    kinds: tuple[Kind, ...]
    labels: tuple[str, ...] = ()
    problem: Problem | None = None
    pad_token_id: int | None = None
    judge: Judge | None = None
    embedding: EmbeddingSpec | None = None
    paired: bool = False
    pair_sigmoid: bool = True
    template: str = ""

    @property
    def pair_template(self) -> bool:
        """Does the chat template take a query and a document, in the roles of these names?"""
        return all(re.search(rf"""["']{role}["']""", self.template) for role in ("query", "document"))


def load_task(path: Path, spec: ModelSpec) -> Task:
    """The task of a located model. Errors: ModelError, UnsupportedModel for modules that would change what comes out."""
    if path.is_file():
        return Task(_kinds(spec, pairs=False))
    config = read_json(path / "config.json")
    judge = _judge(path, config, spec)
    embedding = read_embedding(path, spec.hidden_size)
    template = _template_text(path)
    if spec.score is None:
        return Task(
            _kinds(spec, pairs=judge is not None or embedding is not None), judge=judge, embedding=embedding, template=template
        )
    inner = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else {}
    pad = config.get("pad_token_id", (inner or {}).get("pad_token_id"))
    if pad is not None and (isinstance(pad, bool) or not isinstance(pad, int)):
        raise UnsupportedModel(f"{spec.architecture}: pad_token_id must be a token id, not {pad!r:.60}")
    problem = config.get("problem_type")
    if problem is not None and problem not in _PROBLEMS:
        raise UnsupportedModel(f"{spec.architecture}: problem_type {problem!r:.60} is not supported; {', '.join(_PROBLEMS)} are")
    said = config.get("sentence_transformers")
    marked = isinstance(said, Mapping) or cross_encoder(path)
    paired = spec.score.labels == 1 and not spec.score.each and not spec.score.inner and (marked or not template)
    return Task(
        _kinds(spec, pairs=paired),
        label_names(config, spec.score.labels),
        problem,
        pad,
        paired=paired,
        pair_sigmoid=_pair_sigmoid(said if isinstance(said, Mapping) else {}, spec),
        template=template,
    )


def _kinds(spec: ModelSpec, *, pairs: bool) -> tuple[Kind, ...]:
    score = spec.score
    held: dict[Kind, bool] = {
        "generate": spec.has_head,
        "embed": score is None,
        "classify": score is not None and not score.each,
        "token_classify": score is not None and score.each,
        "reward": score is not None and (score.inner or (score.labels == 1 and not score.each)),
        "rerank": pairs,
    }
    return tuple(kind for kind, holds in held.items() if holds)


def _pair_sigmoid(said: Mapping[str, Any], spec: ModelSpec) -> bool:
    """The activation that sentence-transformers writes beside a cross encoder; never imported, only compared."""
    name = said.get("activation_fn")
    last = name.rpartition(".")[2] if isinstance(name, str) else "Sigmoid"
    if last not in ("Sigmoid", "Identity"):
        raise UnsupportedModel(f"{spec.architecture}: activation_fn {name!r:.80} is not supported; Sigmoid and Identity are")
    return last == "Sigmoid"


def _judge(path: Path, config: Mapping[str, Any], spec: ModelSpec) -> Judge | None:
    """From what a config says (``classifier_from_token``: no, yes), a module of sentence-transformers, or Qwen3-Reranker's
    own marks: its prompt in the chat template, or the folder's name."""
    if not spec.has_head:
        return None
    qwen3 = spec.architecture.startswith("Qwen3") and (
        _JUDGING in _template_text(path) or any("qwen3-reranker" in part.lower() for part in path.resolve().parts[-3:])
    )
    words = config.get("classifier_from_token")
    if words is not None:
        if not isinstance(words, list) or len(words) not in (1, 2) or not all(isinstance(w, str) for w in words):
            raise UnsupportedModel(f"{spec.architecture}: classifier_from_token must be a list of one or two tokens")
        return Judge(words[-1], words[0] if len(words) == 2 else None, spec.architecture.startswith("Qwen3"))
    module = logit_score(path)
    if module is not None:
        return Judge(module[0], module[1], qwen3)
    return Judge("yes", "no", True) if qwen3 else None


def _template_text(path: Path) -> str:
    """The default chat template's text, without asking whether it is one."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace")
    told = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").is_file() else {}
    found = told.get("chat_template")
    if isinstance(found, list):
        found = next((t.get("template") for t in found if isinstance(t, Mapping) and t.get("name") == "default"), None)
    return found if isinstance(found, str) else ""
