"""Every metric of the project by name, with its kind, labels and help text.

What the operator exposes, what the dashboards query and what the SLA reports read cannot drift apart: all three import these
constants. The package lies at the top because the reports run where the operator's libraries are not installed (Spark's
executors), and because the state machine has no metrics. Base units, `_total` for counters, no pod IP in a label
(`tests/observe/test_metrics.py`).
"""

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "brokergroup_"

LABEL_NAMESPACE: Final = "namespace"
LABEL_CLUSTER: Final = "cluster"
LABEL_BROKER_GROUP: Final = "broker_group"
LABEL_BROKER_ID: Final = "broker_id"
LABEL_ROLE: Final = "role"
LABEL_OUTCOME: Final = "outcome"
LABEL_RESULT: Final = "result"
LABEL_PHASE: Final = "phase"
LABEL_INCIDENT: Final = "incident"
LABEL_STEP: Final = "step"
LABEL_CONDITION: Final = "condition"
LABEL_CAUSE: Final = "cause"
LABEL_REQUEST: Final = "request"
LABEL_CODE: Final = "code"
LABEL_VERSION: Final = "version"
LABEL_NODE: Final = "node"
LABEL_ZONE: Final = "zone"
LABEL_RACK: Final = "rack"
LABEL_TENANT: Final = "tenant"
LABEL_REVISION: Final = "revision"
LABEL_PYTHON: Final = "python"

GROUP_LABELS: Final = (LABEL_NAMESPACE, LABEL_CLUSTER, LABEL_BROKER_GROUP)
MEMBER_LABELS: Final = (*GROUP_LABELS, LABEL_BROKER_ID)
# What is known of a member; empty where nobody says it.
MEMBER_FACTS: Final = (LABEL_NODE, LABEL_ZONE, LABEL_RACK, LABEL_VERSION, LABEL_TENANT)

MASTER_EPOCH: Final = "brokergroup_master_epoch"
SYNC_STATE_SET_EPOCH: Final = "brokergroup_sync_state_set_epoch"
SYNC_STATE_SET_SIZE: Final = "brokergroup_sync_state_set_size"
MEMBER_ROLE: Final = "brokergroup_member_role"
MEMBER_PLACE: Final = "brokergroup_member_place"
REPLICA_LAG_BYTES: Final = "brokergroup_replica_lag_bytes"
REPLICATION_BYTES_PER_SECOND: Final = "brokergroup_replication_bytes_per_second"
HEARTBEAT_AGE_SECONDS: Final = "brokergroup_heartbeat_age_seconds"
GROUP_WRITABLE: Final = "brokergroup_group_writable"
FAILOVERS_TOTAL: Final = "brokergroup_failovers_total"
FAILOVER_PHASE_SECONDS: Final = "brokergroup_failover_phase_seconds"
LAST_INCIDENT_TIMESTAMP_SECONDS: Final = "brokergroup_last_incident_timestamp_seconds"
LAST_INCIDENT_STEP_SECONDS: Final = "brokergroup_last_incident_step_seconds"
UNAVAILABLE_SECONDS_TOTAL: Final = "brokergroup_unavailable_seconds_total"
ELECTIONS_TOTAL: Final = "brokergroup_elections_total"
CANARY_MESSAGES_TOTAL: Final = "brokergroup_canary_messages_total"
CANARY_SECONDS: Final = "brokergroup_canary_seconds"
REQUESTS_TOTAL: Final = "brokergroup_requests_total"
RECORD_CONFLICTS_TOTAL: Final = "brokergroup_record_conflicts_total"
UNCLEAN_ELECTIONS_TOTAL: Final = "brokergroup_unclean_elections_total"
SEATS_LOST_TOTAL: Final = "brokergroup_seats_lost_total"
EPOCH_FLOOR_RAISED_TOTAL: Final = "brokergroup_epoch_floor_raised_total"
BROKERS_ADOPTED_TOTAL: Final = "brokergroup_brokers_adopted_total"
LOST_SEATS: Final = "brokergroup_lost_seats"
ELIGIBLE_SIZE: Final = "brokergroup_eligible_size"
EPOCH_JUMP_WAITING: Final = "brokergroup_epoch_jump_waiting"
UNFENCED: Final = "brokergroup_unfenced"
METADATA_DIFFERENCES: Final = "brokergroup_metadata_differences"
UNLINKED_MEMBERS: Final = "brokergroup_unlinked_members"
UNHEARD_MEMBERS: Final = "brokergroup_unheard_members"
CONDITION: Final = "brokergroup_condition"
VOTING_REPLICAS: Final = "brokergroup_voting_replicas"
LACKING_MEMBERS: Final = "brokergroup_lacking_members"
CREATED_TIMESTAMP_SECONDS: Final = "brokergroup_created_timestamp_seconds"
EPOCH_CURES_TOTAL: Final = "brokergroup_epoch_cures_total"
BUILD_INFO: Final = "brokergroup_build_info"

