"""The plan of a change of master, in the record while the change is under way, so that any plane can go on with it.

It says which master is left, which one is made, how far the change has come, and what must be restored at a broker. What
brokers have answered is not in it: they are asked again (`change.py`).
"""

from dataclasses import dataclass, replace
from enum import StrEnum


class ChangeKind(StrEnum):
    """Why the master changes."""

    FAILOVER = "Failover"
    """The master is lost, or there was none."""
    SWITCHOVER = "Switchover"
    """A person, a rolling update or the preferred master moves it."""
    DRAIN = "Drain"
    """The master's pod is about to go."""
    ELECT = "Elect"
    """A person chose a member of a group that has no master."""
    CURE = "Cure"
    """The master stays, under new epochs: a slave hangs on a wrong link and gives it up for a change of role only."""
    RECOVERY = "Recovery"
    """The record went back in time, and brokers may act as masters of what it has forgotten."""


class Phase(StrEnum):
    """How far a change has come. The first two may be given up; from `TELLING` on the new master is in the record."""

    FENCING = "Fencing"
    """A silent master is being killed; the election waits for its confirmed death, or for the end of the fence's time."""
    QUIETING = "Quieting"
    """The old master is kept from acknowledging (`minInSyncReplicas=99`) until its slaves have all it acknowledged."""
    TELLING = "Telling"
    """The election is durable, and the brokers are told in order."""
    RESTORING = "Restoring"
    """The change was given up, and what a broker was told for it only is told back; or all are told, and its incident is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What 1004 answers until the brokers were told in order: master and SyncStateSet of before the election."""

    master_broker_id: int | None
    master_epoch: int
    sync_state_set: frozenset[int]
    sync_state_set_epoch: int


@dataclass(frozen=True, slots=True)
class Restore:
    """A `minInSyncReplicas` that a broker had before the change, and must have again (25)."""

    broker_id: int
    min_in_sync_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of master under way. `epoch` is the master epoch that is told: 0 until the election.

    A cure keeps its master and names the `slave`. `unfenced`: the old master's death was not confirmed. `cause` and
    `started_at` are for people and reports; no decision reads them. A request carries a change with the id 0; the decision
    fills in what the record says.
    """

    id: int
    kind: ChangeKind
    phase: Phase
    carried_out_by: str
    from_broker_id: int | None = None
    to_broker_id: int | None = None
    epoch: int = 0
    slave: int | None = None
    before: Before | None = None
    restore: Restore | None = None
    cause: str = ""
    unfenced: bool = False
    started_at: str = ""

    @property
    def key(self) -> tuple[int, str]:
        """Identifies the change, also among those of a lost record, whose ids began anew."""
        return self.id, self.started_at

    @property
    def waits_for_election(self) -> bool:
        """Whether the election is still to come: the change may be given up."""
        return self.phase in (Phase.FENCING, Phase.QUIETING)

    @property
    def is_decided(self) -> bool:
        """Whether the election is in the record."""
        return self.phase in (Phase.TELLING, Phase.RESTORING) and self.epoch > 0

    @property
    def is_told(self) -> bool:
        """Whether nothing is left to do but to report its incident when that ends."""
        return self.phase is Phase.RESTORING and self.is_decided and self.restore is None

    @property
    def told(self) -> "Change":
        """The same after all were told: it stays in the record for its incident, which is still open."""
        return replace(self, phase=Phase.RESTORING, restore=None)

    def goes_on_in(self, after: "Change | None") -> bool:
        """Whether that is the same change, and its election still stands."""
        return after is not None and after.key == self.key and after.is_decided >= self.is_decided

    def describe(self) -> str:
        """Draw the change in one line, for traces and logs."""
        before, restore = self.before, self.restore
        shown = {
            "from": self.from_broker_id,
            "to": self.to_broker_id,
            "slave": self.slave,
            "epoch": self.epoch or None,
            "before": before and f"({before.master_broker_id or 'none'},{before.master_epoch})",
            "restore": restore and f"({restore.broker_id},{restore.min_in_sync_replicas})",
        }
        parts = [f"{name}={value}" for name, value in shown.items() if value is not None]
        head = f"change={self.id} {self.kind} {self.phase} by={self.carried_out_by or '-'}"
        return " ".join([head, *parts, *(["unfenced"] if self.unfenced else [])])
