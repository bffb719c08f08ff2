"""Changing this replica's role: one synchronous step, in the one safe order.

What is to be done is decided in ``term/role_change.py``. Writes stop first, then the links close, then the log is cut or the epoch
opened, then the new role begins. Nothing here waits for anybody, so the answer to NOTIFY_BROKER_ROLE_CHANGED (1008) goes out when
the switch is complete, milliseconds after the request.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rocketmq_replica.term.broker import Broker, Role
from rocketmq_replica.term.group_info import MasterSeen
from rocketmq_replica.term.master_term import MasterTerm
from rocketmq_replica.term.role_change import RoleChange, judge_role
from rocketmq_replica.term.sync_state import SyncState

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_replica.ha.client import HaClient
    from rocketmq_replica.ha.server import HaServer
    from rocketmq_replica.term.group_info import GroupInfo, Instant

logger = logging.getLogger(__name__)


class Roles:
    """Applies what the controller says to the broker."""

    def __init__(
        self, broker: Broker, *, ha_server: HaServer, ha_client: HaClient, on_changed: Callable[[], None]
    ) -> None:
        """``on_changed`` is called after every change, for what may follow it in its own time."""
        self._broker = broker
        self._ha_server = ha_server
        self._ha_client = ha_client
        self._on_changed = on_changed

    def apply(self, info: GroupInfo, now: Instant) -> bool:
        """Take the role this names, if its epoch is higher than what we know; True if anything changed."""
        broker = self._broker
        change = judge_role(
            info,
            known=broker.master,
            own_id=broker.broker_id,
            last_log_epoch=broker.store.epochs.last_epoch,
            last_log_epoch_is_empty=broker.store.last_epoch_is_empty,
            is_master=broker.term is not None,
            is_slave=broker.role is Role.SLAVE,
            linked=self._ha_client.linked,
        )
        if change is RoleChange.NOTHING:
            return False
        if change is RoleChange.WENT_BACK:
            logger.error(
                "refused master epoch %d: this log has seen epoch %d; the controller's record went back in time",
                info.master_epoch,
                broker.store.epochs.last_epoch,
            )
            return False
        if change is RoleChange.TERM_OF_ANOTHER_PROCESS:
            logger.warning(
                "no master again in epoch %d, under which an earlier process wrote; asking for a new one",
                info.master_epoch,
            )
            return False
        assert info.master_broker_id is not None
        master = MasterSeen(info.master_epoch, info.master_broker_id, info.master_address)
        if change is RoleChange.MASTER_MOVED:
            self._follow_to_another_address(master)
            return False
        return self._change(change, info, master, now)

    def _change(self, change: RoleChange, info: GroupInfo, master: MasterSeen, now: Instant) -> bool:
        broker = self._broker
        was = broker.role
        try:
            self._take(change, info, master, now)
        except OSError as error:
            logger.error("cannot take the role of epoch %d: %s; tried again", info.master_epoch, error)  # noqa: TRY400
            broker.end_term()
            if broker.store.log.flusher.failed:
                broker.on_flush_wanted()  # and the next flush ends this process
            return False
        broker.master = master
        broker.topics.state_version = info.master_epoch
        broker.topics.changed(now_ms=now.wall_clock_ms)
        logger.info(
            "role %s -> %s, master is broker %d at %s, epoch %d, log ends at %d",
            was.value,
            broker.role.value,
            master.broker_id,
            master.address,
            info.master_epoch,
            broker.store.max_offset,
        )
        self._on_changed()
        return True

    def _take(self, change: RoleChange, info: GroupInfo, master: MasterSeen, now: Instant) -> None:
        match change:
            case RoleChange.BEGIN_TERM:
                self._begin_term(info, now)
            case RoleChange.CONTINUE_TERM:
                self._continue_term(info)
            case RoleChange.FOLLOW:
                self._follow(master)

    def _follow_to_another_address(self, moved: MasterSeen) -> None:
        """The same master under the same epoch came back elsewhere: a pod that restarted."""
        logger.info("master %d moved from %s to %s", moved.broker_id, self._broker.master.address, moved.address)
        self._broker.master = moved
        self._ha_client.follow(moved)

    def fence(self, why: str) -> None:
        """Take no messages until a controller names the role again."""
        if self._broker.role is Role.MASTER:
            logger.warning("fenced: %s", why)
            self._broker.end_term()
            self._ha_server.close_links()

    def _begin_term(self, info: GroupInfo, now: Instant) -> None:
        broker = self._broker
        store = broker.store
        broker.role = Role.FENCED
        self._ha_client.leave()
        self._ha_server.close_links()
        start_offset = store.cut_to_whole_record()
        store.begin_epoch(info.master_epoch)
        members = info.sync_state_set | {broker.broker_id}
        if members == {broker.broker_id}:
            store.confirm_offset = start_offset
        broker.topics.adopt(store.queues.names(), now_ms=now.wall_clock_ms)
        broker.term = MasterTerm(
            store,
            broker.policy,
            sync_state=SyncState(
                own_id=broker.broker_id,
                members=members,
                set_epoch=info.sync_state_set_epoch,
                epoch_start_offset=start_offset,
                replicated_offset=store.confirm_offset,
            ),
            master_epoch=info.master_epoch,
            sync_flush=broker.configuration.sync_flush,
            max_pause_seconds=broker.configuration.controller_heartbeat_timeout_seconds / 2,
            now_seconds=now.monotonic_seconds,
        )
        broker.role = Role.MASTER

    def _continue_term(self, info: GroupInfo) -> None:
        """Elected again while master: a new epoch on live links (upstream #9689).

        After a pause this restores no trust: it may have waited in a buffer while somebody else was elected.
        """
        broker = self._broker
        assert broker.term is not None
        broker.store.begin_epoch(info.master_epoch)
        broker.term.master_epoch = info.master_epoch
        broker.term.sync_state.epoch_start_offset = broker.store.max_offset
        broker.term.sync_state.apply(info.sync_state_set | {broker.broker_id}, info.sync_state_set_epoch)
        self._ha_server.wake()
        broker.settle()

    def _follow(self, master: MasterSeen) -> None:
        self._broker.end_term()
        self._ha_server.close_links()
        self._ha_client.leave()
        self._broker.role = Role.SLAVE
        self._ha_client.follow(master)
