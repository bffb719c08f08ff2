"""Every request code from 0 to 2000, from an unauthenticated client, to a plane whose groups are pods.

The table below has the answers. No request has an effect: record and liveness stay the same, byte for byte.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.serialize import record_to_json
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import SerializeType, request
from rocketmq_remoting.controller_protocol import SyncStateSetBody, encode_broker_names
from tests.controller.world import KEY, STRICT
from tests.support.fake_broker import CLUSTER, NAME, FakeBroker, FakeGroup, eventually
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.controller.plane import ControllerPlane
    from rocketmq_remoting.command import RemotingCommand
    from tests.controller.conftest import StartPlane

STRANGER = "127.64.13.9"
HIGHEST = 2000

REFUSED = ResponseCode.NO_PERMISSION
EXPECTED = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: REFUSED,
    RequestCode.CONTROLLER_ELECT_MASTER: REFUSED,
    RequestCode.CONTROLLER_REGISTER_BROKER: REFUSED,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: ResponseCode.SUCCESS,
    RequestCode.CONTROLLER_GET_METADATA_INFO: ResponseCode.SUCCESS,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: ResponseCode.SUCCESS,
    RequestCode.BROKER_HEARTBEAT: REFUSED,
    RequestCode.UPDATE_CONTROLLER_CONFIG: REFUSED,
    RequestCode.GET_CONTROLLER_CONFIG: REFUSED,
    RequestCode.CLEAN_BROKER_DATA: REFUSED,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: REFUSED,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: REFUSED,
}
"""Every other code is none of the controller's: code 3."""


class Counting(Observer):
    """Counts answers by code, one-way requests included."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[int, int]] = Counter()
        self.counted = asyncio.Event()

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:
        self.answers[request_code, response_code] += 1
        self.counted.set()


class Scene:
    """Three pods in sync that are silent from now on, and a peer outside the group."""

    def __init__(self, plane: ControllerPlane, counting: Counting) -> None:
        self.plane = plane
        self.counting = counting
        self.brokers: list[FakeBroker] = []
        self.peer = RemotingClient(local_host=STRANGER)

    def state(self) -> str:
        """Return the record and the liveness table as text."""
        group = self.plane._groups.get(KEY)
        assert group is not None
        assert group.record is not None
        entries = {one: repr(entry) for one, entry in group.table.entries().items()}
        return json.dumps([record_to_json(group.record), entries, [*map(str, self.plane.keys())]], sort_keys=True)

    def changes_nothing(self) -> bool:
        """Whether the record has no change of master: its end is written shortly after the set is full."""
        group = self.plane._groups.get(KEY)
        return group is not None and group.record is not None and group.record.change is None

    def bodies(self) -> dict[int, list[tuple[dict[str, str], bytes | None]]]:
        """Return, for each controller code, requests that would have an effect from a trusted sender."""
        snapshot = self.plane.snapshot(KEY)
        assert snapshot is not None
        assert snapshot.record is not None
        record = snapshot.record
        name = {"brokerName": NAME, "clusterName": CLUSTER}
        address = self.brokers[0].address
        beat = {**name, "brokerAddr": address, "epoch": "99", "maxOffset": "999999", "confirmOffset": "1"}
        fenced = {"masterBrokerId": str(record.master_broker_id), "masterEpoch": str(record.master_epoch)}
        fewer = SyncStateSetBody(frozenset({record.master_broker_id or 0}), record.sync_state_set_epoch)
        free = str(record.next_broker_id)
        return {
            1001: [({**name, **fenced}, fewer.encode())],
            1002: [
                ({**name, "brokerId": "2", "designateElect": "true"}, None),
                ({**name, "brokerId": "2", "designateElect": "false"}, None),
                ({**name, "brokerId": "-1", "designateElect": "false"}, None),
                (name, None),
            ],
            1003: [
                ({**name, "brokerId": "1", "brokerAddress": f"{STRANGER}:10911"}, None),
                ({**name, "brokerId": "77", "brokerAddress": f"{STRANGER}:10911"}, None),
            ],
            1004: [(name, None)],
            1005: [({}, None)],
            1006: [({}, encode_broker_names([NAME]))],
            904: [
                ({**beat, "brokerId": "1", "heartbeatTimeoutMills": "1"}, None),
                ({**beat, "brokerId": "9", "heartbeatTimeoutMills": "100000"}, None),
            ],
            1009: [({}, b"enableElectUncleanMaster=true\n"), ({}, b"configStorePath=/tmp/x\n")],
            1010: [({}, None)],
            1011: [
                ({**name, "isCleanLivingBroker": "true"}, None),
                ({**name, "isCleanLivingBroker": "false", "brokerControllerIdsToClean": "3"}, None),
            ],
            1012: [(name, None)],
            1013: [({**name, "appliedBrokerId": free, "registerCheckCode": f"{STRANGER}:10911;1"}, None)],
        }


@pytest.fixture(params=["stranger", "pod of another group", "signed with an unknown key"])
async def scene(request: pytest.FixtureRequest, start_plane: StartPlane) -> AsyncIterator[Scene]:
    directory = PodsDirectory(settings=STRICT, heartbeat_timeout_seconds=3600.0, open_groups=False)
    counting = Counting()
    # A busy machine must not look like a pause, which restarts every deadline: that would be a change.
    plane = await start_plane(
        directory=directory, observer=counting, security=SecuritySettings(), pause_threshold_seconds=3600.0
    )
    directory.find(NAME, cluster_name=CLUSTER)
    fakes = FakeGroup(plane.address)
    scene = Scene(plane, counting)
    for number in range(1, 4):
        host = f"127.64.13.{number}"
        directory.introduce(host, Peer(namespace="standalone", pod_name=f"{NAME}-{number}", group=KEY))
        scene.brokers.append(await fakes.broker(host=host))
    if request.param == "pod of another group":
        directory.introduce(STRANGER, Peer(namespace="other", pod_name="x-1", group=GroupKey("other", "x")))
    await eventually(lambda: scene.brokers[0].sync_state_set == {1, 2, 3}, what="three members in sync")
    for broker in scene.brokers:
        broker.silent = True
    yield scene
    await scene.peer.close()
    await fakes.stop()


@pytest.fixture
def shown(request: pytest.FixtureRequest) -> dict[str, str]:
    signed = "signed" in str(request.node.callspec.params["scene"])
    return {"AccessKey": "somebody", "Signature": "bm90IHJlYWxseQ=="} if signed else {}


async def settled(scene: Scene) -> str:
    """Return the state after the first election and the pods' last heartbeats."""
    seen = ""

    def same_twice() -> bool:
        nonlocal seen
        before, seen = seen, scene.state()
        return before == seen and scene.changes_nothing()

    await eventually(same_twice, what="nothing moves any more")
    return seen


