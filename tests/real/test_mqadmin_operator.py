"""The real mqadmin at the operator itself, with a group of Python replicas in the sandbox: what is left to its administrators.

Read-only commands work for every client of the port. Designating needs an administrator's key, and is a planned
switchover here; cleaning pods that live is refused to administrators too, since their BrokerGroup rules them.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import BROKER_GROUP_STATES
from tests.e2e.house import NAMESPACE, House, WholeGroup, open_house, whole_group
from tests.real.parts import mqadmin_output
from tests.real.parts.java import start_name_server
from tests.real.parts.mqadmin_shell import AdminShell, start_shell

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.parts.java import JavaProgram

pytestmark = [
    pytest.mark.real("java", "rocketmq"),
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

GROUP = "orders"
CLUSTER = "DefaultCluster"
ACCESS_KEY, SECRET_KEY = "admin", "secret-of-the-admin"
NO_PERMISSION = 16


@dataclass
class Lab:
    """The operator, its group, a NameServer and mqadmin."""

    house: House
    group: WholeGroup
    name_server: JavaProgram
    shell: AdminShell

    @property
    def controller(self) -> str:
        return self.house.controller_address("operator")

    async def record(self) -> dict[str, Any]:
        state = await self.house.api.get(BROKER_GROUP_STATES, GROUP, namespace=NAMESPACE)
        record: dict[str, Any] = state["record"]
        return record

    async def mqadmin(self, *arguments: str) -> str:
        """Run mqadmin unsigned."""
        self.shell.sign_no_more()
        return await asyncio.to_thread(self.shell.run, *arguments)

    async def mqadmin_of_admin(self, *arguments: str) -> str:
        """Signed with the administrator's key."""
        self.shell.sign_as(ACCESS_KEY, SECRET_KEY)
        return await asyncio.to_thread(self.shell.run_once, *arguments)


def addresses(record: dict[str, Any]) -> dict[int, str]:
    return {replica["brokerId"]: replica["address"] for replica in record["replicas"]}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    folder = tmp_path_factory.mktemp("mqadmin-operator")
    name_server = await asyncio.to_thread(start_name_server, folder / "namesrv")
    shell = start_shell(folder / "mqadmin", name_server_address=name_server.address)
    keys = folder / "admin.json"
    keys.write_text(json.dumps({"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}), encoding="utf-8")
    try:
        await asyncio.to_thread(name_server.wait_until_listening)
        async with open_house(folder / "house") as house, whole_group(house, GROUP, replicas=3) as group:
            own = house.controller_address("operator")
            await house.processes.start(
                "operator", "operator",
                "--kubeconfig", str(house.kubeconfig), "--namespace", NAMESPACE,
                "--listen", own, "--advertise", own, "--controller-address", own,
                "--admin-credentials", str(keys), "--configuration-readable",
            )  # fmt: skip
            await house.create_group(GROUP, nameServers=[name_server.address])
            await group.until_settled()
            yield Lab(house, group, name_server, shell)
    finally:
        shell.stop()
        name_server.process.kill()


async def test_what_only_looks_is_answered_to_everybody(lab: Lab) -> None:
    record = await lab.record()
    metadata = mqadmin_output.controller_metadata(await lab.mqadmin("getControllerMetaData", "-a", lab.controller))
    assert metadata["ControllerLeaderAddress"] == lab.controller
    [shown] = mqadmin_output.sync_state_sets(await lab.mqadmin("getSyncStateSet", "-a", lab.controller, "-b", GROUP))
    assert (shown.master_broker_id, shown.master_epoch) == (record["masterBrokerId"], record["masterEpoch"])
    assert shown.sync_state_set_epoch == record["syncStateSetEpoch"]
    assert {replica.broker_id: replica.address for replica in shown.in_sync} == addresses(record)
    settings = mqadmin_output.controller_config(await lab.mqadmin("getControllerConfig", "-a", lab.controller))
    assert settings[lab.controller]["listenPort"] == lab.controller.rpartition(":")[2]
    assert SECRET_KEY not in str(settings)


async def test_the_replicas_themselves_answer_mqadmin(lab: Lab) -> None:
    record = await lab.record()
    name_server = ("-n", lab.name_server.address)
    epochs = mqadmin_output.broker_epochs(await lab.mqadmin("getBrokerEpoch", "-b", GROUP, *name_server))
    assert {shown.address for shown in epochs} == set(addresses(record).values())
    master = addresses(record)[record["masterBrokerId"]]
    [status] = mqadmin_output.ha_statuses(await lab.mqadmin("haStatus", "-b", master, *name_server))
    assert (status.master_address, status.in_sync_slaves) == (master, 2)
    lines = mqadmin_output.cluster_list(await lab.mqadmin("clusterList", *name_server))
    assert {line.address: line.broker_id for line in lines} == {
        address: 0 if address == master else broker_id for broker_id, address in addresses(record).items()
    }


async def test_strangers_change_nothing(lab: Lab) -> None:
    before = await lab.record()
    slave = next(broker_id for broker_id in addresses(before) if broker_id != before["masterBrokerId"])
    for command in (
        ("electMaster", "-a", lab.controller, "-b", str(slave), "-bn", GROUP, "-c", CLUSTER),
        ("cleanBrokerMetadata", "-a", lab.controller, "-b", str(slave), "-bn", GROUP, "-c", CLUSTER),
        ("cleanBrokerMetadata", "-a", lab.controller, "-bn", GROUP, "-l"),
        ("updateControllerConfig", "-a", lab.controller, "-k", "enableElectUncleanMaster", "-v", "true"),
    ):
        refusal = mqadmin_output.refusal(await lab.mqadmin(*command))
        assert refusal is not None, command
        assert refusal.code == NO_PERMISSION, command
    assert await lab.record() == before


async def test_an_administrator_does_not_clean_living_pods_away(lab: Lab) -> None:
    before = await lab.record()
    refusal = mqadmin_output.refusal(
        await lab.mqadmin_of_admin("cleanBrokerMetadata", "-a", lab.controller, "-bn", GROUP, "-l")
    )
    assert refusal is not None
    assert refusal.code == NO_PERMISSION
    assert "BrokerGroup" in refusal.remark
    assert await lab.record() == before


async def test_an_administrator_designates_the_next_master(lab: Lab) -> None:
    before = await lab.record()
    slave = next(broker_id for broker_id in addresses(before) if broker_id != before["masterBrokerId"])
    printed = await lab.mqadmin_of_admin(
        "electMaster", "-a", lab.controller, "-b", str(slave), "-bn", GROUP, "-c", CLUSTER
    )
    shown = mqadmin_output.election(printed)
    assert (shown.master_address, shown.master_epoch) == (addresses(before)[slave], before["masterEpoch"] + 1)
    assert shown.members == addresses(before)
    after = await lab.record()
    assert (after["masterBrokerId"], after["masterEpoch"]) == (slave, before["masterEpoch"] + 1)
    await lab.group.until_settled()
