"""Brokers with static roles before they are stopped: what is refused, and a master that takes nothing until all logs end alike."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.migrate.java import JavaCalls, MigrationCallError, StartingError
from brokergroup_operator.migrate.quiet import QuietError, StaticBroker, StaticGroup, make_quiet, read_static
from rocketmq_remoting.broker_protocol import BrokerData, ClusterInfoBody
from rocketmq_remoting.client import RemotingClient

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME, CLUSTER, NAME_SERVER = "broker-a", "DefaultCluster", "ns:9876"
STORE = {"storePathRootDir": "/store", "mappedFileSizeCommitLog": "1073741824"}
MASTER = StaticBroker(
    address="m:10911",
    configuration={**STORE, "brokerRole": "SYNC_MASTER", "brokerPermission": "6"},
    version="V5_1_1",
    end=1000,
)
SLAVE = replace(MASTER, address="s:10911", configuration={**STORE, "brokerRole": "SLAVE"})


def a_group(*brokers: StaticBroker | str, clusters: tuple[str, ...] = (CLUSTER,)) -> StaticGroup:
    return StaticGroup(broker_name=NAME, cluster_names=frozenset(clusters), brokers=dict(enumerate(brokers)))


def having(broker: StaticBroker, **configuration: str) -> StaticBroker:
    return replace(broker, configuration={**broker.configuration, **configuration})


@pytest.mark.parametrize(
    ("group", "finding"),
    [
        (replace(a_group(MASTER), brokers={1: SLAVE}), "NoMaster"),
        (a_group(MASTER, "s:10911: refused"), "Unreachable"),
        (a_group(MASTER, SLAVE, clusters=("one", "two")), "TwoClusters"),
        (a_group(replace(MASTER, version="V5_1_0"), SLAVE), "OldBroker"),
        (a_group(MASTER, replace(SLAVE, version="V4_9_8")), "OldBroker"),
        (a_group(having(MASTER, enableDLegerCommitLog="true")), "DLedgerLog"),
        (a_group(having(MASTER, enableControllerMode="true")), "ControllerMode"),
        (a_group(MASTER, having(SLAVE, brokerRole="ASYNC_MASTER")), "TwoMasters"),
        (a_group(MASTER, replace(SLAVE, end=1001)), "AheadOfMaster"),
        (a_group(MASTER, having(SLAVE, mappedFileSizeCommitLog="4096")), "OtherFileSize"),
    ],
)
def test_what_is_refused(group: StaticGroup, finding: str) -> None:
    assert group.blocked
    assert finding in [doubt.finding.value for doubt in group.doubts]
    assert f"BLOCKS {finding}" in "\n".join(group.lines())


@pytest.mark.parametrize(
    ("group", "findings"),
    [
        (a_group(MASTER), []),
        (a_group(MASTER, SLAVE), []),
        (a_group(MASTER, replace(SLAVE, end=1)), ["Behind"]),
        (a_group(replace(MASTER, version="")), ["UnknownVersion"]),
    ],
)
def test_what_is_not(group: StaticGroup, findings: list[str]) -> None:
    assert ([doubt.finding.value for doubt in group.doubts], group.blocked) == (findings, False)


@dataclass
class House:
    """A master that takes 10 bytes at each look until it is read-only, and a slave that copies so much of them."""

    brokers: dict[str, StaticBroker] = field(default_factory=lambda: {"m:10911": MASTER, "s:10911": SLAVE})
    copies: int = 1_000_000
    permissions: list[str] = field(default_factory=list)


class Calls(JavaCalls):
    def __init__(self, house: House) -> None:
        super().__init__(RemotingClient())
        self.house = house

    async def clusters(self, name_server: str) -> ClusterInfoBody:
        addresses = dict(enumerate(self.house.brokers))
        data = BrokerData(cluster=CLUSTER, broker_name=NAME, broker_addrs=addresses)
        return ClusterInfoBody(broker_addr_table={NAME: data}, cluster_addr_table={CLUSTER: frozenset({NAME})})

    async def runtime(self, broker: str) -> Mapping[str, str]:
        house, said = self.house, self.house.brokers[broker]
        if broker == "m:10911" and said.configuration["brokerPermission"] == "6":
            said = replace(said, end=said.end + 10)
        elif broker != "m:10911":
            said = replace(said, end=min(house.brokers["m:10911"].end, said.end + house.copies))
        house.brokers[broker] = said
        return {"brokerVersionDesc": said.version, "commitLogMaxOffset": str(said.end)}

    async def broker_configuration(self, broker: str) -> dict[str, str]:
        return dict(self.house.brokers[broker].configuration)

    async def configure_broker(self, broker: str, properties: Mapping[str, str]) -> None:
        house = self.house
        house.brokers[broker] = having(house.brokers[broker], **properties)
        house.permissions.append(properties["brokerPermission"])


async def made_quiet(house: House, *, seconds: float = 60.0) -> StaticGroup:
    calls, steps = Calls(house), list[str]()

    def report(step: str, **_: Any) -> None:
        steps.append(step)

    group = await read_static(calls, (NAME_SERVER,), NAME)
    found = await make_quiet(calls, group, (NAME_SERVER,), report, seconds=seconds)
    assert steps == ["read-only", "alike"]
    return found


async def test_the_master_stays_read_only_once_all_logs_end_alike() -> None:
    house = House(copies=4)
    house.brokers["s:10911"] = replace(SLAVE, end=960)
    found = await made_quiet(house)
    assert found.ends_alike
    assert house.permissions == ["4"]


async def test_a_slave_that_does_not_catch_up_gives_the_master_back() -> None:
    house = House(copies=0)
    with pytest.raises(QuietError, match=r"brokerId 1 lacks \d+ bytes.*takes messages again"):
        await made_quiet(house, seconds=10.0)
    assert house.permissions == ["4", "6"]


async def test_one_that_is_ended_gives_the_master_back() -> None:
    house = House(copies=0)
    running = asyncio.create_task(made_quiet(house))
    await asyncio.sleep(3.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert house.permissions == ["4", "6"]


async def test_a_slave_that_leaves_meanwhile_is_missed() -> None:
    """Its NameServer drops it with its connection: the master alone always ends like itself."""
    house = House(copies=0)
    running = asyncio.create_task(made_quiet(house, seconds=10.0))
    await asyncio.sleep(1.2)
    del house.brokers["s:10911"]
    with pytest.raises(QuietError, match=r"brokers \[0, 1\] were there, now \[0\].*takes messages again"):
        await running
    assert house.permissions == ["4", "6"]


async def test_a_master_that_was_read_only_before_is_said_to_be_so_again() -> None:
    """As a run that was killed leaves it."""
    house = House(copies=0)
    house.brokers["m:10911"] = having(MASTER, brokerPermission="4")
    house.brokers["s:10911"] = replace(SLAVE, end=1)
    told = r"the master has brokerPermission=4 again, as before: .* -k brokerPermission -v 6"
    with pytest.raises(QuietError, match=told):
        await made_quiet(house, seconds=10.0)
    assert house.permissions == ["4", "4"]


async def test_a_master_that_could_not_be_given_back_is_named_with_the_way_back() -> None:
    house = House(copies=0)

    class Gone(Calls):
        async def configure_broker(self, broker: str, properties: Mapping[str, str]) -> None:
            if house.permissions:
                raise MigrationCallError(f"{broker}: no answer")
            await super().configure_broker(broker, properties)

    group = await read_static(Calls(house), (NAME_SERVER,), NAME)
    way_back = (
        r"m:10911 may still take no messages \(m:10911: no answer\): mqadmin updateBrokerConfig -b m:10911 -k brokerPermission -v 6"
        r".* -k startAcceptSendRequestTimeStamp -v 0"
    )
    with pytest.raises(QuietError, match=way_back):
        await make_quiet(Gone(house), group, (NAME_SERVER,), lambda *_, **__: None, seconds=5.0)


async def test_a_look_that_fails_gives_the_master_back_and_says_so() -> None:
    house = House()

    class Deaf(Calls):
        async def clusters(self, name_server: str) -> ClusterInfoBody:
            if house.permissions:
                raise MigrationCallError(f"{name_server}: refused")
            return await super().clusters(name_server)

    group = await read_static(Calls(house), (NAME_SERVER,), NAME)
    with pytest.raises(QuietError, match=r"ns:9876: refused.*takes messages again"):
        await make_quiet(Deaf(house), group, (NAME_SERVER,), lambda *_, **__: None, seconds=60.0)
    assert house.permissions == ["4", "6"]


async def test_a_master_that_does_not_keep_the_setting_is_not_quiet() -> None:
    """A broker whose configuration comes back from elsewhere takes messages on."""
    house = House()

    class Forgetful(Calls):
        async def configure_broker(self, broker: str, properties: Mapping[str, str]) -> None:
            house.permissions.append(properties["brokerPermission"])

    house.brokers["m:10911"] = having(MASTER, brokerPermission="2")
    house.brokers["s:10911"] = SLAVE
    group = await read_static(Calls(house), (NAME_SERVER,), NAME)
    with pytest.raises(QuietError, match="brokerPermission is 2, expected 4"):
        await make_quiet(Forgetful(house), group, (NAME_SERVER,), lambda *_, **__: None, seconds=5.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_a_signal_ends_gives_the_master_back(number: signal.Signals) -> None:
    """A pod that is deleted, and a terminal that is closed, too; a second signal does not cut it off."""
    house = House(copies=0)

    def end(step: str, **_: Any) -> None:
        assert step == "read-only"
        for _again in range(2):
            os.kill(os.getpid(), number)

    async def run() -> None:
        calls = Calls(house)
        group = await read_static(calls, (NAME_SERVER,), NAME)
        await make_quiet(calls, group, (NAME_SERVER,), end, seconds=60.0)

    before = signal.getsignal(number)
    with pytest.raises(QuietError, match=f"ended by {number.name}: the master takes messages again"):
        asyncio.run(run())
    assert house.permissions == ["4", "6"]
    assert signal.getsignal(number) == before


class Starting(Calls):
    """The slave answers so many requests for its state with an exception, as a broker of 5.0.0 does in its first second."""

    def __init__(self, house: House, exceptions: int) -> None:
        super().__init__(house)
        self.exceptions = exceptions

    async def runtime(self, broker: str) -> Mapping[str, str]:
        if broker == "s:10911" and self.exceptions:
            self.exceptions -= 1
            raise StartingError(f"{broker}: request 28 answered 1")
        return await super().runtime(broker)


async def test_a_broker_that_was_just_started_is_asked_again_and_all_with_it() -> None:
    """The master takes messages meanwhile: by its end of before the slave would be ahead of it."""
    group = await read_static(Starting(House(), 7), (NAME_SERVER,), NAME)
    assert [one.end for one in group.known.values()] == [1080, 1080]
    assert not group.blocked


async def test_one_that_goes_on_to_answer_so_is_told() -> None:
    began_seconds = asyncio.get_running_loop().time()
    group = await read_static(Starting(House(), 1_000), (NAME_SERVER,), NAME)
    assert [str(doubt) for doubt in group.doubts] == ["BLOCKS Unreachable: brokerId 1: s:10911: request 28 answered 1"]
    assert asyncio.get_running_loop().time() - began_seconds < 15.0


async def test_a_blocked_group_is_left_as_it_is() -> None:
    house = House()
    house.brokers["s:10911"] = replace(SLAVE, version="V5_0_0")
    with pytest.raises(QuietError, match="OldBroker"):
        await made_quiet(house)
    assert house.permissions == []


async def test_a_name_that_no_name_server_knows() -> None:
    with pytest.raises(MigrationCallError, match="no broker of other is known to ns:9876"):
        await read_static(Calls(House()), (NAME_SERVER,), "other")


@pytest.mark.parametrize("arguments", [[], ["--name-server", "127.0.0.1:1"], ["--broker-name", NAME]])
def test_the_command_needs_a_name_server_and_a_name(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["adopt", "quiet", *arguments])
    assert done.exit_code == 2
    assert "expected at least one each" in done.output


def test_nobody_there_is_exit_code_2() -> None:
    done = CliRunner().invoke(app, ["adopt", "quiet", "--name-server", "127.0.0.1:1", "--broker-name", NAME])
    assert done.exit_code == 2
    assert "127.0.0.1:1" in done.stderr
