"""What the API server refused of a group, from one pass to the next.

A refusal is over when a whole pass was carried out without one: a pass that the API's absence cut short proves nothing. A new
plane goes by what the status says of the present spec. The API server refuses a taken node port without naming the Service that
has it, so the Services that the operator may read are looked through; the next pass asks again, and succeeds once the number is
free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.bounds import MAX_REPLICAS
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType, Reason
from brokergroup_operator.api.network_fields import NODE_PORTS_EACH
from brokergroup_operator.kube.errors import ApiError, InvalidError
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, SERVICES
from brokergroup_operator.reconcile.plan import Action, ApplyObject
from brokergroup_operator.reconcile.render.addressing import node_ports
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.foreign import NameTakenError
from brokergroup_operator.reconcile.tell.conditions import SAID_BY_THE_SERVER

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.records.store import GroupKey


# Bad request, forbidden (a quota, an admission policy), invalid: asking again changes nothing.
REFUSALS: Final = frozenset({400, 403, 422})


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A refusal, for the status; all empty where nothing is refused."""

    refusal: str = ""
    node_port_taken: bool = False
    # Whether it is of a claim that is there alone (`ClaimRefusedError`).
    claim: bool = False
    name_taken: str = ""

    def shown_to(self, seen: Observed) -> Observed:
        return replace(
            seen,
            refusal=self.refusal,
            node_port_taken=self.node_port_taken,
            claim_refused=self.claim,
            name_taken=self.name_taken,
        )


class Refusals:
    """The last refusal of each group that a pass was carried out for."""

    def __init__(self) -> None:
        self._known: dict[GroupKey, Refused] = {}

    def of(self, key: GroupKey, group_object: JsonObject) -> Refused:
        return self._known.get(key) or as_told(group_object)

    def note(self, key: GroupKey, error: ApiError) -> None:
        """Keep the refusal in this error; an error that is no refusal leaves the last one as it is."""
        if isinstance(error, NameTakenError):
            self._known[key] = Refused(name_taken=str(error))
        elif error.status in REFUSALS:
            # A pod template, say, that only Kubernetes can judge: a person must change the spec.
            is_port, is_claim = isinstance(error, NodePortTakenError), isinstance(error, ClaimRefusedError)
            self._known[key] = Refused(refusal=str(error), node_port_taken=is_port, claim=is_claim)

    def carried_out(self, key: GroupKey) -> None:
        self._known[key] = Refused()

    def forget(self, key: GroupKey) -> None:
        self._known.pop(key, None)


def as_told(group_object: JsonObject) -> Refused:
    """What `Stalled` says was refused of the present spec."""
    generation = (group_object.get("metadata") or {}).get("generation")
    for condition in (group_object.get("status") or {}).get("conditions") or []:
        is_true = condition.get("status") == ConditionStatus.TRUE and condition.get("observedGeneration") == generation
        if condition.get("type") != ConditionType.STALLED or not is_true:
            continue
        reason, message = condition.get("reason"), str(condition.get("message") or "")
        if reason == Reason.NODE_PORT_TAKEN:
            return Refused(refusal=message, node_port_taken=True)
        if reason == Reason.NAME_TAKEN:
            return Refused(name_taken=message)
        if reason == Reason.INVALID_SPEC and message.startswith(SAID_BY_THE_SERVER):
            refusal = message.removeprefix(SAID_BY_THE_SERVER)
            return Refused(refusal=refusal, claim=refusal.startswith(CLAIM_STAYS))
    return Refused()


# How the refusal of a claim begins; the next plane knows it by that.
CLAIM_STAYS: Final = "A claim stays as it is, and updates go on: "


class ClaimRefusedError(ApiError):
    """A claim that is there may not be changed, or not grow: no pod waits for that."""


def of_claim(action: Action, error: ApiError, seen: Observed) -> ApiError:
    """Return the same error, or, of a claim that is there, one that says that it stays, and what it takes to grow."""
    if not isinstance(action, ApplyObject) or action.resource != PERSISTENT_VOLUME_CLAIMS:
        return error
    claim = seen.claims.get(action.object["metadata"]["name"])
    if claim is None or error.status not in REFUSALS:
        return error
    # A quota or a policy may refuse it too: then the storage class is no matter.
    todo = _how_it_grows(action.object, claim) if RESIZED in str(error) else ""
    return ClaimRefusedError(f"{CLAIM_STAYS}{error}{todo}", status=error.status, reason=error.reason)


# k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize: "... can be resized and the storageclass that provisions
# the pvc must support resize".
RESIZED: Final = "can be resized"


def _how_it_grows(wanted: JsonObject, claim: JsonObject) -> str:
    name, size = wanted["metadata"]["name"], wanted["spec"]["resources"]["requests"]["storage"]
    field = "spec.storage.commitLog.size" if name.endswith(names.commit_log_claim_name("")) else "spec.storage.size"
    return (
        f" ({field} is {size}, and claim {name} has {observed.claim_size(claim)}: it grows only in a storage class with"
        " allowVolumeExpansion: true. A BrokerGroupOperation of type Rebuild gives its member a new claim of that size)"
    )


def first_of(refused: ApiError | None, error: ApiError) -> ApiError:
    """Return the first error of a pass, but one of a claim only where there is no other."""
    if refused is None or (isinstance(refused, ClaimRefusedError) and not isinstance(error, ClaimRefusedError)):
        return error
    return refused


# k8s.io/kubernetes/pkg/registry/core/service/portallocator, ErrAllocated: it names the first port that is not free.
_ALLOCATED: Final = re.compile(r"nodePort: Invalid value: (\d+): provided port is already allocated")


class NodePortTakenError(InvalidError):
    """Another Service has the number. It may become free; or a person chooses others."""


class NodePortOwners:
    def __init__(self, api: KubernetesApi, *, namespace: str | None) -> None:
        self._api = api
        self._namespace = namespace

    async def explained(self, action: Action, error: ApiError) -> ApiError:
        """Return the same error, or, where a node port is taken, one that names the Service which has it."""
        if not isinstance(action, ApplyObject) or action.resource != SERVICES or not isinstance(error, InvalidError):
            return error
        found = next((match for said in error.field_messages if (match := _ALLOCATED.search(said))), None)
        if found is None:
            return error
        number = int(found[1])
        holder = await self._holder(number)
        many = MAX_REPLICAS * NODE_PORTS_EACH
        return NodePortTakenError(
            f"Service {action.object['metadata']['name']} needs node port {number}, which {holder} has: free it, or create"
            f" the group again with a spec.network.firstNodePort (immutable) that is the first of {many} free ones. It is asked for"
            " again until then"
        )

    async def _holder(self, number: int) -> str:
        try:
            listed = await self._api.list(SERVICES, namespace=self._namespace)
        except ApiError as error:
            return f"another Service (they can't be listed: {error})"
        for service in listed.items:
            # The second of the same numbers, for load balancers with externalTrafficPolicy Local.
            if number in {*node_ports(service), service["spec"].get("healthCheckNodePort")}:
                return f"Service {service['metadata']['namespace']}/{service['metadata']['name']}"
        return "another Service" if self._namespace is None else f"a Service outside namespace {self._namespace}"
