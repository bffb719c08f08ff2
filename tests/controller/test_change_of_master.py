"""A change of master is one plan in the record: committed first, then carried out by one plane in one order, whatever is lost."""

from __future__ import annotations

import ast
import asyncio
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.controller.group.notes import UnansweredWrite, UnansweredWrites
from brokergroup_operator.controller.upkeep.keeper import pause_after
from brokergroup_operator.observe.timeline import Outcome
from brokergroup_operator.records.store import (
    DEFAULT_DEADLINE_SECONDS,
    GroupKey,
    RecordCorruptError,
    RecordRefusedError,
    RecordStoreError,
    RecordUnavailableError,
    StoredRecord,
)
from controller_core.model import BrokerGroupRecord
from controller_core.requests import ElectMaster
from controller_core.step import step
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.errors import RemotingError
from tests.controller.conftest import QUICK, group_of, record_of, snapshot_of
from tests.controller.world import (
    KEY,
    LOOSE,
    STRICT,
    Fencer,
    Record,
    RefusingStore,
    Store,
    Stored,
    World,
    Write,
    knows,
    raises_epoch,
)
from tests.support.fake_broker import NAME, eventually

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.group_directory import GroupBinding


class SilentStore(Store):
    """Writes the next election (or not); from then on it answers nothing until `silent` is cleared."""

    armed = silent = False

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self._writes = writes

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> Stored:
        if self.silent:
            raise RecordUnavailableError("no answer")
        return await super().read(key, deadline_seconds=deadline_seconds)

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        if self.silent:
            raise RecordUnavailableError("no answer")
        if not (self.armed and raises_epoch(record, expected)):
            return await write()
        self.armed, self.silent = False, True
        written = await write() if self._writes else None
        raise RecordUnavailableError("no answer", write_id=written.write_id if written is not None else "lost")


@pytest.mark.parametrize("writes", [True, False], ids=["the write arrived", "the write was lost"])
async def test_nothing_is_restored_while_the_fate_of_a_commit_is_unknown(group: World, writes: bool) -> None:
    """Fault a: the deposed master could acknowledge again although another one had been elected."""
    store = SilentStore(writes=writes)
    plane, (first, second, _) = await group.serving(store)
    store.armed = True
    moving = asyncio.create_task(plane.switch_master(KEY, to_broker_id=2))
    await eventually(lambda: store.silent, what="the commit without an answer")
    await asyncio.sleep(0.5)
    assert first.minimum == 99, "restored before the plane knew whether the commit had arrived"
    store.silent = False
    assert (await moving).epoch == 2
    assert group.journal.index("1 slave 2") < group.journal.index("minInSyncReplicas=2 at 1")
    assert second.is_master
    assert record_of(plane).master_epoch == 2, "one epoch, whether it was written once or twice"
    await eventually(lambda: first.minimum == 2, what="the minimum to be put back")
    await eventually(lambda: snapshot_of(plane).writable)


async def test_with_several_planes_only_the_one_that_carries_the_change_out_tells_of_it(group: World) -> None:
    """Fault b: another plane answered 1004 with the new epoch, and its keeper sent its own 1008 in the middle of the change."""
    planes = await group.several(3)
    first, second, _ = await group.three()
    await knows(*planes)
    everybody = {1: 1, 2: 1, 3: 1}  # each plane sends each broker the previous epoch's role once
    await eventually(lambda: all(group_of(plane).changes.told == everybody for plane in planes), what="all to be told")
    group.journal.clear()
    first.role_change_waits = asyncio.Event()
    switching = asyncio.create_task(planes[0].switch_master(KEY, to_broker_id=2))
    await eventually(lambda: "1008 to 1" in group.journal, what="the old master to be told")
    told_by: dict[int, str] = {}
    for number, plane in enumerate(planes):
        second.group.planes = [plane.address]
        answer = await second.ask(1004)
        told_by[number] = (answer.ext_fields or {})["masterEpoch"]
    second.group.planes = [plane.address for plane in planes]
    await asyncio.sleep(0.2)
    tellings = [line for line in group.journal if line.startswith("1008")]
    assert (told_by, tellings) == ({0: "1", 1: "1", 2: "1"}, ["1008 to 1"])
    first.role_change_waits.set()
    assert (await switching).confirmed
    await eventually(lambda: second.sync_state_set == {1, 2, 3}, what="everybody in sync again")


