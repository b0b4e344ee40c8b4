"""Fits that read the rows again and again: logistic regression by full gradients, and a small network.

Rows come standardised in chunks; nothing is kept of them. ``Rows`` is called for every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidRequest
from wellhead.heads.fit.moments import Array

#: One pass: standardised rows ``[k, W]`` and their classes ``[k]``.
Rows = Callable[[], Iterator[tuple[Array, NDArray[np.int32]]]]


def logistic(rows: Rows, width: int, classes: int, count: int, c: float = 1.0, passes: int = 200) -> tuple[Array, Array]:
    """``C sum(loss) + |w|^2 / 2`` as scikit-learn's ``LogisticRegression``; no penalty on the intercept. On standardised rows."""
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise InvalidRequest(
            "method 'logistic' needs scipy (pip install scipy); 'ridge' and 'lda' do not", param="method"
        ) from error
    outputs = 1 if classes == 2 else classes

    def objective(flat: Array) -> tuple[float, Array]:
        w, b = flat[: outputs * width].reshape(outputs, width), flat[outputs * width :]
        loss, dw, db = 0.0, np.zeros_like(w), np.zeros(outputs)
        for x, y in rows():
            part, slope = loss_and_slope(x @ w.T + b, y)
            loss += part
            dw += slope.T @ x
            db += slope.sum(axis=0)
        scale = 1.0 / (c * count)
        return loss / count + 0.5 * scale * float((w * w).sum()), np.concatenate([(dw / count + scale * w).ravel(), db / count])

    start = np.zeros(outputs * (width + 1))
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": passes, "gtol": 1e-8, "ftol": 1e-15})
    flat = np.asarray(found.x, np.float64)
    return flat[: outputs * width].reshape(outputs, width), flat[outputs * width :]


def loss_and_slope(z: Array, y: NDArray[np.int32]) -> tuple[float, Array]:
    """Sum of losses, and the slope of each row's by its scores."""
    if z.shape[1] == 1:
        t = (y == 1)[:, None]
        e = np.exp(-np.abs(z))
        p = np.where(z >= 0, 1.0, e) / (1.0 + e)
        return float((np.log1p(e) + np.maximum(z, 0) - z * t).sum()), p - t
    z = z - z.max(axis=1, keepdims=True)
    e = np.exp(z)
    total = e.sum(axis=1, keepdims=True)
    slope = e / total
    at = np.arange(len(y))
    loss = float((np.log(total[:, 0]) - z[at, y]).sum())
    slope[at, y] -= 1.0
    return loss, slope


def mlp(
    rows: Rows, width: int, classes: int, count: int, hidden: int = 64, rate: float = 2e-3, decay: float = 1e-3, seed: int = 0
) -> dict[str, Any]:
    """A network of one hidden layer (ReLU), by AdamW over the rows in the order in which they lie, 128 at a time. Needs torch.

    10 passes over many rows, up to 200 over few: at least about 3,000 steps where that is possible.
    """
    import torch

    torch.manual_seed(seed)
    outputs = 1 if classes == 2 else classes
    model = torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    random = np.random.default_rng(seed)
    for _ in range(min(200, max(10, 400_000 // count))):
        for x, y in rows():
            order = random.permutation(len(x))
            for at in range(0, len(x), 128):
                part = order[at : at + 128]
                z = model(torch.from_numpy(x[part].astype(np.float32)))
                target = torch.from_numpy(y[part].astype(np.int64))
                if outputs == 1:
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(z[:, 0], target.float())
                else:
                    loss = torch.nn.functional.cross_entropy(z, target)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return {f"stack.{key}": tensor.detach().numpy().copy() for key, tensor in model.state_dict().items()}
