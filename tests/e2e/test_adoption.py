"""Java brokers, their stores on PersistentVolumes with claims of other names, become a BrokerGroup with its data.

They had static roles, or a Java controller. Python replicas have no static roles. A kube-apiserver keeps the rules of claims.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.demo.client import DemoProducer, Ledger, ReadbackError, read_keys
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
)
from brokergroup_operator.migrate.java import JavaCalls
from brokergroup_operator.migrate.stores import Place, inspect
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.e2e.conftest import REAL_PARTS
from tests.e2e.house import NAMESPACE, QUEUES, TOPIC, whole_group
from tests.e2e.java_house import give_claim
from tests.e2e.stories import condition
from tests.real.parts import java
from tests.real.test_java_versions import OF_JAVA_8, controller_of_5_0, with_logging
from tests.support.java_rig import JavaRig, eventually
from tests.support.our_program import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.e2e.java_house import ClusterHouse

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.real(*REAL_PARTS, "older-rocketmq", "table-rocketmq"),
    pytest.mark.timeout(900),
]

CLUSTER = "DefaultCluster"
FILE_BYTES = 67108864
COMMON: dict[str, Any] = {"mappedFileSizeCommitLog": FILE_BYTES, "waitTimeMillsInSendQueue": 20000}


@dataclass
class OldBrokers:
    """Two brokers beside the cluster, each on a folder that becomes a volume, and what was acknowledged to their clients."""

    group: str
    folder: Path
    client: RemotingClient
    rig: JavaRig
    ledger: Ledger = field(default_factory=Ledger)
    # Whether the second broker is the master, after a failover.
    failed_over: bool = False

    @property
    def claims(self) -> tuple[str, str]:
        """The master's first."""
        first, second = f"store-{self.group}-0", f"store-{self.group}-1"
        return (second, first) if self.failed_over else (first, second)

    async def start_static_roles(self) -> None:
        shared = {"brokerName": self.group, "totalReplicas": 2, "inSyncReplicas": 2, **COMMON}
        await self.rig.start_static_roles(*self.claims, **shared)

    async def start_with_java_controller(self) -> None:
        controller = java.start_controller(self.folder / "controller")
        await asyncio.to_thread(controller.wait_until_listening)
        self.rig.programs["controller"] = controller
        rule = {"allAckInSyncStateSet": "true", "inSyncReplicas": 2, "minInSyncReplicas": 2}
        for name in self.claims:
            self.rig.start_broker(name, controllers=controller.address, brokerName=self.group, **rule, **COMMON)
            await asyncio.to_thread(self.rig.programs[name].wait_until_listening)

    async def start_without_ids(self) -> None:
        """Start two brokers 5.0.0 with a controller of 5.0.0, send to the first one, and let the second take over from it."""
        self.rig.flags = OF_JAVA_8
        controller = await asyncio.to_thread(controller_of_5_0, self.rig)
        first, second = self.claims

        def start(name: str) -> None:
            with_logging(self.folder / name)
            given = {"brokerName": self.group, "inSyncReplicas": 2, **COMMON}
            self.rig.start_broker(name, controllers=controller.address, version="5.0.0", **given)

        for name in (first, second):
            start(name)
            await eventually(partial(self._is_listed, name), f"{name} is listed\n{self.rig.logs()}")
        await self._send()
        await self._until_alike()
        self.rig.programs[first].process.process.send_signal(signal.SIGSTOP)
        self.failed_over = True
        await eventually(self._is_master_listed, f"another master\n{self.rig.logs()}")
        self.rig.programs[first].process.kill()
        start(first)
        await eventually(lambda: self._is_listed(first), f"{first} is listed again\n{self.rig.logs()}")

    async def _table(self) -> dict[str, str]:
        """Return the addresses of the group by their ids, as the NameServer lists them."""
        calls = JavaCalls(self.client)
        data = (await calls.clusters(self.rig.name_server_address)).broker_addr_table.get(self.group)
        return {} if data is None else {str(number): address for number, address in data.broker_addrs.items()}

    async def _is_listed(self, name: str) -> bool:
        return self.rig.programs[name].address in (await self._table()).values()

    async def _is_master_listed(self) -> bool:
        return (await self._table()).get("0") == self.rig.programs[self.claims[0]].address

    async def serve_and_stop(self) -> None:
        """Send to the master, the first one, and stop both when they hold the same: a controller first, so that it elects none.

        Without one the slave is stopped last.
        """
        await self._send()
        await self._until_alike()
        order = ("controller", *reversed(self.claims)) if "controller" in self.rig.programs else self.claims
        for name in order:
            await asyncio.to_thread(self.rig.programs[name].process.stop, 40.0)

    async def _send(self) -> None:
        master, before = self.rig.programs[self.claims[0]].address, len(self.ledger.acknowledgements)
        producer = DemoProducer(
            route=lambda: master, broker_name=self.group, topic=TOPIC, send_timeout_seconds=20.0, ledger=self.ledger,
            _keys=itertools.count(before * 1000 + 1),
        )  # fmt: skip
        stop = asyncio.Event()
        sending = asyncio.create_task(producer.run(stop))
        enough = f"300 messages\n{self.rig.logs()}"
        await eventually(lambda: len(self.ledger.acknowledgements) >= before + 300, enough)
        stop.set()
        await sending

    async def _until_alike(self) -> None:
        master, slave = (self.rig.programs[name].address for name in self.claims)

        async def alike() -> bool:
            return await self._end(master) == await self._end(slave)

        await eventually(alike, "the slave has everything")

    async def _end(self, address: str) -> int:
        answer = await self.client.invoke(address, request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_seconds=5.0)
        return int(json.loads(answer.body or b"{}")["table"]["commitLogMaxOffset"])


