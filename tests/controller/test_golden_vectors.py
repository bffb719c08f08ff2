"""The golden vectors (tests/core/traces), once over the wire: real sockets, real frames, codes and fields as Java's.

Where a safety rule (docs/concepts/architecture.md) says better than Java, the line says so with the rule's number.
"""

import json
from typing import Any

import pytest

from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.fence.watchman import CONTROLLERS
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.command import RemotingCommand, request
from tests.controller.conftest import StartPlane


class Asker:
    """One broker-like connection to a plane."""

    def __init__(self, plane: ControllerPlane, client: RemotingClient) -> None:
        self._plane = plane
        self._client = client

    async def __call__(self, code: int, body: object = None, **fields: object) -> RemotingCommand:
        encoded = None if body is None else json.dumps(body).encode()
        ext_fields = {name: str(value) for name, value in fields.items()} or None
        command = request(code, ext_fields=ext_fields, body=encoded)
        return await self._client.invoke(self._plane.address, command, timeout_seconds=3.0)


def fields_of(answer: RemotingCommand) -> dict[str, str]:
    return dict(answer.ext_fields or {})


def body_of(answer: RemotingCommand) -> Any:
    return json.loads(answer.body or b"null")


@pytest.mark.real_time
async def test_the_golden_vectors_hold_over_the_wire(start_plane: StartPlane) -> None:  # noqa: PLR0915 - one story, in its order
    plane = await start_plane(heartbeat_timeout_seconds=30.0)
    client = RemotingClient()
    ask = Asker(plane, client)
    both = {"clusterName": "cl", "brokerName": "bn"}

    async def alter(master: int, epoch: int, members: list[int], set_epoch: int) -> RemotingCommand:
        return await ask(
            1001,
            {"syncStateSet": members, "syncStateSetEpoch": set_epoch},
            brokerName="bn",
            masterBrokerId=master,
            masterEpoch=epoch,
        )

    async def elect(broker_id: int, *, designate: bool) -> RemotingCommand:
        return await ask(1002, **both, brokerId=broker_id, designateElect=str(designate).lower())

    # An empty store.
    answer = await ask(1012, **both)
    assert (answer.code, fields_of(answer)) == (0, both | {"nextBrokerId": "1"})
    answer = await ask(1013, **both, appliedBrokerId=2, registerCheckCode="1.1.1.1:1;100")
    assert (answer.code, fields_of(answer)) == (2014, both)
    answer = await ask(1004, brokerName="bn")
    assert (answer.code, answer.ext_fields) == (2008, {})
    answer = await ask(1003, **both, brokerId=1, brokerAddress="1.1.1.1:1")
    assert (answer.code, fields_of(answer)) == (2010, both)
    answer = await elect(1, designate=False)
    assert (answer.code, answer.ext_fields) == (2010, {})
    answer = await alter(1, 1, [1], 1)
    assert (answer.code, fields_of(answer)) == (2013, {"newSyncStateSetEpoch": "0"})
    answer = await ask(1006, ["bn"])
    assert (answer.code, answer.ext_fields, body_of(answer)) == (0, None, {"replicasInfoTable": {}})
    answer = await ask(1006)
    assert (answer.code, answer.remark) == (1, "not set any response code")
    assert (await ask(1011, brokerName="bn")).code == 2009

    # The first broker.
    assert (await ask(1013, **both, appliedBrokerId=1, registerCheckCode="1.1.1.1:1;100")).code == 0
    assert (await ask(1013, **both, appliedBrokerId=1, registerCheckCode="1.1.1.1:1;100")).code == 0
    assert (await ask(1013, **both, appliedBrokerId=1, registerCheckCode="1.1.1.2:1;200")).code == 2014
    assert fields_of(await ask(1012, **both))["nextBrokerId"] == "2"
    answer = await ask(1004, brokerName="bn")
    assert (answer.code, fields_of(answer)) == (0, {"masterEpoch": "0"})
    assert body_of(answer) == {"syncStateSet": [], "syncStateSetEpoch": 0}
    answer = await ask(1003, **both, brokerId=1, brokerAddress="1.1.1.9:1")
    assert (answer.code, fields_of(answer)) == (0, both)
    assert body_of(answer) == {"syncStateSet": [], "syncStateSetEpoch": 0}
    assert (await ask(1003, **both, brokerId=7, brokerAddress="1.1.1.9:1")).code == 2010
    answer = await ask(904, **both, brokerAddr="1.1.1.9:1")
    assert (answer.code, answer.remark) == (2005, "Heart beat with empty brokerId")
    answer = await ask(904, **both, brokerId=1, brokerAddr="1.1.1.9:1", epoch=0, maxOffset=10)
    assert (answer.code, answer.remark) == (0, "Heart beat success")
    answer = await elect(1, designate=False)
    first_master = {"masterBrokerId": "1", "masterAddress": "1.1.1.9:1", "masterEpoch": "1", "syncStateSetEpoch": "1"}
    assert (answer.code, fields_of(answer)) == (0, first_master)
    members = {"brokerAddrs": {"1": "1.1.1.9:1"}, "brokerName": "bn", "cluster": "cl"}
    # Both shapes in one body: brokers read the first, mqadmin electMaster the second.
    assert body_of(answer) == {"brokerMemberGroup": members, "syncStateSet": [1]} | members
    answer = await elect(1, designate=False)
    assert (answer.code, fields_of(answer), body_of(answer)) == (2011, first_master, {"syncStateSet": [1]})

    # The second broker. (Java answers a register of the master with its own epoch; safety rule 6 takes it for a new process and
    # grants a new epoch: shown in the trace of the core.)
    assert (await ask(1013, **both, appliedBrokerId=2, registerCheckCode="1.1.1.2:1;200")).code == 0
    answer = await ask(1003, **both, brokerId=2, brokerAddress="1.1.1.2:1")
    assert (answer.code, fields_of(answer)) == (0, both | first_master)
    await ask(904, **both, brokerId=2, brokerAddr="1.1.1.2:1", epoch=1, maxOffset=9)
    assert (await alter(1, 1, [1], 1)).code == 2013
    assert (await alter(2, 1, [1, 2], 1)).code == 2002
    assert (await alter(1, 9, [1, 2], 1)).code == 2000
    assert (await alter(1, 1, [1, 2], 9)).code == 2001
    assert (await alter(1, 1, [1, 5], 1)).code == 2003
    assert (await alter(1, 1, [2], 1)).code == 2013
    # Rule 4: Java takes any free id here (9) and could hand it out again later.
    assert (await ask(1013, **both, appliedBrokerId=9, registerCheckCode="1.1.1.3:1;300")).code == 2014
    assert (await ask(1013, **both, appliedBrokerId=3, registerCheckCode="1.1.1.3:1;300")).code == 0
    assert fields_of(await ask(1012, **both))["nextBrokerId"] == "4"
    assert (await alter(1, 1, [1, 3], 1)).code == 2006
    answer = await alter(1, 1, [1, 2], 1)
    assert (answer.code, fields_of(answer)) == (0, {"newSyncStateSetEpoch": "2"})
    assert body_of(answer) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
    assert (await alter(1, 1, [1, 2], 1)).code == 2013
    assert (await alter(1, 1, [1], 1)).code == 2001
    assert (await elect(3, designate=True)).code == 2012
    assert (await elect(5, designate=True)).code == 2012
    assert (await elect(1, designate=True)).code == 2011
    assert (await elect(2, designate=False)).code == 2011

    # Cleaning.
    assert (await ask(1011, **both, brokerControllerIdsToClean="2", isCleanLivingBroker="false")).code == 2009
    assert (await ask(1011, **both, isCleanLivingBroker="false")).code == 2009
    assert (await ask(1011, **both, brokerControllerIdsToClean="a;b", isCleanLivingBroker="false")).code == 2009
    assert (await ask(1011, **both, brokerControllerIdsToClean="3", isCleanLivingBroker="false")).code == 0
    assert fields_of(await ask(1012, **both))["nextBrokerId"] == "4"

    # 1006 of a living group.
    table = body_of(await ask(1006, ["bn", "unknown"]))["replicasInfoTable"]
    assert list(table) == ["bn"]
    assert table["bn"]["masterBrokerId"] == 1
    assert [replica["brokerId"] for replica in table["bn"]["inSyncReplicas"]] == [1, 2]
    assert all(replica["alive"] for replica in table["bn"]["inSyncReplicas"])
    assert table["bn"]["notInSyncReplicas"] == []

    # What is no controller request, and what is refused.
    answer = await ask(1005)
    assert answer.code == 0
    assert fields_of(answer)["controllerLeaderAddress"] == plane.address
    assert fields_of(answer)["isLeader"] == "true"
    assert fields_of(answer)["peers"] == f"n0:{plane.address};"
    assert (await ask(1009)).code == 16
    assert (await ask(1010)).code == 16
    answer = await ask(1007)
    assert (answer.code, answer.remark) == (3, " request type 1007 not supported")
    answer = await ask(1001, brokerName="bn", masterBrokerId=1, masterEpoch=1)  # without a body
    assert answer.code == 1
    await client.close()


async def test_the_answer_to_a_fence_lists_all_controllers(start_plane: StartPlane) -> None:
    """Its pod knows those of the day it was made (docs/adr/0019); Java's clients pass over the field."""
    planes = ("operator-0:9878", "operator-1:9878")
    client = RemotingClient()
    try:
        for peers, expected in ((planes, {CONTROLLERS: ";".join(planes)}), ((), {})):
            answer = await Asker(await start_plane(peer_addresses=peers), client)(1006, ["bn"])
            assert (answer.code, fields_of(answer)) == (0, expected)
    finally:
        await client.close()
