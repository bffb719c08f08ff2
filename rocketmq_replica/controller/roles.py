"""Taking a role, and leaving the group when the replica stops.

``role_change.py`` decides; ``Roles`` changes the role in one synchronous step: writes stop, links close, the log is cut or the
epoch begins, the new role starts. Nothing waits, so the answer to NOTIFY_BROKER_ROLE_CHANGED (1008) is sent after the complete
change, milliseconds after the request.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from rocketmq_replica.broker import Broker, Role, monotonic_seconds
from rocketmq_replica.controller.client import ControllerError, ControllerRefusedError
from rocketmq_replica.master_term import MasterTerm
from rocketmq_replica.role_change import MasterSeen, RoleChange, judge_role
from rocketmq_replica.sync_state import SyncState

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_replica.controller.client import ControllerClient
    from rocketmq_replica.ha.client import HaClient
    from rocketmq_replica.ha.server import HaServer
    from rocketmq_replica.role_change import GroupInfo, Instant


logger = logging.getLogger(__name__)


class Roles:
    """Applies the controller's statements to the broker."""

    def __init__(
        self, broker: Broker, *, ha_server: HaServer, ha_client: HaClient, on_changed: Callable[[], None]
    ) -> None:
        """``on_changed`` is called after every change of role."""
        self._broker = broker
        self._ha_server = ha_server
        self._ha_client = ha_client
        self._on_changed = on_changed

    def apply(self, info: GroupInfo, now: Instant) -> bool:
        """Take the role for this replica, if the epoch is higher than the known one. Return whether the role or epoch changed."""
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
                "refused to be master in epoch %d, under which an earlier process wrote; asking for a new epoch",
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
            logger.error("cannot take the role of epoch %d: %s; will be retried", info.master_epoch, error)  # noqa: TRY400
            broker.end_term()
            if broker.store.log.flusher.failed:
                broker.on_flush_wanted()  # the next flush ends this process
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
        """Follow the same master of the same epoch to its new address, after a restart of its pod."""
        logger.info("master %d moved from %s to %s", moved.broker_id, self._broker.master.address, moved.address)
        self._broker.master = moved
        self._ha_client.follow(moved)

    def fence(self, why: str) -> None:
        """Stop being master and store no messages until a controller names a role again."""
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
        """Begin a new epoch on live links, elected again while master (upstream #9689).

        After a pause this does not restore trust: the notification may have waited in a buffer while another master was elected.
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


# How long a demoted master keeps answering sends with "not master", so that clients refresh their routes. Once its pod's address is
# gone a connection gets no answer at all, and a Java client waits 3 s for one.
_SEND_AWAY_SECONDS = 1.0
# How long a stopping master waits for members without a link. Our operator redirects the slaves shortly before it demotes the
# master: a master that ended in between had not redirected its clients (1 of 4 drains).
_UNLINKED_SECONDS = 3.0
# How long a stopping slave waits for its removal from the SyncStateSet, one commit of the controller. Time without an answer of a
# controller does not count: nothing can be committed then, and the set would keep a member that acknowledges nothing.
_LEAVE_SET_SECONDS = 1.0
_LOOK_SECONDS = 0.01
_ASK_AGAIN_SECONDS = 0.1


class GracefulShutdown:
    """Leaves the group before the replica stops, so that producers notice nothing.

    A slave reconnects as a learner and acknowledges until it is removed from the SyncStateSet. A master continues until another one
    is elected, and then answers "not master" for a moment. Together this takes at most twice `stopHandOverTimeout`.
    """

    def __init__(self, broker: Broker, ha_client: HaClient, controller: ControllerClient) -> None:
        self._broker = broker
        self._ha_client = ha_client
        self._controller = controller
        self._limit_seconds = broker.configuration.stop_hand_over_seconds
        self._master_at_seconds = -math.inf

    def is_master(self, now_seconds: float) -> None:
        """Record that this replica is master at this time."""
        self._master_at_seconds = now_seconds

    async def leave(self) -> None:
        """Return when the group no longer needs this replica, or at the time limit."""
        await self._leave_set()
        await self._hand_over()

    async def _leave_set(self) -> None:
        """Leave the SyncStateSet while the link still acknowledges.

        If the link closed first, every producer would wait for the controller's commit: longer if the set becomes too small, until
        another slave joins, or if no controller answers.
        """
        if not self._limit_seconds or not self._ha_client.linked or self._broker.configuration.async_learner:
            return
        self._ha_client.step_back()
        try:
            async with asyncio.timeout(self._limit_seconds):
                why = await self._left_out()
        except TimeoutError:
            why = "no controller has answered in time"
        if why:
            logger.info("stopping as a member of the SyncStateSet: %s", why)

    async def _left_out(self) -> str:
        """Wait for the removal from the set. Return why the wait ended without it, or an empty text."""
        patience_seconds = min(_LEAVE_SET_SECONDS, self._limit_seconds)
        linked_at = monotonic_seconds()
        answered_from, logged = math.inf, False
        while self._broker.role is Role.SLAVE:
            now = monotonic_seconds()
            if self._ha_client.linked:
                linked_at = now
            if now > linked_at + patience_seconds:
                return "no master takes what it acknowledges"
            try:
                if not await self._is_member():
                    return ""
            except ControllerError as error:
                if not logged:
                    logger.info("waiting for a controller to leave the SyncStateSet: %s", error)
                answered_from, logged = math.inf, True
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
                continue
            answered_from = min(answered_from, now)
            if now > answered_from + patience_seconds:
                return "not left out in time"
            await asyncio.sleep(_LOOK_SECONDS)
        return ""

    async def _is_member(self) -> bool:
        """Whether this replica is in the SyncStateSet. Raise ControllerError if no controller answers."""
        try:
            return self._broker.broker_id in (await self._controller.replica_info()).sync_state_set
        except ControllerRefusedError:
            return True  # a controller without a set for this group: count as a member

    async def _hand_over(self) -> None:
        """Continue as master until another one is elected, at most for the time limit.

        Our operator moves the mastership as soon as the pod is being deleted. Without another member of the SyncStateSet no replica
        could take over, so the wait ends. If this replica is elected again meanwhile, it waits again: its slaves need a moment to
        link.
        """
        broker = self._broker
        self._ha_client.retire()
        linked_at_seconds = monotonic_seconds()
        deadline_seconds = linked_at_seconds + self._limit_seconds
        # Moved away and back between two checks is another term, too.
        deposed, first_term = False, broker.term
        while (now := monotonic_seconds()) < deadline_seconds:
            deposed = deposed or broker.term is not first_term
            if broker.term is not None:
                self._master_at_seconds = now
                if broker.has_successors:
                    linked_at_seconds = now
                in_vain = not broker.other_members or now > linked_at_seconds + _UNLINKED_SECONDS
                if in_vain and not deposed:
                    return
            elif now >= self._master_at_seconds + _SEND_AWAY_SECONDS:
                return
            await asyncio.sleep(_LOOK_SECONDS)
