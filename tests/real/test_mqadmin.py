"""Every mqadmin command for controllers, with the real tool, at our controller with unmodified Java brokers.

The output is parsed and compared with the record and with the brokers' state; so are refusals:
mqadmin shows the code and the remark that we answer. One NameServer, two Java brokers and one kept mqadmin serve all tests; they
run in their order, and each leaves the group as it found it, save for the epoch.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import AdminCredentials, PlaneSettings, SecuritySettings
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from rocketmq_remoting.signature import Credentials
from tests.real.parts import java, mqadmin_output
from tests.real.parts.mqadmin_output import Refusal
from tests.real.parts.mqadmin_shell import AdminShell, start_shell
from tests.real.parts.process import start
from tests.support.java_rig import KEY, JavaRig, in_sync, plane_beside, record_of
from tests.support.waiting import eventually
from tests.upstream.java_controllers import start_dledger, wait_until_leading
from tests.upstream.lab import Controller, WireGroup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from controller_core.model import BrokerGroupRecord

pytestmark = [
    pytest.mark.real("java", "rocketmq"),
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

CLUSTER = "DefaultCluster"
NAME = KEY.name
ADMIN = Credentials(access_key="admin", secret_key="secret-of-the-admin")
NO_PERMISSION = 16
INVALID_CLEAN = 2009
NEED_TO_BE_REGISTERED = 2010
MASTER_STILL_EXIST = 2011
ELECT_MASTER_FAILED = 2012


@dataclass
class Lab(JavaRig):
    """Our controller, a NameServer, two Java brokers and mqadmin."""

    plane: ControllerPlane = field(kw_only=True)
    shell: AdminShell = field(kw_only=True)

    @property
    def controller(self) -> str:
        return self.plane.address

    @property
    def record(self) -> BrokerGroupRecord:
        return record_of(self.plane)

    @property
    def master(self) -> int:
        assert self.record.master_broker_id is not None
        return self.record.master_broker_id

    @property
    def slave(self) -> int:
        [slave] = self.record.sync_state_set - {self.master}
        return slave

    def addresses(self) -> dict[int, str]:
        return {broker_id: replica.address for broker_id, replica in self.record.replicas.items()}

    async def until_settled(self) -> None:
        await eventually(
            lambda: in_sync(self.plane, 2), f"two Java brokers in sync\n{self.logs()}", within_seconds=90.0
        )

    async def ask(self, *arguments: str) -> str:
        """Run mqadmin unsigned."""
        self.shell.sign_no_more()
        return await asyncio.to_thread(self.shell.run, *arguments)

    async def ask_as_admin(self, *arguments: str, once: bool = False) -> str:
        """Signed with the administrator's key; `once` for what must not be asked twice."""
        self.shell.sign_as(ADMIN.access_key, ADMIN.secret_key)
        return await asyncio.to_thread(self.shell.run_once if once else self.shell.run, *arguments)

    async def until_on_name_server(self) -> None:
        """Wait until the NameServer has the master as master and the slave as slave."""

        async def known() -> bool:
            lines = mqadmin_output.cluster_list(await self.ask("clusterList", "-n", self.name_server_address))
            addresses = self.addresses()
            wanted = {0: addresses[self.master], self.slave: addresses[self.slave]}
            return {line.broker_id: line.address for line in lines} == wanted

        await eventually(known, "both brokers at the NameServer", within_seconds=60.0)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    rig = JavaRig(tmp_path_factory.mktemp("mqadmin"))
    await asyncio.to_thread(rig.start_name_server)
    shell = start_shell(rig.folder / "mqadmin", name_server_address=rig.name_server_address)
    rules = ControllerSettings(shrink_floor=True, min_in_sync_replicas=1)
    security = SecuritySettings(configuration_readable=True, admin_credentials=AdminCredentials([ADMIN]))
    try:
        async with plane_beside(rig.name_server_address, rules, plane={"security": security}) as plane:
            lab = Lab(rig.folder, name_server=rig.name_server, programs=rig.programs, plane=plane, shell=shell)
            for name in ("broker-1", "broker-2"):
                lab.start_broker(name, controllers=plane.address)
            await lab.until_settled()
            await lab.until_on_name_server()
            yield lab
    finally:
        rig.stop()
        shell.stop()


