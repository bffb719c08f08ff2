"""This replica's conversation with its controllers: get an id, register, find a master; then heartbeats, polls and proposals.

``start_up.py`` decides the next request and what an answer means. One loop sends it, from the start of the process to its end, so
whatever a controller has forgotten is sent again until it is answered. Unlike in Java, heartbeats begin with the registration and
not after it, and retries come after half a second, not five.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from typing import TYPE_CHECKING

from rocketmq_remoting.codes import ResponseCode
from rocketmq_replica.broker import Broker, Role, monotonic_seconds, now, wall_clock_ms
from rocketmq_replica.controller.client import (
    ControllerClient,
    ControllerError,
    ControllerOutcomeUnknownError,
    ControllerRefusedError,
)
from rocketmq_replica.controller.start_up import Question, StartUp, Verdict, judge_poll
from rocketmq_replica.log.disk import StoreFileError, remove_file, replace_file, sync_names
from rocketmq_replica.role_change import BrokerIdentity, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketmq_replica.broker import PendingSend
    from rocketmq_replica.controller.roles import Roles
    from rocketmq_replica.master_term import MasterTerm
    from rocketmq_replica.role_change import GroupInfo
    from rocketmq_replica.sync_state import Proposal


logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_STALE_SET_CODES = (
    ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
    ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
    ResponseCode.CONTROLLER_INVALID_MASTER,
    ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
)


class ReplicasManager:
    """One replica's conversation with its controllers."""

    def __init__(self, broker: Broker, roles: Roles, controller: ControllerClient, identity: IdentityFiles) -> None:
        self._broker = broker
        self._roles = roles
        self._controller = controller
        self._identity = identity
        self._poll_now = asyncio.Event()
        self._start: StartUp | None = None
        self._is_registering = False
        self._unregistered_because = "it has not asked yet"
        self._reporting: asyncio.Task[None] | None = None
        self._looking_up: asyncio.Task[None] | None = None
        self.on_members: Callable[[dict[int, str], float], None] = lambda _addresses, _asked_seconds: None
        self.running = asyncio.Event()

    @property
    def is_registered(self) -> bool:
        """Whether a controller has confirmed the registration of this process."""
        return self._start is not None and self._start.is_registered

    @property
    def is_registering(self) -> bool:
        """Whether a registration is due or under way; then any earlier grant was for an earlier process."""
        return self._is_registering or not self.is_registered

    def shown_health(self) -> dict[str, str]:
        """Return the health of the registration and of the heartbeats, for request 28."""
        heartbeats = self._controller.heartbeats
        facts = heartbeats.facts()
        silent = [fact for fact in facts if heartbeats.is_silent(fact)]
        return {
            "controllerRegistered": str(self.is_registered).lower(),
            "controllersWithoutHeartbeat": ";".join(fact.address for fact in silent),
            **{f"controllerHeartbeatAgeMillis.{fact.address}": str(int(fact.seconds * 1000)) for fact in facts},
            **{f"controllerHeartbeatProblem.{fact.address}": str(fact) for fact in silent},
        }

    async def run(self) -> None:
        """Until cancelled: one request after the other until this replica has a role, then polls."""
        start, registers_at_once_seconds = self._begin(), -math.inf
        while True:
            asked, failed = start.question, False
            try:
                await self._ask(start)
            except ControllerError as error:
                failed = True
                logger.info("%s", error)
                self._unregistered_because = str(error)
                start.failed(error.code if isinstance(error, ControllerRefusedError) else None)
            if self._broker.role is not Role.FENCED:
                start.has_role()
                self._is_running(start)
            leads_on = not failed and start.question is not asked and asked is not Question.ELECT
            # A poll with the answer "unknown" is followed by the registration at once, but at most every half second: a controller
            # may take each registration and forget it.
            if failed and asked is Question.REPLICA_INFO and start.question is Question.REGISTER:
                now_seconds = monotonic_seconds()
                leads_on = now_seconds >= registers_at_once_seconds
                registers_at_once_seconds = now_seconds + _RETRY_SECONDS
            await self._wait_for_poll(0.0 if leads_on else self._pause_seconds(start))

    async def run_leader_refresh(self) -> None:
        """Search the leader again at regular intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._broker.configuration.sync_controller_metadata_period_seconds)
            await self._controller.refresh_leader()

    async def run_heartbeats(self) -> None:
        """Send heartbeats from the registration on, until cancelled."""
        await self._controller.heartbeats.run(self.heartbeat)

    def heartbeat(self) -> None:
        """Send a heartbeat to every controller; none before the registration."""
        if not self.is_registered:
            self._controller.heartbeats.hold_back(f"not registered: {self._unregistered_because}")
            return
        broker = self._broker
        beat = Heartbeat(
            epoch=broker.store.epochs.last_epoch,
            max_offset=broker.store.max_offset,
            confirm_offset=broker.store.confirm_offset,
            timeout_seconds=broker.configuration.controller_heartbeat_timeout_seconds,
            election_priority=broker.live.broker_election_priority,
        )
        self._controller.heartbeat(broker.broker_id, beat)

    def poll_soon(self) -> None:
        """Poll (1004) now, because this replica's knowledge is in doubt."""
        self._poll_now.set()

    def master_changed(self) -> None:
        """1008 named another master: search the leader again, which may be cut off together with the old master."""
        self._controller.forget_leader()

    def look_up_members(self) -> None:
        """Ask for the members' addresses, unless that is under way: a slave has connected from an unknown host."""
        if self._looking_up is None:
            self._looking_up = asyncio.create_task(self._look_up_members(), name="look up members")

    async def _look_up_members(self) -> None:
        asked_seconds = monotonic_seconds()
        try:
            addresses = await self._controller.member_addresses()
        except ControllerError as error:
            logger.info("members: %s", error)
        else:
            self.on_members(addresses, asked_seconds)
        finally:
            self._looking_up = None

    def report_if_needed(self) -> None:
        """Propose another SyncStateSet, if needed and if no proposal is under way."""
        term = self._broker.term
        if term is None or self._reporting is not None or not self.running.is_set():
            return
        proposal = term.propose(
            now_seconds=monotonic_seconds(),
            allowed_lag_seconds=self._broker.live.ha_max_time_slave_not_catchup_seconds,
        )
        if proposal is not None:
            self._reporting = asyncio.create_task(self._report(term, proposal), name="alter SyncStateSet")

    async def stop(self) -> None:
        """Cancel the requests under way."""
        tasks = [task for task in (self._reporting, self._looking_up) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> StartUp:
        """Return the start under way, or a new one from the identity files."""
        if self._start is None:
            configuration = self._broker.configuration
            self._start = StartUp(
                cluster_name=configuration.broker_cluster_name,
                broker_name=configuration.broker_name,
                broker_address=configuration.broker_address,
                confirmed=self._identity.load(),
                applied=self._identity.load_applied(),
            )
        return self._start

    async def _ask(self, start: StartUp) -> None:
        """Send one request and process its answer. What must survive a crash is saved before the next request."""
        if start.identity is not None:
            self._broker.broker_id = start.identity.broker_id
        match start.question:
            case Question.NEXT_BROKER_ID:
                self._identity.save_applied(
                    start.offered(await self._controller.next_broker_id(), now_ms=wall_clock_ms())
                )
            case Question.APPLY_BROKER_ID:
                await self._apply_for_id(start)
            case Question.REGISTER:
                self._take_role(start, await self._register(start))
            case Question.ELECT:
                await self._elect(start)
            case Question.REPLICA_INFO:
                await self._poll(start)

    async def _apply_for_id(self, start: StartUp) -> None:
        assert start.application is not None
        try:
            await self._controller.apply_broker_id(start.application)
        except ControllerRefusedError as error:
            if start.refused(error.code):
                self._identity.forget_applied()
            raise
        identity = start.accepted()
        self._identity.confirm(identity)
        logger.info("this replica is broker %d of %s", identity.broker_id, identity.broker_name)

    async def _register(self, start: StartUp) -> GroupInfo:
        self._is_registering = True
        try:
            info = await self._controller.register(self._broker.broker_id)
        finally:
            self._is_registering = False
        start.registered(info)
        self.heartbeat()
        return info

    async def _elect(self, start: StartUp) -> None:
        self.heartbeat()
        info = await self._controller.elect(self._broker.broker_id)
        start.elected(info)
        self._take_role(start, info)

    def _take_role(self, start: StartUp, info: GroupInfo) -> None:
        self._roles.apply(info, now())
        if self._broker.role is Role.FENCED and info.master_broker_id is not None:
            start.has_no_role()

    def _is_running(self, start: StartUp) -> None:
        if start.is_registered and not self.running.is_set():
            self.running.set()
            logger.info("RUNNING as broker %d, %s", self._broker.broker_id, self._broker.role.value)

    def _pause_seconds(self, start: StartUp) -> float:
        if start.question is not Question.REPLICA_INFO or self._needs_answer():
            return _RETRY_SECONDS
        return self._broker.configuration.sync_broker_metadata_period_seconds

    def _needs_answer(self) -> bool:
        broker = self._broker
        term = broker.term
        return broker.role is Role.FENCED or (term is not None and (not term.trusted or term.sync_state.in_doubt))

    async def _wait_for_poll(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._poll_now.wait()
        except TimeoutError:
            pass
        self._poll_now.clear()

    async def _poll(self, start: StartUp) -> None:
        asked_seconds = monotonic_seconds()
        info = await self._controller.replica_info()
        start.polled(info)
        verdict = judge_poll(info, known=self._broker.master, own_id=self._broker.broker_id)
        if verdict is Verdict.MASTERSHIP_TAKEN:
            self._roles.fence(f"the controller took the mastership away in epoch {info.master_epoch}")
            await self._elect(start)
            return
        if self._roles.apply(info, now()):
            return
        term = self._broker.term
        if term is not None and verdict is Verdict.CONFIRMED:
            if not term.sync_state.apply(info.sync_state_set, info.sync_state_set_epoch):
                term.sync_state.seen_unchanged(asked_seconds=asked_seconds)
            was_trusted = term.trusted
            if not term.confirmed(asked_seconds=asked_seconds, now_seconds=monotonic_seconds()):
                self.poll_soon()
            elif not was_trusted:
                logger.warning("epoch %d confirmed after a pause of this process", term.master_epoch)
            self._broker.settle()

    async def _report(self, term: MasterTerm[PendingSend], proposal: Proposal) -> None:
        sync_state = term.sync_state
        try:
            members, set_epoch = await self._controller.alter_sync_state_set(
                proposal, master_id=self._broker.broker_id, master_epoch=term.master_epoch
            )
            sync_state.granted(members, set_epoch)
            logger.info("SyncStateSet is %s, epoch %d", sorted(members), set_epoch)
        except ControllerOutcomeUnknownError as error:
            logger.warning("SyncStateSet %s: %s", sorted(proposal.sync_state_set), error)
            sync_state.outcome_unknown(now_seconds=monotonic_seconds())
            self.poll_soon()
        except ControllerError as error:
            logger.info("SyncStateSet %s: %s", sorted(proposal.sync_state_set), error)
            sync_state.refused(now_seconds=monotonic_seconds())
            if isinstance(error, ControllerRefusedError) and error.code in _STALE_SET_CODES:
                self.poll_soon()
        finally:
            self._reporting = None
            self._broker.settle()


# A positive Java long, as far as its digits go.
_BROKER_ID = re.compile(r"[1-9][0-9]{0,17}")


class IdentityFiles:
    """``brokerIdentity`` and ``brokerIdentity-temp``: the broker id, which stays when the address changes.

    ``brokerIdentity`` is one line ``cluster#broker#id``; the temporary file adds the register check code of the application. It
    stays until the outcome of the application is *known*: Java deletes it on a timeout and wastes an id. An empty or torn file is
    an error, never "a new broker": with a new id the log would lose the identity that the controller knows.
    """

    def __init__(self, path: Path, *, cluster_name: str, broker_name: str) -> None:
        """``path`` is ``storePathBrokerIdentity``. The files must match the configured names."""
        for key, name in (("brokerClusterName", cluster_name), ("brokerName", broker_name)):
            if "#" in name:
                raise StoreFileError(f"{key}={name}: must not contain '#', it separates the fields of {path.name}")
        self._path = path
        self._temporary = path.with_name(path.name + "-temp")
        self._cluster_name = cluster_name
        self._broker_name = broker_name

    def load(self) -> BrokerIdentity | None:
        """Return the confirmed identity, if there is one."""
        return self._read(self._path, fields=3)

    def load_applied(self) -> BrokerIdentity | None:
        """Return the identity of an unconfirmed application, if there is one."""
        return self._read(self._temporary, fields=4)

    def save_applied(self, identity: BrokerIdentity) -> None:
        """Save an application before it is sent."""
        line = f"{identity.cluster_name}#{identity.broker_name}#{identity.broker_id}#{identity.register_check_code}"
        replace_file(self._temporary, line.encode())

    def forget_applied(self) -> None:
        """Remove a refused application."""
        remove_file(self._temporary)

    def confirm(self, identity: BrokerIdentity) -> None:
        """Save an accepted identity, then remove the application."""
        replace_file(self._path, f"{identity.cluster_name}#{identity.broker_name}#{identity.broker_id}".encode())
        remove_file(self._temporary)

    def _read(self, path: Path, *, fields: int) -> BrokerIdentity | None:
        sync_names(path.parent)
        if not path.exists():
            return None
        text = path.read_bytes().decode("utf-8", "replace").strip()
        parts = text.split("#")
        if len(parts) != fields or not _BROKER_ID.fullmatch(parts[2]) or not all(parts):
            expected = "#".join(("cluster", "broker", "id", "checkCode")[:fields])
            raise StoreFileError(f"{path}: expected {expected}, found {text!r}; restore the file, do not delete it")
        if (parts[0], parts[1]) != (self._cluster_name, self._broker_name):
            raise StoreFileError(
                f"{path}: belongs to {parts[0]}#{parts[1]}, the configuration says "
                f"brokerClusterName={self._cluster_name}, brokerName={self._broker_name}"
            )
        return BrokerIdentity(parts[0], parts[1], int(parts[2]), parts[3] if fields == 4 else "")