# Values of closed label sets. Reports group by them, so they are as much a contract as the names.
ROLE_MASTER: Final = "master"
ROLE_IN_SYNC: Final = "in_sync"
ROLE_OUT_OF_SYNC: Final = "out_of_sync"
ROLE_ABSENT: Final = "absent"
ROLES: Final = (ROLE_MASTER, ROLE_IN_SYNC, ROLE_OUT_OF_SYNC, ROLE_ABSENT)

PHASE_DETECTED: Final = "detected"
PHASE_FENCED: Final = "fenced"
PHASE_DECIDED: Final = "decided"
PHASE_COMMITTED: Final = "committed"
PHASE_NOTIFIED: Final = "notified"
PHASE_ROLE_CHANGED: Final = "role_changed"
PHASE_INDEX_CAUGHT_UP: Final = "index_caught_up"
PHASE_ROUTE_VISIBLE: Final = "route_visible"
PHASE_IN_SYNC: Final = "in_sync"
PHASE_CANARY_ACK: Final = "canary_ack"
PHASE_TOTAL: Final = "total"
# Under which name older operators counted it; their exports are read for as long as reports go back.
FORMER_PHASE_IN_SYNC: Final = "first_ack"
PHASES: Final = (
    PHASE_DETECTED,
    PHASE_FENCED,
    PHASE_DECIDED,
    PHASE_COMMITTED,
    PHASE_NOTIFIED,
    PHASE_ROLE_CHANGED,
    PHASE_INDEX_CAUGHT_UP,
    PHASE_ROUTE_VISIBLE,
    PHASE_IN_SYNC,
    PHASE_CANARY_ACK,
    PHASE_TOTAL,
)

CAUSE_OUT_OF_MEMORY: Final = "oom"
CAUSE_DISK: Final = "disk"
CAUSE_DRAIN: Final = "drain"
CAUSE_ROLLING_UPGRADE: Final = "rollingUpgrade"
CAUSE_HIBERNATION: Final = "hibernation"
CAUSE_PARTITION: Final = "partition"
CAUSE_CRASH: Final = "crash"
CAUSE_SWITCHOVER: Final = "plannedSwitchover"
CAUSE_UNKNOWN: Final = "unknown"
# Of several that were true at once the first one is reported: the more particular before what it leads to.
CAUSES: Final = (
    CAUSE_OUT_OF_MEMORY,
    CAUSE_DISK,
    CAUSE_DRAIN,
    CAUSE_ROLLING_UPGRADE,
    CAUSE_HIBERNATION,
    CAUSE_PARTITION,
    CAUSE_CRASH,
    CAUSE_SWITCHOVER,
    CAUSE_UNKNOWN,
)

RESULT_NEW_MASTER_ELECTED: Final = "new_master_elected"
RESULT_KEEP_CURRENT_MASTER: Final = "keep_current_master"
RESULT_NO_MASTER_ELECTED: Final = "no_master_elected"
RESULTS: Final = (RESULT_NEW_MASTER_ELECTED, RESULT_KEEP_CURRENT_MASTER, RESULT_NO_MASTER_ELECTED)

FAILOVER_PHASE_BUCKETS_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

RESULT_ACKNOWLEDGED: Final = "acknowledged"
RESULT_FAILED: Final = "failed"
CANARY_BUCKETS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

