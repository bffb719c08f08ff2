"""A group of Python replicas whose requests must be signed: made, failed over, and given another key without losing its master."""

from __future__ import annotations

import base64
import os
import signal
from typing import Any

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, PODS, SECRETS
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.properties import decode_properties
from tests.e2e.house import NAMESPACE, House, WholeGroup, whole_group

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SECRET_NAME = "orders-credentials"
PLANTED = "planted-5d0c7be1a90f"
ANOTHER = "planted-another-31c6"


def secret(key: str) -> dict[str, Any]:
    data = {"accessKey": "orders", "secretKey": key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET_NAME, "namespace": NAMESPACE},
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def signed(house: House) -> Any:
    async with whole_group(house, "orders", replicas=3) as watched:
        await house.api.create(SECRETS, secret(PLANTED))
        await house.start_operator()
        await house.create_group("orders", security={"signature": "Required", "credentialsSecretName": SECRET_NAME})
        await watched.until_settled()
        yield watched


async def live(address: str) -> str | None:
    """What a replica does with unsigned changes: its `authenticationEnabled`."""
    client = RemotingClient()
    try:
        answer = await client.invoke(address, request(RequestCode.GET_BROKER_CONFIG), timeout_seconds=5.0)
        return decode_properties(answer.body).get("authenticationEnabled")
    finally:
        await client.close()


async def test_a_signing_group_elects_fails_over_and_hears_no_stranger(signed: WholeGroup) -> None:
    master = signed.seen.master_id
    async with signed.under_load():
        pid = signed.pids()[master]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await signed.until(lambda: signed.seen.master_id not in (None, master), "another master")
        await signed.until_acknowledged()
    await signed.verify()
    address = signed.seen.master_address()
    assert address is not None
    client = RemotingClient()
    try:
        change = request(RequestCode.UPDATE_BROKER_CONFIG, body=b"minInSyncReplicas=1")
        answer = await client.invoke(address, change, timeout_seconds=5.0)
    finally:
        await client.close()
    assert answer.code == ResponseCode.NO_PERMISSION
    assert await live(address) == "true"


async def test_the_secret_is_in_no_object_and_no_log(signed: WholeGroup) -> None:
    for resource in (BROKER_GROUPS, CONFIG_MAPS, PODS):
        listed = (await signed.house.api.list(resource, namespace=NAMESPACE)).items
        assert listed
        assert PLANTED not in str(listed)
    logs = [*signed.house.folder.rglob("*.log")]
    assert len(logs) >= 4
    for log in logs:
        assert PLANTED not in log.read_text(errors="replace"), log
