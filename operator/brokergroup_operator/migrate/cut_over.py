"""The cut-over: from the Java controller to ours, so that at no moment two controllers can grant a mastership.

The steps, and why each is safe:

1. *Follow.* The Java controller decides; its state is read repeatedly. Ours listens and grants nothing.
2. *Stop.* The user (or an automation) stops every member of the Java controller's group. Connections refused by every member, for
   a while, are the proof; silence is not. Brokers keep their roles while no controller answers. The last state read is the final
   one, or older by at most the reading period.
3. *Verify.* The brokers are compared with that state: acting master, epoch, number in sync. If they differ, the cut-over ends
   here: the Java controller is started again, nothing has changed.
4. *List.* Every broker gets the new ``controllerAddr``; the first heartbeat at ours, which no old list names, proves that the
   broker has dropped the old one. If a Java controller returns before that, the lists are restored, and it goes on leading. If
   the lists name ours already, the proof is time, two minutes; with ``java_stays_stopped`` the user vouches for it, and ours
   leads at once.
5. *Lead.* The record is written, with the same master, epoch and ids, and a slightly higher SyncStateSet epoch, so that the
   master accepts it whatever it had last; then the plane starts at the address that the brokers know.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, Protocol

from brokergroup_operator.migrate.broker_lists import (
    LIST_DEADLINE_SECONDS,
    cannot_take,
    change_lists,
    has_died,
    listed_controllers,
    not_stopped,
    reachable,
    restore_lists,
    who_lists,
)
from brokergroup_operator.migrate.java import (
    BrokerSaid,
    JavaGroup,
    MigrationCallError,
    ask_brokers,
    read_states,
    with_set_epoch_above,
)
from brokergroup_operator.migrate.plan import Doubt, GroupPlan, Kind, plan_group, verify_brokers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.migrate.java import JavaCalls, Reading
    from brokergroup_operator.migrate.quiet_controller import QuietController
    from controller_core.model import BrokerGroupRecord

SET_EPOCH_MARGIN = 16
"""More changes of a SyncStateSet than a Java controller can make between two readings, a tenth of a second."""
FOLLOW_SECONDS = 0.1
REFUSED_FOR_SECONDS = 3.0
VERIFY_DEADLINE_SECONDS = 12.0
SETTLE_SECONDS = 5.0
POLL_SECONDS = 0.25


class CutOverError(Exception):
    """The cut-over did not happen. The message has the present state, and the next step."""


class Report(Protocol):
    """Called with each step as it happens."""

    def __call__(self, step: str, **facts: object) -> None:
        """Must return at once."""
        ...


@dataclass(frozen=True, kw_only=True)
class CutOverSettings:
    """Options of a cut-over. ``controller_list`` is the ``controllerAddr`` for the brokers."""

    own_address: str
    controller_list: str
    java_stays_stopped: bool = False
    # Whether other groups of the same Java controller may be left without a controller.
    leave_others: bool = False
    # Addresses whose host is gone, so that it cannot refuse a connection: there silence is enough.
    gone: frozenset[str] = frozenset()
    stop_deadline_seconds: float = 600.0
    list_deadline_seconds: float = LIST_DEADLINE_SECONDS
    refused_for_seconds: float = REFUSED_FOR_SECONDS
    verify_deadline_seconds: float = VERIFY_DEADLINE_SECONDS
    # Time from a broker's reading of its list to its first heartbeat at a new controller.
    settle_seconds: float = SETTLE_SECONDS


class CutOver:
    """One cut-over of all groups of a Java controller."""

    def __init__(
        self,
        *,
        calls: JavaCalls,
        reading: Reading,
        quiet: QuietController,
        settings: CutOverSettings,
        report: Report,
    ) -> None:
        self._calls = calls
        self._reading = reading
        self._quiet = quiet
        self._settings = settings
        self._report = report
        self._groups = {group.state.broker_name: group for group in reading.groups}
        self._lists_changed = False
        self._listed_ours: dict[str, frozenset[int]] = {}

    async def run(self) -> list[BrokerGroupRecord]:
        """Do every step before ours leads; return the records to lead with. Raises ``CutOverError``."""
        self._require_every_group()
        await self._follow_until_stopped()
        await self._verify("start the Java controller again: nothing has changed", ignore=frozenset())
        await self._list()
        try:
            # A broker that died meanwhile is left to the first failover of ours: the set cannot have changed since.
            await self._verify("no controller leads", ignore=frozenset({Kind.UNREACHABLE, Kind.SET_DISAGREES}))
        except CutOverError as error:
            await self._give_back(str(error))
        await self._require_refused()
        records = [with_set_epoch_above(plan_group(group).record, SET_EPOCH_MARGIN) for group in self._groups.values()]
        self._report("lead", groups=[record.describe() for record in records])
        return records

    async def abandon(self) -> str:
        """Restore changed lists, if any; return the next step for the user. For a cut-over that was ended from outside."""
        return await self._restore() if self._lists_changed else "Start those Java controllers that were stopped"

    # ---- the steps

    def _require_every_group(self) -> None:
        if not self._groups:
            raise CutOverError(
                "the controller knows none of the groups: name a NameServer, or the groups (--broker-name)"
            )
        blocking = blocking_doubts(plan_group(group) for group in self._groups.values())
        if self._reading.others and not self._settings.leave_others:
            blocking.append(
                f"the controller decides for {', '.join(self._reading.others)} too, which would be left without one: "
                "take all its groups along (no --broker-name), or say --leave-others"
            )
        for group in self._groups.values():
            blocking += cannot_take(group.brokers, self._settings.controller_list)
        if blocking:
            raise CutOverError(f"nothing was begun: {'; '.join(blocking)}")

    async def _follow_until_stopped(self) -> None:
        self._report("follow", controllers=self._members(), then="stop every one of these Java controllers")
        # Concurrently with the search for running members, which may wait for silent hosts: the state must be read all the time.
        following = asyncio.create_task(self._read_states_for_ever(), name="rmq:follow java")
        try:
            await self._wait_until_all_refuse()
        finally:
            following.cancel()
            await asyncio.wait([following])
        self._report("stopped", states={name: group.state.describe() for name, group in self._groups.items()})

    async def _wait_until_all_refuse(self) -> None:
        clock = asyncio.get_running_loop().time
        give_up_seconds = clock() + self._settings.stop_deadline_seconds
        refused_since_seconds: float | None = None
        while refused_since_seconds is None or clock() - refused_since_seconds < self._settings.refused_for_seconds:
            answering = await self._not_refusing()
            if answering:
                refused_since_seconds = None
            elif refused_since_seconds is None:
                refused_since_seconds = clock()
            if clock() > give_up_seconds:
                raise CutOverError(
                    f"the Java controllers were not stopped in time: {answering} do not refuse connections "
                    "(say --gone for one whose host is gone). Nothing has changed: start those that were stopped"
                )
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _read_states_for_ever(self) -> None:
        while True:
            await self._read_states()
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _read_states(self) -> None:
        leader = await self._leader()
        if leader is None:
            return
        try:
            states = await read_states(self._calls, leader, self._groups)
        except MigrationCallError:
            return
        for name, state in states.items():
            if state != self._groups[name].state:
                self._groups[name] = replace(self._groups[name], state=state)
                self._report("changed", group=name, state=state.describe())

    def _members(self) -> tuple[str, ...]:
        """Return the controllers that must be stopped: the controller group, and every other one that brokers list, except ours."""
        listed = listed_controllers(group.brokers for group in self._groups.values())
        controllers = dict.fromkeys((*self._reading.members, *listed))
        return tuple(one for one in controllers if one != self._settings.own_address)

    async def _leader(self) -> str | None:
        for peer in self._reading.members:
            try:
                leader = (await self._calls.metadata(peer)).leader
            except MigrationCallError:
                continue
            if leader is not None:
                self._quiet.leader = leader
                return leader
        return None

    async def _not_refusing(self) -> dict[str, str]:
        """Return which of them may still run, and why."""
        return await not_stopped(self._calls, self._members(), gone=self._settings.gone)

    async def _verify(self, otherwise: str, *, ignore: frozenset[Kind]) -> None:
        """Ask the brokers until they agree with the last state, or clearly do not."""
        clock = asyncio.get_running_loop().time
        give_up_seconds = clock() + self._settings.verify_deadline_seconds
        while True:
            doubts: list[str] = []
            for name, group in self._groups.items():
                brokers = await ask_brokers(self._calls, group.state.addresses)
                self._groups[name] = replace(group, brokers=_with_lists_of(group, brokers))
                doubts += [
                    f"{name}: {doubt.what}"
                    for doubt in verify_brokers(self._groups[name])
                    if doubt.blocks and doubt.kind not in ignore
                ]
            if not doubts:
                self._report("verified", groups=sorted(self._groups))
                return
            if clock() > give_up_seconds:
                raise CutOverError(f"the brokers do not confirm the last state: {'; '.join(doubts)}; {otherwise}")
            await asyncio.sleep(POLL_SECONDS)

    async def _list(self) -> None:
        self._quiet.leader = None
        own = self._settings.own_address
        listed_before = {name: who_lists(group.brokers, own) for name, group in self._groups.items()}
        self._listed_ours = listed_before
        began_seconds = asyncio.get_running_loop().time()
        self._lists_changed = True
        for name, group in self._groups.items():
            failed = await change_lists(self._calls, group.brokers, self._settings.controller_list)
            if failed:
                await self._give_back(f"brokers of {name} refused their new controllerAddr: {failed}")
        self._report("listed", controller_list=self._settings.controller_list)
        while not await self._all_heard(began_seconds, listed_before):
            await self._require_refused()
            if asyncio.get_running_loop().time() - began_seconds > self._settings.list_deadline_seconds:
                await self._give_back(f"not heard at {own} in time: {self._missing()}")
            await asyncio.sleep(POLL_SECONDS)
        self._report("heard", brokers={name: sorted(self._quiet.heard(name)) for name in self._groups})

    async def _all_heard(self, began_seconds: float, listed_before: dict[str, frozenset[int]]) -> bool:
        """Whether every live broker sends heartbeats here, and is known to have dropped every other controller."""
        for name, missing in self._missing().items():
            brokers = reachable(self._groups[name].brokers)
            for broker_id in missing:
                # A broker that died meanwhile has the new list in its file, and its failover waits for the leading controller.
                if not await has_died(self._calls, brokers[broker_id].address):
                    return False
        if self._settings.java_stays_stopped or not any(listed_before.values()):
            return True
        return asyncio.get_running_loop().time() - began_seconds > self._settings.list_deadline_seconds - 1.0

    def _missing(self) -> dict[str, list[int]]:
        missing = {
            name: sorted(set(reachable(group.brokers)) - set(self._quiet.heard(name)))
            for name, group in self._groups.items()
        }
        return {name: ids for name, ids in missing.items() if ids}

    async def _require_refused(self) -> None:
        answering = await self._not_refusing()
        if answering:
            await self._give_back(f"a Java controller answers again: {answering}")

    async def _restore(self) -> str:
        """Restore the lists, and wait until no broker uses the new one; return the next step for the user."""
        failed: dict[int, str] = {}
        for group in self._groups.values():
            failed |= await restore_lists(self._calls, group.brokers)
        self._lists_changed = False
        self._report(
            "given back", not_restored=failed, then="wait: Java must not be started before all brokers list it"
        )
        clock = asyncio.get_running_loop().time
        began_seconds = clock()
        while clock() - began_seconds < self._settings.list_deadline_seconds:
            still_here = {
                name: sorted(set(self._quiet.heard(name)) - who_lists(group.brokers, self._settings.own_address))
                for name, group in self._groups.items()
            }
            settled = clock() - began_seconds > self._settings.settle_seconds
            if settled and not any(still_here.values()) and not any(self._listed_ours.values()):
                self._report("restored")
                return "every broker has its old controllerAddr in use: start the Java controllers"
            await asyncio.sleep(POLL_SECONDS)
        return (
            "start the Java controllers when two minutes have passed since the brokers were given back their controllerAddr"
            + (f"; these refused it: {failed}" if failed else "")
        )

    async def _give_back(self, why: str) -> NoReturn:
        raise CutOverError(f"{why}. Ours has granted nothing. {await self._restore()}")


def blocking_doubts(plans: Iterable[GroupPlan]) -> list[str]:
    """Return the doubts that block the cut-over, as text."""
    return [
        f"{plan.record.broker_name}: {doubt.what}: {doubt.remedy}"
        for plan in plans
        for doubt in plan.doubts
        if _blocks(doubt)
    ]


def _blocks(doubt: Doubt) -> bool:
    return doubt.blocks


def _with_lists_of(group: JavaGroup, brokers: dict[int, BrokerSaid | str]) -> dict[int, BrokerSaid | str]:
    """Return the brokers' present answers with their original lists, which are the ones to restore."""
    first = reachable(group.brokers)
    return {
        broker_id: replace(said, listed_controllers=first[broker_id].listed_controllers)
        if isinstance(said, BrokerSaid) and broker_id in first
        else said
        for broker_id, said in brokers.items()
    }
