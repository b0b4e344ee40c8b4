"""A small Ray cluster under test: the size of its nodes, and the processes of its actors."""

from __future__ import annotations

import os

import psutil

#: A node: arguments of ``ray.cluster_utils.Cluster.add_node``.
SMALL = {"num_cpus": 1, "object_store_memory": 100 << 20}


def actors(name: str) -> list[psutil.Process]:
    """Processes of the cluster's actors of a class."""
    found = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            title = process.cmdline()
        except psutil.Error:
            continue
        if title and title[0].startswith(f"ray::{name}"):
            found.append(process)
    return found