@asynccontextmanager
async def old_brokers(group: str, folder: Path) -> AsyncIterator[OldBrokers]:
    old = OldBrokers(group, folder, RemotingClient(), JavaRig(folder))
    try:
        await asyncio.to_thread(old.rig.start_name_server)
        yield old
    finally:
        old.rig.stop()
        await old.client.close()


async def give_volumes(house: ClusterHouse, old: OldBrokers) -> None:
    """Make a volume of each broker's folder, with the claim that a StatefulSet would have made: the store is a folder in it."""
    for name in old.claims:
        await give_claim(house, name, old.folder / name)

    async def bound() -> bool:
        claims = (await house.api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)).items
        return all((one.get("status") or {}).get("phase") == "Bound" for one in claims)

    await eventually(bound, "the claims of the old brokers are bound")


async def adopt(house: ClusterHouse, old: OldBrokers, *more: str) -> str:
    claims = [word for name in old.claims for word in ("--claim", f"{name}:store")]
    return await brokergroup_adopt(
        house, "claims", old.group, *claims, "--cluster", CLUSTER, "--broker-name", old.group, *more
    )


async def brokergroup_adopt(house: ClusterHouse, *words: str) -> str:
    options = ("-n", NAMESPACE, "--image", "brokergroup-operator:0.1.0", "--kubeconfig", house.kubeconfig)
    done = await asyncio.to_thread(run, "adopt", *words, *options, timeout_seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def volume_of(house: ClusterHouse, claim: str) -> dict[str, Any]:
    found = await house.api.get(PERSISTENT_VOLUME_CLAIMS, claim, namespace=NAMESPACE)
    return await house.api.get(PERSISTENT_VOLUMES, found["spec"]["volumeName"])


async def taken_over(house: ClusterHouse, old: OldBrokers) -> dict[str, Any]:
    """Take both volumes with `brokergroup adopt claims`; return the spec that it prints."""
    await give_volumes(house, old)
    shown = await adopt(house, old)
    assert "nothing was done" in shown
    assert f"broker 1  {old.claims[0]}" in shown
    assert (old.folder / old.claims[0] / "store" / "commitlog").is_dir()
    shown = await adopt(house, old, "--yes")
    spec: dict[str, Any] = yaml.safe_load(shown[shown.index("spec:") :])["spec"]
    assert spec["storage"] == {"size": "1Gi", "storageClassName": "by-hand"}
    # Asked again, it finds all of it done.
    again = await adopt(house, old, "--yes")
    assert json.loads(next(line for line in again.splitlines() if '"begun"' in line))["record"] == "same"
    for broker_id, name in enumerate(old.claims, start=1):
        volume = await volume_of(house, f"{old.group}-{broker_id}")
        assert (volume["metadata"]["name"], volume["spec"]["persistentVolumeReclaimPolicy"]) == (f"pv-{name}", "Delete")
        with pytest.raises(NotFoundError):
            await house.api.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=NAMESPACE)
    pods = await house.api.list(PODS, namespace=NAMESPACE, label_selector="app.kubernetes.io/component=adopt")
    assert pods.items == []
    return spec


