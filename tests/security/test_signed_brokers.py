"""Brokers at addresses of no pod (NAT, host network) that sign with their group's key: heard as its brokers, and only once each."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.controller.access.authorization import GUARDED
from brokergroup_operator.controller.directory.group_directory import Credentials, Peer, SignaturePolicy
from brokergroup_operator.controller.settings import AdminCredentials, SecuritySettings
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from rocketmq_remoting.signature import sign_command
from tests.support.fake_broker import CLUSTER, NAME
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.controller.plane import ControllerPlane
    from controller_core.model import BrokerGroupRecord
    from tests.controller.conftest import StartPlane

KEY = GroupKey("standalone", NAME)
GROUP = Credentials(access_key="group", secret_key="planted-secret-of-the-group")
ADMIN = Credentials(access_key="root", secret_key="planted-secret-of-the-administrator")
SUCCESS, REFUSED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
_times = itertools.count(1795210522768)


class Outside:
    """A peer that no pod's address tells of; signs as whoever it is told."""

    def __init__(self, plane: ControllerPlane) -> None:
        self.plane = plane
        self.client = RemotingClient(local_host="127.64.14.9")
        self.sent: list[RemotingCommand] = []

    async def send(self, command: RemotingCommand) -> int:
        self.sent.append(command)
        return (await self.client.invoke(self.plane.address, command, timeout_seconds=5)).code

    async def ask(
        self, code: int, signed_as: Credentials | None, *, body: bytes | None = None, **fields: object
    ) -> int:
        return await self.send(asked(code, signed_as, body=body, **fields))

    @property
    def record(self) -> BrokerGroupRecord:
        snapshot = self.plane.snapshot(KEY)
        assert snapshot is not None
        assert snapshot.record is not None
        return snapshot.record


def asked(code: int, signed_as: Credentials | None, *, body: bytes | None = None, **fields: object) -> RemotingCommand:
    named = {"clusterName": CLUSTER, "brokerName": NAME, "invokeTime": next(_times)} | fields
    command = request(code, ext_fields={name: str(value) for name, value in named.items()}, body=body)
    return command if signed_as is None else sign_command(command, signed_as)


async def outside_of(
    start_plane: StartPlane, signature: SignaturePolicy, *, directory: PodsDirectory | None = None
) -> Outside:
    plane = await start_plane(
        directory=directory
        or PodsDirectory(open_groups=False, signature=signature, credentials=GROUP, heartbeat_timeout_seconds=60.0),
        security=SecuritySettings(admin_credentials=AdminCredentials([ADMIN])),
        pause_threshold_seconds=3600.0,
    )
    return Outside(plane)


@pytest.fixture(params=[SignaturePolicy.ACCEPTED, SignaturePolicy.REQUIRED])
async def outside(request: pytest.FixtureRequest, start_plane: StartPlane) -> AsyncIterator[Outside]:
    made = await outside_of(start_plane, request.param)
    yield made
    await made.client.close()


async def born(outside: Outside) -> None:
    """The start of a broker's life: an id, a registration, a heartbeat, an election."""
    address: dict[str, Any] = {"brokerId": 1, "brokerAddress": "10.9.9.9:10911", "brokerAddr": "10.9.9.9:10911"}
    assert await outside.ask(1012, GROUP) == SUCCESS
    assert await outside.ask(1013, GROUP, appliedBrokerId=1, registerCheckCode="10.9.9.9:10911;1") == SUCCESS
    assert await outside.ask(1003, GROUP, **address) == SUCCESS
    assert await outside.ask(904, GROUP, **address, epoch=0, maxOffset=0) == SUCCESS
    assert await outside.ask(1002, GROUP, brokerId=1, designateElect="false") == SUCCESS
    assert outside.record.master_broker_id == 1


async def test_the_groups_key_is_heard_and_no_other(outside: Outside) -> None:
    wrong = replace(GROUP, secret_key="guessed")
    for signed_as in (None, wrong, replace(wrong, access_key="somebody"), ADMIN):
        assert await outside.ask(1012, signed_as) == REFUSED
        assert await outside.ask(904, signed_as, brokerId=1) == REFUSED
        assert await outside.ask(1013, signed_as, appliedBrokerId=1, registerCheckCode="x:1;1") == REFUSED
    await born(outside)


