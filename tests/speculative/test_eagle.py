"""EAGLE and EAGLE3 drafts: what they compute, what they are refused for, and that nothing of them can be seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from support.company import MODES, prompt
from support.direct import Direct
from support.eagles import Eagle
from support.speculating import Family
from wellhead.errors import InvalidConfig, UnsupportedModel, WeightsError, WellheadError
from wellhead.runner.speculative import SpeculativeRunner
from wellhead.step import Plan, StepResult
from wellhead.types import CaptureMode

K = 4


def speculating(family: Family, folder: Path, *, three: bool, target: str = "llama", **options: Any) -> Direct:
    more = {
        "speculative_algorithm": "EAGLE3" if three else "EAGLE",
        "speculative_draft_model_path": str(folder),
        "speculative_num_steps": K,
    }
    return Direct(family(target), **{**more, **options})


def spy(direct: Direct, truth: list[int] | None = None, good: int = 0) -> list[tuple[Plan, StepResult]]:
    """Every step's plan and result. With ``truth``, the one request's tokens, the engine is given ``good`` right proposals."""
    seen: list[tuple[Plan, StepResult]] = []
    run = direct.runner.whole.run

    def run_and_note(plan: Plan) -> StepResult:
        result = run(plan)
        seen.append((plan, result))
        if truth is None or result.rows[0].proposals is None:
            return result
        (row,), (got,) = plan.rows, result.rows
        known = row.valid_end(len(got.tokens)) + 1
        right = truth[known : known + good]
        told = np.array([*right, *([(truth[known + good] + 1) % 250] if known + good < len(truth) else [])], np.int32)
        return dataclasses.replace(result, rows=(dataclasses.replace(got, proposals=told),))

    direct.runner.whole.run = run_and_note  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("good", [0, 1, 3])
@pytest.mark.parametrize("chunk", [3, 512])
@pytest.mark.parametrize(
    ("three", "made"),
    [(False, {}), (False, {"bias": True}), (False, {"layers": 2}), (True, {}), (True, {"bias": True})],
)
def test_every_proposal_is_what_plain_torch_proposes(
    three: bool, made: dict[str, Any], chunk: int, good: int, family: Family, tmp_path: Path
) -> None:
    """After each step, from the target's own rows: whatever was accepted, chunked, or cached by a text that went on alike."""
    eagle = Eagle.random(three=three, **made)
    direct = speculating(family, eagle.write(tmp_path), three=three, chunked_prefill_size=chunk, capture_layers=[0, 1, 2, -1])
    truth: list[int] = []
    seen = spy(direct, truth, good)
    plain = Direct(family("llama"))
    weights = load_file(family("llama") / "model.safetensors")
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    layers = [0, 1, 2] if three else [3]
    params = {"max_new_tokens": 14, "temperature": 0, "ignore_eos": True}
    tokens: list[int] = []
    for ids in (prompt(7), prompt(21), None):
        ids = ids or tokens[:30]
        truth[:] = [*ids, *plain.run([{"input_ids": ids, "sampling_params": params}])[0].output_ids]
        seen.clear()
        request = {"input_ids": ids, "sampling_params": params, "return_hidden_states": True, "hidden_states_layers": layers}
        (reply,) = direct.run([request])
        states = reply.hidden_states
        assert states is not None
        rows = [torch.from_numpy(states.numpy(layer)) for layer in layers]
        tokens, known, checked = [*ids, *reply.output_ids], len(ids), 0
        for _, result in seen:
            (got,) = result.rows
            known += len(got.tokens)
            if got.proposals is not None and len(got.proposals):
                cut = [r[: known - 1] for r in rows]
                assert got.proposals.tolist() == eagle.chain(cut, tokens[:known], embedding, head, len(got.proposals))
                checked += len(got.proposals)
        assert tokens == truth
        assert checked > 20 - 5 * good
        assert (reply.to_dict()["meta_info"]["spec_verify_ct"] < 9) == (good > 0)


@pytest.mark.parametrize("three", [False, True])
def test_a_prefix_hit_finds_the_drafts_keys_too(three: bool, family: Family, tmp_path: Path) -> None:
    """The second time the same proposals are made, although the draft saw only the end of the prompt."""
    direct = speculating(family, Eagle.random(three=three).write(tmp_path), three=three)
    seen = spy(direct)
    request = {"input_ids": prompt(40), "sampling_params": {"max_new_tokens": 10, "temperature": 0, "ignore_eos": True}}
    made = []
    for _ in range(2):
        seen.clear()
        (reply,) = direct.run([request])
        made.append([row.proposals.tolist() for _, result in seen for row in result.rows if row.proposals is not None])
    assert reply.to_dict()["meta_info"]["cached_tokens"] == 39
    assert made[0] == made[1]


