"""What ``wellhead serve --ray`` is told beside the options of engine and server."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Any

from wellhead.errors import InvalidConfig
from wellhead.frontends.cluster import ADDRESS_HELP

POLICIES = ("prefix", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions:
    """Options of the replicas.

    ======================= ======================================================================================
    replicas                engines behind the one address; with ``max_replicas`` the fewest of them
    max_replicas            the most engines; Serve starts and stops them as requests come and go. ``None``: fixed
    target_ongoing_requests requests at once for each engine, which Serve then aims at
    cpus_per_replica        CPUs, and threads, of an engine
    routing_policy          ``prefix``: to the replica that has the prompt's beginning, unless it is overloaded; ``random``
    ======================= ======================================================================================
    """

    replicas: int = 1
    max_replicas: int | None = None
    target_ongoing_requests: float | None = None
    cpus_per_replica: int = 1
    routing_policy: str = "prefix"

    def __post_init__(self) -> None:
        for name in ("replicas", "max_replicas", "cpus_per_replica", "target_ongoing_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name} must be at least 1, not {value}", param=name)
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise InvalidConfig(f"max_replicas {self.max_replicas} is less than replicas {self.replicas}", param="max_replicas")
        if self.target_ongoing_requests is not None and self.max_replicas is None:
            raise InvalidConfig("target_ongoing_requests needs max_replicas", param="target_ongoing_requests")
        if self.routing_policy not in POLICIES:
            raise InvalidConfig(f"routing_policy must be {' or '.join(POLICIES)}", param="routing_policy")


_HELP: dict[str, dict[str, Any]] = {
    "replicas": {"type": int, "metavar": "N", "help": "engines behind the one address (default: 1)"},
    "max_replicas": {"type": int, "metavar": "N", "help": "start more, up to so many, as requests come (default: no more)"},
    "target_ongoing_requests": {"type": float, "metavar": "N", "help": "requests at once that an engine should have then"},
    "cpus_per_replica": {"type": int, "metavar": "N", "help": "CPUs, and threads, of an engine (default: 1)"},
    "routing_policy": {"choices": POLICIES, "help": "where a request goes (default: prefix)"},
}


def add_scale_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--ray`` and what belongs to it to a parser."""
    group = parser.add_argument_group("ray", "serve with many engines on a Ray cluster (needs: pip install 'wellhead[ray]')")
    group.add_argument("--ray", metavar="auto|local|ADDRESS", help=ADDRESS_HELP)
    for name, settings in _HELP.items():
        group.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, **settings)


def scale_options(args: argparse.Namespace) -> ScaleOptions | None:
    """The options that were given; None without ``--ray``. Raises ``InvalidConfig``."""
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(ScaleOptions) if hasattr(args, f.name)}
    if args.ray is None:
        if given:
            name = next(iter(given))
            raise InvalidConfig(f"--{name.replace('_', '-')} belongs to --ray", param=name)
        return None
    return ScaleOptions(**given)
