"""Models that bring their own head: what they say they are for, and scores as transformers gives them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from support.families import FAMILIES, byte_ids
from support.tasks import PAD, PROMPTS, add_modules, add_template, change_config, final_rows, theirs, write_scored
from wellhead.config import EngineConfig
from wellhead.core.assemble import assemble
from wellhead.errors import (
    CaptureAboveCeiling,
    InvalidRequest,
    ModelError,
    NoLMHead,
    PromptTooLong,
    TaskNotServed,
    UnsupportedModel,
    WeightsError,
)
from wellhead.frontends.engine import Engine
from wellhead.models.locate import load_spec
from wellhead.models.task import load_task

MakeEngine = Callable[..., Engine]
TEXTS = ["a", "one text.", "it ends in three stops...", "x" * 70, "....", "a text of some length, which says little"]
THREE = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
TOKENS = [name for name in FAMILIES if name != "gemma3"]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``scored(family, kind, **config)``: a folder, written once."""
    root, made = tmp_path_factory.mktemp("scored"), dict[str, Path]()

    def get(name: str, kind: str = "SequenceClassification", **changes: Any) -> Path:
        label = json.dumps([name, kind, changes], sort_keys=True)
        if label not in made:
            made[label] = write_scored(name, root / str(len(made)), kind, **changes)
        return made[label]

    return get


def apart(ours: Any, theirs: torch.Tensor) -> float:
    """The largest difference, measured by the largest score."""
    return float(np.abs(ours - theirs.numpy()).max() / max(1.0, float(theirs.abs().max())))


def ids_of(text: str) -> list[int]:
    return list(byte_ids(text))


# --- labels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_texts_are_those_of_transformers(name: str, scored: Callable[..., Path], engine: MakeEngine) -> None:
    folder = scored(name, **THREE)
    ours = engine(folder, return_hidden_states_mode="last").classify(TEXTS)
    for text, verdict in zip(TEXTS, ours, strict=True):
        expected = theirs(folder, "SequenceClassification", ids_of(text))
        assert apart(verdict["scores"], expected) < 1e-5, text
        assert np.allclose(verdict["values"], torch.softmax(expected, -1).numpy(), atol=1e-5)
        assert verdict["labels"] == ["bad", "fair", "good"]
        assert verdict["label"] == verdict["labels"][int(expected.argmax())]


@pytest.mark.parametrize("name", TOKENS)
def test_scores_of_tokens_are_those_of_transformers(name: str, scored: Callable[..., Path], engine: MakeEngine) -> None:
    folder = scored(name, "TokenClassification", **THREE)
    assert "score.bias" in load_file(folder / "model.safetensors")
    ours = engine(folder).classify_tokens(TEXTS)
    for text, verdict in zip(TEXTS, ours, strict=True):
        expected = theirs(folder, "TokenClassification", ids_of(text))
        assert apart(verdict["scores"], expected) < 1e-5
        assert verdict["token_ids"].tolist() == ids_of(text)
        assert verdict["label"] == [verdict["labels"][i] for i in expected.argmax(-1)]


def test_the_pooled_row_is_that_of_the_rightmost_token_that_is_no_pad(scored: Callable[..., Path], engine: MakeEngine) -> None:
    folder = scored("qwen3", **THREE)
    one = engine(folder, return_hidden_states_mode="last")
    with_stops, without, all_pad = (v["scores"] for v in one.classify(["the end...", "the end", "...."]))
    assert np.array_equal(with_stops, without)
    assert np.array_equal(all_pad, one.classify([[PAD]])[0]["scores"])
    last = change_config(Path(shutil.copytree(folder, folder.parent / "no-pad")), pad_token_id=None)
    other = engine(last, return_hidden_states_mode="last").classify(["the end...", "the end"])
    assert not np.array_equal(other[0]["scores"], other[1]["scores"])
    assert np.abs(other[0]["scores"] - theirs(last, "SequenceClassification", ids_of("the end...")).numpy()).max() < 1e-5