async def test_a_signed_request_is_no_use_to_whoever_overheard_it(outside: Outside) -> None:
    """Replay (F35): the record's epochs, check codes and the guard's memory leave it without effect."""
    await born(outside)
    assert await outside.ask(1013, GROUP, appliedBrokerId=2, registerCheckCode="10.9.9.8:10911;1") == SUCCESS
    assert await outside.ask(904, GROUP, brokerId=2, brokerAddr="10.9.9.8:10911", epoch=1, maxOffset=0) == SUCCESS
    both = SyncStateSetBody(frozenset({1, 2}), outside.record.sync_state_set_epoch).encode()
    epoch = outside.record.master_epoch
    assert await outside.ask(1001, GROUP, masterBrokerId=1, masterEpoch=epoch, body=both) == SUCCESS
    before = outside.record
    assert before.sync_state_set == {1, 2}
    attacker = Outside(outside.plane)
    attacker.client = RemotingClient(local_host="127.64.14.66")
    answers = [(command.code, await attacker.send(command)) for command in outside.sent]
    await attacker.client.close()
    assert [answer for code, answer in answers if code in GUARDED] == [REFUSED] * 3
    assert outside.record == before


async def test_a_signature_is_not_carried_to_another_code(outside: Outside) -> None:
    """It does not cover the code: what else it could be used for finds its own fields missing, or needs an administrator."""
    await born(outside)
    before = outside.record
    overheard = asked(1003, GROUP, brokerId=1, brokerAddress="10.9.9.9:10911")
    for code in (1001, 1002, 1011, 1012):
        await outside.send(msgspec.structs.replace(overheard, code=code))
    assert outside.record == before


async def test_designating_and_cleaning_need_the_administrators_key(outside: Outside) -> None:
    await born(outside)
    for signed_as in (None, GROUP, replace(ADMIN, secret_key="guessed")):
        assert await outside.ask(1002, signed_as, brokerId=1, designateElect="true") == REFUSED
        assert await outside.ask(1011, signed_as, isCleanLivingBroker="true") == REFUSED
    designated = await outside.ask(1002, ADMIN, brokerId=1, designateElect="true")
    assert designated == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert await outside.ask(1011, ADMIN, isCleanLivingBroker="true") == SUCCESS
    snapshot = outside.plane.snapshot(KEY)
    assert snapshot is not None
    assert snapshot.record is None or not snapshot.record.replicas


async def test_required_is_required_of_pods_too(start_plane: StartPlane) -> None:
    """No downgrade: neither the pod's own address nor a plain connection is a way round the signature."""
    directory = PodsDirectory(
        open_groups=False, signature=SignaturePolicy.REQUIRED, credentials=GROUP, heartbeat_timeout_seconds=60.0
    )
    directory.introduce("127.64.14.9", Peer(namespace="standalone", pod_name=f"{NAME}-1", group=KEY))
    pod = await outside_of(start_plane, SignaturePolicy.REQUIRED, directory=directory)
    for code in (1012, 1003, 904, 1004):
        assert await pod.ask(code, None, brokerId=1) == REFUSED
    assert await pod.ask(1012, GROUP) == SUCCESS
    await pod.client.close()


async def test_no_secret_is_in_what_is_logged_or_answered(
    outside: Outside, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    await born(outside)
    for code in (904, 1001, 1002, 1003, 1010, 1011, 1012, 1013, 1500):
        for signed_as in (GROUP, ADMIN, replace(GROUP, secret_key=ADMIN.secret_key)):
            answer = await outside.client.invoke(
                outside.plane.address, asked(code, signed_as, brokerId="x"), timeout_seconds=5
            )
            assert "planted-secret" not in repr(answer)
    told = caplog.text + "".join(capsys.readouterr())
    assert "request refused" in told
    assert "planted-secret" not in told
