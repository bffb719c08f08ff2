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
    """The election priority of one broker."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The broker id, as in status.members.")]
    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.JAVA_INT_MAX,
            description="The lower number is preferred. 0: this broker is not elected, even if no other is left. It still"
            " acknowledges messages; if it is master now, the operator switches over.",
        ),
    ]


class IsolationSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The fence: a second container in each pod that kills its broker when another member is to be elected
    (docs/concepts/architecture.md, rule 7).
    """

    enabled: Annotated[
        bool,
        Meta(
            description="True: each pod has the fence container. It kills a Java broker that has been frozen, or whose pod"
            " has reached no controller for five sixths of heartbeatTimeoutMilliseconds (at least 2.5 s), and any"
            " broker that is suspended while its pod is deleted. So a master behind a network partition stops"
            " before another one is elected. It has no access to the Kubernetes API. False: a silent master whose"
            " kubelet cannot be reached either is replaced without proof that it is dead (condition Unfenced), and"
            " what it still acknowledges may be lost."
        ),
    ] = True


# All in milliseconds. More heartbeats would be load and no news. Fewer: a controller that has just started takes a broker that it
# has not heard for dead, and the fence in a pod waits 4 s before it then calls its master alone.
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
    """When a master counts as lost, and which replica replaces it."""

    heartbeat_timeout_milliseconds: Annotated[
        int,
        Meta(
            ge=500,
            le=60_000,
            description="Milliseconds without a heartbeat after which a broker counts as lost. Other times follow from it."
            " Brokers send a heartbeat every sixth of it (100 to 500 ms). After a silent master the operator waits"
            " as long again (at least 3000 ms) for proof that its process is dead, then elects another one and"
            " reports Unfenced. A fence kills a Java master whose pod has reached no controller for five sixths of"
            " it (at least 2500 ms). Raise it on slow or busy machines; a running Java broker and its fence keep"
            " the shorter times until their pod restarts.",
        ),
    ] = 3000
    isolation: Annotated[
        IsolationSpec, Meta(description="The fence: a second container in each pod that can kill its broker.")
    ] = IsolationSpec()
    delay_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description="Seconds to wait for a lost master to come back before another one is elected. No write is"
            " acknowledged meanwhile. 0: no wait.",
        ),
    ] = 0
    preferred_master: Annotated[
        bounds.BrokerId | None,
        Meta(
            description="Broker id of the wanted master, as in status.members. While it is in sync and not master, the"
            " operator switches over to it when that is safe. Absent: the current master stays."
        ),
    ] = None
    unclean_election: Annotated[
        UncleanElection,
        Meta(
            description="Whether a replica outside the SyncStateSet may become master if no member of the set is left. Never:"
            " the group has no master until a member of the set returns. Allowed: the best other replica is"
            " elected, and acknowledged messages that it lacks are lost; rejected with durability Strict."
        ),
    ] = UncleanElection.NEVER
    election_policy: Annotated[
        ElectionPolicy,
        Meta(description=f"Which candidate becomes master. {ELECTION_POLICIES_TEXT}"),
    ] = DEFAULT_ELECTION_POLICY
    priorities: Annotated[
        list[BrokerPriority],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Priorities of brokers in an election; they override the brokers' own (brokerElectionPriority) and"
            " decide between replicas with equal data. Example: [{brokerId: 3, priority: 0}] excludes broker 3.",
            extra_json_schema=bounds.map_list("brokerId"),
        ),
    ] = []
    preferred_zones: Annotated[
        list[bounds.ZoneText],
        Meta(
            max_length=16,
            description="Zones (node label topology.kubernetes.io/zone) where the master should be, best first. They decide"
            " between replicas with equal data and priority. The operator needs the right to read nodes (chart:"
            " rbac.readNodes, on by default). Absent: a zone other than the lost master's is preferred.",
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
    """How writes are acknowledged, beyond spec.durability. `learners` changes by a rolling update, the others without a restart."""

    learners: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.MAX_REPLICAS - 1,
            description="Number of the replicas that are learners (RocketMQ's asyncLearner): they copy the log, but no write"
            " waits for them, and they neither join the SyncStateSet nor become master. The replicas with the"
            " highest broker ids are the learners; the others vote. A change is a rolling update of the members"
            " concerned.",
        ),
    ] = 0
    min_in_sync_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=bounds.MAX_REPLICAS)] | None,
        Meta(
            description="Number of replicas, the master included, that must be in sync for a write to be accepted"
            " (minInSyncReplicas); with fewer, sends fail until enough are in sync again. With durability Fast it"
            " is also how many replicas have a message before it is acknowledged (inSyncReplicas). At least 2 with"
            " Strict. Absent: 2 with Strict, else 1."
        ),
    ] = None
    slave_not_catch_up_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=300)] | None,
        Meta(
            description="Seconds for which a slave may lag behind before it leaves the SyncStateSet"
            " (haMaxTimeSlaveNotCatchup). Writes that wait for this slave are not acknowledged until then. Absent:"
            " 3 with Strict and Available, 15 with Fast."
        ),
    ] = None
