"""Node ports of ours that another Service has: the number and that Service, for the group's status.

The API server gives a number to one Service of the cluster, and refuses it to others without naming the one that has it. So the
Services that the operator may read are looked through, once for each refusal. The refused Service is applied again with every
pass, and a pass that was refused is repeated (`queue.py`): the group goes on by itself once the number is free.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.bounds import MAX_REPLICAS
from brokergroup_operator.api.network_fields import NODE_PORTS_EACH
from brokergroup_operator.kube.errors import ApiError, InvalidError
from brokergroup_operator.kube.resources import SERVICES
from brokergroup_operator.reconcile.plan import Action, ApplyObject
from brokergroup_operator.reconcile.render.addressing import node_ports

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi

# k8s.io/kubernetes/pkg/registry/core/service/portallocator, ErrAllocated: it names the first port that is not free.
_ALLOCATED: Final = re.compile(r"nodePort: Invalid value: (\d+): provided port is already allocated")


class NodePortTakenError(InvalidError):
    """Another Service has the number. It may become free; or a person chooses others."""


class NodePortOwners:
    """Looks through the Services of one namespace, or of all."""

    def __init__(self, api: KubernetesApi, *, namespace: str | None, timeout_seconds: float) -> None:
        self._api = api
        self._namespace = namespace
        self._timeout_seconds = timeout_seconds

    async def explained(self, action: Action, error: ApiError) -> ApiError:
        """Return the same error, or, where a node port is taken, one that names the Service which has it."""
        if not isinstance(action, ApplyObject) or action.resource != SERVICES or not isinstance(error, InvalidError):
            return error
        number = taken_number(error)
        if number is None:
            return error
        holder = await self._holder(number)
        many = MAX_REPLICAS * NODE_PORTS_EACH
        return NodePortTakenError(
            f"Service {action.object['metadata']['name']} needs node port {number}, which {holder} has: free it, or create"
            f" the group again with a spec.network.firstNodePort (immutable) that is the first of {many} free ones. It is asked for"
            " again until then"
        )

    async def _holder(self, number: int) -> str:
        try:
            listed = await self._api.list(SERVICES, namespace=self._namespace, timeout_seconds=self._timeout_seconds)
        except ApiError as error:
            return f"another Service (they can't be listed: {error})"
        for service in listed.items:
            if number in _numbers(service):
                return f"Service {service['metadata']['namespace']}/{service['metadata']['name']}"
        return "another Service" if self._namespace is None else f"a Service outside namespace {self._namespace}"


def taken_number(error: InvalidError) -> int | None:
    """The node port that was refused because another Service has it."""
    found = next((match for said in error.field_messages if (match := _ALLOCATED.search(said))), None)
    return int(found[1]) if found is not None else None


def _numbers(service: JsonObject) -> set[int | None]:
    # Of the same numbers, for load balancers with externalTrafficPolicy Local.
    return {service["spec"].get("healthCheckNodePort"), *node_ports(service)}
