"""The way back: from our controller to a Java controller that does not know the groups yet.

1. *Stop ours.* Our controller must be stopped: this process holds its record store and listens at its address, but grants
nothing. From here on no controller can grant anything, and brokers keep their roles. 2. *Verify* that the brokers agree with the
record. 3. *Prepare.* The Java controller gets ids and epochs up to one below the brokers' (``teach.py``). It has no master to
announce, and everything that it could send to a broker is older than the broker's own state. 4. *List.* Every broker gets the
Java controllers' addresses; it has arrived when the Java controller hears its heartbeat. 5. *Finish.* The present master is
elected into its present epoch, and the SyncStateSet raised to its present epoch: for brokers nothing changes. Only now can the
Java controller grant, and it is the only one.

Until the last step this can be undone: remove the group from the Java controller, restore the old lists, start ours again.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.migrate.broker_lists import (
    LIST_DEADLINE_SECONDS,
    cannot_take,
    change_lists,
    listed_controllers,
    not_stopped,
    reachable,
    restore_lists,
)
from brokergroup_operator.migrate.java import (
    BrokerSaid,
    JavaGroup,
    JavaState,
    MigrationCallError,
    ask_brokers,
    state_of,
)
from brokergroup_operator.migrate.plan import verify_brokers
from brokergroup_operator.migrate.teach import LessonError, Teacher, TeachError, make_lesson

if TYPE_CHECKING:
    from brokergroup_operator.migrate.cut_over import Report
    from brokergroup_operator.migrate.java import JavaCalls, Metadata
    from brokergroup_operator.migrate.quiet_controller import QuietController
    from brokergroup_operator.migrate.teach import Lesson
    from controller_core.model import BrokerGroupRecord

POLL_SECONDS = 0.25


class BackError(Exception):
    """The way back ended early. The message has the present state, and the next step."""


@dataclass(frozen=True, kw_only=True)
class BackSettings:
    """Options of the way back. ``controller_list`` is the ``controllerAddr`` for the brokers; empty: every member."""

    controller: str
    own_address: str
    controller_list: str = ""
    # Our controllers whose host is gone, so that it cannot refuse a connection.
    gone: frozenset[str] = frozenset()
    list_deadline_seconds: float = LIST_DEADLINE_SECONDS


class Back:
    """Moves the groups of one record store to a Java controller."""

    def __init__(
        self,
        *,
        calls: JavaCalls,
        records: list[BrokerGroupRecord],
        quiet: QuietController,
        settings: BackSettings,
        report: Report,
    ) -> None:
        self._calls = calls
        self._records = records
        self._quiet = quiet
        self._settings = settings
        self._report = report
        self._brokers: dict[str, dict[int, BrokerSaid | str]] = {}
        self._controller_list = settings.controller_list

    async def check(self) -> tuple[Metadata, list[Lesson]]:
        """Check everything that can be checked before a change. Raises ``BackError`` with the obstacle."""
        try:
            lessons = [make_lesson(record) for record in self._records]
        except LessonError as error:
            raise BackError(f"nothing was begun: {error}") from error
        for record in self._records:
            group = await self._group(record)
            self._brokers[record.broker_name] = dict(group.brokers)
            blocking = [f"{doubt.what}: {doubt.remedy}" for doubt in verify_brokers(group) if doubt.blocks]
            if blocking:
                raise BackError(
                    f"nothing was begun: {record.broker_name}: {'; '.join(blocking)}. Start our controller again meanwhile"
                )
        try:
            metadata = await self._calls.metadata(self._settings.controller)
            if metadata.leader is None:
                raise BackError(f"nothing was begun: {self._settings.controller} knows no leader yet")
            teacher = Teacher(self._calls, leader=metadata.leader, peers=metadata.peers)
            for lesson in lessons:
                await teacher.require_unknown(lesson.broker_name)
            await self._require_ours_stopped(metadata)
            if not self._controller_list:
                self._controller_list = ";".join(
                    metadata.peers if metadata.leader in metadata.peers else [metadata.leader]
                )
            blocking = [why for one in self._brokers.values() for why in cannot_take(one, self._controller_list)]
            if blocking:
                raise BackError(f"nothing was begun: {'; '.join(blocking)}")
        except (MigrationCallError, TeachError) as error:
            raise BackError(f"nothing was begun: {error}") from error
        return metadata, lessons

    async def _require_ours_stopped(self, metadata: Metadata) -> None:
        """Require that every listed controller is stopped, besides this process and the Java controllers: it could still grant."""
        going_to = {self._settings.own_address, self._settings.controller, *metadata.peers}
        listed = (one for one in listed_controllers(self._brokers.values()) if one not in going_to)
        running = await not_stopped(self._calls, listed, gone=self._settings.gone)
        if running:
            raise BackError(
                f"nothing was begun: brokers list {running}, which do not refuse connections: stop every controller of ours "
                "(say --gone for one whose host is gone)"
            )

    async def run(self) -> list[JavaState]:
        """Go back; return the states with which the Java controller leads. Raises ``BackError`` otherwise."""
        metadata, lessons = await self.check()
        assert metadata.leader is not None
        self._report("verified", groups=[lesson.broker_name for lesson in lessons], leader=metadata.leader)
        teacher = Teacher(self._calls, leader=metadata.leader, peers=metadata.peers)
        try:
            async with teacher.silent():
                for lesson in lessons:
                    await teacher.prepare(lesson)
                self._report("prepared", epochs={one.broker_name: one.epoch_while_waiting for one in lessons})
                await self._list(teacher, lessons)
                self._quiet.leader = metadata.leader
                return [await self._finish(teacher, lesson) for lesson in lessons]
        except (MigrationCallError, TeachError, BackError) as error:
            await self._undo(teacher, lessons, error)
            raise

    async def _list(self, teacher: Teacher, lessons: list[Lesson]) -> None:
        for lesson in lessons:
            brokers = self._brokers[lesson.broker_name]
            failed = await change_lists(self._calls, brokers, self._controller_list)
            if failed:
                raise BackError(f"brokers of {lesson.broker_name} refused their new controllerAddr: {failed}")
        self._report("listed", controller_list=self._controller_list)
        clock = asyncio.get_running_loop().time
        give_up_seconds = clock() + self._settings.list_deadline_seconds
        for lesson in lessons:
            wanted = set(reachable(self._brokers[lesson.broker_name]))
            while not wanted <= (alive := state_of(lesson.broker_name, await teacher.state(lesson.broker_name)).alive):
                if clock() > give_up_seconds:
                    raise BackError(f"{self._settings.controller} does not hear {sorted(wanted - alive)}")
                await asyncio.sleep(POLL_SECONDS)
        self._report(
            "heard", brokers={one.broker_name: sorted(reachable(self._brokers[one.broker_name])) for one in lessons}
        )

    async def _finish(self, teacher: Teacher, lesson: Lesson) -> JavaState:
        state = state_of(lesson.broker_name, await teacher.finish(lesson))
        if (state.master_broker_id, state.master_epoch) != (lesson.master, lesson.master_epoch):
            raise BackError(
                f"{self._settings.controller}: {lesson.broker_name} ended with {state.describe()}, expected master "
                f"{lesson.master} in epoch {lesson.master_epoch}"
            )
        self._report("lead", group=lesson.broker_name, state=state.describe())
        return state

    async def _undo(self, teacher: Teacher, lessons: list[Lesson], error: Exception) -> None:
        """Remove the groups from the Java controller and restore the lists; then ours may be started again."""
        failed: dict[int, str] = {}
        for lesson in lessons:
            with contextlib.suppress(MigrationCallError):
                await teacher.forget(lesson)
            failed |= await restore_lists(self._calls, self._brokers[lesson.broker_name])
        self._report(
            "undone",
            because=str(error),
            not_restored=failed,
            then="stop the Java controller, then start our controller again: the record has not changed",
        )

    async def _group(self, record: BrokerGroupRecord) -> JavaGroup:
        addresses = {broker_id: one.address for broker_id, one in record.replicas.items() if one.claimed}
        state = JavaState(
            broker_name=record.broker_name,
            addresses=addresses,
            master_broker_id=record.granted_master_id,
            master_epoch=record.master_epoch,
            sync_state_set=record.sync_state_set,
            sync_state_set_epoch=record.sync_state_set_epoch,
        )
        brokers = await ask_brokers(self._calls, addresses)
        return JavaGroup(state=state, next_broker_id=record.next_broker_id, brokers=brokers)