@pytest.mark.parametrize("options", [{"chunked_prefill_size": 16}, {"disable_radix_cache": True}, {"chunked_prefill_size": 64}])
def test_bits_do_not_depend_on_the_company(options: dict[str, Any], scored: Callable[..., Path], engine: MakeEngine) -> None:
    one = engine(scored("qwen3", **THREE), **options)
    text = "a text of some length that ends in the pad token, and is asked about again and again."
    alone = one.classify([text])[0]["scores"]
    again = one.classify([text])[0]["scores"]  # a prefix hit, if there is a cache
    crowd = one.classify(["first", text, *(f"other text number {i} " * i for i in range(1, 5)), text])
    for scores in (again, crowd[1]["scores"], crowd[-1]["scores"]):
        assert scores.tobytes() == alone.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes_round_the_head_as_the_model(dtype: str, scored: Callable[..., Path], engine: MakeEngine) -> None:
    folder = scored("qwen3", **THREE)
    one = engine(folder, dtype=dtype)
    row = np.asarray(one.extract(["one text"])[0], np.float64)
    weight = load_file(folder / "model.safetensors")["score.weight"].to(getattr(torch, dtype)).double().numpy()
    assert np.allclose(one.classify(["one text"])[0]["scores"], weight @ row, rtol=0, atol=1e-12)


SIGMOID, SOFTMAX, AS_IT_IS = torch.sigmoid, lambda z: torch.softmax(z, -1), lambda z: z
PROBLEMS = [
    (None, 1, AS_IT_IS), (None, 2, SOFTMAX), (None, 5, SOFTMAX), ("regression", 1, AS_IT_IS), ("regression", 2, AS_IT_IS),
    ("single_label_classification", 1, SIGMOID), ("single_label_classification", 5, SOFTMAX),
    ("multi_label_classification", 1, SIGMOID), ("multi_label_classification", 5, SIGMOID),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "labels", "expected"), PROBLEMS)
def test_values_follow_the_problem_type(
    problem: str | None, labels: int, expected: Any, scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(scored("llama", num_labels=labels), tmp_path / "model"))
    change_config(folder, problem_type=problem)  # transformers itself would refuse to write one of these
    (verdict,) = engine(folder).classify(["one text"])
    assert np.allclose(verdict["values"], expected(torch.from_numpy(verdict["scores"])).numpy(), atol=1e-12)
    assert verdict["labels"] == [f"LABEL_{i}" for i in range(labels)]


def test_labels_with_gaps_are_counted_as_transformers_counts(scored: Callable[..., Path], tmp_path: Path) -> None:
    folder = change_config(Path(shutil.copytree(scored("llama", num_labels=2), tmp_path / "gaps")), id2label={"0": "a", "7": "b"})
    assert load_task(folder, load_spec(folder)).labels == ("a", "LABEL_1")


def test_a_token_classifier_without_a_bias(scored: Callable[..., Path], engine: MakeEngine) -> None:
    folder = scored("llama", "TokenClassification", token_classification_bias=False)
    assert "score.bias" not in load_file(folder / "model.safetensors")
    (verdict,) = engine(folder).classify_tokens(["one text"])
    assert np.abs(verdict["scores"] - theirs(folder, "TokenClassification", ids_of("one text")).numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("change", "said"), [("gone", "score.weight is missing"), ("shape", "score.weight is"), ("more", "left over")]
)
def test_a_head_that_does_not_fit_is_never_made_up(change: str, said: str, scored: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(scored("qwen3", **THREE), tmp_path / change))
    tensors = load_file(folder / "model.safetensors")
    score = tensors.pop("score.weight")
    if change != "gone":
        tensors["score.weight"] = score[:2].contiguous() if change == "shape" else score
    if change == "more":
        tensors["score.bias"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=said):
        assemble(EngineConfig(model_path=str(folder), max_total_tokens=256))


def test_a_strange_problem_type_is_refused(scored: Callable[..., Path], tmp_path: Path) -> None:
    folder = change_config(Path(shutil.copytree(scored("llama", num_labels=2), tmp_path / "odd")), problem_type="ranking")
    with pytest.raises(UnsupportedModel, match="ranking"):
        load_task(folder, load_spec(folder))


# --- rewards ------------------------------------------------------------------------------------------------------


def test_a_reward_is_the_raw_score_of_a_chat(scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(scored("qwen3", num_labels=1), tmp_path / "reward"))
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": template}))
    one = engine(folder, return_hidden_states_mode="last")
    assert one.tasks.kinds == ("classify", "reward")
    chat = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    rendered = "<user>2 + 2?\n<assistant>4\n"
    rewards = one.reward([chat, rendered])
    assert rewards.shape == (2,) and rewards[0] == rewards[1]
    assert abs(rewards[0] - float(theirs(folder, "SequenceClassification", ids_of(rendered))[0])) < 1e-5
    with pytest.raises(TaskNotServed):
        one.rerank("a", ["b"])