@pytest.mark.parametrize("error", [RecordRefusedError, RecordCorruptError])
async def test_a_record_that_is_refused_ends_the_change_and_is_tried_again_less_and_less_often(
    group: World, error: type[RecordStoreError]
) -> None:
    """Fault f: the plane retried for ever and kept the change open, so that nothing else could run for the group."""
    store = RefusingStore(error)
    plane, (first, second, third) = await group.serving(store)
    store.refuses = True
    await first.kill()
    await eventually(lambda: store.refused, what="the election to be refused")
    inner = group_of(plane)
    await eventually(lambda: inner.master_change is None, what="the change to end", within_seconds=2.0)
    refused = store.refused
    await asyncio.sleep(0.5)
    assert store.refused - refused <= 2, "tried again without a pause"
    store.refuses = False
    await eventually(lambda: second.is_master or third.is_master, what="another master as soon as it may be")


async def test_a_member_that_never_answers_is_complained_of_once(group: World) -> None:
    """500 groups with such members wrote 26,000 warnings to the log in 20 s."""
    plane, (first, second, third) = await group.serving(role_change_deadline_seconds=0.05)
    third.role_change_waits = second.role_change_waits = asyncio.Event()
    with capture_logs() as lines:
        await first.kill()
        await eventually(lambda: group.journal.count("1008 to 3") > 5, what="it to be told again and again")
    complaints = [line for line in lines if line["event"] == "not taken" and line["broker_id"] == 3]
    assert [line["log_level"] for line in complaints if line["what"] == "role change"].count("warning") == 1
    third.role_change_waits.set()
    await eventually(lambda: snapshot_of(plane).writable, what="it to answer at last")


async def test_a_group_made_anew_under_the_same_name_is_complained_of_anew(group: World) -> None:
    """The warning about the old group's member hid the new one's."""
    plane, (*_, third) = await group.serving(role_change_deadline_seconds=0.05)
    third.role_change_waits = asyncio.Event()

    def has_warned(times: int) -> bool:
        return len([1 for line in lines if (line["event"], line["log_level"]) == ("not taken", "warning")]) == times

    with capture_logs() as lines:
        for times in (1, 2):
            plane._groups._forget(KEY)
            plane._groups.get(KEY)
            await eventually(functools.partial(has_warned, times), what="a warning for this group")
    third.role_change_waits.set()


def test_what_is_told_in_vain_is_told_less_and_less_often() -> None:
    pauses = [pause_after(tries, QUICK) for tries in range(1, 40)]
    assert pauses == sorted(pauses)
    assert pauses[0] == QUICK.keeper_poll_seconds
    assert max(pauses[:10]) == QUICK.keeper_longest_retry_seconds, (
        "a starting broker gets its role soon after its port opens"
    )
    assert pauses[-1] == QUICK.keeper_longest_pause_seconds


class JournalStore(Store):
    """Adds each write to the brokers' journal, which gives writes and requests one order."""

    def __init__(self, journal: list[str]) -> None:
        super().__init__()
        self._journal = journal

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        written = await write()
        self._journal.append("write")
        return written


@pytest.mark.parametrize(
    ("how", "writes"),
    [("killed", 1), ("frozen", 2), ("moved", 2)],
    ids=["a certain death", "a silent master", "a move"],
)
async def test_a_certain_death_costs_one_write_before_the_first_role_change(
    group: World, how: str, writes: int
) -> None:
    """The election's commit carries the plan. If a fence or the minimum of 99 comes first, the plan is written before that."""
    store = JournalStore(group.journal)
    plane, (first, *_) = await group.three_under(store, fencer=Fencer(group))
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).change is None, what="a group at rest")
    group.journal.clear()
    if how == "killed":
        await first.kill()
    elif how == "frozen":
        first.freeze()
    else:
        await plane.switch_master(KEY, to_broker_id=2)
    await eventually(lambda: any(line.startswith("1008") for line in group.journal), what="the first role change")
    told = next(index for index, line in enumerate(group.journal) if line.startswith("1008"))
    assert group.journal[:told].count("write") == writes