async def goes_on(house: ClusterHouse, old: OldBrokers, spec: dict[str, Any], *, epoch: int, replicas: int) -> None:
    """The operator runs the group on those volumes, and on new ones of the default class, with all that was acknowledged."""
    async with whole_group(house, old.group, replicas=replicas) as group:
        group.ledger = old.ledger
        operator = await house.start_operator()
        await house.create_group(old.group, **spec | {"replicas": replicas, "storage": {"size": "1Gi"}})
        await group.until_settled()
        assert (group.seen.master_id, group.seen.master_epoch) == (1, epoch)
        async with group.under_load():
            await group.until_acknowledged()
        await group.verify()
        assert [one["brokerId"] for one in group.seen.record["replicas"]] == [*range(1, replicas + 1)]
        await house.delete_group(old.group)
        await group.until(lambda: (NAMESPACE, old.group) not in group.seen.groups, "the group is gone")
        await house.kill_operator(operator)


async def test_static_roles_become_a_broker_group_with_their_claims(java_house: ClusterHouse, tmp_path: Path) -> None:
    async with old_brokers("orders", tmp_path) as old:
        await old.start_static_roles()
        await old.serve_and_stop()
    spec = await taken_over(java_house, old)
    await goes_on(java_house, old, spec, epoch=2, replicas=3)


async def test_brokers_of_a_java_controller_become_a_broker_group(java_house: ClusterHouse, tmp_path: Path) -> None:
    async with old_brokers("invoices", tmp_path) as old:
        await old.start_with_java_controller()
        await old.serve_and_stop()
    last = inspect(Place(tmp_path / old.claims[0], "store")).last_epoch
    spec = await taken_over(java_house, old)
    await goes_on(java_house, old, spec, epoch=last + 1, replicas=2)


async def test_brokers_without_persistent_ids_become_a_broker_group(java_house: ClusterHouse, tmp_path: Path) -> None:
    """The controller of 5.0.0 has failed over, so the second broker's disk is the former master's."""
    async with old_brokers("returns", tmp_path) as old:
        await old.start_without_ids()
        await old.serve_and_stop()
    last = inspect(Place(tmp_path / old.claims[0], "store")).last_epoch
    assert last > 1
    spec = await taken_over(java_house, old)
    # The stores' one epoch is above all that were, and the first election above that.
    await goes_on(java_house, old, spec, epoch=last + 2, replicas=3)


async def java_state(rig: JavaRig, client: RemotingClient, group: str) -> tuple[str, int]:
    """Return the name of the Java controller's master, empty without one, and the size of the SyncStateSet."""
    info = (await JavaCalls(client).sync_state_data(rig.programs["controller"].address, [group])).get(group)
    if info is None or not info.master_address:
        return "", 0
    return rig.name_at(info.master_address), len(info.in_sync_replicas)


async def leaves(house: ClusterHouse, old: OldBrokers, spec: dict[str, Any], controller: str) -> None:
    """The operator runs the group on those volumes; then it goes, by `claims-back`, and its claims stay."""
    output = str(old.folder / "conf")
    words = ["claims-back", old.group, "--to", "java-controller", "--controller-addr", controller, "--output", output]
    async with whole_group(house, old.group, replicas=2) as group:
        group.ledger = old.ledger
        operator = await house.start_operator()
        await house.create_group(old.group, **spec | {"replicas": 2, "storage": {"size": "1Gi"}})
        await group.until_settled()
        async with group.under_load():
            await group.until_acknowledged()
        await group.verify()
        # Java slaves copy topics and subscription groups every 10 s, and `claims-back` refuses members that differ in them.
        stores = [old.folder / name for name in old.claims]
        await eventually(lambda: are_alike(stores), "every member has the same topics and subscription groups")
        asleep = {"spec": {"maintenance": {"hibernated": True}}}
        await house.api.patch(BROKER_GROUPS, old.group, asleep, namespace=NAMESPACE)
        await group.until(lambda: condition(group, "Hibernated") == ("True", "NothingRuns"), "nothing of it runs")
        shown = await brokergroup_adopt(house, *words)
        assert f"BrokerGroup {NAMESPACE}/{old.group} is deleted first" in shown
        assert "nothing was done" in shown
        assert await house.api.get(BROKER_GROUP_STATES, old.group, namespace=NAMESPACE)
        shown = await brokergroup_adopt(house, *words, "--yes")
        assert '"step": "removed"' in shown
        for resource in (BROKER_GROUPS, BROKER_GROUP_STATES):
            with pytest.raises(NotFoundError):
                await house.api.get(resource, old.group, namespace=NAMESPACE)
        for broker_id in (1, 2):
            claim = await house.api.get(PERSISTENT_VOLUME_CLAIMS, f"{old.group}-{broker_id}", namespace=NAMESPACE)
            assert claim["status"]["phase"] == "Bound"
        await house.kill_operator(operator)


