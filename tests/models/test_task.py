"""Models that bring their own head: what they say they are for, and scores as transformers gives them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.families import FAMILIES, byte_ids
from support.tasks import PAD, change_config, theirs, write_scored
from wellhead.config import EngineConfig
from wellhead.core.assemble import assemble
from wellhead.errors import CaptureAboveCeiling, NoLMHead, TaskNotServed, UnsupportedModel, WeightsError
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