@pytest.mark.parametrize("three", [False, True])
@pytest.mark.parametrize("ceiling", ["off", "last", "full"])
def test_a_server_of_any_ceiling_runs_it_and_refuses_what_is_above(
    three: bool, ceiling: str, family: Family, tmp_path: Path
) -> None:
    direct = speculating(family, Eagle.random(three=three).write(tmp_path), three=three, return_hidden_states_mode=ceiling)
    plain = Direct(family("llama"), return_hidden_states_mode=ceiling)
    params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    allowed = {"off": ["off"], "last": ["off", "last"], "full": ["off", "last", "full", "mean"]}[ceiling]
    requests = [{"input_ids": prompt(9 + i, i), "sampling_params": params, **MODES[m]} for i, m in enumerate(allowed * 2)]
    for mine, theirs in zip(direct.run(requests), plain.run(requests), strict=True):
        assert mine.output_ids == theirs.output_ids
        if theirs.hidden_states is None:
            assert mine.hidden_states is None
        else:
            np.testing.assert_array_equal(mine.hidden_states.raw(), theirs.hidden_states.raw())  # type: ignore[union-attr]
    for mode in {"off", "last", "full"} - set(allowed):
        if mode != "off":
            with pytest.raises(WellheadError):
                direct.submit({"input_ids": [1], "sampling_params": params, **MODES[mode]})
    assert direct.made.config.capture is CaptureMode.FULL
    assert direct.made.config.rows_in_pages is (ceiling == "full")


def test_the_drafts_pages_are_counted(family: Family, tmp_path: Path) -> None:
    direct = speculating(family, Eagle.random(three=False).write(tmp_path), three=False)
    whole = direct.runner.whole
    assert isinstance(whole, SpeculativeRunner)
    assert whole.kv.pages == direct.made.config.pages
    assert whole.kv.layers == 1


Edit = Callable[[Eagle], Any]
BAD: dict[str, tuple[bool, Edit, dict[str, Any], type[WellheadError], str]] = {
    "hidden size": (False, lambda e: None, {"hidden_size": 32}, InvalidConfig, "hidden_size 32, the target has hidden_size 64"),
    "target's size": (True, lambda e: None, {"target_hidden_size": 96}, InvalidConfig, "96, the target has hidden_size 64"),
    "vocabulary": (False, lambda e: None, {"vocab_size": 99}, InvalidConfig, "vocab_size 99, the target has vocab_size 272"),
    "map": (True, lambda e: e.tensors.pop("d2t"), {}, WeightsError, "with draft_vocab_size 40 and vocab_size 272"),
    "map's range": (True, lambda e: e.tensors["d2t"].fill_(250), {}, WeightsError, r"in 250 \.\. 289; the target has 272"),
    "map's doubles": (True, lambda e: e.tensors["d2t"].copy_(-torch.arange(40)), {}, WeightsError, "40 ids to 1 different"),
    "other map": (True, lambda e: e.tensors["t2d"].fill_(True), {}, WeightsError, "t2d names 272 ids, and not those 40"),
    "missing": (True, lambda e: e.tensors.pop("norm.weight"), {}, WeightsError, "norm.weight is missing"),
    "left over": (False, lambda e: e.tensors.update(x=torch.zeros(3)), {}, WeightsError, "x is left over"),
    "shape": (False, lambda e: e.tensors.update({"fc.weight": torch.zeros(64, 9)}), {}, WeightsError, r"\[64, 9\].*\[64, 128\]"),
    "layers": (True, lambda e: None, {"num_hidden_layers": 2}, UnsupportedModel, "num_hidden_layers 2"),
    "read": (
        True, lambda e: None, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 5]}}, UnsupportedModel, r"\[1, 2, 6\]",
    ),
    "variant": (True, lambda e: None, {"norm_before_residual": True}, UnsupportedModel, "norm_before_residual"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_draft_that_cannot_be_is_refused_by_name(name: str, family: Family, tmp_path: Path) -> None:
    three, edit, changes, error, said = BAD[name]
    eagle = Eagle.random(three=three)
    edit(eagle)
    with pytest.raises(error, match=said):
        speculating(family, eagle.write(tmp_path, **changes), three=three)


def test_another_dtype_is_refused_unless_one_is_named(family: Family, tmp_path: Path) -> None:
    eagle = Eagle.random(three=False)
    eagle.tensors = {name: t.bfloat16() for name, t in eagle.tensors.items()}
    folder = eagle.write(tmp_path, torch_dtype="bfloat16")
    with pytest.raises(InvalidConfig, match="is in bfloat16, the target in float32"):
        speculating(family, folder, three=False)
    direct = speculating(family, folder, three=False, dtype="bfloat16")
    (reply,) = direct.run([{"input_ids": prompt(5), "sampling_params": {"max_new_tokens": 3}}])
    assert len(reply.output_ids) <= 3


def test_a_target_with_too_few_layers_for_eagle3_is_refused(family: Family, tmp_path: Path) -> None:
    folder = Eagle.random(three=True).write(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"of a target with 1 were to be read"):
        Direct(family("llama", num_hidden_layers=1), speculative_algorithm="EAGLE3", speculative_draft_model_path=str(folder))


def test_pickles_are_refused(family: Family, tmp_path: Path) -> None:
    folder = Eagle.random(three=False).write(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="pickle"):
        speculating(family, folder, three=False)
