"""BrokerGroup.spec.failover and .replication: when a master is replaced, by which replica, and what a write waits for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.rules import (
    Rule,
    validations,
)

# Name -> what it says to a user. A test compares the names with the registry of controller_core.
ELECTION_POLICIES: Final = {
    "most-data": "the replica with the highest epoch and then the most data",
    "preferred-zone": "one in the most wanted zone among those that have nearly the most data (up to 16 MiB less);"
    " not with durability Fast",
}
DEFAULT_ELECTION_POLICY: Final = "most-data"
ELECTION_POLICIES_TEXT: Final = " ".join(f"{name}: {text}." for name, text in ELECTION_POLICIES.items())

ElectionPolicy = Annotated[str, Meta(extra_json_schema={"enum": sorted(ELECTION_POLICIES)})]


class UncleanElection(StrEnum):
    """May a replica outside the SyncStateSet be elected when no member of the set is left?"""

    NEVER = "Never"
    ALLOWED = "Allowed"


class BrokerPriority(Struct, frozen=True, rename="camel", kw_only=True):
    """The election priority of one broker id."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The broker id, as in status.members.")]
    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.JAVA_INT_MAX,
            description="The lower number is preferred. 0: never a master, not even when no other is left; it still is a copy"
            " that acknowledges, and hands over if it is master when it gets it.",
        ),
    ]


class IsolationSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The fence inside the pod, for nodes that can't be reached from outside (docs/concepts/architecture.md, rule 7)."""

    enabled: Annotated[
        bool,
        Meta(
            description="A second container in each pod kills a stopped broker whose pod is deleted; a Java broker also when"
            " no controller can be reached from the pod for five sixths of the heartbeat timeout (at least 2.5 s), or when it was"
            " frozen: a Python master asks the controller anew before it acknowledges. The container has no access to the"
            " Kubernetes API."
        ),
    ] = True


# All in milliseconds. More heartbeats would be load and no news. Fewer: a controller that has just started takes a broker that it
# has not heard for dead, and the fence in a pod waits 3 s before it then calls its master alone.
LEAST_HEARTBEAT_INTERVAL: Final = 100
MOST_HEARTBEAT_INTERVAL: Final = 500
# A kubelet takes at least 2 s for a pod that does not end by itself, whatever grace is asked for.
LEAST_FENCE: Final = 3000
# A shorter one gains nothing: no other master is elected before the fence time has passed. And it would leave the fence in the pod
# no time to find another controller, and to ask its broker and the other fences.
LEAST_ISOLATION: Final = 2500


@dataclass(frozen=True, kw_only=True)
class DetectionTimes:
    """The times in which a master is lost, fenced and replaced. `docs/adr/0008-in-pod-fence.md` says why they must fit:

    * heartbeat timeout >= 2 heartbeat intervals: one lost heartbeat is no lost broker;
    * isolation + 100 <= heartbeat timeout - interval + fence, the earliest election: an isolated master is dead by then. The last
      heartbeat may have left an interval before the cut, and the fence in the pod looks every 50 ms;
    * fence > isolation / 3: else an outage of all operators kills masters.
    """

    # After this silence a broker is lost.
    heartbeat_timeout_milliseconds: int
    # Between two heartbeats of a broker.
    heartbeat_interval_milliseconds: int
    # How long a failover of a silent master waits for the confirmation that its process is dead.
    fence_milliseconds: int
    # How long a Java master may run without its pod reaching any controller.
    isolation_milliseconds: int