# ---- A request is answered, and brokers are notified, only after the commit.


async def test_a_request_is_answered_and_brokers_are_told_only_when_it_is_committed(group: World) -> None:
    store = Store()
    plane, (first, second, _) = await group.three_under(store, settings=LOOSE)
    await eventually(lambda: record_of(plane).change is None, what="nothing is left to tell")
    store.writing.clear()
    answer = asyncio.create_task(first.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="true"))
    await eventually(lambda: store.waiting, what="the election is being committed")
    told_before = list(group.journal)
    for _ in range(20):  # several ticks of the plane: it would send a role in the first of them
        await asyncio.sleep(plane._settings.tick_seconds)
    assert not answer.done()
    assert group.journal == told_before
    assert not second.is_master
    store.writing.set()
    assert (await answer).code == ResponseCode.SUCCESS
    assert record_of(plane).master_broker_id == 2
    await eventually(lambda: second.is_master, what="the elected one to be told")


# ---- A plane whose election's write got no answer in time owns that election as soon as the record shows it.


class MuteStore(Store):
    """Writes the next election without an answer."""

    mute = False
    unanswered = 0

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        written = await write()
        if not self.mute or not raises_epoch(record, expected):
            return written
        self.mute = False
        self.unanswered += 1
        assert written is not None
        raise RecordUnavailableError("no answer", write_id=written.write_id)


async def test_a_failover_whose_write_was_not_answered_is_no_cancelled_one(group: World) -> None:
    store = MuteStore()
    plane, (first, second, third) = await group.serving(store)
    store.mute = True
    await first.kill()
    await eventually(lambda: second.is_master or third.is_master, what="another master")
    incident = await group.incident()
    assert store.unanswered == 1
    assert (incident.outcome, incident.epoch_after) == (Outcome.COMPLETED, 2)
    assert incident.to_broker_id == record_of(plane).master_broker_id
    assert 2 in group.notes.masters, "the commit's effects follow"
    assert record_of(plane).master_epoch == 2, "one epoch for one lost master"


class LateStore(Store):
    """Takes the next election after the next read: its writer has no answer by then, and that read does not show it."""

    is_slow = False
    late: Write | None = None

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        if not self.is_slow or expected is None or not raises_epoch(record, expected):
            return await write()
        self.is_slow, self.late = False, write
        raise RecordUnavailableError("no answer", write_id=f"write-{int(expected.version) + 1}")

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> Stored:
        found, late = await super().read(key, deadline_seconds=deadline_seconds), self.late
        if late is not None:
            self.late = None
            await late()
        return found


async def test_a_failover_whose_write_arrives_after_the_next_read_is_no_cancelled_one(group: World) -> None:
    """As etcd commits what a client has given up on. Else no plane tells its brokers for 3 s: each takes it for another's."""
    store = LateStore()
    _, (first, second, third) = await group.serving(store)
    store.is_slow = True
    await first.kill()
    await eventually(lambda: second.is_master or third.is_master, what="another master")
    incident = await group.incident()
    assert (incident.outcome, incident.epoch_after) == (Outcome.COMPLETED, 2)
    assert group.notes.withdrawn == []


def _unanswered(epoch: int) -> tuple[UnansweredWrite, StoredRecord]:
    """Return an election whose write got no answer, and the store's record after the write arrived."""
    before = BrokerGroupRecord(broker_name=NAME, cluster_name="c", master_epoch=epoch)
    after = BrokerGroupRecord(broker_name=NAME, cluster_name="c", master_epoch=epoch + 1)
    request, replaced = ElectMaster(), StoredRecord(record=before, version="1", uid="u", write_id="earlier")
    refused = step(before, request, {}, STRICT)
    write = UnansweredWrite(request, replaced, replace(refused, record=after), "ours")
    return write, StoredRecord(record=after, version="2", uid="u", write_id="ours")


