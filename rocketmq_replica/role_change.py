"""What a controller's statement about the master changes for this replica. Pure; ``controller/roles.py`` applies it.

Only a higher master epoch changes the role, so a repeated or late notification is a no-op. An epoch below the last one in the log
is refused: the controller's record went back in time, and two masters could write under one epoch. For the same reason a new
process does not continue an epoch under which an earlier process wrote: bytes that one sent to slaves and did not flush would
differ here. The controller grants a new process a new epoch (rule 6).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class RoleChange(enum.Enum):
    """The change of role to make."""

    NOTHING = enum.auto()
    WENT_BACK = enum.auto()  # refuse and log it: the record is older than this log
    TERM_OF_ANOTHER_PROCESS = enum.auto()  # refuse it: the next registration grants a new epoch
    MASTER_MOVED = enum.auto()  # the same term at another address: dial that
    BEGIN_TERM = enum.auto()
    CONTINUE_TERM = enum.auto()  # elected again while master: a new epoch on live links
    FOLLOW = enum.auto()  # another master: leave the old one, if any
    FOLLOW_ON = enum.auto()  # the same master under a new epoch: keep the link


def judge_role(
    info: GroupInfo,
    *,
    known: MasterSeen,
    own_id: int,
    last_log_epoch: int,
    last_log_epoch_is_empty: bool,
    is_master: bool,
    is_slave: bool,
    linked: bool,
) -> RoleChange:
    """Compare the controller's statement with this replica's state. ``linked``: it has a link to its master;
    ``last_log_epoch_is_empty``: the log has no bytes of its last epoch.
    """
    if info.master_broker_id is None or not info.master_address:
        return RoleChange.NOTHING
    if info.master_epoch <= known.master_epoch:
        same_term = (info.master_epoch, info.master_broker_id) == (known.master_epoch, known.broker_id)
        moved = same_term and info.master_address != known.address
        # Keep a live link whatever the address: its peer has proved its identity.
        return RoleChange.MASTER_MOVED if moved and is_slave and not linked else RoleChange.NOTHING
    if info.master_epoch < last_log_epoch:
        return RoleChange.WENT_BACK
    if info.master_broker_id == own_id:
        if info.master_epoch == last_log_epoch and not is_master and not last_log_epoch_is_empty:
            return RoleChange.TERM_OF_ANOTHER_PROCESS
        return RoleChange.CONTINUE_TERM if is_master else RoleChange.BEGIN_TERM
    same_master = (info.master_broker_id, info.master_address) == (known.broker_id, known.address)
    return RoleChange.FOLLOW_ON if is_slave and same_master else RoleChange.FOLLOW


NO_BROKER_ID = -1


class Instant(NamedTuple):
    """The present time by the monotonic clock and the wall clock."""

    monotonic_seconds: float
    wall_clock_ms: int


@dataclass(frozen=True)
class BrokerIdentity:
    """This replica's identity, with the check code until the controller has confirmed it."""

    cluster_name: str
    broker_name: str
    broker_id: int
    register_check_code: str = ""


@dataclass(frozen=True)
class GroupInfo:
    """A controller's statement about the group. ``master_broker_id`` is None without a master."""

    master_epoch: int
    master_broker_id: int | None
    master_address: str
    sync_state_set: frozenset[int]
    sync_state_set_epoch: int


@dataclass(frozen=True)
class MasterSeen:
    """The master that this replica last accepted."""

    master_epoch: int = 0
    broker_id: int = NO_BROKER_ID
    address: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """The log's state in a heartbeat."""

    epoch: int
    max_offset: int
    confirm_offset: int
    timeout_seconds: float
    election_priority: int
