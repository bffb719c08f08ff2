"""A group of Python replicas and our controller plane, with signatures required and TLS enforced on both sides: its whole life."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory.group_directory import Credentials, FixedDirectory, SignaturePolicy
from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.tls import ClientCertificates, ClientTls, TlsFiles, TlsMode, TlsServerSettings
from tests.replica.support import (
    BROKER_NAME,
    Client,
    RunningReplica,
    eventually,
    is_complete,
    record_of,
    start_replica,
    tls_keys,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.controller.conftest import StartPlane
    from tests.security.certificates import Authority

KEY = GroupKey("standalone", BROKER_NAME)
GROUP = Credentials(access_key="group", secret_key="planted-secret-of-the-group")
SIGNING: dict[str, Any] = {
    "innerClientAuthenticationCredentials": '{"accessKey":"group","secretKey":"planted-secret-of-the-group"}'
}
QUICK_KEYS: dict[str, Any] = {"syncBrokerMetadataPeriod": 300, "minInSyncReplicas": 2}


@pytest.fixture
async def replicas() -> AsyncIterator[list[RunningReplica]]:
    started: list[RunningReplica] = []
    yield started
    for replica in started:
        if not replica.task.done():
            await replica.stop()


def master(replicas: list[RunningReplica]) -> RunningReplica | None:
    return next((each for each in replicas if each.role == "MASTER" and not each.task.done()), None)


async def test_signed_and_sealed_from_the_first_registration_to_a_failover(
    start_plane: StartPlane, authority: Authority, replicas: list[RunningReplica], tmp_path: Path
) -> None:
    files = authority.issue("controller")
    served = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, client_certificates=ClientCertificates.REQUIRED)
    plane = await start_plane(
        directory=FixedDirectory(credentials=GROUP, signature=SignaturePolicy.REQUIRED),
        security=replace(SecuritySettings(), tls=served, broker_tls=files),
        heartbeat_timeout_seconds=5.0,
    )
    keys = SIGNING | QUICK_KEYS | tls_keys(authority, mode="enforcing", client_auth="require")
    replicas += [await start_replica(tmp_path / f"r{number}", plane.address, **keys) for number in (1, 2, 3)]
    await eventually(lambda: is_complete(plane, 3))
    client = Client()
    client.remoting = RemotingClient(tls=ClientTls(authority.issue("producer")))
    try:
        await eventually(lambda: master(replicas) is not None)
        first = master(replicas)
        assert first is not None
        assert (await client.send(first.address, b"before")).code == ResponseCode.SUCCESS
        await first.stop()
        await eventually(lambda: master(replicas) is not None and is_complete(plane, 2))
        second = master(replicas)
        assert second is not None
        assert (await client.send(second.address, b"after")).code == ResponseCode.SUCCESS
        assert [each.body for each in await client.pull_all(second.address)] == [b"before", b"after"]
        status = await client.ask(second.address, RequestCode.GET_BROKER_HA_STATUS)
        assert status.code == ResponseCode.SUCCESS
        refused = request(RequestCode.UPDATE_BROKER_CONFIG, body=b"minInSyncReplicas=1")
        answer = await client.remoting.invoke(second.address, refused, timeout_seconds=5.0)
        assert answer.code == ResponseCode.NO_PERMISSION, "a client's certificate makes nobody an operator"
    finally:
        await client.remoting.close()
    for remoting in (RemotingClient(), RemotingClient(tls=ClientTls(TlsFiles(ca=authority.certificate)))):
        try:  # plainly, and with TLS but without a certificate
            with pytest.raises(RemotingError):
                await remoting.invoke(second.address, request(RequestCode.GET_BROKER_HA_STATUS), timeout_seconds=2.0)
        finally:
            await remoting.close()


async def test_a_switchover_of_signing_replicas(
    start_plane: StartPlane, replicas: list[RunningReplica], tmp_path: Path
) -> None:
    """25, 1008 and 906 of a switchover are signed with the group's key, and taken."""
    plane = await start_plane(
        directory=FixedDirectory(credentials=GROUP, signature=SignaturePolicy.REQUIRED), heartbeat_timeout_seconds=5.0
    )
    replicas += [
        await start_replica(tmp_path / f"r{number}", plane.address, **SIGNING, **QUICK_KEYS) for number in (1, 2, 3)
    ]
    await eventually(lambda: is_complete(plane, 3))
    record = record_of(plane)
    assert record is not None
    assert record.master_broker_id is not None
    target = next(one for one in sorted(record.sync_state_set) if one != record.master_broker_id)
    result = await plane.switch_master(
        KEY, from_broker_id=record.master_broker_id, to_broker_id=target, deadline_seconds=10.0
    )
    assert result.to_broker_id == target
    await eventually(lambda: [each.broker_id for each in replicas if each.role == "MASTER"] == [target])
    assert all(each.process.broker.policy.min_in_sync_replicas == 2 for each in replicas)


async def test_a_replica_without_the_key_or_with_another_is_not_heard(
    start_plane: StartPlane, replicas: list[RunningReplica], tmp_path: Path
) -> None:
    plane = await start_plane(
        directory=FixedDirectory(credentials=GROUP, signature=SignaturePolicy.REQUIRED), heartbeat_timeout_seconds=10.0
    )
    other: dict[str, Any] = {"innerClientAuthenticationCredentials": '{"accessKey":"group","secretKey":"another"}'}
    replicas.append(await start_replica(tmp_path / "r1", plane.address, **QUICK_KEYS))
    replicas.append(await start_replica(tmp_path / "r2", plane.address, **other, **QUICK_KEYS))
    replicas.append(await start_replica(tmp_path / "r3", plane.address, **SIGNING, **QUICK_KEYS))
    await eventually(lambda: is_complete(plane, 1) and replicas[2].role == "MASTER")
    record = record_of(plane)
    assert record is not None
    assert len(record.replicas) == 1
    assert [each.role for each in replicas] == ["FENCED", "FENCED", "MASTER"]
