"""The commands: open clients, stores and listeners, run the steps, close everything."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.controller.standalone import StandaloneSettings, run_standalone
from brokergroup_operator.migrate.adopt import record_of
from brokergroup_operator.migrate.back import Back, BackError, BackSettings
from brokergroup_operator.migrate.claims import Takeover, sole_adoption
from brokergroup_operator.migrate.claims_back import ClaimsBack, sole_release
from brokergroup_operator.migrate.cut_over import CutOver, CutOverError, CutOverSettings
from brokergroup_operator.migrate.departure import DepartureError, judge_departure
from brokergroup_operator.migrate.java import JavaCalls, MigrationCallError, read_controller, read_states
from brokergroup_operator.migrate.plan import RecordInTheWayError, check_record, make_plan, write_record
from brokergroup_operator.migrate.quiet import make_quiet, read_static
from brokergroup_operator.migrate.quiet_controller import QuietController
from brokergroup_operator.migrate.shadow import Shadow, heard_before
from brokergroup_operator.records.store import GroupKey, RecordStoreError
from brokergroup_operator.records.stores import kubernetes_api, namespace_of, open_record_store
from controller_core.model import LiveReplica
from rocketmq_remoting.address import WILDCARDS, join_address
from rocketmq_remoting.client import RemotingClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from brokergroup_operator.migrate.adopt import Adoption, NamedStore
    from brokergroup_operator.migrate.claims import Wish
    from brokergroup_operator.migrate.claims_back import BackWish
    from brokergroup_operator.migrate.cut_over import Report
    from brokergroup_operator.migrate.departure import Departure, Target
    from brokergroup_operator.migrate.java import JavaState, Reading
    from brokergroup_operator.migrate.plan import GroupPlan, Standing
    from brokergroup_operator.migrate.quiet import StaticGroup
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.signature import Credentials

SHADOW_READ_SECONDS = 0.2
SHADOW_SUMMARY_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """The Java controller, and how to find its groups."""

    controller: str
    name_servers: tuple[str, ...] = ()
    broker_names: tuple[str, ...] = ()
    # An administrator of brokers that require signatures (authenticationEnabled).
    credentials: Credentials | None = None


@dataclass(frozen=True, kw_only=True)
class Home:
    """Our side: the store and the address of our controller."""

    store: str
    listen: tuple[str, int]
    advertise: str = ""
    kubeconfig: Path | None = None

    def __post_init__(self) -> None:
        """Refuse an address that no broker can dial before any broker gets it."""
        if not self.advertise and self.listen[0] in WILDCARDS:
            raise ValueError(
                f"advertise is empty and listen is {self.listen[0]!r}: expected the host:port by which brokers reach ours"
            )

    @property
    def address(self) -> str:
        """Return our controller's address as brokers dial it."""
        return self.advertise or join_address(*self.listen)


@contextlib.asynccontextmanager
async def java_calls(source: Source) -> AsyncIterator[JavaCalls]:
    """Open a client for one command."""
    client = RemotingClient()
    try:
        yield JavaCalls(client, credentials=source.credentials)
    finally:
        await client.close()


def unknown_names(source: Source, reading: Reading) -> list[str]:
    """Return the groups that were requested by name and that the controller does not know."""
    return sorted(set(source.broker_names) & set(reading.unknown))


async def plan(source: Source) -> tuple[Reading, tuple[GroupPlan, ...]]:
    """Read, and return the planned records."""
    async with java_calls(source) as calls:
        reading = await _read(calls, source)
    return reading, make_plan(reading)


async def apply(
    plans: tuple[GroupPlan, ...], *, store: str, kubeconfig: Path | None, replace_older: bool
) -> dict[str, Standing]:
    """Write the planned records; return each stored record's relation to its plan."""
    opened = open_record_store(store, kubeconfig=kubeconfig)
    try:
        keys = [GroupKey(namespace_of(store), one.record.broker_name) for one in plans]
        for key, one in zip(keys, plans, strict=True):  # all or none, as far as can be known before
            stored = await opened.read(key)
            check_record(key, stored.record if stored is not None else None, one.record, replace_older=replace_older)
        return {
            str(key): await write_record(opened, key, one.record, replace_older=replace_older)
            for key, one in zip(keys, plans, strict=True)
        }
    finally:
        await opened.close()


