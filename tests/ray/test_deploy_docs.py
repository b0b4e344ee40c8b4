"""The manifest in deploy/, held against Ray's own schema of a Serve config, our own options, and itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from ray._common.utils import import_attr
from ray.serve.schema import ServeDeploySchema

from wellhead.frontends.scale.app import ENGINE, application

ROOT = Path(__file__).parents[2]


def manifest() -> dict[str, Any]:
    """The one document of the file."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "kuberay.yaml").read_text(encoding="utf-8"))
    return found


def test_the_serve_config_is_one() -> None:
    config = ServeDeploySchema.model_validate(yaml.safe_load(manifest()["spec"]["serveConfigV2"]))
    (app,) = config.applications
    assert import_attr(app.import_path) is application
    built = application(dict(app.args))
    (engine,) = [d for d in built._bound_deployment.init_args if getattr(d, "_bound_deployment", None) is not None]
    assert engine._bound_deployment.name == ENGINE


def test_what_belongs_together_agrees() -> None:
    spec = manifest()["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    scale = config["applications"][0]["args"]["scale"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    (head,) = spec["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert int(group["rayStartParams"]["num-cpus"]) == int(worker["resources"]["limits"]["cpu"]) == scale["cpus_per_replica"]
    assert (group["minReplicas"], group["maxReplicas"]) == (scale["replicas"], scale["max_replicas"])
    assert head["image"] == worker["image"]
    assert config["http_options"]["port"] in [port["containerPort"] for port in head["ports"]]
    grace = group["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > config["applications"][0]["args"]["server"]["drain_timeout"]
