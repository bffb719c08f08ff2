"""The harness's memory of a group: heartbeats sent, ids taken, and each controller's view of them."""

from __future__ import annotations

from dataclasses import dataclass, field

LOWEST_PRIORITY = 2**31 - 1


@dataclass(frozen=True)
class Report:
    """A controller's memory of one replica's heartbeats."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = LOWEST_PRIORITY

    @property
    def end(self) -> tuple[int, int]:
        """Return the last epoch and the end of the log: more of it wins where the set is in doubt."""
        return self.epoch, self.max_offset

    @property
    def says_something(self) -> bool:
        return self.epoch >= 0 or self.max_offset >= 0


@dataclass
class Memory:
    """The part of one group's past that explains different answers of the two controllers."""

    # Java keeps the highest (epoch, offset) of an entry; ours keeps the present process's last report.
    java_reports: dict[int, Report] = field(default_factory=dict)
    our_reports: dict[int, Report] = field(default_factory=dict)
    # What each id's process holds: its last heartbeat, answered to 1007 too. Also after the end of its connection, until 1003.
    logs: dict[int, Report] = field(default_factory=dict)
    # Ids that ours counts as alive after 1003 or 1002, without a heartbeat since.
    alive_by_request: set[int] = field(default_factory=set)
    # The connection of an id's heartbeats: Java keeps the first, ours the latest.
    java_connection: dict[int, str] = field(default_factory=dict)
    our_connection: dict[int, str] = field(default_factory=dict)
    check_codes: dict[int, str] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    highest_id: int = 0
    highest_epoch: int = 0
    cluster: str | None = None
    cleaned: set[int] = field(default_factory=set)
    # Whether a poll (1004) was answered 2008, and no registration (1003) has come since.
    polled_unknown: bool = False
    # The highest epoch and the highest offset that each id ever reported: below them a seat in the set is lost (rule 2).
    # The cluster of each id's last heartbeat.
    beat_cluster: dict[int, str | None] = field(default_factory=dict)
    # How often each id was lost as a master: from the second time on ours passes it over if another replica can lead.
    losses: dict[int, int] = field(default_factory=dict)
    told_most: dict[int, tuple[int, int]] = field(default_factory=dict)

    def heartbeat(self, broker_id: int, report: Report, connection: str) -> None:
        """Note a heartbeat that both accepted."""
        held = self.java_reports.get(broker_id)
        if held is not None and (held.epoch, held.max_offset) >= (report.epoch, report.max_offset):
            self.java_reports[broker_id] = Report(held.epoch, held.max_offset, report.priority)
        else:
            self.java_reports[broker_id] = report
        if report.says_something:
            self.our_reports[broker_id] = report
        else:
            self.our_reports.pop(broker_id, None)
        most = self.told_most.get(broker_id, (-1, -1))
        self.told_most[broker_id] = (max(most[0], report.epoch), max(most[1], report.max_offset))
        self.java_connection.setdefault(broker_id, connection)
        self.our_connection[broker_id] = connection
        self.alive_by_request.discard(broker_id)

    def tells_less(self, broker_id: int, report: Report) -> bool:
        """Whether a report is below this id's earlier ones."""
        most = self.told_most.get(broker_id, (-1, -1))
        return report.epoch < most[0] or report.max_offset < most[1]

    def may_lead(self, broker_id: int) -> bool:
        """Whether its present process has reported its data, and no less than before."""
        report = self.our_reports.get(broker_id)
        return report is not None and not self.tells_less(broker_id, report)

    def polled(self, verb: str, code: int | None) -> None:
        """Note a poll (1004) of an unknown group, and the registration (1003) for which ours counts it."""
        if verb in ("1003", "1004"):
            self.polled_unknown = verb == "1004" and (self.polled_unknown or code == 2008)

    def registered(self, broker_id: int) -> None:
        """Note a 1003: ours drops the earlier process's reports, and counts the request as a sign of life."""
        self.our_reports.pop(broker_id, None)
        self.our_connection.pop(broker_id, None)
        self.alive_by_request.add(broker_id)

    def asked_for_master(self, broker_id: int) -> None:
        """Note the broker's own 1002: for ours a sign of life."""
        if broker_id not in self.our_connection:
            self.alive_by_request.add(broker_id)

    def ends_with(self, broker_id: int, connection: str) -> tuple[bool, bool]:
        """Whether this connection's end counts as the replica's death: for Java, and for ours."""
        java = self.java_connection.get(broker_id) == connection
        return java, self.our_connection.get(broker_id) == connection

    def closed(self, broker_id: int, connection: str) -> None:
        """Note the end of a connection that carried its heartbeats."""
        java, ours = self.ends_with(broker_id, connection)
        if java:
            self.java_connection.pop(broker_id)
            self.java_reports.pop(broker_id, None)
        if ours:
            self.our_connection.pop(broker_id)
            self.our_reports.pop(broker_id, None)

    def our_alive(self, *more: int) -> frozenset[int]:
        """Return the ids alive at ours, including these."""
        return frozenset(self.our_connection) | frozenset(self.alive_by_request) | frozenset(more)
