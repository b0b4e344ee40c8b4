"""Heads made from scikit-learn and torch objects agree with what they were made from."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer, StandardScaler
from sklearn.svm import LinearSVC

from support.heads import W, normal
from wellhead.errors import InvalidHead
from wellhead.heads.head import Head

X = np.concatenate([normal(200, W) * np.linspace(0.1, 30, W) + 3, normal(10, W)])
X[:, 7] = 4.0  # a constant column: the scaler's scale_ is 1 there
TWO = np.where(X[:, 0] + 0.1 * X[:, 20] > 4, "spam", "ham")
THREE = np.digitize(X[:, 0] + 0.1 * X[:, 25], [0, 5]) + 10


def fitted(estimator: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y)


CASES = [
    LogisticRegression(max_iter=50), make_pipeline(StandardScaler(), LogisticRegression()), Ridge(), RidgeClassifier(),
    LinearSVC(), SGDClassifier(loss="log_loss", random_state=0), SGDClassifier(random_state=0), LinearDiscriminantAnalysis(),
    GaussianNB(var_smoothing=1e-3), make_pipeline(PCA(6), LogisticRegression()), make_pipeline(StandardScaler(), PCA(5,
    whiten=True), LinearSVC()),
    make_pipeline(StandardScaler(with_mean=False), Normalizer(), "passthrough", LogisticRegression()),
    make_pipeline(StandardScaler(with_std=False), GaussianNB(var_smoothing=1e-2)),
]  # fmt: skip


@pytest.mark.parametrize("estimator", CASES, ids=lambda e: str(e).replace("\n", "")[:60])
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_logits_and_probabilities_are_the_source_s(estimator: Any, y: Any, tmp_path: Path) -> None:
    numeric = isinstance(estimator, Ridge)
    source = fitted(estimator, (y == y[0]).astype(float) if numeric else y)
    head = Head.load(Head.from_sklearn(source, layer=12, rows="last", name="mood").save(tmp_path / "mood.head"))
    logits = head.logits(X)
    last = source[-1] if hasattr(source, "steps") else source
    if numeric:
        expected = source.predict(X)
    elif isinstance(last, GaussianNB):
        expected = last.predict_joint_log_proba(source[:-1].transform(X) if source is not last else X)
    else:
        expected = source.decision_function(X)
    expected = expected.reshape(len(X), -1)
    if expected.shape != logits.shape:
        pytest.fail(f"{logits.shape} for {expected.shape}")
    assert np.abs(logits - expected).max() <= 1e-6 * max(1.0, np.abs(expected).max())
    assert head.layers == (12,) and head.rows == "last" and head.width == W
    if not numeric:
        assert head.labels == tuple(str(c) for c in source.classes_)
        assert head.winners(head.scores(X)) == [str(c) for c in source.predict(X)]
        if hasattr(source, "predict_proba"):
            assert np.abs(head.probabilities(logits) - source.predict_proba(X)).max() <= 1e-6


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
@pytest.mark.parametrize("ensemble", [True, False])
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_calibrated_classifiers(method: str, ensemble: bool, y: Any, tmp_path: Path) -> None:
    inner = make_pipeline(StandardScaler(), LinearSVC())
    source = fitted(CalibratedClassifierCV(inner, method=method, ensemble=ensemble, cv=3), y)
    head = Head.load(Head.from_sklearn(source, layer=[3, 9], name="mood").save(tmp_path / "mood.head"))
    assert head.layers == (3, 9) and head.hidden_size == W // 2
    assert np.abs(head.probabilities(head.logits(X)) - source.predict_proba(X)).max() <= 1e-6
    assert np.array_equal(head.scores(X)[3:4], head.scores(X[3:4]))


def test_what_cannot_become_a_head_is_named() -> None:
    from sklearn.ensemble import RandomForestClassifier

    with pytest.raises(InvalidHead, match="RandomForestClassifier"):
        Head.from_sklearn(fitted(RandomForestClassifier(2), TWO), layer=1)
    with pytest.raises(InvalidHead, match="MinMaxScaler"):
        Head.from_sklearn(fitted(make_pipeline(MinMaxScaler(), LinearSVC()), TWO), layer=1)
    with pytest.raises(InvalidHead, match=r"Normalizer.*l1"):
        Head.from_sklearn(fitted(make_pipeline(Normalizer("l1"), LinearSVC()), TWO), layer=1)
    with pytest.raises(InvalidHead, match="fitted"):
        Head.from_sklearn(LogisticRegression(), layer=1)


def test_an_empty_subset_of_a_class_name_is_not_enough() -> None:
    class LogisticRegression:
        """No estimator at all."""

    with pytest.raises(InvalidHead, match="fitted"):
        Head.from_sklearn(LogisticRegression(), layer=1)


torch = pytest.importorskip("torch")
nn = torch.nn
ROWS = torch.randn(20, W, dtype=torch.float64)

MODULES = [
    nn.Linear(W, 3), nn.Linear(W, 3, bias=False), nn.Sequential(nn.Linear(W, 8), nn.ReLU(), nn.Linear(8, 3)),
    nn.Sequential(nn.LayerNorm(W), nn.Dropout(0.5), nn.Linear(W, 8), nn.GELU(), nn.Sequential(nn.LayerNorm(8, eps=1e-3),
    nn.Linear(8, 3))),
    nn.Sequential(nn.Linear(W, 6), nn.GELU("tanh"), nn.Linear(6, 6), nn.SiLU(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
    nn.Sequential(nn.LayerNorm(W, elementwise_affine=False), nn.Linear(W, 3)),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(MODULES)))
def test_torch_modules(i: int) -> None:
    module = MODULES[i].double().eval()
    head = Head.from_torch(module, layer=4, labels=["a", "b", "c"], activation="softmax", name="probe")
    with torch.no_grad():
        assert np.abs(head.logits(ROWS.numpy()) - module(ROWS).numpy()).max() < 1e-6


def test_torch_state_dicts() -> None:
    plain = MODULES[0].double()
    expected = plain(ROWS).detach().numpy()
    assert np.allclose(Head.from_torch(plain.state_dict(), layer=4, labels="abc").logits(ROWS.numpy()), expected, atol=1e-9)
    deep = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(W, W), nn.ReLU())), nn.Linear(W, 3)).double()
    state = dict(sorted(deep.state_dict().items()))  # "10.weight" comes before "2.weight"
    head = Head.from_torch(state, layer=4, labels="abc", between="relu")
    assert np.allclose(head.logits(ROWS.numpy()), deep(ROWS).detach().numpy(), atol=1e-9)
    with pytest.raises(InvalidHead, match="between"):
        Head.from_torch(state, layer=4, labels="abc")
    with pytest.raises(InvalidHead, match="unknown operation"):
        Head.from_torch(state, layer=4, labels="abc", between="os.system")
    with pytest.raises(InvalidHead, match="Conv1d"):
        Head.from_torch(nn.Sequential(nn.Conv1d(1, 1, 1)), layer=1, labels="a")
    with pytest.raises(InvalidHead, match="running_mean"):
        Head.from_torch(nn.BatchNorm1d(W).state_dict(), layer=1, labels="a")


@pytest.mark.parametrize("key", ["base_model.model.score.weight", "base_model.model.score.modules_to_save.default.weight"])
def test_a_peft_adapter_s_score(key: str) -> None:
    weight = torch.randn(3, W)
    state = {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.randn(4, W), key: weight,
        "base_model.model.score.original_module.weight": torch.zeros(3, W),
    }  # fmt: skip
    head = Head.from_torch(state, layer=-1, labels="abc")
    assert head.kind == "linear" and np.allclose(head.logits(ROWS.numpy()), ROWS.numpy() @ weight.double().numpy().T)
    with pytest.raises(InvalidHead, match="several classifiers"):
        Head.from_torch({**state, "base_model.model.score.modules_to_save.other.weight": weight}, layer=-1, labels="abc")
    with pytest.raises(InvalidHead, match="without a classifier"):
        Head.from_torch({k: t for k, t in state.items() if "lora" in k}, layer=-1, labels="abc")
