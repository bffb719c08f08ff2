"""A replica with credentials signs what it asks and hears only operators that sign; with TLS keys it speaks TLS both ways."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.serialization import decode_properties
from rocketmq_remoting.signature import Credentials, SignatureState, sign_command, verify
from rocketmq_remoting.tls import ClientTls, TlsFiles
from rocketmq_replica.controller.operator_requests import OPERATORS_ONLY
from tests.replica.support import Client, FakeController, Lab, RunningReplica, tls_keys
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.connection import RemotingConnection
    from tests.security.certificates import Authority

SECRET = "planted-secret-of-the-group"
GROUP = Credentials(access_key="group", secret_key=SECRET)
STRANGER = Credentials(access_key="stranger", secret_key="planted-secret-of-a-stranger")
LIAR = Credentials(access_key="group", secret_key="not the secret")
KEYS = {"innerClientAuthenticationCredentials": f'{{"accessKey":"group","secretKey":"{SECRET}"}}'}
SUCCESS, REFUSED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION

ROLE_CHANGE_FIELDS = {"masterAddress": "127.0.0.9:1", "masterBrokerId": "9", "masterEpoch": "7"}
OPERATORS_REQUESTS = {
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: (ROLE_CHANGE_FIELDS, b'{"syncStateSet":[9],"syncStateSetEpoch":9}'),
    RequestCode.EXCHANGE_BROKER_HA_INFO: ({"masterHaAddress": "127.0.0.9:2"}, None),
    RequestCode.UPDATE_BROKER_CONFIG: ({}, b"minInSyncReplicas=99\n"),
    RequestCode.DELETE_TOPIC_IN_BROKER: ({"topic": "T"}, None),
}
QUESTIONS = (
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.EXCHANGE_BROKER_HA_INFO,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)


class StrictController(FakeController):
    """Hears only what is rightly signed, each signature of a change once, and signs what it asks."""

    def __init__(self) -> None:
        super().__init__()
        self.unsigned: list[int] = []
        self.seen: set[str] = set()

    def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand | None:
        fields = command.ext_fields or {}
        if verify(fields, command.body, GROUP) is not SignatureState.VALID:
            self.unsigned.append(command.code)
            return command.answer(REFUSED)
        if "invokeTime" in fields:
            assert fields["Signature"] not in self.seen
            self.seen.add(fields["Signature"])
        return super().handle(command, connection)


@pytest.fixture
async def controller() -> AsyncIterator[StrictController]:
    fake = StrictController()
    await fake.start()
    yield fake
    await fake.stop()


async def ask(
    client: Client, at: RunningReplica, code: int, signed_as: Credentials | None, **extra: object
) -> RemotingCommand:
    fields, body = OPERATORS_REQUESTS.get(RequestCode(code), ({}, None))
    command = request(code, ext_fields=extra.get("ext_fields", fields), body=extra.get("body", body))  # type: ignore[arg-type]
    if signed_as is not None:
        command = sign_command(command, signed_as)
    return await client.remoting.invoke(at.address, command, timeout_seconds=5.0)


async def test_everything_asked_of_a_controller_is_signed(controller: StrictController, lab: Lab) -> None:
    master, slave = await lab.pair(**KEYS)
    await eventually(lambda: {1, 2} <= controller.heartbeats.keys())
    await lab.client.store(master, b"one")
    await slave.stop()
    await eventually(lambda: controller.members == {1})
    assert controller.unsigned == []
    changing = {RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_ELECT_MASTER}
    assert changing <= set(controller.requests)
    assert controller.seen, "changes carry when they were made, or a signature could be sent again"


@pytest.mark.parametrize("signed_as", [None, STRANGER, LIAR], ids=["unsigned", "unknown key", "wrong signature"])
async def test_only_the_operator_changes_a_replica(
    controller: StrictController, lab: Lab, signed_as: Credentials | None
) -> None:
    assert set(OPERATORS_REQUESTS) == OPERATORS_ONLY
    replica = await lab.master(**KEYS)
    await lab.client.store(replica, b"x", topic="T")
    before = (replica.process.broker.master, replica.process.broker.policy.min_in_sync_replicas)
    for code in OPERATORS_REQUESTS:
        answer = await ask(lab.client, replica, code, signed_as)
        assert answer.code == REFUSED, code
        assert not answer.body
        assert SECRET not in (answer.remark or "")
    assert (replica.process.broker.master, replica.process.broker.policy.min_in_sync_replicas) == before
    assert replica.role == "MASTER"
    assert await lab.client.bodies(replica, topic="T") == [b"x"]
    for code in QUESTIONS:  # by a slave that has not been restarted with the key yet, or a controller with a wrong one
        assert (await ask(lab.client, replica, code, signed_as, ext_fields={}, body=None)).code == SUCCESS, code


async def test_the_operator_is_heard(controller: StrictController, lab: Lab) -> None:
    replica = await lab.master(**KEYS)
    for code in OPERATORS_REQUESTS.keys() - {RequestCode.NOTIFY_BROKER_ROLE_CHANGED}:
        assert (await ask(lab.client, replica, code, GROUP)).code == SUCCESS, code
    assert replica.process.broker.policy.min_in_sync_replicas == 99
    assert (await ask(lab.client, replica, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, GROUP)).code == SUCCESS
    assert replica.role == "SLAVE"
    assert replica.process.broker.master.broker_id == 9


async def test_the_check_can_be_turned_off_like_javas(controller: StrictController, lab: Lab) -> None:
    replica = await lab.master(**KEYS, authenticationEnabled="false")
    assert (await ask(lab.client, replica, RequestCode.UPDATE_BROKER_CONFIG, None)).code == SUCCESS
    assert controller.unsigned == []


async def test_a_key_can_be_changed_without_a_time_in_which_the_operator_is_not_heard(
    controller: StrictController, lab: Lab
) -> None:
    """A request signed with the old key turns the check off; a replica without a key cannot turn it on."""
    replica = await lab.master(**KEYS)
    update = RequestCode.UPDATE_BROKER_CONFIG
    assert (await ask(lab.client, replica, update, LIAR, body=b"authenticationEnabled=false")).code == REFUSED
    assert (await ask(lab.client, replica, update, GROUP, body=b"authenticationEnabled=false")).code == SUCCESS
    assert (await ask(lab.client, replica, update, LIAR, body=b"minInSyncReplicas=2")).code == SUCCESS
    shown = await ask(lab.client, replica, RequestCode.GET_BROKER_CONFIG, None)
    assert decode_properties(shown.body)["authenticationEnabled"] == "false"
    assert (await ask(lab.client, replica, update, LIAR, body=b"authenticationEnabled=true")).code == SUCCESS
    assert (await ask(lab.client, replica, update, LIAR, body=b"minInSyncReplicas=1")).code == REFUSED
    controller.unsigned.clear()


async def test_a_check_without_a_key_cannot_be_turned_on(lab: Lab) -> None:
    replica = await lab.start("one")
    update = RequestCode.UPDATE_BROKER_CONFIG
    await eventually(replica.process.listening.is_set)
    answer = await ask(lab.client, replica, update, None, body=b"minInSyncReplicas=3\nauthenticationEnabled=true")
    assert answer.code == REFUSED
    assert "authenticationEnabled=true: expected innerClient" in (answer.remark or "")
    assert replica.process.broker.policy.min_in_sync_replicas == 1, "all of a request or nothing"


async def test_the_secret_is_shown_nowhere(
    controller: StrictController, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        replica = await lab.master(**KEYS)
        answer = await ask(lab.client, replica, RequestCode.GET_BROKER_CONFIG, GROUP)
        await ask(lab.client, replica, RequestCode.GET_BROKER_CONFIG, LIAR)
        await replica.stop()
    assert "innerClientAuthenticationCredentials" not in decode_properties(answer.body)
    assert SECRET.encode() not in (answer.body or b"")
    assert SECRET not in caplog.text
    assert SECRET not in repr(replica.process.configuration)


async def test_permissive_takes_both(controller: StrictController, lab: Lab, authority: Authority) -> None:
    keys = tls_keys(authority, mode="permissive") | {"tls.enable": "false"} | KEYS
    replica = await lab.master(**keys)
    await lab.client.store(replica, b"plainly")
    sealed = RemotingClient(tls=ClientTls(TlsFiles(ca=authority.certificate)))
    try:
        answer = await sealed.invoke(
            replica.address, sign_command(request(RequestCode.GET_BROKER_HA_STATUS), GROUP), timeout_seconds=5.0
        )
        assert answer.code == SUCCESS
    finally:
        await sealed.close()
