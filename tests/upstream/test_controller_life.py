"""The controller itself: address, log, deadlines, configuration, answers; and README.md, which lists this folder's tests."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings, SecuritySettings
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import RecordUnavailableError
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.errors import RemotingTimeoutError
from rocketmq_remoting.serialization import load_json
from tests.support.waiting import eventually
from tests.upstream.java_controllers import start_dledger, wait_until_leading
from tests.upstream.lab import Controller, StartOurs, WireGroup

if TYPE_CHECKING:
    from brokergroup_operator.records.store import GroupKey, StoredRecord
    from tests.upstream.java_controllers import JavaHost


OK = 0
REAL_JAVA = pytest.mark.real("java", "rocketmq")
JAVA_CLIENT_TIMEOUT_SECONDS = 3.0


async def test_issue_9082_the_leader_is_named_as_brokers_reach_it(start_ours: StartOurs) -> None:
    """#9082: brokers got 127.0.0.1, from the leader's configuration, as its address, and could not reach it there.

    Not shown on Java: it answers with controllerDLegerPeers. Ours answers with `advertise_address`, and refuses to start if it
    listens on every address without that setting.
    """
    controller = await start_ours(advertise_address="10.1.2.3:9878")
    async with WireGroup(controller) as group:
        answer = await group.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert (answer.ext_fields or {})["controllerLeaderAddress"] == "10.1.2.3:9878"
    assert (answer.ext_fields or {})["peers"] == "n0:10.1.2.3:9878;"
    anywhere = ControllerPlane(
        store=MemoryRecordStore(), directory=FixedDirectory(), settings=PlaneSettings(listen_port=0)
    )
    with pytest.raises(ValueError, match="advertise_address"):
        await anywhere.start()


async def test_issue_10956_strangers_neither_configure_nor_designate_nor_clean(
    controller: Controller, start_ours: StartOurs
) -> None:
    """#10956, #10957 (open): no request to the controller is authenticated, so any client may allow unclean elections (1009).

    Ours takes its configuration only from its own settings; only administrators may designate and clean (tests/security).
    """
    if not controller.is_java:
        controller = await start_ours(security=SecuritySettings())
    async with WireGroup(controller) as group:
        one, two = await group.in_sync(2)
        await one.alter({1})
        answer = await group.configure("enableElectUncleanMaster", "true")
        shown = await group.ask(RequestCode.GET_CONTROLLER_CONFIG)
        designated = await group.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="true")
        cleaned = await group.ask(RequestCode.CLEAN_BROKER_DATA, isCleanLivingBroker="true")
        after = await group.state()
        if not controller.is_java:
            for refused in (answer, shown, designated, cleaned):
                assert (refused.code, refused.body) == (ResponseCode.NO_PERMISSION, None)
            assert (after.master, after.members, after.others) == (one.broker_id, {1}, {two.broker_id})
            return
        await group.configure("enableElectUncleanMaster", "false")
        assert [answer.code, shown.code, designated.code, cleaned.code] == [OK] * 4
        assert b"enableElectUncleanMaster=true\n" in (shown.body or b"")
        assert not after.known


async def test_issue_7293_every_answer_about_a_set_carries_the_set(group: WireGroup) -> None:
    """#7293, #7219: a NullPointerException in the broker's handling of 1001 ended its shrink task for ever.

    Fixed in the broker. The controller's part: every answer that a broker dereferences has a body, and two 1001 of
    one epoch are never both accepted.
    """
    one, two = await group.in_sync(2)
    third = await group.broker()
    state = await group.state()
    body = {"syncStateSet": [1], "syncStateSetEpoch": state.set_epoch}
    wider = {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": state.set_epoch}
    answers = await asyncio.gather(one.alter({1}, body=body), one.alter({1, 2, 3}, body=wider))
    assert sorted(answer.code for answer in answers) == [OK, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH]
    [accepted] = [answer for answer in answers if answer.code == OK]
    told = load_json(accepted.body or b"")
    assert told["syncStateSetEpoch"] == state.set_epoch + 1
    polled = await third.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    assert load_json(polled.body or b"") == told
    kept = await two.elect()
    assert kept.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert set(load_json(kept.body or b"")["syncStateSet"]) == set(told["syncStateSet"])


async def test_source_what_two_controllers_decide_at_once_is_decided_once(start_ours: StartOurs) -> None:
    """Source: Java checks an alter when it is proposed, not when it is applied, and relies on its single leader.

    All of our controllers decide, by compare-and-set of the record: of two 1001 of one epoch only one is accepted.
    """
    store = MemoryRecordStore()
    first, second = await start_ours(store=store), await start_ours(store=store)
    async with WireGroup(first) as group, WireGroup(second, name=group.name) as same:
        one, two = await group.in_sync(2)
        third = await group.broker()
        epoch = (await group.state()).set_epoch
        for broker in (one, two, third):
            broker.beats_at = (first.address, second.address)
            await broker.heartbeat()
        fields = {"masterBrokerId": 1, "masterEpoch": 1}
        answers = await asyncio.gather(
            group.ask(1001, {"syncStateSet": [1], "syncStateSetEpoch": epoch}, **fields),
            same.ask(1001, {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": epoch}, **fields),
        )
        assert sorted(answer.code for answer in answers) == [OK, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH]
        assert (await same.until(lambda state: state.set_epoch > epoch, "both see it")).set_epoch == epoch + 1


async def test_source_the_body_of_an_election_is_json_in_both_shapes(group: WireGroup) -> None:
    """Source: 1002's body has bare numbers as keys, which is not JSON, and mqadmin electMaster decodes another class from it.

    tests/real/test_mqadmin.py shows the real mqadmin's output for either answer.
    """
    one = await group.broker()
    answer = await one.elect()
    members = {"brokerAddrs": {"1": one.address}, "brokerName": group.name, "cluster": group.cluster}
    if group.controller.is_java:
        with pytest.raises(json.JSONDecodeError):
            json.loads(answer.body or b"")
        assert "brokerAddrs" not in load_json(answer.body or b"")
        return
    assert json.loads(answer.body or b"") == {"brokerMemberGroup": members, "syncStateSet": [1], **members}


@pytest.mark.real_time
@pytest.mark.parametrize("kind", [pytest.param("java", marks=REAL_JAVA), "ours"])
async def test_issue_5797_what_is_stored_does_not_grow_with_time(
    kind: str, start_ours: StartOurs, tmp_path: Path
) -> None:
    """#5797, #5807: the DLedger controller's log has no snapshots; every change stays in it and is replayed at each start."""
    if kind == "ours":
        store = FileRecordStore(tmp_path / "records")
        try:
            before, after = await stored_bytes_over_many_changes(await start_ours(store=store), tmp_path / "records")
        finally:
            await store.close()
        assert after <= before + 64  # the epochs have more digits
        return
    program = start_dledger(tmp_path / "java")
    try:
        wait_until_leading(program)
        controller = Controller(program.address, "java")
        before, after = await stored_bytes_over_many_changes(controller, tmp_path / "java" / "store")
    finally:
        program.process.kill()
    assert after > before + 2 * CHANGES * 50