MetricKind = Literal["gauge", "counter", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """What a page, a dashboard and a report need to know of one metric."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str


def _describe(name: str, kind: MetricKind, labels: tuple[str, ...], text: str) -> MetricDescription:
    return MetricDescription(name=name, kind=kind, labels=labels, help=text)


_DESCRIPTIONS: Final = (
    _describe(MASTER_EPOCH, "gauge", GROUP_LABELS, "Master epoch of the record."),
    _describe(SYNC_STATE_SET_EPOCH, "gauge", GROUP_LABELS, "Epoch of the SyncStateSet."),
    _describe(SYNC_STATE_SET_SIZE, "gauge", GROUP_LABELS, "Members of the SyncStateSet."),
    _describe(
        MEMBER_ROLE,
        "gauge",
        (*MEMBER_LABELS, LABEL_ROLE),
        "1 for the role a member has now, else 0; absent: its heartbeats do not arrive.",
    ),
    _describe(
        MEMBER_PLACE, "gauge", (*MEMBER_LABELS, *MEMBER_FACTS), "1 for the master, else 0; the labels say what it is."
    ),
    _describe(REPLICA_LAG_BYTES, "gauge", MEMBER_LABELS, "Bytes of log that the master has and this replica has not."),
    _describe(
        REPLICATION_BYTES_PER_SECOND,
        "gauge",
        MEMBER_LABELS,
        "Bytes of log that the link from the master to this replica carried in one second, as the master last reported.",
    ),
    _describe(HEARTBEAT_AGE_SECONDS, "gauge", MEMBER_LABELS, "Seconds since the member's last heartbeat."),
    _describe(GROUP_WRITABLE, "gauge", GROUP_LABELS, "1 while the group has a master that can acknowledge, else 0."),
    _describe(FAILOVERS_TOTAL, "counter", (*GROUP_LABELS, LABEL_CAUSE, LABEL_OUTCOME), "Failovers, planned or not."),
    _describe(
        LAST_INCIDENT_TIMESTAMP_SECONDS,
        "gauge",
        (*GROUP_LABELS, LABEL_INCIDENT, LABEL_CAUSE, LABEL_OUTCOME),
        "When the last change of master that this operator pod carried out was detected, as Unix time.",
    ),
    _describe(
        LAST_INCIDENT_STEP_SECONDS,
        "gauge",
        (*GROUP_LABELS, LABEL_INCIDENT, LABEL_STEP),
        "Time from the detection to each step of the last change of master that this operator pod carried out.",
    ),
    _describe(FAILOVER_PHASE_SECONDS, "histogram", (*GROUP_LABELS, LABEL_PHASE), "Time from the fault to each step."),
    _describe(
        UNAVAILABLE_SECONDS_TOTAL, "counter", (*GROUP_LABELS, LABEL_CAUSE), "Seconds in which nothing is writable."
    ),
    _describe(
        CANARY_MESSAGES_TOTAL,
        "counter",
        (*GROUP_LABELS, LABEL_RESULT),
        "Messages of the canary, by whether acknowledged.",
    ),
    _describe(CANARY_SECONDS, "histogram", GROUP_LABELS, "Time until a message of the canary was acknowledged."),
    _describe(ELECTIONS_TOTAL, "counter", (*GROUP_LABELS, LABEL_RESULT), "Decisions of the election policy."),
    _describe(
        REQUESTS_TOTAL, "counter", (LABEL_REQUEST, LABEL_CODE), "Controller requests answered, by response code."
    ),
    _describe(RECORD_CONFLICTS_TOTAL, "counter", GROUP_LABELS, "Commits refused because the record had moved."),
    _describe(
        UNCLEAN_ELECTIONS_TOTAL,
        "counter",
        GROUP_LABELS,
        "Masters elected from outside the seats: messages may be lost.",
    ),
    _describe(SEATS_LOST_TOTAL, "counter", GROUP_LABELS, "Members that came back with less than they had held."),
    _describe(EPOCH_FLOOR_RAISED_TOTAL, "counter", GROUP_LABELS, "Times a record was found to be behind its brokers."),
    _describe(BROKERS_ADOPTED_TOTAL, "counter", GROUP_LABELS, "Brokers taken in whose id the record did not know."),
    _describe(
        LOST_SEATS, "gauge", GROUP_LABELS, "Replicas that held the last seats and lost data; no replica is elected."
    ),
    _describe(ELIGIBLE_SIZE, "gauge", GROUP_LABELS, "Replicas outside the SyncStateSet that may be elected cleanly."),
    _describe(EPOCH_JUMP_WAITING, "gauge", GROUP_LABELS, "1 while a reported epoch waits for a human, else 0."),
    _describe(
        UNFENCED, "gauge", GROUP_LABELS, "1 while the death of a replaced silent master is not confirmed, else 0."
    ),
    _describe(
        METADATA_DIFFERENCES, "gauge", GROUP_LABELS, "Topics, groups and offsets that members lack of their master's."
    ),
    _describe(
        UNHEARD_MEMBERS,
        "gauge",
        GROUP_LABELS,
        "Members whose process runs, and whose heartbeats no operator pod receives.",
    ),
    _describe(UNLINKED_MEMBERS, "gauge", GROUP_LABELS, "Living members that the master has no replication link to."),
    _describe(
        CONDITION,
        "gauge",
        (*GROUP_LABELS, LABEL_CONDITION),
        "1 for a condition of the status that holds, 0 for one that does not.",
    ),
    _describe(
        VOTING_REPLICAS,
        "gauge",
        GROUP_LABELS,
        "Members that the spec wants in the SyncStateSet: no learners; 0 while it hibernates.",
    ),
    _describe(
        LACKING_MEMBERS,
        "gauge",
        GROUP_LABELS,
        "Voting members that the spec wants and that are not in sync, without those whose broker it holds stopped.",
    ),
    _describe(CREATED_TIMESTAMP_SECONDS, "gauge", GROUP_LABELS, "When the BrokerGroup was created, as Unix time."),
    _describe(EPOCH_CURES_TOTAL, "counter", GROUP_LABELS, "Epochs raised to bring an unlinked member back."),
    _describe(
        BUILD_INFO, "gauge", (LABEL_VERSION, LABEL_REVISION, LABEL_PYTHON), "Always 1; the labels say which build."
    ),
)

METRICS: Final = {description.name: description for description in _DESCRIPTIONS}
"""Every metric by its name."""

# What the Java controller's page shows under its own names, for dashboards made for it.
UPSTREAM_LABEL_ADDRESS: Final = "address"
UPSTREAM_LABEL_GROUP: Final = "group"
UPSTREAM_LABEL_PEER_ID: Final = "peer_id"
UPSTREAM_LABEL_BROKER_SET: Final = "broker_set"
UPSTREAM_LABEL_REQUEST_TYPE: Final = "request_type"
UPSTREAM_LABEL_HANDLE_STATUS: Final = "request_handle_status"
UPSTREAM_LABEL_ELECTION_RESULT: Final = "election_result"
UPSTREAM_COMMON_LABELS: Final = (UPSTREAM_LABEL_ADDRESS, UPSTREAM_LABEL_GROUP, UPSTREAM_LABEL_PEER_ID)

UPSTREAM_ROLE: Final = "role"
UPSTREAM_ACTIVE_BROKERS: Final = "active_broker_num"
UPSTREAM_REQUESTS_TOTAL: Final = "request_total"
UPSTREAM_REQUEST_LATENCY: Final = "request_latency_microseconds"
UPSTREAM_ELECTIONS_TOTAL: Final = "election_total"

UPSTREAM_STATUS_SUCCESS: Final = "success"
UPSTREAM_STATUS_FAILED: Final = "failed"
UPSTREAM_ROLE_LEADER: Final = 3

UPSTREAM_LATENCY_BUCKETS_MICROSECONDS: Final = (
    1, 3, 5, 10, 30, 50, 100, 300, 500, 1000, 3000, 5000, 10_000, 30_000, 50_000, 100_000, 300_000, 500_000, 1_000_000,
    3_000_000, 5_000_000, 10_000_000,
)  # fmt: skip

_UPSTREAM_DESCRIPTIONS: Final = (
    _describe(UPSTREAM_ROLE, "gauge", UPSTREAM_COMMON_LABELS, "3 (leader): every one of our controllers leads."),
    _describe(
        UPSTREAM_ACTIVE_BROKERS,
        "gauge",
        (*UPSTREAM_COMMON_LABELS, LABEL_CLUSTER, UPSTREAM_LABEL_BROKER_SET),
        "Brokers of the group whose heartbeats are fresh.",
    ),
    _describe(
        UPSTREAM_REQUESTS_TOTAL,
        "counter",
        (*UPSTREAM_COMMON_LABELS, UPSTREAM_LABEL_REQUEST_TYPE, UPSTREAM_LABEL_HANDLE_STATUS),
        "Controller requests; success is whatever was decided, also a refusal.",
    ),
    _describe(
        UPSTREAM_REQUEST_LATENCY,
        "histogram",
        (*UPSTREAM_COMMON_LABELS, UPSTREAM_LABEL_REQUEST_TYPE),
        "Time of a controller request that was decided.",
    ),
    _describe(
        UPSTREAM_ELECTIONS_TOTAL,
        "counter",
        (*UPSTREAM_COMMON_LABELS, LABEL_CLUSTER, UPSTREAM_LABEL_BROKER_SET, UPSTREAM_LABEL_ELECTION_RESULT),
        "Elections by their result.",
    ),
)

UPSTREAM_METRICS: Final = {description.name: description for description in _UPSTREAM_DESCRIPTIONS}
"""The Java controller's metrics that mean something here, by their names."""