async def ask(scene: Scene, command: RemotingCommand, expected: int) -> tuple[int, str | None]:
    """Return the answer; for a one-way request, the plane's counted one."""
    if not command.is_oneway:
        answer = await scene.peer.invoke(scene.plane.address, command, timeout_seconds=10.0)
        return answer.code, answer.remark
    scene.counting.counted.clear()
    await scene.peer.invoke_oneway(scene.plane.address, command, timeout_seconds=10.0)
    async with asyncio.timeout(10):
        await scene.counting.counted.wait()
    return (expected if scene.counting.answers.get((command.code, expected)) else -1), None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("oneway", [False, True], ids=["two-way", "one-way"])
async def test_whoever_shows_nothing_gets_the_table_and_changes_nothing(
    scene: Scene, shown: dict[str, str], *, oneway: bool
) -> None:
    before = await settled(scene)
    bodies = scene.bodies()
    wrong: list[Any] = []
    for code in range(HIGHEST + 1):
        expected = EXPECTED[RequestCode(code)] if code in bodies else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        for ext_fields, body in bodies.get(code, [({"brokerName": NAME, "clusterName": CLUSTER}, None)]):
            scene.counting.answers.clear()
            encoding = SerializeType(code % 2)
            command = request(code, ext_fields=ext_fields | shown, body=body, oneway=oneway, serialize_type=encoding)
            answer, remark = await ask(scene, command, expected)
            if answer != expected:
                wrong.append((code, ext_fields, answer, remark))
            if code in bodies:
                assert scene.state() == before, f"code {code} {ext_fields}"
    assert wrong == []
    assert scene.state() == before


async def test_what_can_be_read_is_what_the_table_opens(scene: Scene) -> None:
    """The controller's codes and answers match the table in `docs/concepts/security.md`."""
    assert set(EXPECTED) == {RequestCode(code) for code in scene.bodies()}
    opened = {code.name for code, answer in EXPECTED.items() if answer is ResponseCode.SUCCESS}
    assert opened == {"CONTROLLER_GET_REPLICA_INFO", "CONTROLLER_GET_METADATA_INFO", "CONTROLLER_GET_SYNC_STATE_DATA"}
