"""Ray Serve's side of the routing: it sends a call where the caller says."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class Router(RequestRouter):  # type: ignore[misc]
    """A call's ``to`` names a replica, ``place`` counts them off; without either, and if that one is not there, the idlest."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Groups of replicas; Serve takes the idlest of the first group that takes the call."""
        everyone = sorted(candidate_replicas, key=name_of)
        if pending_request is None or not everyone:
            return [everyone]
        pending_request.routing_context.should_backoff = True
        to, place = pending_request.kwargs.get("to"), pending_request.kwargs.get("place")
        if place is not None:
            return [[everyone[place % len(everyone)]], everyone]
        return [[replica for replica in everyone if name_of(replica) == to], everyone]


def name_of(replica: Any) -> str:
    """The name under which a replica knows itself."""
    return str(replica.replica_id.unique_id)