async def test_get_controller_metadata(lab: Lab) -> None:
    printed = await lab.ask("getControllerMetaData", "-a", lab.controller)
    assert mqadmin_output.controller_metadata(printed) == {
        "ControllerGroup": "brokergroup-operator",
        "ControllerLeaderId": "n0",
        "ControllerLeaderAddress": lab.controller,
    }
    assert mqadmin_output.controller_peers(printed) == [f"n0:{lab.controller}"]


def check_sync_state_set(lab: Lab, shown: mqadmin_output.SyncStateSetShown) -> None:
    """Check that getSyncStateSet matches the record, with all members alive."""
    record = lab.record
    assert (shown.broker_name, shown.master_broker_id) == (NAME, record.master_broker_id)
    assert shown.master_address == lab.addresses()[lab.master]
    assert (shown.master_epoch, shown.sync_state_set_epoch) == (record.master_epoch, record.sync_state_set_epoch)
    assert {replica.broker_id: replica.address for replica in shown.in_sync} == lab.addresses()
    assert all(replica.alive for replica in shown.in_sync)
    assert shown.not_in_sync == ()


async def test_get_sync_state_set_by_name_and_by_cluster(lab: Lab) -> None:
    [shown] = mqadmin_output.sync_state_sets(await lab.ask("getSyncStateSet", "-a", lab.controller, "-b", NAME))
    check_sync_state_set(lab, shown)
    # By cluster it asks the NameServer for the names; and of several controllers it asks the first.
    printed = await lab.ask(
        "getSyncStateSet", "-a", f"{lab.controller};127.0.0.1:1", "-c", CLUSTER, "-n", lab.name_server_address
    )
    [shown] = mqadmin_output.sync_state_sets(printed)
    check_sync_state_set(lab, shown)
    assert mqadmin_output.sync_state_sets(await lab.ask("getSyncStateSet", "-a", lab.controller, "-b", "no")) == []


async def test_get_sync_state_set_again_and_again(lab: Lab, tmp_path: Path) -> None:
    """With -i it never ends: run as a process of its own, until it has printed the group twice."""
    flags = (java.QUIET, f"-Drocketmq.namesrv.addr={lab.name_server_address}")
    command = [
        *java.java_command("mqadmin", tmp_path, flags=flags),
        *("getSyncStateSet", "-a", lab.controller, "-b", NAME, "-i", "1"),
    ]
    printed = tmp_path / "printed"
    process = start("mqadmin getSyncStateSet -i", command, log=printed)

    def twice() -> list[mqadmin_output.SyncStateSetShown]:
        blocks = printed.read_text(encoding="utf-8").split("#brokerName\t")
        # The last one may be half written.
        whole = "".join(f"#brokerName\t{block}" for block in blocks[1:-1])
        shown = mqadmin_output.sync_state_sets(whole)
        return shown if len(shown) >= 2 else []

    try:
        for shown in await eventually(twice, "two blocks"):
            check_sync_state_set(lab, shown)
    finally:
        process.kill()


async def test_get_broker_epoch_by_name_and_by_cluster(lab: Lab) -> None:
    """1007 goes to the brokers that the NameServer names; a master has id 0 there."""
    for where in (("-b", NAME), ("-c", CLUSTER)):
        printed = await lab.ask("getBrokerEpoch", *where, "-n", lab.name_server_address)
        shown = mqadmin_output.broker_epochs(printed)
        ids = {epoch.address: epoch.broker_id for epoch in shown}
        assert ids == {lab.addresses()[lab.master]: 0, lab.addresses()[lab.slave]: lab.slave}
        assert {epoch.cluster_name for epoch in shown} == {CLUSTER}
        entries = [entry for epoch in shown for entry in epoch.entries]
        assert entries
        assert all(1 <= entry.epoch <= lab.record.master_epoch for entry in entries)


