"""The state of a replica that requests, HA links and role changes share: its store, its role, its term as master.

``controller/roles.py`` changes the role.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_replica.master_term import AcknowledgementPolicy, MasterTerm, Outcome
from rocketmq_replica.role_change import NO_BROKER_ID, Instant, MasterSeen

if TYPE_CHECKING:
    from rocketmq_replica.configuration import ReplicaConfiguration
    from rocketmq_replica.log.message_store import MessageStore, NewMessage, Stored
    from rocketmq_replica.topics import Topics


logger = logging.getLogger(__name__)

PendingSend = Callable[[Outcome], None]
"""Called once with the outcome of a stored message."""

_CONTAINER_ROLE_MASTER_ID = 0


class Role(enum.Enum):
    """The role of this replica."""

    FENCED = "FENCED"  # without a role: neither reads nor writes
    MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class NotWritableError(Exception):
    """This replica stores no messages now."""


@dataclass
class LiveSettings:
    """Keys that UPDATE_BROKER_CONFIG changes in memory only."""

    slave_timeout_seconds: float
    ha_max_time_slave_not_catchup_seconds: float
    broker_election_priority: int
    operators_sign: bool
    name_server_addresses: tuple[str, ...]
    controller_addresses: tuple[str, ...]
    broker_permission: int


def monotonic_seconds() -> float:
    """Return the clock of all deadlines, which continues while the process is stopped."""
    return time.monotonic()


def wall_clock_ms() -> int:
    """Return the clock of time stamps in records."""
    return time.time_ns() // 1_000_000


def now() -> Instant:
    """Return both clocks."""
    return Instant(monotonic_seconds(), wall_clock_ms())


@dataclass
class Broker:
    """The shared state of one replica. The ``on_…`` functions are set by the parts that react (``process.py``)."""

    configuration: ReplicaConfiguration
    store: MessageStore
    topics: Topics
    broker_id: int = NO_BROKER_ID
    role: Role = Role.FENCED
    master: MasterSeen = field(default_factory=MasterSeen)
    term: MasterTerm[PendingSend] | None = None
    on_appended: Callable[[], None] = lambda: None
    on_confirmed: Callable[[], None] = lambda: None
    member_addresses: dict[int, str] = field(default_factory=dict)  # as a controller last said (1006)
    on_proposal_possible: Callable[[], None] = lambda: None
    on_unproven_slave: Callable[[], None] = lambda: None
    on_distrust: Callable[[], None] = lambda: None
    on_flush_wanted: Callable[[], None] = lambda: None
    on_flushed: Callable[[], None] = lambda: None
    on_name_servers: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Take the initial values of the live keys from the configuration."""
        self.policy = AcknowledgementPolicy(
            self.configuration.all_ack_in_sync_state_set,
            self.configuration.in_sync_replicas,
            self.configuration.min_in_sync_replicas,
            self.configuration.enable_auto_in_sync_replicas,
        )
        self.live = LiveSettings(
            self.configuration.slave_timeout_seconds,
            self.configuration.ha_max_time_slave_not_catchup_seconds,
            self.configuration.broker_election_priority,
            self.configuration.operators_sign,
            self.configuration.name_server_addresses,
            self.configuration.controller_addresses,
            self.configuration.broker_permission,
        )
        self.retention = self.configuration.retention
        self.disk_full = ""
        self.started_ms = wall_clock_ms()
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_seconds = 0.0

    @property
    def shown_broker_id(self) -> int:
        """The id that NameServers and clients see: 0 as master, else the broker id."""
        return _CONTAINER_ROLE_MASTER_ID if self.role is Role.MASTER else self.broker_id

    @property
    def other_members(self) -> frozenset[int]:
        """The other members of the SyncStateSet, linked or not; empty unless this replica is master."""
        if self.term is None or self.role is not Role.MASTER:
            return frozenset()
        return self.term.sync_state.members - {self.term.sync_state.own_id}

    @property
    def has_successors(self) -> bool:
        """Whether this is a master with a failover candidate: another member of the SyncStateSet is linked."""
        return self.term is not None and bool(self.other_members & self.term.sync_state.links.keys())

    def put_all(self, messages: Sequence[NewMessage]) -> list[Stored]:
        """Store messages of one queue as master. Raise NotWritableError, NotEnoughReplicasError or MessageTooLargeError."""
        if self.term is None or self.role is not Role.MASTER:
            raise NotWritableError(f"role is {self.role.value}")
        if self.disk_full:
            raise NotWritableError(self.disk_full)
        try:
            return self.term.put_all(messages, store_timestamp_ms=wall_clock_ms())
        except OSError as error:
            logger.exception("cannot write the commit log")
            raise NotWritableError(f"cannot write: {error.strerror}") from error

    def acknowledged_at_once(self, end_offset: int) -> bool:
        """Whether the message needs no wait for its acknowledgement; then it counts as acknowledged."""
        if self.term is None or not self.term.acknowledges_at_once(end_offset, now_seconds=monotonic_seconds()):
            return False
        self.on_appended()
        self.on_confirmed()
        return True

    def when_acknowledged(self, pending: PendingSend, end_offset: int) -> None:
        """Call ``pending`` once, perhaps now, with the outcome of the message that ends at ``end_offset``."""
        if self.term is None:
            pending(Outcome.MASTER_NO_MORE)
            return
        now = monotonic_seconds()
        deadline = now + self.live.slave_timeout_seconds
        self.term.wait(
            pending,
            end_offset=end_offset,
            deadline_seconds=deadline,
            flush_deadline_seconds=now + self.configuration.sync_flush_timeout_seconds,
        )
        self.on_appended()
        if self.configuration.sync_flush:
            self.on_flush_wanted()
        if self.term.settles_alone:
            self.settle()
        self._schedule_expiry(deadline)

    def stored_without_waiting(self) -> None:
        """Process a stored message whose producer does not wait (``WAIT=false``)."""
        self.on_appended()
        if self.term is not None and self.term.settles_alone:
            self.settle()

    def settle(self) -> None:
        """Acknowledge what can be acknowledged, after any change that it depends on."""
        if self.term is None:
            return
        confirmed_before = self.store.confirm_offset
        was_trusted = self.term.trusted
        for pending in self.term.settle(now_seconds=monotonic_seconds()):
            pending(Outcome.STORED)
        if self.store.confirm_offset != confirmed_before:
            self.on_confirmed()
        if was_trusted and not self.term.trusted:
            self.on_distrust()
        if not self.term.sync_state.complete:
            self.on_proposal_possible()

    def end_term(self) -> None:
        """End the term: from here on nothing is stored or acknowledged."""
        term, self.term = self.term, None
        self.role = Role.FENCED
        if term is not None:
            for pending in term.end():
                pending(Outcome.MASTER_NO_MORE)

    def _schedule_expiry(self, deadline_seconds: float) -> None:
        """Check deadlines at this time, with one timer for the earliest (slaveTimeout may be reduced at run time)."""
        if self._expiry is not None:
            if self._expiry_seconds <= deadline_seconds:
                return
            self._expiry.cancel()
        self._expiry_seconds = deadline_seconds
        delay = max(deadline_seconds - monotonic_seconds(), 0.0)
        self._expiry = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if self.term is None:
            return
        self.settle()  # acknowledge first, then time out the rest
        if self.term is None:
            return
        for pending, outcome in self.term.expire(monotonic_seconds()):
            pending(outcome)
        deadline = self.term.next_deadline_seconds()
        if deadline is not None:
            self._schedule_expiry(deadline)

    def close(self) -> None:
        """Cancel the timer. The owner closes the store."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
