"""What a replica knows of itself and of its group, as plain values: the words between its pure parts and their adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_BROKER_ID = -1


class Instant(NamedTuple):
    """Now, by the clock of deadlines and by the clock of time stamps; read by adapters, an argument everywhere else."""

    monotonic_seconds: float
    wall_clock_ms: int


@dataclass(frozen=True)
class BrokerIdentity:
    """Who this replica is, and the check code while the controller has not confirmed it."""

    cluster_name: str
    broker_name: str
    broker_id: int
    register_check_code: str = ""


@dataclass(frozen=True)
class GroupInfo:
    """What a controller says about the group; no master: ``master_broker_id`` is None."""

    master_epoch: int
    master_broker_id: int | None
    master_address: str
    sync_state_set: frozenset[int]
    sync_state_set_epoch: int


@dataclass(frozen=True)
class MasterSeen:
    """What the controller last said about the group's master."""

    master_epoch: int = 0
    broker_id: int = NO_BROKER_ID
    address: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """What a heartbeat tells about the log."""

    epoch: int
    max_offset: int
    confirm_offset: int
    timeout_seconds: float
    election_priority: int
