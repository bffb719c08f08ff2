"""Every metric of the project by name, with its kind, labels and help text.

One small module of constants, so that what the operator exposes, what the dashboards query and what the SLA reports
read cannot drift apart: all three import it (`operator-anchors.md` §4 "Metrics"). Base units, `_total` for counters,
never a pod IP in a label.
"""

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "brokergroup_"

LABEL_NAMESPACE: Final = "namespace"
LABEL_CLUSTER: Final = "cluster"
LABEL_BROKER_GROUP: Final = "broker_group"
LABEL_BROKER_ID: Final = "broker_id"
LABEL_ROLE: Final = "role"
LABEL_TRIGGER: Final = "trigger"
LABEL_RESULT: Final = "result"
LABEL_PHASE: Final = "phase"
LABEL_CAUSE: Final = "cause"
LABEL_REQUEST: Final = "request"
LABEL_CODE: Final = "code"
LABEL_VERSION: Final = "version"
LABEL_REVISION: Final = "revision"
LABEL_PYTHON: Final = "python"

GROUP_LABELS: Final = (LABEL_NAMESPACE, LABEL_CLUSTER, LABEL_BROKER_GROUP)
MEMBER_LABELS: Final = (*GROUP_LABELS, LABEL_BROKER_ID)

MASTER_EPOCH: Final = "brokergroup_master_epoch"
SYNC_STATE_SET_EPOCH: Final = "brokergroup_sync_state_set_epoch"
SYNC_STATE_SET_SIZE: Final = "brokergroup_sync_state_set_size"
MEMBER_ROLE: Final = "brokergroup_member_role"
REPLICA_LAG_BYTES: Final = "brokergroup_replica_lag_bytes"
HEARTBEAT_AGE_SECONDS: Final = "brokergroup_heartbeat_age_seconds"
GROUP_WRITABLE: Final = "brokergroup_group_writable"
FAILOVERS_TOTAL: Final = "brokergroup_failovers_total"
FAILOVER_PHASE_SECONDS: Final = "brokergroup_failover_phase_seconds"
UNAVAILABLE_SECONDS_TOTAL: Final = "brokergroup_unavailable_seconds_total"
ELECTIONS_TOTAL: Final = "brokergroup_elections_total"
REQUESTS_TOTAL: Final = "brokergroup_requests_total"
RECORD_CONFLICTS_TOTAL: Final = "brokergroup_record_conflicts_total"
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
PHASE_FIRST_ACK: Final = "first_ack"
PHASE_TOTAL: Final = "total"
PHASES: Final = (
    PHASE_DETECTED,
    PHASE_FENCED,
    PHASE_DECIDED,
    PHASE_COMMITTED,
    PHASE_NOTIFIED,
    PHASE_ROLE_CHANGED,
    PHASE_FIRST_ACK,
    PHASE_TOTAL,
)

RESULT_NEW_MASTER_ELECTED: Final = "new_master_elected"
RESULT_KEEP_CURRENT_MASTER: Final = "keep_current_master"
RESULT_NO_MASTER_ELECTED: Final = "no_master_elected"
ELECTION_RESULTS: Final = (RESULT_NEW_MASTER_ELECTED, RESULT_KEEP_CURRENT_MASTER, RESULT_NO_MASTER_ELECTED)

FAILOVER_PHASE_BUCKETS_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

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
    _describe(MEMBER_ROLE, "gauge", (*MEMBER_LABELS, LABEL_ROLE), "1 for the role a member has now, else 0."),
    _describe(REPLICA_LAG_BYTES, "gauge", MEMBER_LABELS, "Bytes of log that the master has and this replica has not."),
    _describe(HEARTBEAT_AGE_SECONDS, "gauge", MEMBER_LABELS, "Seconds since the member's last heartbeat."),
    _describe(GROUP_WRITABLE, "gauge", GROUP_LABELS, "1 while the group has a master that can acknowledge, else 0."),
    _describe(FAILOVERS_TOTAL, "counter", (*GROUP_LABELS, LABEL_TRIGGER, LABEL_RESULT), "Failovers, planned or not."),
    _describe(FAILOVER_PHASE_SECONDS, "histogram", (*GROUP_LABELS, LABEL_PHASE), "Time from the fault to each step."),
    _describe(
        UNAVAILABLE_SECONDS_TOTAL, "counter", (*GROUP_LABELS, LABEL_CAUSE), "Seconds in which nothing is writable."
    ),
    _describe(ELECTIONS_TOTAL, "counter", (*GROUP_LABELS, LABEL_RESULT), "Decisions of the election policy."),
    _describe(
        REQUESTS_TOTAL, "counter", (LABEL_REQUEST, LABEL_CODE), "Controller requests answered, by response code."
    ),
    _describe(RECORD_CONFLICTS_TOTAL, "counter", GROUP_LABELS, "Commits refused because the record had moved."),
    _describe(
        BUILD_INFO, "gauge", (LABEL_VERSION, LABEL_REVISION, LABEL_PYTHON), "Always 1; the labels tell the build."
    ),
)

METRICS: Final = {description.name: description for description in _DESCRIPTIONS}
"""Every metric by its name."""
