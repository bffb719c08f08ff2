"""One line for each group in the overview: how bad it is, in one number to sort by and one sentence to read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.page.what_if import may_lose_its_master
from brokergroup_operator.reconcile.decide.failover_safe import why_not_writable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from brokergroup_operator.page.what_if import Wishes
    from controller_core.model import BrokerGroupRecord


class Severity(IntEnum):
    """Worst first. The browser has a word and a sign for each (static/words.js)."""

    DOWN = 0
    REFUSING = 1
    WAITS_FOR_PERSON = 2
    EXPOSED = 3
    BUSY = 4
    WELL = 5
    ASLEEP = 6


# True means that a person has to act (docs/reference/brokergroup.md).
_FOR_A_PERSON: Final = (
    "Unfenced",
    "EpochJump",
    "SeatLost",
    "Stalled",
    "CredentialsMissing",
    "ClaimTerminating",
    "ClientCertificateEnding",
    "ObjectiveInvalid",
)
_UNDER_WAY: Final = (
    "Recovering",
    "MetadataDiverged",
    "Reconciling",
    "Paused",
    "DegradedDurability",
    "ConfigurationDrifted",
    "Fenced",
    "TlsChanging",
    "VolumeResizing",
    "BrokersStopped",
)
# The lag in a row moves in powers of two from here on, so that the row of a busy group does not change twice a second.
_SMALLEST_LAG_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """What the overview shows of a group."""

    severity: Severity
    text: str
    master: int
    epoch: int
    in_sync: int
    alive: int
    wanted: int
    failing_over_since: float
    nodes: tuple[str, ...]
    master_node: str

    def as_list(self) -> list[Any]:
        """As the browser gets it: a list takes half the bytes of an object."""
        return [
            int(self.severity),
            self.text,
            self.master,
            self.epoch,
            self.in_sync,
            self.alive,
            self.wanted,
            self.failing_over_since,
            list(self.nodes),
            self.master_node,
        ]


def row_of(snapshot: GroupSnapshot | None, group_object: JsonObject | None, wishes: Wishes | None) -> Row:
    """The row of a group that the controller plane has met, that the API knows, or both."""
    conditions = _conditions(group_object)
    record = snapshot.record if snapshot is not None else None
    if conditions.get("Hibernated", ("", ""))[0] == "True":
        severity, text = Severity.ASLEEP, "Hibernated: nothing runs"
    else:
        severity, text = _judge(snapshot, record, wishes, conditions)
    nodes = nodes_of(snapshot, group_object)
    master = (record.granted_master_id if record is not None else None) or 0
    running = snapshot.in_progress if snapshot is not None else None
    return Row(
        severity=severity,
        text=text,
        master=master,
        epoch=record.master_epoch if record is not None else 0,
        in_sync=len(record.sync_state_set) if record is not None else 0,
        alive=len(snapshot.live) if snapshot is not None else 0,
        wanted=_wanted(group_object, record),
        failing_over_since=round(running.started_at_unix_seconds * 1000) if running is not None else 0,
        nodes=tuple(sorted(set(nodes.values()))),
        master_node=nodes.get(master, ""),
    )


def nodes_of(snapshot: GroupSnapshot | None, group_object: JsonObject | None) -> dict[int, str]:
    """Which node each member is on, as far as it is known."""
    found = {
        int(member["brokerId"]): str(member["node"])
        for member in ((group_object or {}).get("status") or {}).get("members") or []
        if member.get("node")
    }
    if snapshot is not None:
        found |= {one: facts["node"] for one, facts in snapshot.member_facts.items() if facts.get("node")}
    return found


def _judge(
    snapshot: GroupSnapshot | None,
    record: BrokerGroupRecord | None,
    wishes: Wishes | None,
    conditions: Mapping[str, tuple[str, str]],
) -> tuple[Severity, str]:
    if snapshot is None or record is None:
        return Severity.BUSY, "This operator pod has not read the group's record yet"
    down = _down(snapshot, record)
    if down:
        return Severity.DOWN, down
    if not snapshot.takes_writes:
        return _without_writes(snapshot, record, wishes)
    if waiting := _first_true(conditions, _FOR_A_PERSON):
        return Severity.WAITS_FOR_PERSON, waiting
    safe = may_lose_its_master(wishes, snapshot)[0] if wishes is not None else None
    if safe is not None and not safe.holds:
        return Severity.EXPOSED, safe.text
    return _busy_or_well(snapshot, record, wishes, conditions)


def _first_true(conditions: Mapping[str, tuple[str, str]], names: tuple[str, ...]) -> str:
    for name in names:
        status, message = conditions.get(name, ("", ""))
        if status == "True":
            return f"{name}: {message}"
    return ""


def _down(snapshot: GroupSnapshot, record: BrokerGroupRecord) -> str:
    running = snapshot.in_progress
    if running is not None and running.kind.value == "failover":
        return f"Failing over: broker {running.from_broker_id} is lost"
    if record.granted_master_id is None:
        return "No broker is master"
    if running is not None:
        return f"Switching over from broker {running.from_broker_id}"
    return ""


def _without_writes(snapshot: GroupSnapshot, record: BrokerGroupRecord, wishes: Wishes | None) -> tuple[Severity, str]:
    if snapshot.writable:
        return Severity.REFUSING, "A Retire is about to delete it: no broker acknowledges"
    if wishes is None:
        return Severity.DOWN, f"Broker {record.granted_master_id} can acknowledge no write"
    why = why_not_writable(wishes.group.spec, record, snapshot)
    too_few = why.reason is Reason.NOT_ENOUGH_IN_SYNC_REPLICAS
    return Severity.REFUSING if too_few else Severity.DOWN, why.message


def _busy_or_well(
    snapshot: GroupSnapshot,
    record: BrokerGroupRecord,
    wishes: Wishes | None,
    conditions: Mapping[str, tuple[str, str]],
) -> tuple[Severity, str]:
    if under_way := _first_true(conditions, _UNDER_WAY):
        return Severity.BUSY, under_way
    learners = wishes.learners if wishes is not None else frozenset()
    missing = sorted(set(record.replicas) - record.sync_state_set - learners)
    if missing:
        return Severity.BUSY, f"Not in sync: broker {', '.join(map(str, missing))}"
    lag_bytes = max((lag_of(snapshot, one) or 0 for one in record.sync_state_set), default=0)
    if lag_bytes > _SMALLEST_LAG_BYTES:
        return Severity.WELL, f"All in sync; a member is up to {1 << lag_bytes.bit_length() >> 20} MiB behind"
    return Severity.WELL, "All in sync; any one member may be lost"


def lag_of(snapshot: GroupSnapshot, broker_id: int) -> int | None:
    """Bytes of log that the master has reported and this member has not; None where either has reported nothing."""
    master = snapshot.live.get((snapshot.record.granted_master_id or 0) if snapshot.record is not None else 0)
    member = snapshot.live.get(broker_id)
    if master is None or member is None or master.max_offset < 0 or member.max_offset < 0:
        return None
    return max(0, master.max_offset - member.max_offset)


def _wanted(group_object: JsonObject | None, record: BrokerGroupRecord | None) -> int:
    if group_object is not None:
        return int(group_object["spec"].get("replicas", 3))
    return len(record.replicas) if record is not None else 0


def _conditions(group_object: JsonObject | None) -> dict[str, tuple[str, str]]:
    found = ((group_object or {}).get("status") or {}).get("conditions") or []
    return {str(one["type"]): (str(one["status"]), str(one.get("message", ""))) for one in found}