def test_it_is_found_once_and_told_once() -> None:
    writes = UnansweredWrites()
    write, stored = _unanswered(1)
    writes.note(write)
    assert writes.take(write.request, stored.record) is None, "the store has not been read yet"
    assert writes.find(stored) is write
    assert writes.find(stored) is None
    assert writes.take(ElectMaster(broker_id=9), stored.record) is None
    assert writes.take(write.request, stored.record) is write.decision
    assert writes.take(write.request, stored.record) is None


def test_what_was_overwritten_is_forgotten() -> None:
    writes = UnansweredWrites()
    write, stored = _unanswered(1)
    for gone in (None, replace(stored, write_id="another plane's")):
        writes.note(write)
        assert writes.find(gone) is None
        assert writes.find(stored) is None, "another write came first"
    writes.note(write)
    assert writes.find(write.replaced) is None
    assert writes.find(stored) is write, "a slow store has taken it since that look"
    _, moved_on = _unanswered(2)
    assert writes.take(write.request, moved_on.record) is None


def test_the_same_record_written_by_another_plane_is_not_ours() -> None:
    """Seen on two real nodes: a busy API answered none of three planes in time, and each reported the one failover."""
    writes = UnansweredWrites()
    write, stored = _unanswered(1)
    writes.note(write)
    assert writes.find(replace(stored, write_id="another plane's")) is None
    assert writes.take(write.request, stored.record) is None


# ---- While a new process of the master registers, the plane does not send it the previous process's epoch (rule 6).


async def test_it_is_not_told_the_epoch_of_the_process_before_it(group: World) -> None:
    store = Store()
    plane, (first, *_) = await group.three_under(store, settings=LOOSE)
    assert first.epoch == 1
    await plane.stop()
    await first.kill()
    # The next plane has seen no death: its record names broker 1 as master, and then the new process of broker 1 registers.
    plane = await group.plane(store, settings=LOOSE)
    await eventually(
        lambda: len(snapshot_of(plane, plane.keys()[0]).live) == 2 if plane.keys() else 0, what="two are heard"
    )
    port = int(first.address.rpartition(":")[2])
    told_before = group.journal.count("1008 to 1")
    store.writing.clear()
    restarting = asyncio.create_task(first.restarted(host=first.host, port=port))
    await eventually(lambda: store.waiting, what="the registration is being committed")
    for _ in range(20):  # several ticks of the plane: it would send a role in the first of them
        await asyncio.sleep(plane._settings.tick_seconds)
    assert group.journal.count("1008 to 1") == told_before
    store.writing.set()
    again = await restarting
    await eventually(lambda: again.epoch >= 2, what="a new epoch for the new process")
    assert not [line for line in group.journal if line == "1 master 1"][1:]


# ---- ElectMaster (1002) alone never replaces a granted master: only a failover or a switchover does.


async def test_a_master_that_falls_silent_while_a_caller_waits_for_the_store_is_fenced_first(group: World) -> None:
    """The caller found the master alive; at the decision it is silent. The answer must not name another master."""
    store, fencer = Store(), Fencer(group)
    plane, (first, second, _) = await group.serving(store, fencer=fencer)
    store.reading.clear()
    asking = asyncio.create_task(second.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false"))
    await eventually(lambda: store.waiting, what="the decision to wait for the store")
    first.silent = True
    await first.drop_connections()
    await eventually(lambda: 1 not in snapshot_of(plane).live, what="the master to be missed")
    store.reading.set()
    try:
        async with asyncio.timeout(10):
            answer = await asking
    except RemotingError:
        answer = None
    assert fencer.fenced == [1] or answer is None or answer.code not in (0,), (
        "a new master before the old one was fenced"
    )
    await eventually(lambda: record_of(plane).master_epoch == 2 and snapshot_of(plane).writable)
    assert fencer.fenced == [1]
    assert not record_of(plane).unfenced


async def test_a_designated_member_that_comes_alive_in_between_does_not_take_office_undrained(group: World) -> None:
    """It was not alive at the trial election, so no switchover began; when the store answers, it is alive and electable."""
    store = Store()
    plane, (first, second, third) = await group.serving(store)
    second.silent = True
    await second.drop_connections()
    await eventually(lambda: 2 not in snapshot_of(plane).live)
    store.reading.clear()
    asking = asyncio.create_task(third.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="true"))
    await eventually(lambda: store.waiting, what="the decision to wait for the store")
    second.silent = False
    await eventually(lambda: 2 in snapshot_of(plane).live)
    group.journal.clear()
    store.reading.set()
    async with asyncio.timeout(10):
        answer = await asking
    if answer.code == 0:
        assert "minInSyncReplicas=99 at 1" in group.journal, "the old master was not drained"
    else:
        assert record_of(plane).master_epoch == 1
        assert first.is_master