async def test_ha_status_of_a_broker_and_of_a_cluster(lab: Lab) -> None:
    master = lab.addresses()[lab.master]
    for where in (("-b", master), ("-c", CLUSTER)):
        statuses = mqadmin_output.ha_statuses(await lab.ask("haStatus", *where, "-n", lab.name_server_address))
        [shown] = [status for status in statuses if status.master_address == master]
        assert shown.in_sync_slaves == 1
        [slave] = shown.slaves
        assert slave.in_sync
        assert slave.ack_offset + slave.diff == shown.max_offset


async def test_cluster_list(lab: Lab) -> None:
    lines = mqadmin_output.cluster_list(await lab.ask("clusterList", "-n", lab.name_server_address))
    assert {(line.cluster_name, line.broker_name, line.version) for line in lines} == {(CLUSTER, NAME, "V5_5_0")}


async def test_the_configuration_is_shown_where_that_was_opened(lab: Lab) -> None:
    [(address, settings)] = mqadmin_output.controller_config(
        await lab.ask("getControllerConfig", "-a", lab.controller)
    ).items()
    assert address == lab.controller
    host, _, port = lab.controller.rpartition(":")
    assert (settings["bindAddress"], settings["listenPort"]) == (host, port)
    assert settings["controllerDLegerPeers"] == f"n0-{lab.controller}"
    assert ADMIN.secret_key not in str(settings)


async def test_by_default_the_configuration_is_nobodys_business(lab: Lab) -> None:
    """The operator's default answers: to administrators, to reads and to writes."""
    closed = ControllerPlane(
        store=MemoryRecordStore(),
        directory=FixedDirectory(),
        settings=PlaneSettings(listen_host="127.0.0.1", listen_port=0),
    )
    await closed.start()
    try:
        shown = mqadmin_output.refusal(await lab.ask("getControllerConfig", "-a", closed.address))
        assert shown is not None
        assert shown.code == NO_PERMISSION
        shown = mqadmin_output.refusal(
            await lab.ask_as_admin("electMaster", "-a", closed.address, "-b", "1", "-bn", NAME, "-c", CLUSTER)
        )
        assert shown is not None
        assert shown.code == NO_PERMISSION
    finally:
        await closed.stop()


async def test_nobody_updates_the_configuration(lab: Lab) -> None:
    update = ("updateControllerConfig", "-a", lab.controller, "-k", "enableElectUncleanMaster", "-v", "true")
    refused = Refusal(NO_PERMISSION, "the controller is configured by its own settings only")
    assert mqadmin_output.refusal(await lab.ask(*update)) == refused
    assert mqadmin_output.refusal(await lab.ask_as_admin(*update)) == refused


def elect(controller: str, broker_id: int, *, name: str = NAME, cluster: str = CLUSTER) -> tuple[str, ...]:
    return "electMaster", "-a", controller, "-b", str(broker_id), "-bn", name, "-c", cluster


async def test_elect_master_is_an_administrators(lab: Lab) -> None:
    before = lab.record
    shown = mqadmin_output.refusal(await lab.ask(*elect(lab.controller, lab.slave)))
    assert shown is not None
    assert shown.code == NO_PERMISSION
    assert "administrator" in shown.remark
    assert lab.record == before


async def test_elect_master_says_why_not(lab: Lab) -> None:
    before = lab.record

    async def refused(broker_id: int, name: str = NAME) -> Refusal | None:
        return mqadmin_output.refusal(await lab.ask_as_admin(*elect(lab.controller, broker_id, name=name)))

    assert await refused(lab.master) == Refusal(
        MASTER_STILL_EXIST,
        f"The old master {lab.master} is still alive, not need to elect new master for broker {NAME}",
    )
    assert await refused(9) == Refusal(ELECT_MASTER_FAILED, "Failed to elect a new master")
    assert await refused(1, name="nobody") == Refusal(NEED_TO_BE_REGISTERED, "Broker hasn't been registered")
    assert lab.record == before


