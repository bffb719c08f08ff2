"""A group of Python replicas with signed requests: created, failed over, and rekeyed without the loss of its master."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, PODS, SECRETS
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.serialization import decode_properties
from tests.e2e.house import NAMESPACE, House, WholeGroup, whole_group
from tests.support.one_request import answer_to

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

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
        await house.create_group(
            "orders", security={"signature": "Required", "credentialsSecretRef": {"name": SECRET_NAME}}
        )
        await watched.until_settled()
        yield watched


async def live(address: str) -> str | None:
    """Return a replica's `authenticationEnabled`, which decides about unsigned changes."""
    answer = await answer_to(address, request(RequestCode.GET_BROKER_CONFIG))
    return decode_properties(answer.body).get("authenticationEnabled")


async def test_a_signing_group_elects_fails_over_and_hears_no_stranger(signed: WholeGroup) -> None:
    async with signed.lossless():
        await signed.lose_master()
    address = signed.seen.master_address()
    assert address is not None
    change = request(RequestCode.UPDATE_BROKER_CONFIG, body=b"minInSyncReplicas=1")
    assert (await answer_to(address, change)).code == ResponseCode.NO_PERMISSION
    assert await live(address) == "true"


async def patched(group: WholeGroup, **security: str) -> None:
    """Patch the group, so that the controller reads the Secret again."""
    patch = {"metadata": {"annotations": {"changed": str(security)}}, "spec": {"security": security}}
    await group.house.api.patch(BROKER_GROUPS, group.name, patch, namespace=NAMESPACE, content_type=PatchType.MERGE)


async def until_all_are(group: WholeGroup, expected: str) -> None:
    """Wait for a value of every member, by 26."""
    said: dict[str, str | None] = {}

    async def ask() -> None:
        said.update({member.address: await live(member.address) for member in group.seen.members() if member.address})

    async def all_are() -> bool:
        await ask()
        return len(said) >= group.replicas and all(value == expected for value in said.values())

    for _ in range(600):
        if await all_are():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"authenticationEnabled: {said}, expected {expected} everywhere")


async def test_the_key_is_changed_pod_by_pod_without_losing_a_master(signed: WholeGroup) -> None:
    """As in docs/concepts/security.md: signature Disabled, the Secret, each pod once, signature as before."""
    api = signed.house.api
    await signed.until_settled()
    running = signed.pids()

    def is_another(broker_id: int) -> bool:
        return signed.pids().get(broker_id) not in (None, running[broker_id])

    async with signed.lossless():
        await patched(signed, signature="Disabled")
        await until_all_are(signed, "false")
        assert signed.pids() == running, "no broker restarts for it"
        before = await api.get(SECRETS, SECRET_NAME, namespace=NAMESPACE)
        await api.replace(SECRETS, before | {"data": secret(ANOTHER)["data"]})
        master = signed.master
        slaves = [each for each in running if each != master]
        for broker_id in (*slaves, master):
            await api.delete(PODS, f"{signed.name}-{broker_id}", namespace=NAMESPACE)
            await signed.until(partial(is_another, broker_id), f"a new process of {broker_id}")
            await signed.until_settled()
        await patched(signed, signature="Required")
        await until_all_are(signed, "true")


async def test_the_secret_is_in_no_object_and_no_log(signed: WholeGroup) -> None:
    for resource in (BROKER_GROUPS, CONFIG_MAPS, PODS):
        listed = (await signed.house.api.list(resource, namespace=NAMESPACE)).items
        assert listed
        assert PLANTED not in str(listed)
        assert ANOTHER not in str(listed)
    logs = [*signed.house.folder.rglob("*.log")]
    assert len(logs) >= 4
    for log in logs:
        text = log.read_text(errors="replace")
        assert PLANTED not in text, log
        assert ANOTHER not in text, log
