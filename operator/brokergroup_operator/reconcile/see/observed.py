"""What one pass saw of a group, as values: the input of the pure evaluation, and the questions it asks of pods and claims."""

from __future__ import annotations

import datetime as dt
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import DryRun, OperationPhase, OperationResult, OperationStatus
from brokergroup_operator.api.tls_steps import NO_TRUST
from brokergroup_operator.kube.pods import containers_are_terminated, is_over, node_of
from brokergroup_operator.reconcile import identity
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation
    from brokergroup_operator.api.credentials import CredentialsError
    from brokergroup_operator.api.tls_fields import TlsSpec
    from brokergroup_operator.api.tls_steps import Trust
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from controller_core.model import BrokerGroupRecord, Replica
    from rocketmq_remoting.tls import Validity


# Of a cordoned node: alone it keeps pods away, and drives none out. kubectl drain begins with it.
CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"
# Set by what is about to empty the node: kubectl drain, the cluster autoscaler, Karpenter, a graceful shutdown of the node.
DRAIN_TAINTS: Final = frozenset(
    {
        CORDON_TAINT,
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)


FINISHED: Final = frozenset({OperationPhase.SUCCEEDED, OperationPhase.FAILED, OperationPhase.REJECTED})


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One BrokerGroupOperation as read: raw, and typed. Times are in seconds since 1970, 0 where the status has none."""

    raw: JsonObject
    asked: BrokerGroupOperation

    @property
    def name(self) -> str:
        return str(metadata(self.raw)["name"])

    @property
    def uid(self) -> str:
        return uid(self.raw)

    @property
    def is_dry(self) -> bool:
        return self.asked.spec.dry_run is DryRun.ALL

    @property
    def status(self) -> OperationStatus:
        return self.asked.status or OperationStatus()

    @property
    def phase(self) -> OperationPhase:
        """Pending while there is no status."""
        return self.status.phase or OperationPhase.PENDING

    @property
    def is_running(self) -> bool:
        return self.phase is OperationPhase.RUNNING and not self.is_dry and not being_deleted(self.raw)

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def result(self) -> OperationResult:
        """The result in the status so far. While it runs, epoch and fromBrokerId are those of its start."""
        return self.status.result or OperationResult(message="")

    @property
    def started_seconds(self) -> float:
        return seconds_of(self.status.started_at)

    @property
    def completed_seconds(self) -> float:
        return seconds_of(self.status.completed_at)

    @property
    def order(self) -> tuple[float, str]:
        """The oldest first; of two of the same second, by name."""
        return created_seconds(self.raw), self.name

    def is_of(self, group_object: JsonObject) -> bool:
        """Whether it is this group's: not one that an earlier group of the same name has adopted. Of no group all are."""
        uids = {owner.get("uid") for owner in owners_of(self.raw) if owner.get("kind") == names.BROKER_GROUP_KIND}
        return not uids or not group_object or uid(group_object) in uids


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One group and everything of it, by name. `group_object` is the raw form of `group`, with its current status.

    Operations are also judged where there is no group, and `group_object` is empty, or only some of it can be read, and
    `unreadable` says why.
    """

    group: BrokerGroup
    group_object: JsonObject
    unreadable: str = ""
    record: BrokerGroupRecord | None = None
    state_object: JsonObject | None = None
    snapshot: GroupSnapshot | None = None
    pods: Mapping[str, JsonObject] = field(default_factory=dict)
    claims: Mapping[str, JsonObject] = field(default_factory=dict)
    services: Mapping[str, JsonObject] = field(default_factory=dict)
    config_maps: Mapping[str, JsonObject] = field(default_factory=dict)
    disruption_budgets: Mapping[str, JsonObject] = field(default_factory=dict)
    network_policies: Mapping[str, JsonObject] = field(default_factory=dict)
    # The pods that copy a store, the claims that get a copy, and VolumeSnapshots, by kind and name; only while one is asked for
    # (`copies.py`, `snapshots.py`).
    aside: Mapping[tuple[str, str], JsonObject] = field(default_factory=dict)
    # Why VolumeSnapshots can't be read, where a Backup or a restore needs them; empty if they can.
    snapshots_problem: str = ""
    # Why they could not be read this time, where a Backup needs them: it waits, and nothing else does.
    snapshots_unread: str = ""
    # The volumes that are attached, each with its node; only for a step of a Backup that depends on it (`snapshots.py`).
    attached_volumes: Mapping[str, str] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    # The one of them that is Running; what it asks for is done by the same evaluation as everything else.
    operation: BrokerGroupOperation | None = None
    # Why its RocketMQCluster wants the group, where a Retire asks; empty: no cluster does.
    wanted_by_cluster: str = ""
    # The nodes of the group's pods, by name; empty where the operator may not read nodes.
    nodes: Mapping[str, JsonObject] = field(default_factory=dict)
    # The groups whose rolling updates come before this group's; empty: it is its turn.
    rolling_before: tuple[GroupKey, ...] = ()
    # When this was seen, as RFC 3339.
    now: str = ""
    # What the API server said when an object of the last pass was refused: the spec is wrong in a way that only it checks.
    refusal: str = ""
    # Whether that was a claim that is there, which may not grow: no pod waits for it.
    claim_refused: bool = False
    # Whether that was because another Service has a node port.
    node_port_taken: bool = False
    # Which other group has this one's broker name, where both would be taken for one broker.
    broker_name_taken: str = ""
    # Which other groups have a port of this one at their nodes' own addresses.
    host_ports_shared: str = ""
    # Which object of a name of ours has another owner, as the last pass found it.
    name_taken: str = ""
    # Why a ConfigMap that the spec names can't be used; empty if all can.
    config_problem: str = ""
    # The authorities that the spec names, and why no pod may be given them yet.
    trust: Trust = NO_TRUST
    # What their ports serve of the pods whose client certificate nears its end (`see/certificates.py`), as far as it is known.
    served: Mapping[str, Validity] = field(default_factory=dict)
    # What spec.tls asks for, where `group` has that with which its pods are made now.
    wanted_tls: TlsSpec | None = None
    # Why the group's pods can't show controllers what those ask for; empty if they can.
    certificate_problem: str = ""
    # Why the version that the spec asks for is not what `group` has: there it is the one that runs.
    version_refused: str = ""
    # Why the Secret that the spec names can't be used. Nothing of what is in it.
    credentials_problem: CredentialsError | None = None
    # When that Secret last changed (RFC 3339); empty if there is none, or it can't be read.
    credentials_changed_at: str = ""
    # What `derived` functions have derived from the fields above. `replace` makes a view of its own, without it.
    known: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def key(self) -> GroupKey:
        return GroupKey(identity.namespace_of(self.group), identity.name_of(self.group))

    @property
    def master(self) -> int | None:
        return self.record.granted_master_id if self.record else None

    @property
    def epoch(self) -> int:
        return self.record.master_epoch if self.record else 0

    @property
    def config_map(self) -> JsonObject | None:
        """The group's own ConfigMap, which its pods mount; None if there is none."""
        return self.config_maps.get(names.config_map_name(self.key.name))

    @property
    def replicas(self) -> Mapping[int, Replica]:
        return self.record.replicas if self.record else {}


P = ParamSpec("P")
T = TypeVar("T")


def derived(derive: Callable[Concatenate[Observed, P], T]) -> Callable[Concatenate[Observed, P], T]:
    """Make `derive` run once for each view and arguments, which must be hashable (`tests/reconcile/test_evaluate.py`)."""

    @functools.wraps(derive)
    def read(seen: Observed, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (derive, *args, *kwargs.items())
        if key not in seen.known:
            seen.known[key] = derive(seen, *args, **kwargs)
        value: T = seen.known[key]
        return value

    return read


S = TypeVar("S")


def rendered_once(render: Callable[[BrokerGroup, S], T]) -> Callable[[BrokerGroup, S], T]:
    """Remember the last result: a pass asks for one group again and again. A group is frozen; another spec is another group."""
    last: list[tuple[BrokerGroup, S, T]] = []

    @functools.wraps(render)
    def read(group: BrokerGroup, settings: S) -> T:
        if not last or last[0][0] is not group or last[0][1] is not settings:
            last[:] = [(group, settings, render(group, settings))]
        return last[0][2]

    return read


def moment(text: str) -> dt.datetime:
    """An RFC 3339 time."""
    return dt.datetime.fromisoformat(text)


def seconds_of(text: str | None) -> float:
    """RFC 3339 as seconds since 1970; 0 for no text."""
    return moment(text).timestamp() if text else 0.0


def metadata(obj: JsonObject) -> JsonObject:
    value: JsonObject = obj.get("metadata") or {}
    return value


def created_seconds(obj: JsonObject) -> float:
    return seconds_of(metadata(obj)["creationTimestamp"])


def being_deleted(obj: JsonObject) -> bool:
    return bool(metadata(obj).get("deletionTimestamp"))


def generation(obj: JsonObject) -> int:
    """Return how often its spec was changed, as the API server counts it."""
    return int(metadata(obj).get("generation", 0))


def uid(obj: JsonObject) -> str:
    return str(metadata(obj).get("uid", ""))


def resource_version(obj: JsonObject) -> str:
    return str(metadata(obj).get("resourceVersion", ""))


def labels_of(obj: JsonObject) -> dict[str, str]:
    return dict(metadata(obj).get("labels") or {})


def annotations_of(obj: JsonObject) -> dict[str, str]:
    return dict(metadata(obj).get("annotations") or {})


def finalizers_of(obj: JsonObject) -> list[str]:
    return list(metadata(obj).get("finalizers") or [])


def last_written(obj: JsonObject, field_manager: str) -> str:
    """When this field manager last changed something of the object, as the API server noted it; the empty text: never."""
    entries = (one for one in metadata(obj).get("managedFields") or [] if one.get("manager") == field_manager)
    return max((str(one["time"]) for one in entries if one.get("time")), default="")


def data_changed_at(obj: JsonObject) -> str:
    """When the object was created, or a writer of its data last wrote; labels and annotations that others write do not count."""
    entries = metadata(obj).get("managedFields") or []
    times = [one.get("time") for one in entries if "f:data" in (one.get("fieldsV1") or {})]
    return max((str(one) for one in (metadata(obj).get("creationTimestamp"), *times) if one), default="")


def owners_of(obj: JsonObject) -> list[JsonObject]:
    return list(metadata(obj).get("ownerReferences") or [])


def is_unowned(obj: JsonObject) -> bool:
    """Whether no owner manages the object. One of another uid is the garbage collector's to judge."""
    return not any(owner.get("controller") for owner in owners_of(obj))


def is_held_by(obj: JsonObject, field_manager: str, field: str, key: str) -> bool:
    """Whether this field manager holds the key of a map of the metadata, as the API server noted it."""
    entries = (one for one in metadata(obj).get("managedFields") or [] if one.get("manager") == field_manager)
    return any(
        f"f:{key}" in ((one.get("fieldsV1") or {}).get("f:metadata") or {}).get(f"f:{field}", {}) for one in entries
    )


def claim_is_bound(claim: JsonObject) -> bool:
    return (claim.get("status") or {}).get("phase") == "Bound"


def claim_size(claim: JsonObject) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def claim_source(claim: JsonObject) -> JsonObject | None:
    """The snapshot or claim that it was made from, as it is applied; None: it was made empty."""
    source = claim["spec"].get("dataSource")
    return None if source is None else {key: source[key] for key in ("apiGroup", "kind", "name") if key in source}


def condition_in(obj: JsonObject, kind: str) -> JsonObject:
    """The condition of that type in the object's status; empty where there is none."""
    conditions: list[JsonObject] = (obj.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind), {})


def pod_is_ready(pod: JsonObject | None) -> bool:
    return pod is not None and not being_deleted(pod) and condition_in(pod, "Ready").get("status") == "True"


def not_ready_since(pod: JsonObject) -> dt.datetime | None:
    """Since when the kubelet has reported the pod as not ready; None for a ready pod, or where no report has a time."""
    found = condition_in(pod, "Ready")
    since = found.get("lastTransitionTime")
    return moment(str(since)) if since and found.get("status") != "True" else None


def broker_never_ran(pod: JsonObject) -> bool:
    """Whether the kubelet reports that the pod's broker has never been started: it has written nothing. Unknown: False."""
    statuses: list[dict[str, Any]] = pod_status(pod).get("containerStatuses") or []
    broker = next((one for one in statuses if one.get("name") == names.CONTAINER_BROKER), {})
    waits = "waiting" in (broker.get("state") or {}) and not broker.get("lastState")
    return pod_phase(pod) == "Pending" and waits and not broker_restarts(pod)


def is_fenced(pod: JsonObject) -> bool:
    """Whether the pod is being killed under the fence's finalizer, until its containers are reported terminated."""
    return being_deleted(pod) and names.FINALIZER_FENCE in finalizers_of(pod)


def pod_status(pod: JsonObject) -> JsonObject:
    value: JsonObject = pod.get("status") or {}
    return value


def pod_phase(pod: JsonObject) -> str:
    return str(pod_status(pod).get("phase") or "Pending")


def broker_restarts(pod: JsonObject) -> int:
    """How often the kubelet started the pod's broker container again."""
    statuses: list[dict[str, Any]] = pod_status(pod).get("containerStatuses") or []
    of_broker = [one for one in statuses if one.get("name") == names.CONTAINER_BROKER]
    return max((int(one.get("restartCount") or 0) for one in of_broker), default=0)


def pod_ip(pod: JsonObject | None) -> str:
    return "" if pod is None else str(pod_status(pod).get("podIP") or "")


def pod_has_ended(pod: JsonObject) -> bool:
    """Nothing of the pod runs, nor will run again: only then is a fenced master known to be dead."""
    return is_over(pod) or not node_of(pod) or containers_are_terminated(pod)


def kubelet_says_ended(pod: JsonObject, node: JsonObject | None) -> bool:
    """Whether its kubelet has reported the end of its containers, and is not silent since: nothing else writes these statuses.

    A phase alone is no such report: a controller writes Failed for a pod whose node is gone. None: the node can't be read.
    """
    is_silent = node is not None and condition_in(node, "Ready").get("status") in {"False", "Unknown"}
    return containers_are_terminated(pod) and not is_silent


def fence_can_be_lifted(pod: JsonObject) -> bool:
    """A pod that is not being deleted restarts its containers, so their end would prove nothing."""
    return is_fenced(pod) and pod_has_ended(pod)


def is_draining(node: JsonObject) -> bool:
    spec = node.get("spec") or {}
    return bool(spec.get("unschedulable")) or any(
        taint.get("key") in DRAIN_TAINTS for taint in spec.get("taints") or []
    )


def drains_since(node: JsonObject, since_seconds: float) -> bool:
    """Whether a node that is draining may be so since then: by another taint than a cordon's, or by the time that this one has."""
    taints = [one for one in (node.get("spec") or {}).get("taints") or [] if one.get("key") in DRAIN_TAINTS]
    return any(one["key"] != CORDON_TAINT or seconds_of(one.get("timeAdded")) >= since_seconds for one in taints)


@derived
def going_claims(seen: Observed, pod_name: str) -> list[str]:
    """The claims of this pod that are being deleted: they, and their data, go when the pod stops. None where it is stopping."""
    pod = seen.pods.get(pod_name)
    if pod is None or being_deleted(pod):
        return []
    claims = identity.claim_names(seen.group, pod_name)
    return [name for name in claims if name in seen.claims and being_deleted(seen.claims[name])]


@derived
def pods_on_going_claims(seen: Observed) -> dict[str, list[str]]:
    """The pods whose next stop takes their data along, each with its claims."""
    return {pod: claims for pod in sorted(seen.pods) if (claims := going_claims(seen, pod))}


def why_not_stopped(pods: list[str]) -> str:
    listed = ", ".join(pods)
    return f"{listed}: a claim is being deleted, and the next stop takes its data along (condition ClaimTerminating)"


# A deleted pod has its grace period; its deletionTimestamp is the end of it. So much later no kubelet is stopping it.
STUCK_TERMINATING_SECONDS: Final = 60.0


def is_stuck_terminating(pod: JsonObject, *, now: str) -> bool:
    """The pod should have been gone for a while: its node does not answer (Strimzi issue 13101)."""
    asked = metadata(pod).get("deletionTimestamp")
    if not asked or pod_has_ended(pod):
        return False
    return moment(now) - moment(str(asked)) > dt.timedelta(seconds=STUCK_TERMINATING_SECONDS)