CHANGES = 100


async def stored_bytes_over_many_changes(controller: Controller, folder: Path) -> tuple[int, int]:
    """Return the bytes stored before and after a slave moved in and out this many times, by the files' content."""
    async with WireGroup(controller) as group:
        one, _ = await group.in_sync(2)
        before = written_bytes(folder)
        for _ in range(CHANGES):
            for members in ({1}, {1, 2}):
                assert (await one.alter(members)).code == OK
        assert (await group.state()).set_epoch == 2 + 2 * CHANGES
        return before, written_bytes(folder)


def written_bytes(folder: Path) -> int:
    """Return the number of non-zero bytes, as Java allocates whole files in advance."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(len(data) - data.count(0) for data in (path.read_bytes() for path in files))


class StuckStore(MemoryRecordStore):
    """A store that uses up every deadline once it is stuck."""

    stuck = False

    async def read(
        self, key: GroupKey, *, deadline_seconds: float = JAVA_CLIENT_TIMEOUT_SECONDS
    ) -> StoredRecord | None:
        if self.stuck:
            await asyncio.sleep(deadline_seconds)
            raise RecordUnavailableError(f"record of {key}: no answer within {deadline_seconds} s")
        return await super().read(key, deadline_seconds=deadline_seconds)


def stands_still(pid: int) -> bool:
    """Whether every thread of a process is stopped."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


@pytest.mark.parametrize("kind", [pytest.param("java", marks=REAL_JAVA), "ours"])
async def test_source_no_answer_takes_so_long_that_a_broker_closes_its_connection(
    kind: str, request: pytest.FixtureRequest, start_ours: StartOurs
) -> None:
    """Source: a broker waits 3 s for an answer, then closes its socket, which the controller takes for its death.

    Java waits up to 5 s for its log. Here its whole process is stopped for longer, so it replaces its healthy master.
    In ours the store hangs: an answer without a decision comes in time.
    """
    if kind == "java":
        host: JavaHost = request.getfixturevalue("java_host")
        async with WireGroup(Controller(host.program.address, "java")) as group:
            one, two = await group.in_sync(2)
            host.program.process.signal(signal.SIGSTOP)
            # It stops only after one of its threads has run once more: until then another thread answers.
            await eventually(lambda: stands_still(host.program.process.pid), "every thread stands still")
            try:
                with pytest.raises(RemotingTimeoutError):
                    await one.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
                await one.disconnect()  # as the Java client does; its next heartbeat would open a new connection
            finally:
                host.program.process.signal(signal.SIGCONT)
            await group.until(lambda state: state.master == two.broker_id, "a needless election")
        return
    store = StuckStore()
    controller = await start_ours(store=store, record_deadline_seconds=0.5, answer_deadline_seconds=1.0)
    async with WireGroup(controller) as group:
        one, _ = await group.in_sync(2)
        one.keep_beating()
        store.stuck = True
        async with asyncio.timeout(JAVA_CLIENT_TIMEOUT_SECONDS):
            answer = await one.register()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
        store.stuck = False
        after = await group.until(lambda state: state.known, "the store answers again")
        assert (after.master, after.master_epoch) == (1, 1)


HERE = Path(__file__).parent
LINE = re.compile(r"^\| (?P<numbers>[^|]+) \|.*\| `(?P<test>test_\w+)` \|$", re.MULTILINE)


def all_tests() -> dict[str, str]:
    """Return the tests of this folder with their docstrings."""
    found: dict[str, str] = {}
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[node.name] = ast.get_docstring(node) or ""
    return found


def test_the_table_and_the_tests_agree() -> None:
    found = all_tests()
    lines = [
        (line["numbers"], line["test"]) for line in LINE.finditer((HERE / "README.md").read_text(encoding="utf-8"))
    ]
    assert sorted(test for _, test in lines) == sorted(found)
    for numbers, test in lines:
        for number in re.findall(r"\d{4,5}", numbers):
            assert f"#{number}" in found[test] or f"_{number}_" in test, f"{test} has no #{number} in its docstring"


def test_every_test_says_where_it_comes_from() -> None:
    for name, told in all_tests().items():
        assert re.match(r"test_(issue_\d+|source)_", name), name
        assert "#" in told or "Source" in told or "issue_5712" in name, name
