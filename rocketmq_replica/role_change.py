"""What a controller's word about the master means for this replica. Pure; ``controller/roles.py`` does it.

Only a higher master epoch changes anything, so a notification that comes twice or late does nothing. A master epoch below the
last one in the log is never taken: the controller's record went back in time, and two masters could write under one epoch.
For the same reason a process that is not master never takes up the epoch under which an earlier one wrote: what that one
sent to slaves and did not flush would have another content here. The controller gives a new process a new epoch (rule 6).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class RoleChange(enum.Enum):
    """What to do."""

    NOTHING = enum.auto()
    WENT_BACK = enum.auto()  # refuse it, and say so
    TERM_OF_ANOTHER_PROCESS = enum.auto()  # refuse it: the next registration brings a new epoch
    MASTER_MOVED = enum.auto()  # the same term from another address: dial there
    BEGIN_TERM = enum.auto()
    CONTINUE_TERM = enum.auto()  # elected again while master: a new epoch on live links
    FOLLOW = enum.auto()  # another master: leave the old one, if there was one
    FOLLOW_ON = enum.auto()  # the same master under a new epoch: the link goes on


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
    """Compare the word with what this replica knows and does: ``linked`` says whether a link to a master stands,
    ``last_log_epoch_is_empty`` whether the log has no byte of its last epoch.
    """
    if info.master_broker_id is None or not info.master_address:
        return RoleChange.NOTHING
    if info.master_epoch <= known.master_epoch:
        same_term = (info.master_epoch, info.master_broker_id) == (known.master_epoch, known.broker_id)
        moved = same_term and info.master_address != known.address
        # A live link is never given up for an address: whoever is at its other end has proved who he is.
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