@pytest.mark.parametrize(("architecture", "labels"), [("Qwen2ForRewardModel", 1), ("Qwen2ForProcessRewardModel", 2)])
def test_two_matrices_as_qwens_reward_models_have_them(
    architecture: str, labels: int, scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(scored("qwen2", num_labels=2), tmp_path / "math"))
    change_config(folder, architectures=[architecture], pad_token_id=None)
    tensors = load_file(folder / "model.safetensors")
    del tensors["score.weight"]
    draw = torch.Generator().manual_seed(1)
    own = {
        "score.0.weight": torch.randn(64, 64, generator=draw) / 8, "score.0.bias": torch.randn(64, generator=draw),
        "score.2.weight": torch.randn(labels, 64, generator=draw) / 8, "score.2.bias": torch.randn(labels, generator=draw),
    }  # fmt: skip
    save_file({**tensors, **own}, folder / "model.safetensors", metadata={"format": "pt"})
    one = engine(folder)
    rows = torch.from_numpy(one.extract(["one text"], mode="full")[0]).double()
    inner = torch.relu(rows @ own["score.0.weight"].double().T + own["score.0.bias"].double())
    expected = (inner @ own["score.2.weight"].double().T + own["score.2.bias"].double()).numpy()
    if labels == 1:
        assert one.tasks.kinds == ("classify", "reward")
        assert abs(one.reward(["one text"])[0] - expected[-1, 0]) < 1e-9
    else:
        (verdict,) = one.classify_tokens(["one text"])
        assert np.abs(verdict["scores"] - expected).max() < 1e-9
        assert np.allclose(verdict["values"].sum(axis=1), 1)


# --- what it is for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "labels", "kinds"), [
    ("SequenceClassification", 3, ("classify",)), ("SequenceClassification", 1, ("classify", "reward", "rerank")),
    ("TokenClassification", 3, ("token_classify",)), ("CausalLM", 2, ("generate", "embed")),
])  # fmt: skip
def test_a_checkpoint_says_what_it_is_for(
    kind: str, labels: int, kinds: tuple[str, ...], scored: Callable[..., Path], engine: MakeEngine
) -> None:
    one = engine(scored("qwen3", kind, num_labels=labels))
    assert one.tasks.kinds == kinds and one.info()["tasks"] == list(kinds)


def test_what_a_model_cannot_answer_is_refused_and_never_guessed(scored: Callable[..., Path], engine: MakeEngine) -> None:
    plain, labels = engine(scored("qwen3", "CausalLM")), engine(scored("qwen3", **THREE), return_hidden_states_mode="last")
    for refused in (
        lambda: plain.classify(["a"]), lambda: plain.classify_tokens(["a"]), lambda: plain.reward(["a"]),
        lambda: plain.rerank("a", ["b"]), lambda: labels.reward(["a"]), lambda: labels.rerank("a", ["b"]),
        lambda: labels.classify_tokens(["a"]),
    ):  # fmt: skip
        with pytest.raises(TaskNotServed) as caught:
            refused()
        assert caught.value.code == "task_not_served" and "is for: " in caught.value.message
    with pytest.raises(NoLMHead):
        labels.generate("a")
    with pytest.raises(CaptureAboveCeiling):
        engine(scored("qwen3", "TokenClassification", **THREE), return_hidden_states_mode="last").classify_tokens(["a"])


# --- vectors ------------------------------------------------------------------------------------------------------

POOLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pooling_mode_cls_token": lambda rows: rows[0],
    "pooling_mode_max_tokens": lambda rows: rows.max(dim=0).values,
    "pooling_mode_mean_tokens": lambda rows: rows.mean(dim=0),
    "pooling_mode_mean_sqrt_len_tokens": lambda rows: rows.sum(dim=0) / len(rows) ** 0.5,
    "pooling_mode_weightedmean_tokens": lambda rows: (
        (rows * (w := torch.arange(1.0, len(rows) + 1, dtype=rows.dtype))[:, None]).sum(dim=0) / w.sum()
    ),
    "pooling_mode_lasttoken": lambda rows: rows[-1],
}


def unit(row: torch.Tensor) -> torch.Tensor:
    return row / row.norm()