async def shadow(source: Source, *, listen: tuple[str, int], stop: asyncio.Event, report: Report) -> None:
    """Run beside the Java controller until ``stop``: count heartbeats, judge each change of its state."""
    async with java_calls(source) as calls, _listening(listen) as quiet:
        reading = await _read(calls, source)
        quiet.leader = reading.leader
        report(
            "shadowing",
            address=quiet.address,
            leader=reading.leader,
            groups=[one.state.broker_name for one in reading.groups],
        )
        known: dict[str, JavaState] = {group.state.broker_name: group.state for group in reading.groups}
        shadows = {
            group.state.broker_name: Shadow(cluster_name=group.cluster_name, next_broker_id=group.next_broker_id)
            for group in reading.groups
        }
        heard: dict[str, Mapping[int, LiveReplica]] = {}
        clock = asyncio.get_running_loop().time
        next_summary_seconds = clock()
        while not stop.is_set():
            for name, state in (await _follow(calls, reading, quiet, known)).items():
                live = _live(quiet, state)
                if state != known[name]:
                    then = heard_before(heard.get(name, live), live, master_epoch=known[name].master_epoch)
                    for judgement in shadows[name].judge(known[name], state, then):
                        report("decision" if judgement.agrees else "difference", **judgement.as_json())
                known[name], heard[name] = state, live
            if clock() >= next_summary_seconds:
                report(
                    "heard",
                    heartbeats={name: quiet.heartbeats(name) for name in known},
                    brokers={name: sorted(quiet.heard(name)) for name in known},
                )
                next_summary_seconds = clock() + SHADOW_SUMMARY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHADOW_READ_SECONDS):
                    await stop.wait()


async def cut_over(
    source: Source, home: Home, settings: CutOverSettings, *, stop: asyncio.Event, report: Report
) -> None:
    """Cut over, then be the controller until ``stop``. Raises ``CutOverError`` if the cut-over did not happen."""
    async with java_calls(source) as calls, _listening(home.listen) as quiet:
        reading = await _read(calls, source)
        missing = unknown_names(source, reading)
        if missing:
            raise CutOverError(f"nothing was begun: {source.controller} does not know {', '.join(missing)}")
        quiet.leader = reading.leader
        await _check_store(reading, home)
        cut = CutOver(calls=calls, reading=reading, quiet=quiet, settings=settings, report=report)
        records = await _until_stopped(cut, stop)
        try:
            await _write(records, home)
        except (RecordStoreError, RecordInTheWayError) as error:
            then = await cut.abandon()
            raise CutOverError(f"the record could not be written: {error}. Ours has granted nothing. {then}") from error
    report("leading", address=home.address)
    plane = PlaneSettings(listen_host=home.listen[0], listen_port=home.listen[1], advertise_address=home.advertise)
    try:
        await run_standalone(StandaloneSettings(plane=plane, store=home.store, name_servers=source.name_servers), stop)
    except OSError as error:
        raise CutOverError(
            f"the cut is done, but {home.address} cannot be served: {error}. Start brokergroup controller on this store there"
        ) from error


async def back(source: Source, home: Home, settings: BackSettings, *, dry_run: bool, report: Report) -> list[JavaState]:
    """Move every named group to a Java controller. Raises ``BackError`` otherwise."""
    async with java_calls(source) as calls, contextlib.AsyncExitStack() as stack:
        try:
            quiet = await stack.enter_async_context(_listening(home.listen))
        except OSError as error:
            raise BackError(
                f"nothing was begun: {home.address} is taken ({error.strerror}): stop our controller first, "
                "so that it grants nothing"
            ) from error
        store = open_record_store(home.store, kubeconfig=home.kubeconfig)
        stack.push_async_callback(store.close)
        names = source.broker_names or await _names(calls, source)
        records: list[BrokerGroupRecord] = []
        for name in names:
            stored = await store.read(GroupKey(namespace_of(home.store), name))
            if stored is None:
                raise BackError(f"nothing was begun: the store {home.store} has no record of {name}")
            records.append(stored.record)
        way = Back(calls=calls, records=records, quiet=quiet, settings=settings, report=report)
        if dry_run:
            metadata, lessons = await way.check()
            report("would go back", leader=metadata.leader, lessons=[str(one) for one in lessons])
            return []
        return await way.run()


async def begin(adoption: Adoption, *, store: str, kubeconfig: Path | None = None) -> Standing:
    """Write the record that our controller begins with on these stores. Raises ``RecordInTheWayError`` if one goes on already."""
    opened = open_record_store(store, kubeconfig=kubeconfig)
    try:
        key = GroupKey(namespace_of(store), adoption.broker_name)
        return await write_record(opened, key, record_of(adoption), replace_older=False)
    finally:
        await opened.close()


async def leave(
    broker_name: str,
    stores: Sequence[NamedStore],
    target: Target,
    *,
    controllers: str,
    store: str,
    kubeconfig: Path | None,
    yes: bool,
    show: Callable[[Departure], None],
) -> None:
    """Judge the stores of a group outside pods; with `yes`, if all are released, remove its record. Raises ``DepartureError``.

    `show` gets the plan before that.
    """
    opened = open_record_store(store, kubeconfig=kubeconfig)
    try:
        key = GroupKey(namespace_of(store), broker_name)
        stored = await opened.read(key)
        if stored is None:
            raise DepartureError(f"the store {store} has no record of {broker_name}")
        departure = judge_departure(stored.record, stores, target, controllers=controllers)
        show(departure)
        if not yes or departure.blocked:
            return
        if not departure.is_released:
            raise DepartureError(
                "a store is not released: run `adopt release --yes` on each, and `adopt check` again. The record stays"
            )
        await opened.commit(key, None, stored)
    finally:
        await opened.close()


