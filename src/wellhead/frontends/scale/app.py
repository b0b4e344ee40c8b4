"""The application that Ray Serve runs: replicas with engines, and the front that everybody talks to."""

from __future__ import annotations

import dataclasses
from typing import Any

from ray import serve

from wellhead.config import EngineConfig
from wellhead.errors import InvalidConfig
from wellhead.frontends.http.options import ServerOptions
from wellhead.frontends.scale.front import Front
from wellhead.frontends.scale.options import ScaleOptions
from wellhead.frontends.scale.replica import Replica

#: Names, as ``serve status`` and a config file have them.
APP, ENGINE, FRONT = "wellhead", "Engine", "Front"
#: Starts that may fail before a deployment is given up.
STARTS = 3


def application(args: dict[str, Any]) -> Any:
    """A Serve application from ``args``: ``engine`` (as for ``Engine``), and optionally ``server``, ``scale``, ``generation``.

    For a config file: ``import_path: wellhead.frontends.scale.app:application``. Raises ``InvalidConfig``.
    """
    unknown = set(args) - {"engine", "server", "scale", "generation"}
    if unknown:
        raise InvalidConfig(f"unknown argument {sorted(unknown)[0]!r}", param=sorted(unknown)[0])
    engine = dict(args.get("engine") or {})
    EngineConfig.from_options(engine)
    server, scale = _made(ServerOptions, args.get("server")), _made(ScaleOptions, args.get("scale"))
    replicas = serve.deployment(Replica).options(name=ENGINE, **_settings(engine, server, scale))
    within = dataclasses.replace(server, cors_allow_origins=())  # the front decides on origins
    bound = replicas.bind(engine, dataclasses.asdict(within), scale.cpus_per_replica, int(args.get("generation") or 0))
    front = serve.deployment(Front).options(
        name=FRONT, num_replicas=1, max_ongoing_requests=server.max_connections, ray_actor_options={"num_cpus": 0}
    )
    return front.bind(bound, server.max_body_bytes, server.stall_timeout, scale.routing_policy, server.cors_allow_origins)


def _made(kind: Any, given: Any) -> Any:
    known = {f.name for f in dataclasses.fields(kind)}
    for name in given or {}:
        if name not in known:
            raise InvalidConfig(f"unknown option {name!r}", param=name)
    return kind(**(given or {}))


def _settings(engine: dict[str, Any], server: ServerOptions, scale: ScaleOptions) -> dict[str, Any]:
    from ray.serve.config import RequestRouterConfig

    resources = {"num_cpus": scale.cpus_per_replica, "num_gpus": int(engine.get("device") == "cuda")}
    settings: dict[str, Any] = {
        "max_ongoing_requests": server.max_connections,
        "ray_actor_options": resources,
        "graceful_shutdown_timeout_s": server.drain_timeout,
        "health_check_period_s": 5,
        "max_constructor_retry_count": STARTS,
        "request_router_config": RequestRouterConfig(request_router_class="wellhead.frontends.scale.router.Router"),
    }
    if scale.max_replicas is None:
        return {**settings, "num_replicas": scale.replicas}
    autoscaling = {"min_replicas": scale.replicas, "max_replicas": scale.max_replicas}
    if scale.target_ongoing_requests is not None:
        autoscaling["target_ongoing_requests"] = scale.target_ongoing_requests  # type: ignore[assignment]
    return {**settings, "autoscaling_config": autoscaling}