@pytest.mark.parametrize(
    "flags", [(flag,) for flag in POOLED] + [tuple(POOLED)[::-1], ("pooling_mode_cls_token", "pooling_mode_lasttoken")]
)
def test_vectors_by_the_models_own_pooling(
    flags: tuple[str, ...], scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path
) -> None:
    """Several are joined in one order, whatever that of the file."""
    base = Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "st"))
    folder = add_modules(base, {**dict.fromkeys(POOLED, False), **dict.fromkeys(flags, True)}, normalize=False)
    found = engine(folder).embed(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        rows = final_rows(folder, ids_of(text))
        expected = torch.cat([pooled(rows) for flag, pooled in POOLED.items() if flag in flags])
        assert vector.dtype == np.float32 and apart(vector, expected) < 1e-5, text


@pytest.mark.parametrize("activation", ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"])
def test_dense_layers_prompts_and_dimensions(
    activation: str, scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "st"))
    folder = add_modules(base, {"pooling_mode": "mean"}, ((64, 96, activation), (96, 40, activation)))
    one = engine(folder)
    act = torch.tanh if activation.endswith("Tanh") else AS_IT_IS
    weights = [load_file(folder / f"{i}_Dense" / "model.safetensors") for i in (2, 3)]

    def expected(text: str) -> torch.Tensor:
        z = final_rows(folder, ids_of(text)).mean(dim=0)
        for w in weights:
            z = act(w["linear.weight"].double() @ z + w["linear.bias"].double())
        return z

    text = "one text."
    assert apart(one.embed([text])[0], unit(expected(text))) < 1e-5
    assert apart(one.embed([text], prompt_name="query")[0], unit(expected("Instruct: find\nQuery:" + text))) < 1e-5
    assert np.array_equal(one.embed([text], prompt_name="query"), one.embed(["Instruct: find\nQuery:" + text]))
    assert np.array_equal(one.embed([text], prompt="x: "), one.embed(["x: " + text]))
    assert apart(one.embed([text], dimensions=7)[0], unit(unit(expected(text))[:7])) < 1e-5
    assert apart(one.embed([text], normalize=False)[0], expected(text)) < 1e-5
    for wrong in ({"dimensions": 41}, {"dimensions": 0}, {"prompt_name": "nobody"}, {"prompt_name": "query", "prompt": "x"}):
        with pytest.raises(InvalidRequest) as caught:
            one.embed([text], **wrong)
        assert caught.value.param in wrong


def test_a_prompt_that_does_not_count(scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path) -> None:
    base = Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "st"))
    folder = add_modules(base, {"pooling_mode": "mean", "include_prompt": False}, default_prompt_name="query")
    rows = final_rows(folder, ids_of(PROMPTS["query"] + "one text."))
    assert apart(engine(folder).embed(["one text."])[0], unit(rows[len(PROMPTS["query"]) :].mean(dim=0))) < 1e-5


def test_a_text_is_cut_where_the_files_say(scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path) -> None:
    folder = add_modules(Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "st")), {"pooling_mode": "lasttoken"})
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": True}))
    one = engine(folder)
    assert np.array_equal(one.embed(["ONE TEXT that is cut"]), one.embed(["one text "]))


@pytest.mark.parametrize(("change", "said"), [
    ({"2_Dense/config.json": {"in_features": 64, "out_features": 8}}, "names no activation_function"),
    ({"2_Dense/config.json": {"in_features": 64, "out_features": 8, "activation_function": "os.system"}}, "os.system"),
    ({"2_Dense/config.json": {"in_features": 63, "out_features": 8, "activation_function": "torch.nn.Tanh"}}, "in_features 63"),
    ({"1_Pooling/config.json": {}}, "no way of pooling"),
    ({"1_Pooling/config.json": {"pooling_mode": "best"}}, "best"),
    ({"modules.json": [{"type": "a.Transformer", "path": "../../etc"}]}, "not a folder"),
    ({"modules.json": [{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.CNN"}]}, "CNN"),
    ({"modules.json": {"a": 1}}, "not a list of modules"),
    ({"config_sentence_transformers.json": {"default_prompt_name": "x"}}, "no prompt 'x'"),
])  # fmt: skip
def test_modules_that_cannot_be_followed_are_refused(
    change: dict[str, Any], said: str, scored: Callable[..., Path], tmp_path: Path
) -> None:
    base = Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "st"))
    folder = add_modules(base, {"pooling_mode": "mean"}, ((64, 8, "torch.nn.Tanh"),))
    for name, content in change.items():
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=said):
        load_task(folder, load_spec(folder))


def test_without_modules_it_is_the_last_row(scored: Callable[..., Path], engine: MakeEngine) -> None:
    folder = scored("qwen3", "CausalLM")
    one = engine(folder, return_hidden_states_mode="last")
    assert apart(one.embed(["one text."])[0], unit(final_rows(folder, ids_of("one text."))[-1])) < 1e-5
    assert np.array_equal(one.embed([ids_of("one text.")], normalize=False), one.extract(["one text."]))


# --- pairs --------------------------------------------------------------------------------------------------------

DOCUMENTS = ["a city", "", "Paris is the capital of France.", "a city", "x" * 40]
PAIR_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}S{{ m.content }}|{% elif m.role == 'query' %}Q{{ m.content }}|"
    "{% elif m.role == 'document' %}D{{ m.content }}{% endif %}{% endfor %}?"
)
QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {i}\n<Query>: {q}\n<Document>: {d}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
WEB = "Given a web search query, retrieve relevant passages that answer the query"