async def quiet(
    source: Source, *, report: Report, seconds: float, yes: bool, show: Callable[[StaticGroup], None]
) -> None:
    """Show each named group of static roles, and with `yes` bring it to where it can be stopped. Raises ``QuietError``."""
    async with java_calls(source) as calls:
        for name in source.broker_names:
            group = await read_static(calls, source.name_servers, name)
            show(group)
            if yes:
                show(await make_quiet(calls, group, source.name_servers, report, seconds=seconds))


async def take_claims(
    wish: Wish, *, kubeconfig: Path | None, report: Report, yes: bool, show: Callable[[Adoption], None]
) -> str:
    """Plan what becomes of another deployment's claims, and with `yes` do it, unless it is blocked. Raises ``ClaimsError``.

    `show` gets the plan before a store is changed, or a claim that no earlier run has begun to move. Return what the BrokerGroup's
    spec must say; empty if that is not to be created now.
    """
    async with kubernetes_api(kubeconfig) as api, sole_adoption(api, wish):
        takeover = Takeover(api, wish, report)
        adoption = await takeover.plan(go_on=yes)
        show(adoption)
        if adoption.blocked or not yes:
            return ""
        await takeover.run(adoption)
        return await takeover.spec_of_group(adoption)


async def release_claims(
    wish: BackWish,
    *,
    kubeconfig: Path | None,
    report: Report,
    yes: bool,
    show: Callable[[Departure, Mapping[str, str]], None],
) -> None:
    """Plan how a hibernated group's claims are released to another deployment, and with `yes` do it, unless it is blocked.

    `show` gets the plan, and the BrokerGroup's spec.config, before anything is changed. Raises ``ClaimsError``.
    """
    async with kubernetes_api(kubeconfig) as api, sole_release(api, wish):
        way = ClaimsBack(api, wish, report)
        departure = await way.plan()
        further = await way.further_properties(departure)
        show(departure, further)
        if yes and not departure.blocked:
            await way.run(departure, further)


@contextlib.asynccontextmanager
async def _listening(listen: tuple[str, int]) -> AsyncIterator[QuietController]:
    quiet = QuietController()
    await quiet.start(*listen)
    try:
        yield quiet
    finally:
        await quiet.stop()


async def _read(calls: JavaCalls, source: Source) -> Reading:
    return await read_controller(
        calls, controller=source.controller, name_servers=source.name_servers, broker_names=source.broker_names
    )


async def _names(calls: JavaCalls, source: Source) -> tuple[str, ...]:
    found: set[str] = set()
    for name_server in source.name_servers:
        found |= set((await calls.clusters(name_server)).broker_addr_table)
    return tuple(sorted(found))


async def _check_store(reading: Reading, home: Home) -> None:
    """Check before the cut-over that the records can be written after it."""
    store = open_record_store(home.store, kubeconfig=home.kubeconfig)
    try:
        for one in make_plan(reading):
            key = GroupKey(namespace_of(home.store), one.record.broker_name)
            stored = await store.read(key)
            check_record(key, stored.record if stored is not None else None, one.record, replace_older=True)
    finally:
        await store.close()


async def _write(records: list[BrokerGroupRecord], home: Home) -> None:
    store = open_record_store(home.store, kubeconfig=home.kubeconfig)
    try:
        for record in records:
            await write_record(
                store, GroupKey(namespace_of(home.store), record.broker_name), record, replace_older=True
            )
    finally:
        await store.close()


async def _until_stopped(cut: CutOver, stop: asyncio.Event) -> list[BrokerGroupRecord]:
    """Run the cut-over; ``stop`` ends it, and restores the brokers' lists."""
    work = asyncio.create_task(cut.run(), name="rmq:cut over")
    stopped = asyncio.create_task(stop.wait(), name="rmq:stop")
    try:
        await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait([work])
        raise CutOverError(f"stopped: ours has granted nothing. {await cut.abandon()}")
    finally:
        stopped.cancel()


async def _follow(
    calls: JavaCalls, reading: Reading, quiet: QuietController, known: Mapping[str, JavaState]
) -> dict[str, JavaState]:
    """Return the present states, or the last ones if no controller leads at the moment."""
    for peer in reading.peers:
        try:
            leader = (await calls.metadata(peer)).leader
            if leader is not None:
                quiet.leader = leader
                return dict(known) | await read_states(calls, leader, known)
        except MigrationCallError:
            continue
    return dict(known)


def _live(quiet: QuietController, state: JavaState) -> Mapping[int, LiveReplica]:
    """Return the replicas that send heartbeats here; without any, those alive at the Java controller, which reports no offsets."""
    heard = quiet.live(state.broker_name)
    return heard or {one: LiveReplica(one, address=state.addresses[one]) for one in state.alive}