class DeletingFencer(Fencer):
    """While it fences, the group is deleted and its members are gone."""

    def __init__(self, group: World) -> None:
        super().__init__(group)
        self.world = group

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.world.directory.wish(deleting=True)
        await self.world.stop()
        await asyncio.sleep(0.05)
        return FenceOutcome(confirmed=True, how="killed")


async def test_a_group_deleted_in_the_middle_of_a_failover_is_no_incident(group: World) -> None:
    _plane, (first, _, _) = await group.serving(fencer=DeletingFencer(group))
    first.freeze()
    await eventually(lambda: group.notes.withdrawn, what="the failover to end")
    assert [timeline.outcome for timeline in group.notes.withdrawn] == [Outcome.CANCELLED]
    assert group.notes.closed == []


# ---- The page "From a dead master to the next" in docs/concepts/architecture.md: its functions exist, and call each other.

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
ROW = re.compile(r"^\| (?P<number>\d+) \| `(?P<function>[\w.]+)`.*\| `(?P<file>[\w/.]+)` \|$", re.MULTILINE)
MOST = 15


def rows() -> list[tuple[str, Path]]:
    section = PAGE.read_text(encoding="utf-8").partition("### From a dead master to the next")[2].partition("\n## ")[0]
    found = list(ROW.finditer(section))
    assert [int(row["number"]) for row in found] == list(range(1, len(found) + 1))
    homes = (ROOT, ROOT / "operator" / "brokergroup_operator")
    return [
        (row["function"], next(home / row["file"] for home in homes if (home / row["file"]).exists())) for row in found
    ]


@functools.cache
def defined(file: Path) -> set[str]:
    """Return the file's functions, and its methods by class."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return names | {f"{one.name}.{node.name}" for one in classes for node in one.body if isinstance(node, kinds)}


@functools.cache
def called(file: Path) -> set[str]:
    """Return the names of all functions and methods that this file calls."""
    return calls_of(ast.parse(file.read_text(encoding="utf-8")))


def calls_of(tree: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        func.attr if isinstance(func, ast.Attribute) else func.id
        for func in calls
        if isinstance(func, ast.Attribute | ast.Name)
    }


def test_the_way_from_a_dead_master_to_the_next_is_as_the_page_says() -> None:
    way = rows()
    assert 10 <= len(way) <= MOST
    for number, (function, file) in enumerate(way):
        assert function in defined(file), f"{file.name} has no {function}"
        opened = {earlier for _, earlier in way[:number]}
        name = function.rpartition(".")[2]
        assert not opened or any(name in called(one) for one in opened), f"{function} is called from no file before it"


def test_one_module_tells_brokers_of_roles() -> None:
    """Only the order that `controller_core/change.py` decides sends 104, 1008 and 906."""
    controller = ROOT / "operator" / "brokergroup_operator" / "controller"
    callers = {
        file.relative_to(controller).as_posix()
        for file in controller.rglob("*.py")
        if called(file) & {"change_role", "push_ha_address", "unregister"}
    }
    assert callers == {"change/executor.py"}


def test_a_record_changes_by_one_method() -> None:
    """Each commit of the plane is reached by `Group.decide`, and by no other public method."""
    controller = ROOT / "operator" / "brokergroup_operator" / "controller"
    group = controller / "group" / "group.py"
    assert [file for file in controller.rglob("*.py") if "commit" in called(file)] == [group]
    methods = [
        (node.name, calls_of(node))
        for node in ast.walk(ast.parse(group.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    reach = {"commit"}
    while found := {name for name, calls in methods if calls & (reach - {"decide"})} - reach:
        reach |= found
    assert {name for name in reach if not name.startswith("_")} == {"commit", "decide"}