def times_of(heartbeat_timeout_milliseconds: int) -> DetectionTimes:
    """Return the times that go with this heartbeat timeout."""
    timeout = heartbeat_timeout_milliseconds
    return DetectionTimes(
        heartbeat_timeout_milliseconds=timeout,
        heartbeat_interval_milliseconds=min(max(timeout // 6, LEAST_HEARTBEAT_INTERVAL), MOST_HEARTBEAT_INTERVAL),
        fence_milliseconds=max(timeout, LEAST_FENCE),
        isolation_milliseconds=max(timeout * 5 // 6, LEAST_ISOLATION),
    )


class FailoverSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """When a master is given up, and what may replace it."""

    heartbeat_timeout_milliseconds: Annotated[
        int,
        Meta(
            ge=500,
            le=60_000,
            description="A broker silent for this long is lost. The other times of a failover follow from it: heartbeats (a sixth;"
            " 100 to 500), the wait for the confirmation that a silent master's process is dead, after which another is elected,"
            " Unfenced (the same; at least 3000), and how long a Java master may run without its pod reaching any controller"
            " (five sixths; at least 2500). Raise it on slow or busy machines: a running Java broker and its fence keep the shorter"
            " times until their pod's next restart.",
        ),
    ] = 3000
    isolation: Annotated[IsolationSpec, Meta(description="The fence inside the pod.")] = IsolationSpec()
    delay_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description="How long a lost master is waited for before another one is elected. 0: not at all."
            " Writes stand still for as long.",
        ),
    ] = 0
    preferred_master: Annotated[
        bounds.BrokerId | None,
        Meta(
            description="The broker id that should be master while it is in sync: it is switched to, by a planned switchover,"
            " when that is safe. Absent: the present master stays master."
        ),
    ] = None
    unclean_election: Annotated[
        UncleanElection,
        Meta(description="Allowed trades acknowledged messages for availability; refused with durability Strict."),
    ] = UncleanElection.NEVER
    election_policy: Annotated[
        ElectionPolicy,
        Meta(description=f"Which candidate becomes master. {ELECTION_POLICIES_TEXT}"),
    ] = DEFAULT_ELECTION_POLICY
    priorities: Annotated[
        list[BrokerPriority],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Election priority of broker ids, over what their heartbeats say (brokerElectionPriority)."
            " It decides between replicas with equal data; 0 bars a replica from mastership altogether.",
            extra_json_schema=bounds.map_list("brokerId"),
        ),
    ] = []
    preferred_zones: Annotated[
        list[bounds.ZoneText],
        Meta(
            max_length=16,
            description="Zones (node label topology.kubernetes.io/zone) in which a master is wanted, best first. It decides"
            " between replicas with equal data and priority. Absent: another zone than the lost master's."
            " Needs the right to read nodes (the chart's value rbac.readNodes, on by default).",
            extra_json_schema=bounds.ATOMIC_LIST
            # Not as FieldValueDuplicate: the API server then reports the value only.
            | validations(
                Rule("self.all(zone, self.exists_one(other, other == zone))", "preferredZones names a zone twice")
            ),
        ),
    ] = []

    @property
    def times(self) -> DetectionTimes:
        """The times that follow from the heartbeat timeout."""
        return times_of(self.heartbeat_timeout_milliseconds)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.preferredMaster) ||"
            " !self.priorities.exists(entry, entry.brokerId == self.preferredMaster && entry.priority == 0)",
            "preferredMaster has priority 0 in priorities, which bars it from mastership",
            field_path=".preferredMaster",
        ),
    )


class ReplicationSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What spec.durability leaves open. All of it but `learners` reaches running brokers without a restart."""

    learners: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.MAX_REPLICAS - 1,
            description="How many of the replicas are async learners (asyncLearner): they copy the log, are never waited for, never"
            " in the SyncStateSet and never master. Those with the highest broker ids are. The others vote. A change is made by a"
            " rolling update of the members that it concerns.",
        ),
    ] = 0
    min_in_sync_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=bounds.MAX_REPLICAS)] | None,
        Meta(
            description="A write is refused while fewer replicas than that are in sync (minInSyncReplicas). With durability Fast"
            " so many have a message before it is acknowledged (inSyncReplicas). Absent: 2 with durability Strict, else 1. Never"
            " below 2 with Strict."
        ),
    ] = None
    slave_not_catch_up_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=300)] | None,
        Meta(
            description="A slave that is behind for this long leaves the SyncStateSet (haMaxTimeSlaveNotCatchup). Until then,"
            " writes that wait for it stand still. Absent: 3 with Strict and Available, 15 with Fast."
        ),
    ] = None
