"""Brings brokers with static roles to where they can be stopped: the master takes no more, and every slave has all of it.

Without epochs nothing tells later where two logs part, so they must end alike when they are stopped.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.broker_keys import ACCEPTS_SENDS_FROM
from brokergroup_operator.api.versions import FIRST_WITH_IDS
from brokergroup_operator.migrate.java import MigrationCallError, StartingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.migrate.cut_over import Report
    from brokergroup_operator.migrate.java import JavaCalls

# With 4 in place of 6 producers leave with their next route. A 5.5.0 master goes on taking what is sent to it all the same.
PERMISSION: Final = "brokerPermission"
READ_ONLY: Final = "4"
# It refuses sends before ACCEPTS_SENDS_FROM (milliseconds since 1970), which passes by itself if nothing takes it back.
REFUSES_SECONDS: Final = 900
MASTER: Final = 0
STEADY_LOOKS: Final = 4
LOOK_SECONDS: Final = 0.5
# How often brokers are asked while one of them is being started: for 10 s.
STARTING_LOOKS: Final = 20
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_VERSION: Final = re.compile(r"V(\d+)_(\d+)_(\d+)")


class QuietError(Exception):
    """The brokers are not as they must be; the message says whether the master takes messages again."""


class Finding(StrEnum):
    """What is wrong with the running brokers, or worth knowing."""

    NO_MASTER = "NoMaster"
    UNREACHABLE = "Unreachable"
    TWO_MASTERS = "TwoMasters"
    TWO_CLUSTERS = "TwoClusters"
    OLD_BROKER = "OldBroker"
    UNKNOWN_VERSION = "UnknownVersion"
    DLEDGER = "DLedgerLog"
    CONTROLLER_MODE = "ControllerMode"
    WITHOUT_IDS = "NoPersistentIds"
    EPOCHS_ELSEWHERE = "EpochsElsewhere"
    AHEAD = "AheadOfMaster"
    BEHIND = "Behind"
    OTHER_FILE_SIZE = "OtherFileSize"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBroker:
    """What one running broker says. `end`: of its log, in bytes."""

    address: str
    configuration: Mapping[str, str]
    version: str
    end: int

    def is_on(self, key: str) -> bool:
        return self.configuration.get(key, "false") == "true"

    @property
    def is_without_ids(self) -> bool:
        """Whether a controller of 5.0.0 to 5.1.0 gives its role, by its address."""
        match = _VERSION.match(self.version)
        number = tuple(map(int, match.groups())) if match is not None else FIRST_WITH_IDS
        return number < FIRST_WITH_IDS and self.is_on("enableControllerMode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    finding: Finding
    what: str
    blocks: bool = True

    def __str__(self) -> str:
        """Return one line."""
        return f"{'BLOCKS' if self.blocks else 'note  '} {self.finding}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticGroup:
    """The brokers of one brokerName by their static ids, or why one did not answer."""

    broker_name: str
    cluster_names: frozenset[str]
    brokers: Mapping[int, StaticBroker | str]

    @property
    def doubts(self) -> list[Doubt]:
        return [*_about_group(self), *(doubt for one in self.known.items() for doubt in _about_broker(self, *one))]

    @property
    def blocked(self) -> bool:
        return any(doubt.blocks for doubt in self.doubts)

    @property
    def known(self) -> dict[int, StaticBroker]:
        return {one: said for one, said in sorted(self.brokers.items()) if isinstance(said, StaticBroker)}

    @property
    def master(self) -> StaticBroker | None:
        return self.known.get(MASTER)

    @property
    def ends_alike(self) -> bool:
        return len(self.known) == len(self.brokers) and len({one.end for one in self.known.values()}) == 1

    @property
    def next_step(self) -> str:
        """What to do once the group is quiet. A controller goes first: it would elect a slave that outlives the master.

        That slave takes sends, since only the master has brokerPermission=4.
        """
        if not any(one.is_without_ids for one in self.known.values()):
            return "stop them now, slaves after the master"
        return "stop them now: every controller of theirs first, then the slaves, then the master; name the master's store first"

    def lines(self) -> Iterator[str]:
        """Yield what was found, for a person."""
        yield f"group {self.broker_name} of cluster {', '.join(sorted(self.cluster_names)) or '?'}"
        for broker_id, one in self.known.items():
            store = one.configuration.get("storePathRootDir", "?")
            yield f"  brokerId {broker_id}  {one.address}  {one.version}  log ends at {one.end}, store {store}"
        yield from (f"  {doubt}" for doubt in self.doubts)


def _about_group(group: StaticGroup) -> Iterator[Doubt]:
    if MASTER not in group.brokers:
        yield Doubt(finding=Finding.NO_MASTER, what="no broker with brokerId 0 is known to the NameServer")
    for broker_id, said in sorted(group.brokers.items()):
        if isinstance(said, str):
            yield Doubt(finding=Finding.UNREACHABLE, what=f"brokerId {broker_id}: {said}")
    if len(group.cluster_names) != 1:
        yield Doubt(finding=Finding.TWO_CLUSTERS, what=f"its clusters are {sorted(group.cluster_names)}, expected one")


def _about_broker(group: StaticGroup, broker_id: int, one: StaticBroker) -> Iterator[Doubt]:
    yield from _about_mode(broker_id, one)
    if broker_id != MASTER and group.master is not None:
        yield from _about_slave(broker_id, one, group.master)


def _about_mode(broker_id: int, one: StaticBroker) -> Iterator[Doubt]:
    match = _VERSION.match(one.version)
    if match is None:
        yield Doubt(
            finding=Finding.UNKNOWN_VERSION,
            what=f"brokerId {broker_id} says {one.version!r}: it must be 5.1.1 or later",
            blocks=False,
        )
    elif one.is_without_ids:
        yield from _about_no_ids(broker_id, one)
    elif tuple(map(int, match.groups())) < FIRST_WITH_IDS:
        yield Doubt(
            finding=Finding.OLD_BROKER,
            what=f"brokerId {broker_id} is {one.version}, expected 5.1.1 or later: upgrade it in its roles first",
        )
    if one.is_on("enableDLegerCommitLog"):
        yield Doubt(
            finding=Finding.DLEDGER,
            what=f"brokerId {broker_id} has a DLedger commit log, which no other mode reads: `brokergroup adopt dledger`"
            " copies its messages",
        )
    if one.is_on("enableControllerMode") and not one.is_without_ids:
        yield Doubt(
            finding=Finding.CONTROLLER_MODE,
            what=f"brokerId {broker_id} has a controller, which gives roles anew: stop brokers and controller as"
            " docs/tasks/adopt.md says",
        )


def _about_slave(broker_id: int, one: StaticBroker, master: StaticBroker) -> Iterator[Doubt]:
    if one.configuration.get("brokerRole", "").endswith("MASTER"):
        yield Doubt(
            finding=Finding.TWO_MASTERS, what=f"brokerId {broker_id} has brokerRole {one.configuration['brokerRole']}"
        )
    if one.end > master.end:
        yield Doubt(finding=Finding.AHEAD, what=f"brokerId {broker_id} ends at {one.end}, the master at {master.end}")
    elif one.end < master.end:
        yield Doubt(
            finding=Finding.BEHIND, what=f"brokerId {broker_id} lacks {master.end - one.end} bytes", blocks=False
        )
    size = "mappedFileSizeCommitLog"
    if one.configuration.get(size) != master.configuration.get(size):
        yield Doubt(finding=Finding.OTHER_FILE_SIZE, what=f"brokerId {broker_id} and the master differ in {size}")


def _about_no_ids(broker_id: int, one: StaticBroker) -> Iterator[Doubt]:
    yield Doubt(
        finding=Finding.WITHOUT_IDS,
        what=f"brokerId {broker_id} is {one.version}, known to its controller by its address: its store gets an id and a new epoch",
        blocks=False,
    )
    epochs, store = one.configuration.get("storePathEpochFile", ""), one.configuration.get("storePathRootDir", "")
    if epochs and store and epochs != f"{store}/epochFileCheckpoint":
        yield Doubt(
            finding=Finding.EPOCHS_ELSEWHERE,
            what=f"brokerId {broker_id} keeps its epochs in {epochs}: once it is stopped, copy that to {store}/epochFileCheckpoint",
            blocks=False,
        )


async def read_static(calls: JavaCalls, name_servers: tuple[str, ...], broker_name: str) -> StaticGroup:
    """Read the group at the NameServers and its brokers. Raises MigrationCallError if no NameServer knows it."""
    addresses: dict[int, str] = {}
    clusters: set[str] = set()
    for name_server in name_servers:
        info = await calls.clusters(name_server)
        data = info.broker_addr_table.get(broker_name)
        if data is not None:
            addresses |= data.broker_addrs
        clusters |= {name for name, members in info.cluster_addr_table.items() if broker_name in members}
    if not addresses:
        raise MigrationCallError(f"no broker of {broker_name} is known to {', '.join(name_servers)}")
    said = await _ask_all(calls, tuple(addresses.values()))
    brokers = dict(zip(addresses, said, strict=True))
    return StaticGroup(broker_name=broker_name, cluster_names=frozenset(clusters), brokers=brokers)


async def _ask_all(calls: JavaCalls, addresses: tuple[str, ...]) -> list[StaticBroker | str]:
    """Ask all at the same time, since their ends are compared; all again while one of them is being started, for a while."""
    for _ in range(STARTING_LOOKS):
        said = await asyncio.gather(*(_ask(calls, address) for address in addresses))
        if not any(isinstance(one, StartingError) for one in said):
            break
        await asyncio.sleep(LOOK_SECONDS)
    return [one if isinstance(one, StaticBroker) else str(one) for one in said]


async def _ask(calls: JavaCalls, address: str) -> StaticBroker | MigrationCallError:
    try:
        # The master's end is read with the others', a slave's may be newer than it by what was sent meanwhile.
        runtime = await calls.runtime(address)
        configuration = await calls.broker_configuration(address)
    except MigrationCallError as error:
        return error
    end = runtime.get("commitLogMaxOffset", "")
    if not end.isdecimal():
        return MigrationCallError(f"{address} does not say where its log ends (28)")
    version = runtime.get("brokerVersionDesc", "")
    return StaticBroker(address=address, configuration=configuration, version=version, end=int(end))


async def make_quiet(
    calls: JavaCalls, group: StaticGroup, name_servers: tuple[str, ...], report: Report, *, seconds: float
) -> StaticGroup:
    """Stop the master's sends, and return the group once all its logs end alike and stay so.

    Otherwise, and if it is cancelled or ended by a signal, the master gets its permission back. Raises QuietError.
    """
    master = group.master
    if master is None or group.blocked:
        raise QuietError("; ".join(str(doubt) for doubt in group.doubts if doubt.blocks))
    until = str(round((time.time() + seconds + REFUSES_SECONDS) * 1000))
    wanted = {PERMISSION: READ_ONLY, ACCEPTS_SENDS_FROM: until}
    looks = _Looks(calls, group, name_servers, wanted)
    with _ended_by_signal() as signals:
        try:
            await calls.configure_broker(master.address, wanted)
            report("read-only", master=master.address, permission_before=master.configuration.get(PERMISSION, "6"))
            async with asyncio.timeout(seconds):
                group = await looks.until_alike()
        except (TimeoutError, MigrationCallError) as error:
            what = str(error) or f"not alike within {seconds:g} s ({looks.fault})"
            raise QuietError(f"{what}: {await _give_back(calls, master)}") from error
        except asyncio.CancelledError:
            now = await _give_back(calls, master)
            if signals:
                raise QuietError(f"ended by {signals[0].name}: {now}") from None
            raise
    report("alike", end=max(one.end for one in group.known.values()), brokers=sorted(group.known))
    return group


@contextmanager
def _ended_by_signal() -> Iterator[list[signal.Signals]]:
    """Cancel the task at the first signal that ends the process; a second one must not cut off what the task does then."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    came: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        if not came:
            task.cancel()
        came.append(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        yield came
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _give_back(calls: JavaCalls, master: StaticBroker) -> str:
    """Give the master its permission of before, and return how it is now."""
    before, way_back = master.configuration.get(PERMISSION, "6"), _way_back(master.address)
    try:
        await calls.configure_broker(master.address, {PERMISSION: before, ACCEPTS_SENDS_FROM: "0"})
    except MigrationCallError as error:
        return f"{master.address} may still take no messages ({error}): {way_back}"
    if before == READ_ONLY:
        return f"the master has {PERMISSION}={READ_ONLY} again, as before: {way_back}"
    return "the master takes messages again"


def _way_back(address: str) -> str:
    update = f"mqadmin updateBrokerConfig -b {address}"
    return f"{update} -k {PERMISSION} -v 6, and {update} -k {ACCEPTS_SENDS_FROM} -v 0"


class _Looks:
    """At a group whose master was made read-only. `fault`: why the last look did not count."""

    def __init__(
        self, calls: JavaCalls, first: StaticGroup, name_servers: tuple[str, ...], wanted: Mapping[str, str]
    ) -> None:
        self._calls, self._first, self._name_servers, self._wanted = calls, first, name_servers, wanted
        self.fault = "no look has ended"

    async def until_alike(self) -> StaticGroup:
        """A send that was under way may still come in: so several looks in a row must show the same."""
        end, looks, group = -1, 0, self._first
        while looks < STEADY_LOOKS:
            await asyncio.sleep(LOOK_SECONDS)
            group = await read_static(self._calls, self._name_servers, self._first.broker_name)
            self.fault = self._fault_of(group) or "its logs grow"
            now = group.master.end if group.master is not None and not self._fault_of(group) else -1
            looks = looks + 1 if now == end >= 0 else 1 if now >= 0 else 0
            end = now
        return group

    def _fault_of(self, group: StaticGroup) -> str:
        # A NameServer drops a broker with its connection: what is left would always end alike.
        if set(group.brokers) != set(self._first.brokers):
            return f"brokers {sorted(self._first.brokers)} were there, now {sorted(group.brokers)}"
        has = group.master.configuration if group.master is not None else {}
        for key, value in self._wanted.items():
            if group.master is not None and has.get(key) != value:
                return f"the master's {key} is {has.get(key, 'absent')}, expected {value}"
        return "" if group.ends_alike else "; ".join(str(doubt) for doubt in group.doubts)