async def test_elect_master_fails_at_the_java_controller_and_works_at_ours(lab: Lab, tmp_path: Path) -> None:
    """The same mqadmin 5.5.0: at Java's own controller it fails although the election was done (docs/reference/controller.md)."""
    program = start_dledger(tmp_path)
    try:
        await asyncio.to_thread(wait_until_leading, program)
        async with WireGroup(Controller(program.address, "java")) as group:
            await group.in_sync(2)
            printed = await lab.ask(*elect(program.address, 2, name=group.name, cluster=group.cluster))
            assert "JSONException" in printed
            with pytest.raises(mqadmin_output.MqadminOutputError):
                mqadmin_output.election(printed)
            assert (await group.state()).master == 2
    finally:
        program.process.kill()

    before, slave = lab.record, lab.slave
    printed = await lab.ask_as_admin(*elect(lab.controller, slave), once=True)
    record = lab.record
    assert mqadmin_output.election(printed) == mqadmin_output.ElectionShown(
        cluster_name=CLUSTER,
        broker_name=NAME,
        master_address=lab.addresses()[slave],
        master_epoch=before.master_epoch + 1,
        sync_state_set_epoch=before.sync_state_set_epoch + 1,
        members=lab.addresses(),
    )
    assert (record.master_broker_id, record.master_epoch) == (slave, before.master_epoch + 1)
    await lab.until_settled()
    await lab.until_on_name_server()


def clean(controller: str, *options: str, name: str = NAME) -> tuple[str, ...]:
    return "cleanBrokerMetadata", "-a", controller, "-bn", name, *options


async def test_clean_broker_metadata_is_an_administrators(lab: Lab) -> None:
    async with WireGroup(Controller(lab.controller, "ours")) as group:
        await group.broker()
        before = await group.state()
        for options in (("-b", "1", "-c", group.cluster), ("-c", group.cluster), ("-l",)):
            shown = mqadmin_output.refusal(await lab.ask(*clean(lab.controller, *options, name=group.name)))
            assert shown is not None
            assert shown.code == NO_PERMISSION
        assert await group.state() == before


async def test_clean_broker_metadata_says_why_not(lab: Lab) -> None:
    before = lab.record

    async def refused(*options: str, name: str = NAME) -> Refusal | None:
        return mqadmin_output.refusal(await lab.ask_as_admin(*clean(lab.controller, *options, name=name)))

    named = ("-c", CLUSTER)
    assert await refused("-b", str(lab.slave), *named) == Refusal(
        INVALID_CLEAN, f"Broker [{NAME},  {lab.slave}] is still alive, clean up failure"
    )
    assert await refused(*named) == Refusal(INVALID_CLEAN, f"Broker {NAME} is still alive, clean up failure")
    malformed = await refused("-b", "1;two", *named)
    assert malformed is not None
    assert malformed.code == INVALID_CLEAN
    assert malformed.remark.startswith("Please set the option <brokerControllerIdsToClean> according to the format")
    assert await refused(*named, name="nobody") == Refusal(
        INVALID_CLEAN, "Broker nobody is not existed,clean broker data failure."
    )
    # A refusal of mqadmin itself: it requires the cluster's name unless living brokers are cleaned too.
    assert "clusterName option can not be empty" in await lab.ask_as_admin(*clean(lab.controller, "-b", "1"))
    assert lab.record == before


async def test_clean_broker_metadata_forgets_who_is_named_and_nobody_else(lab: Lab) -> None:
    """-b removes dead brokers; -l living ones too, but only the named ones (Java drops the whole group)."""
    async with WireGroup(Controller(lab.controller, "ours")) as group:
        named = {"name": group.name}
        await group.in_sync(3)
        third = group.brokers[3]
        await group.brokers[1].alter({1, 2})
        await third.die()
        await group.until(lambda state: 3 not in state.alive, "the third is gone")
        done = f"clear broker {group.name} metadata from controller success!"
        assert done in await lab.ask_as_admin(*clean(lab.controller, "-b", "3", "-c", group.cluster, **named))
        after = await group.state()
        assert (after.master, after.members, after.others) == (1, {1, 2}, set())
        assert done in await lab.ask_as_admin(*clean(lab.controller, "-b", "2", "-l", **named))
        after = await group.state()
        assert (after.master, after.members, after.others) == (1, {1}, set())
        assert done in await lab.ask_as_admin(*clean(lab.controller, "-l", **named))
        assert not (await group.state()).known
        # Ids are never given again (safety rule 4).
        assert (await group.broker()).broker_id == 4
