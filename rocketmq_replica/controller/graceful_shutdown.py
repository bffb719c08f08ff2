"""How a replica leaves its group when it is asked to stop: nobody who sends to the group should notice.

A slave links again as a learner, and goes on acknowledging until its master has left it out of the SyncStateSet. A master goes on
until its mastership has been moved, and then tells clients for a moment that it is master no more. Both need a controller, and
neither waits for ever: whoever asked kills the process in the end.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from rocketmq_replica.controller.client import ControllerError, ControllerRefusedError
from rocketmq_replica.term.broker import Role, monotonic_seconds

if TYPE_CHECKING:
    from rocketmq_replica.controller.client import ControllerClient
    from rocketmq_replica.ha.client import HaClient
    from rocketmq_replica.term.broker import Broker

logger = logging.getLogger(__name__)

# How long a master whose role was moved goes on telling clients that it is master no more. Their routes still name it, and once
# its pod's address is gone a connection to it gets no answer at all: a Java client waits 3 s for one and tries nothing else.
_SEND_AWAY_SECONDS = 1.0
# How long a master that leaves waits for members that are not linked. Our operator takes its slaves' links from it a moment
# before it tells it that it is master no more: one that ended in that moment had sent nobody away (1 of 4 drains).
_UNLINKED_SECONDS = 3.0
# How long a slave that leaves waits for its master to do without it, which takes one commit of the controller. Time in which no
# controller answers does not count: nothing can be committed then, and the set would keep a member that acknowledges nothing.
_LEAVE_SET_SECONDS = 1.0
_LOOK_SECONDS = 0.01
_ASK_AGAIN_SECONDS = 0.1


class GracefulShutdown:
    """The last steps of one replica before it is closed. Both together take at most twice `stopHandOverTimeout`."""

    def __init__(self, broker: Broker, ha_client: HaClient, controller: ControllerClient) -> None:
        """Nothing happens before `leave`."""
        self._broker = broker
        self._ha_client = ha_client
        self._controller = controller
        self._limit_seconds = broker.configuration.stop_hand_over_seconds
        self._master_at_seconds = -math.inf

    def is_master(self, now_seconds: float) -> None:
        """It is master now."""
        self._master_at_seconds = now_seconds

    async def leave(self) -> None:
        """Returns when nobody needs this replica any more, or waited long enough."""
        await self._leave_set()
        await self._hand_over()

    async def _leave_set(self) -> None:
        """With its link closed every producer would wait for the controller's commit.

        And for longer where the set would be too small without it, until another slave has joined; or where no controller
        answers, until one does.
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
            logger.info("ending as a member of the SyncStateSet: %s", why)

    async def _left_out(self) -> str:
        """Wait for it; returns why it was not waited for any longer, if so."""
        patience_seconds = min(_LEAVE_SET_SECONDS, self._limit_seconds)
        linked_at = monotonic_seconds()
        answered_from, told = math.inf, False
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
                if not told:
                    logger.info("waiting for a controller to leave the SyncStateSet: %s", error)
                answered_from, told = math.inf, True
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
                continue
            answered_from = min(answered_from, now)
            if now > answered_from + patience_seconds:
                return "not left out in time"
            await asyncio.sleep(_LOOK_SECONDS)
        return ""

    async def _is_member(self) -> bool:
        """ControllerError: no controller says so."""
        try:
            return self._broker.broker_id in (await self._controller.replica_info()).sync_state_set
        except ControllerRefusedError:
            return True  # one that answers, but has no set to show: as if it had left us where we are

    async def _hand_over(self) -> None:
        """A master that is asked to stop goes on for a while, so that its mastership can be moved instead of lost.

        Whoever stops it has to see to that: our operator does as soon as the pod is being deleted. Without another member of the
        SyncStateSet nobody could take it. One that is elected again meanwhile begins anew; its slaves need a moment to link then.
        """
        broker = self._broker
        self._ha_client.retire()
        linked_at_seconds = monotonic_seconds()
        deadline_seconds = linked_at_seconds + self._limit_seconds
        # Moved away and back between two looks is another term, too.
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