def logits(folder: Path, text: str) -> torch.Tensor:
    """Of the whole LM head, after the last token."""
    return theirs(folder, "CausalLM", ids_of(text))[-1]


@pytest.mark.parametrize("name", FAMILIES)
def test_two_rows_of_the_lm_head_judge_as_the_whole_head_does(
    name: str, scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path
) -> None:
    """Tied or not, with a soft cap or without."""
    folder = Path(shutil.copytree(scored(name, "CausalLM"), tmp_path / "judge"))
    add_template(change_config(folder, classifier_from_token=["n", "y"]), PAIR_TEMPLATE)
    one = engine(folder, return_hidden_states_mode="last")
    assert "rerank" in one.tasks.kinds and "generate" in one.tasks.kinds
    no, yes = ids_of("n") + ids_of("y")
    raw, shown = one.score("where?", DOCUMENTS, raw=True), one.score("where?", DOCUMENTS)
    for document, score, p in zip(DOCUMENTS, raw, shown, strict=True):
        z = logits(folder, f"Qwhere?|D{document}?")
        assert abs(score - float(z[yes] - z[no])) < 1e-5 * max(1.0, float(z.abs().max()))
        assert abs(p - float(torch.softmax(z[[no, yes]], 0)[1])) < 1e-5
    if name == "qwen3":
        z = logits(folder, "Sfind cities|Qwhere?|Da city?")
        assert abs(one.score("where?", ["a city"], instruct="find cities", raw=True)[0] - float(z[yes] - z[no])) < 1e-5


def test_qwen3_reranker_is_known_by_its_name_and_gets_its_own_prompt(
    scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "Qwen3-Reranker-0.6B"))
    with pytest.raises(UnsupportedModel, match="'yes' is 3 tokens"):  # in a vocabulary of bytes
        assemble(EngineConfig(model_path=str(folder), max_total_tokens=256))
    file = folder / "tokenizer.json"
    tokens = json.loads(file.read_text())
    plain = dict.fromkeys(("lstrip", "rstrip", "normalized", "special"), False)
    for i, word in enumerate(("yes", "no")):
        tokens["added_tokens"].append({"id": 257 + i, "content": word, "single_word": True, **plain})
    file.write_text(json.dumps(tokens))
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    one = engine(folder, return_hidden_states_mode="last")
    for instruct in (None, "find cities"):
        scores = one.score("where?", DOCUMENTS, instruct=instruct, raw=True)
        for document, score in zip(DOCUMENTS, scores, strict=True):
            ids = tokenizer.encode(QWEN3.replace("{i}", instruct or WEB).replace("{q}", "where?").replace("{d}", document)).ids
            z = theirs(folder, "CausalLM", ids)[-1]
            assert abs(score - float(z[257] - z[258])) < 2e-5


def test_a_judge_without_its_prompt_is_refused(scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path) -> None:
    folder = change_config(Path(shutil.copytree(scored("llama", "CausalLM"), tmp_path / "j")), classifier_from_token=["n", "y"])
    one = engine(folder)
    assert one.tasks.kinds == ("generate", "embed")
    with pytest.raises(TaskNotServed, match="not the prompt"):
        one.rerank("a", ["b"])


