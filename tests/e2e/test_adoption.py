"""Java brokers, their stores on PersistentVolumes with claims of other names, become a BrokerGroup with its data.

They had static roles, or a Java controller. Python replicas have no static roles. A kube-apiserver keeps the rules of claims.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml

from brokergroup_operator.demo.client import DemoProducer, Ledger
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from brokergroup_operator.migrate.stores import Place, inspect
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.e2e.conftest import REAL_PARTS
from tests.e2e.house import NAMESPACE, TOPIC, whole_group
from tests.e2e.java_house import ClusterHouse, open_java_house
from tests.real.parts import java
from tests.support.java_rig import JavaRig, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real(*REAL_PARTS), pytest.mark.timeout(900)]

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

    @property
    def claims(self) -> tuple[str, str]:
        return f"store-{self.group}-0", f"store-{self.group}-1"

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

    async def serve_and_stop(self) -> None:
        """Send to the master, the first one, and stop both when they hold the same: the slave last, or before its controller."""
        master, slave = (self.rig.programs[name].address for name in self.claims)
        producer = DemoProducer(
            route=lambda: master, broker_name=self.group, topic=TOPIC, send_timeout_seconds=20.0, ledger=self.ledger
        )
        stop = asyncio.Event()
        sending = asyncio.create_task(producer.run(stop))
        await eventually(lambda: len(self.ledger.acknowledgements) >= 300, f"300 messages\n{self.rig.logs()}")
        stop.set()
        await sending

        async def alike() -> bool:
            return await self._end(master) == await self._end(slave)

        await eventually(alike, "the slave has everything")
        order = (*reversed(self.claims), "controller") if "controller" in self.rig.programs else self.claims
        for name in order:
            await asyncio.to_thread(self.rig.programs[name].process.stop, 40.0)

    async def _end(self, address: str) -> int:
        answer = await self.client.invoke(address, request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_seconds=5.0)
        return int(json.loads(answer.body or b"{}")["table"]["commitLogMaxOffset"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def java_house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterHouse]:
    async with open_java_house(tmp_path_factory.mktemp("house")) as running:
        yield running


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
        size = {"storage": "1Gi"}
        volume = {
            "capacity": size,
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "by-hand",
            "hostPath": {"path": str(old.folder / name)},
        }
        made = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv-{name}"}, "spec": volume}
        await house.api.create(PERSISTENT_VOLUMES, made)
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": size},
            "storageClassName": "by-hand",
            "volumeName": f"pv-{name}",
        }
        metadata = {"name": name, "namespace": NAMESPACE}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        await house.api.create(PERSISTENT_VOLUME_CLAIMS, claim)

    async def bound() -> bool:
        claims = (await house.api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)).items
        return all((one.get("status") or {}).get("phase") == "Bound" for one in claims)

    await eventually(bound, "the claims of the old brokers are bound")


async def adopt(house: ClusterHouse, old: OldBrokers, *more: str) -> str:
    claims = [word for name in old.claims for word in ("--claim", f"{name}:store")]
    command = ["adopt", "claims", old.group, *claims, "--cluster", CLUSTER, "--broker-name", old.group, "-n", NAMESPACE]
    command += ["--image", "brokergroup-operator:0.1.0", "--kubeconfig", str(house.kubeconfig), *more]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "brokergroup_operator.cli.main", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
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