def are_alike(stores: Sequence[Path]) -> bool:
    """Whether all have the topic, and the same topics and subscription groups."""
    first, *others = [
        (
            names_in(one, "topics.json", "topicConfigTable"),
            names_in(one, "subscriptionGroup.json", "subscriptionGroupTable"),
        )
        for one in stores
    ]
    return TOPIC in first[0] and all(one == first for one in others)


def names_in(store: Path, file: str, table: str) -> frozenset[str]:
    """Java replaces the file by deleting it and renaming another, so for a moment it is not there."""
    try:
        return frozenset(json.loads((store / "config" / file).read_text())[table])
    except FileNotFoundError:
        return frozenset()


async def test_a_broker_group_goes_to_a_java_controller_with_its_volumes(
    java_house: ClusterHouse, tmp_path: Path
) -> None:
    async with old_brokers("refunds", tmp_path) as old:
        await old.start_static_roles()
        await old.serve_and_stop()
    spec = await taken_over(java_house, old)
    async with old_brokers("refunds", tmp_path / "java") as there:
        rig, names = there.rig, old.claims
        controller = await asyncio.to_thread(java.start_controller(tmp_path / "controller").wait_until_listening)
        rig.programs["controller"] = controller
        await leaves(java_house, old, spec, controller.address)
        for broker_id, name in enumerate(names, start=1):
            conf = (tmp_path / "conf" / f"broker-{broker_id}.conf").read_text(encoding="utf-8")
            given = dict(line.split("=", 1) for line in conf.splitlines())
            store = tmp_path / name
            given |= {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
            given |= {"storePathEpochFile": str(store / "epochFileCheckpoint")}
            given |= {"storePathBrokerIdentity": str(store / "brokerIdentity"), "haSendHeartbeatInterval": "1"}
            rig.start_broker(name, controllers=controller.address, **given)
            await asyncio.to_thread(rig.programs[name].wait_until_listening)

        async def led(members: int, *, not_by: str = "") -> bool:
            master, in_sync = await java_state(rig, there.client, old.group)
            return master not in {"", not_by} and in_sync == members

        async def without_any() -> str:
            """What the Java controller's master lacks, or why it could not be read; empty if it has every message."""
            master, _ = await java_state(rig, there.client, old.group)
            if not master:
                return "no master"
            # The controller names a master before it has taken its role, and a slave answers no pull.
            try:
                missing = old.ledger.missing_from(await read_keys(rig.programs[master].address, TOPIC, QUEUES))
            except ReadbackError as error:
                return f"{master} could not be read: {error}"
            return f"{master} lacks {missing}" if missing else ""

        async def all_there(which: str) -> None:
            found = [""]

            async def look() -> bool:
                found[0] = await without_any()
                return not found[0]

            try:
                await eventually(look, f"every message at the Java controller's {which}")
            except AssertionError as error:
                raise AssertionError(f"{error}: {found[0]}\n{rig.logs()}") from None

        await eventually(lambda: led(2), f"two in sync at the Java controller\n{rig.logs()}")
        await all_there("master")
        first, _ = await java_state(rig, there.client, old.group)
        rig.programs[first].process.kill()
        await eventually(lambda: led(1, not_by=first), f"another master at the Java controller\n{rig.logs()}")
        await all_there("next master")
