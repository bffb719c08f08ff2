"""`mqadmin updateBrokerConfig` beside the operator: it restores keys that carry durability, and reports the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import EVENTS
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.serialization import decode_properties, encode_properties
from tests.e2e.house import NAMESPACE, House, WholeGroup, settled_group
from tests.support.one_request import answer_to

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PROMISED = {"allAckInSyncStateSet": "true", "inSyncReplicas": "2", "minInSyncReplicas": "2"}
# Measured: ten sends acknowledged by one disk while both slaves were frozen, under a status of Strict.
WEAKENED = {"allAckInSyncStateSet": "false", "inSyncReplicas": "1", "minInSyncReplicas": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict(any_house: House) -> Any:
    await any_house.start_operator()
    async with settled_group(any_house, "orders", config={"fileReservedTime": "48"}) as watched:
        yield watched


async def ask(address: str, values: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the answer to 26; with values send 25 first."""
    if values is not None:
        change = request(RequestCode.UPDATE_BROKER_CONFIG, body=encode_properties(dict(values)))
        assert (await answer_to(address, change)).code == ResponseCode.SUCCESS
    return decode_properties((await answer_to(address, request(RequestCode.GET_BROKER_CONFIG))).body)


def condition(group: WholeGroup, kind: str) -> dict[str, Any]:
    return next((item for item in group.seen.status.get("conditions", []) if item["type"] == kind), {})


async def until_said(address: str, expected: Mapping[str, str]) -> None:
    said: dict[str, str] = {}
    for _ in range(600):
        said = await ask(address)
        if expected.items() <= said.items():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{address}: expected {expected}, it says { {key: said.get(key) for key in expected} }")


async def until_told(group: WholeGroup, about: str) -> str:
    """Wait for the Event about a restored key, which is posted after the broker has the value."""
    for _ in range(200):
        listed = await group.house.api.list(EVENTS, namespace=NAMESPACE)
        told = [str(item["message"]) for item in listed.items if item["reason"] == "ConfigurationPutBack"]
        if found := [message for message in told if about in message]:
            return found[-1]
        await asyncio.sleep(0.05)
    raise AssertionError(f"no Event ConfigurationPutBack about {about}")


async def address_of(group: WholeGroup, *, master: bool) -> tuple[int, str]:
    replicas = {one["brokerId"]: one["address"] for one in group.seen.record["replicas"]}
    return next((one, address) for one, address in replicas.items() if (one == group.seen.master_id) is master)


@pytest.mark.java_brokers
@pytest.mark.parametrize("master", [True, False], ids=["master", "slave"])
async def test_what_carries_durability_is_put_back_with_an_event(strict: WholeGroup, *, master: bool) -> None:
    """`mqadmin updateBrokerConfig` beside the operator. Reports: koperator #694, apache/rocketmq #1989."""
    broker_id, address = await address_of(strict, master=master)
    await ask(address, WEAKENED)
    await until_said(address, PROMISED)
    told = await until_told(strict, f"Broker {broker_id} ")
    for key, value in WEAKENED.items():
        assert f"{key}={value}, put back to {PROMISED[key]}" in told
    await strict.until(lambda: not condition(strict, "ConfigurationDrifted"), "the condition to go")
    await strict.until(lambda: condition(strict, "FailoverSafe").get("status") == "True", "the group is safe again")


async def test_it_is_put_back_under_load_and_after_a_change_of_master(strict: WholeGroup) -> None:
    async with strict.lossless():
        _, address = await address_of(strict, master=True)
        await ask(address, {"minInSyncReplicas": "1"})
        await until_said(address, PROMISED)


async def test_another_hot_key_is_named_and_left_alone_until_the_spec_says_otherwise(strict: WholeGroup) -> None:
    broker_id, address = await address_of(strict, master=False)
    await ask(address, {"fileReservedTime": "1"})
    await strict.until(lambda: condition(strict, "ConfigurationDrifted").get("status") == "True", "the drift is named")
    message = condition(strict, "ConfigurationDrifted")["message"]
    assert f"broker {broker_id}" in message
    assert "fileReservedTime=1, expected 48" in message
    assert condition(strict, "UpToDate")["reason"] == "ConfigurationDrifted"
    assert condition(strict, "FailoverSafe")["status"] == "True"
    assert (await ask(address))["fileReservedTime"] == "1"
    await strict.house.patch_group(strict.name, config={"fileReservedTime": "24"})
    await until_said(address, {"fileReservedTime": "24"})
    await strict.until(lambda: not condition(strict, "ConfigurationDrifted"), "the condition to go")
