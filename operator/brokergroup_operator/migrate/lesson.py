"""What a Java controller must be taught so that it knows a group as our record does; pure.

A Java controller has no import. Its state is driven by its own requests (docs/reference/controller.md), and three of its rules
decide the order:

* ids are given in any order but ``nextAssignBrokerId`` counts applications, so every id below the next one is applied for, in
  order; those nobody holds are cleaned away at the end, and the count stays;
* the first election asks no question, every later one wants a winner that heartbeats, and one that finds nobody raises the
  master epoch by one and leaves no master: so a *stand-in* that never heartbeats is elected first, and lost as often as needed;
* an epoch below their own means nothing to brokers. So everything up to the election of the present master, which brings exactly
  their epoch, may happen while they are listening.

The stand-in is an id that nobody holds: a hole, or else the next one, which is used up by it. It also takes turns in the
SyncStateSet, since each change raises the set's epoch by one, and it must end not below what the brokers have seen.

Nothing here may heartbeat for a real broker: Java binds a broker to the first connection it was heard on, for ever (issue
11045), and would take the end of ours for the broker's death.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controller_core.model import BrokerGroupRecord

NOWHERE = "127.0.0.1:1"
"""The address of ids that nobody holds: nothing listens there, so a stray notification reaches nobody."""


class LessonError(Exception):
    """The record is not one that can be handed to a Java controller; the message says what has to be so first."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One id to apply for. ``held`` is False for the stand-in and for holes."""

    broker_id: int
    address: str
    register_check_code: str
    held: bool


@dataclass(frozen=True, slots=True)
class Lesson:
    """The numbers of one group."""

    cluster_name: str
    broker_name: str
    seats: tuple[Seat, ...]
    stand_in: int
    master: int
    master_epoch: int
    sync_state_set: frozenset[int]
    sync_state_set_epoch: int

    @property
    def elects_stand_in(self) -> bool:
        """Whether the stand-in is elected first: not where the brokers are in their first epoch."""
        return self.master_epoch > 1

    @property
    def lost_elections(self) -> int:
        """How often the stand-in is lost: its own election and the last one give an epoch each."""
        return max(self.master_epoch - 2, 0)

    @property
    def waits_without_election(self) -> bool:
        """Whether nobody may be elected before the brokers are there: the stand-in could not be lost again.

        A master on record that does not heartbeat is "repaired" by Java's own scan as soon as any broker does, by three lost
        elections (met with a real 5.5.0): so the wait is with no master, or before the first one.
        """
        return self.lost_elections == 0

    @property
    def epoch_while_waiting(self) -> int:
        """The master epoch at which the controller waits for the brokers: below theirs."""
        return 0 if self.waits_without_election else self.master_epoch - 1

    @property
    def ids_to_clean(self) -> tuple[int, ...]:
        """The ids that nobody holds, once all is done."""
        return tuple(seat.broker_id for seat in self.seats if not seat.held)

    def alterations(
        self, now: Iterable[int], now_epoch: int, final: frozenset[int] | None = None
    ) -> tuple[frozenset[int], ...]:
        """The SyncStateSets to propose one after the other, from what it is now to the final one at a sufficient epoch.

        ``final`` is what can be proposed of the record's set: a member that does not heartbeat is refused (2006).
        """
        final = self.sync_state_set if final is None else final
        alone = frozenset({self.master})
        with_stand_in = alone | {self.stand_in}
        current = frozenset(now)
        proposals: list[frozenset[int]] = []
        while current != final or now_epoch + len(proposals) < self.sync_state_set_epoch:
            missing = self.sync_state_set_epoch - now_epoch - len(proposals)
            now_the_final_one = missing <= 1 and current != final
            proposals.append(final if now_the_final_one else alone if current == with_stand_in else with_stand_in)
            current = proposals[-1]
        return tuple(proposals)


def make_lesson(record: BrokerGroupRecord) -> Lesson:
    """The lesson of a record. ``LessonError`` for a group without a master, or with a member nobody can find."""
    master = record.granted_master_id
    if master is None:
        raise LessonError(
            f"{record.broker_name} has no master with a live process: wait until one is elected, then go back"
        )
    lost = sorted(
        broker_id for broker_id, replica in record.replicas.items() if replica.claimed and not replica.address
    )
    if lost:
        raise LessonError(
            f"{record.broker_name}: nobody knows the address of {lost}: let these brokers register, or clean them (1011)"
        )
    held = {broker_id: replica for broker_id, replica in record.replicas.items() if replica.claimed}
    holes = [broker_id for broker_id in range(1, record.next_broker_id) if broker_id not in held]
    stand_in = holes[0] if holes else record.next_broker_id
    seats = tuple(
        Seat(broker_id, held[broker_id].address, held[broker_id].register_check_code, held=True)
        if broker_id in held
        else Seat(broker_id, NOWHERE, f"{NOWHERE};nobody-{broker_id}", held=False)
        for broker_id in range(1, max(record.next_broker_id, stand_in + 1))
    )
    return Lesson(
        cluster_name=record.cluster_name,
        broker_name=record.broker_name,
        seats=seats,
        stand_in=stand_in,
        master=master,
        master_epoch=record.master_epoch,
        sync_state_set=record.sync_state_set,
        sync_state_set_epoch=record.sync_state_set_epoch,
    )
