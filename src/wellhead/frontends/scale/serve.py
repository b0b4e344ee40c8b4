"""``wellhead serve --ray``: many engines, one address."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import signal
import threading
from collections.abc import Iterator
from typing import Any

from wellhead.errors import InvalidConfig
from wellhead.frontends.cluster import connected, load_ray
from wellhead.frontends.http.options import ServerOptions, server_options
from wellhead.frontends.http.serve import bind, url_of
from wellhead.frontends.options import engine_options
from wellhead.frontends.scale.options import ScaleOptions


def run(args: argparse.Namespace, scale: ScaleOptions) -> int:
    """Deploy, serve until SIGTERM or SIGINT, take everything down; 0. SIGHUP replaces all replicas, one after another."""
    server = server_options(args)
    load_ray("ray.serve")
    stop, again = threading.Event(), threading.Event()
    with connected(args.ray), _heard({signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: again}):
        deployed = Deployed(engine_options(args), server, scale)
        try:
            deployed.deploy()
            print(f"wellhead: {scale.replicas} replicas, ready on {deployed.address}", flush=True)
            while not stop.wait(0.2):
                if again.is_set():
                    again.clear()
                    deployed.deploy()
                    print("wellhead: all replicas were replaced", flush=True)
        finally:
            deployed.close()
    return 0


@contextlib.contextmanager
def _heard(events: dict[signal.Signals, threading.Event]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda n, _: events[signal.Signals(n)].set()) for number in events}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Deployed:
    """The application on the cluster that this process is connected to. Its proxy listens on the cluster's head."""

    def __init__(self, engine: dict[str, Any], server: ServerOptions, scale: ScaleOptions) -> None:
        from ray import serve

        listening = bind(server.host, server.port)
        self._port = listening.getsockname()[1]
        listening.close()
        self._args = {"engine": engine, "server": dataclasses.asdict(server), "scale": dataclasses.asdict(scale)}
        self._generation = 0
        self.address = url_of(server.host, self._port)
        http = {"host": server.host, "port": self._port, "keep_alive_timeout_s": 75, "request_timeout_s": None}
        serve.start(proxy_location="HeadOnly", http_options=http, logging_config={"log_level": "WARNING"})

    def deploy(self) -> None:
        """Deploy; the second time and later, replace the replicas in turn. Raises ``InvalidConfig`` if they do not start."""
        from ray import serve

        from wellhead.frontends.scale.app import APP, application

        app = application({**self._args, "generation": self._generation})
        self._generation += 1
        try:
            serve.run(app, name=APP, logging_config={"log_level": "WARNING"})
        except RuntimeError as error:
            application_now = serve.status().applications.get(APP)
            said = [
                str(error),
                *(d.message for d in (application_now.deployments.values() if application_now else ()) if d.message),
            ]
            raise InvalidConfig(f"the replicas do not start: {said[-1].strip().splitlines()[-1]}", param="ray") from None

    def close(self) -> None:
        """Take the application down, and Serve, if nothing else runs on it."""
        from ray import serve

        from wellhead.frontends.scale.app import APP

        serve.delete(APP)
        if not serve.status().applications:
            serve.shutdown()