def test_a_logit_score_module_names_its_tokens(scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path) -> None:
    folder = add_template(Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "ls")), PAIR_TEMPLATE)
    types = [("Transformer", ""), ("LogitScore", "1_LogitScore")]
    (folder / "modules.json").write_text(json.dumps([{"type": f"x.{kind}", "path": path} for kind, path in types]))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": 7}))
    z = logits(folder, "Qq|Dd?")
    assert abs(engine(folder).score("q", ["d"], raw=True)[0] - float(z[7])) < 1e-5


def test_a_cross_encoder_joins_pairs_as_its_tokenizer_does(
    scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(scored("llama", num_labels=1), tmp_path / "ce"))
    one = engine(folder, return_hidden_states_mode="last")
    assert "rerank" in one.tasks.kinds
    expected = [float(theirs(folder, "SequenceClassification", ids_of("where?" + d))[0]) for d in DOCUMENTS]
    assert np.abs(one.score("where?", DOCUMENTS, raw=True) - expected).max() < 1e-5
    assert np.abs(one.score("where?", DOCUMENTS) - torch.sigmoid(torch.tensor(expected)).numpy()).max() < 1e-5
    with pytest.raises(InvalidRequest) as caught:
        one.score("where?", DOCUMENTS, instruct="x")
    assert caught.value.param == "instruct"
    plain = change_config(folder, sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    assert np.abs(engine(plain, return_hidden_states_mode="last").score("where?", DOCUMENTS) - expected).max() < 1e-5


def test_the_order_of_documents(scored: Callable[..., Path], engine: MakeEngine) -> None:
    one = engine(scored("llama", num_labels=1), return_hidden_states_mode="last")
    ranked = one.rerank("where?", DOCUMENTS)
    scores = one.score("where?", DOCUMENTS)
    assert [r["index"] for r in ranked] == sorted(range(len(DOCUMENTS)), key=lambda i: (-scores[i], i))
    assert all(r["score"] == scores[r["index"]] and r["document"] == DOCUMENTS[r["index"]] for r in ranked)
    assert scores[0] == scores[3] and np.array_equal(one.score("where?", DOCUMENTS[::-1]), scores[::-1])
    assert one.rerank("where?", DOCUMENTS, top_n=2) == ranked[:2] and one.rerank("where?", DOCUMENTS, top_n=99) == ranked
    assert np.array_equal(one.score(["where?"] * 5, DOCUMENTS), scores)
    for wrong in (lambda: one.rerank("where?", []), lambda: one.rerank("", ["a"]), lambda: one.score(["a"], ["b", "c"])):
        with pytest.raises(InvalidRequest):
            wrong()


def test_a_long_document_is_cut_and_nothing_else(scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "long"))
    add_template(change_config(folder, classifier_from_token=["n", "y"]), PAIR_TEMPLATE)
    one = engine(folder, context_length=64, return_hidden_states_mode="last")
    room = 64 - len("Qwhere?|D?")
    assert np.array_equal(one.score("where?", ["z" * 500]), one.score("where?", ["z" * room]))
    with pytest.raises(PromptTooLong):
        one.score("where?", ["z" * 500], truncate=False)
    with pytest.raises(PromptTooLong) as caught:
        one.score("w" * 100, ["z"])
    assert caught.value.param == "query"


def test_an_embedding_model_ranks_by_the_cosine(scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path) -> None:
    folder = add_modules(Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "st")), {"pooling_mode": "lasttoken"})
    one = engine(folder, return_hidden_states_mode="last")
    query, rows = one.embed(["where?"], prompt_name="query")[0], one.embed(["a", "b", "a"], prompt_name="document")
    assert np.allclose(one.score("where?", ["a", "b", "a"]), rows.astype(np.float64) @ query, atol=1e-12)


def test_a_querys_part_is_computed_once(scored: Callable[..., Path], engine: MakeEngine, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(scored("qwen3", "CausalLM"), tmp_path / "prefix"))
    add_template(change_config(folder, classifier_from_token=["n", "y"]), PAIR_TEMPLATE)
    one = engine(folder, return_hidden_states_mode="last")
    query = "q" * 160
    one.score(query, [f"{i}{i}" for i in range(20)])
    counters = one.loop.call(lambda core: core.snapshot()).result().counters
    computed = counters["prompt_tokens"] - counters["cached_tokens"]
    assert computed < 160 + 20 * 40, counters  # 20 * 165 without the cache
