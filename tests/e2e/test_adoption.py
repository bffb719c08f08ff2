"""Java brokers with static roles, their stores on PersistentVolumes with claims of other names, become a BrokerGroup with its data.

Java brokers only: Python replicas have no static roles. A kube-apiserver keeps the rules of claims and volumes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml

from brokergroup_operator.demo.client import DemoProducer, Ledger
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.e2e.conftest import REAL_PARTS
from tests.e2e.house import NAMESPACE, TOPIC, whole_group
from tests.e2e.java_house import ClusterHouse, open_java_house
from tests.support.java_rig import JavaRig, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real(*REAL_PARTS), pytest.mark.timeout(900)]

GROUP, CLUSTER = "orders", "DefaultCluster"
FILE_BYTES = 67108864
OLD_CLAIMS = ("store-old-0", "store-old-1")
STATIC: dict[str, Any] = {
    "brokerName": GROUP,
    "totalReplicas": 2,
    "inSyncReplicas": 2,
    "mappedFileSizeCommitLog": FILE_BYTES,
    "waitTimeMillsInSendQueue": 20000,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def java_house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterHouse]:
    async with open_java_house(tmp_path_factory.mktemp("house")) as running:
        yield running


async def end_of_log(client: RemotingClient, address: str) -> int:
    answer = await client.invoke(address, request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_seconds=5.0)
    return int(json.loads(answer.body or b"{}")["table"]["commitLogMaxOffset"])


async def static_roles(folder: Path) -> Ledger:
    """Run a master and a slave beside the cluster, each on a folder; send; stop both when they hold the same."""
    rig, client = JavaRig(folder), RemotingClient()
    try:
        await asyncio.to_thread(rig.start_name_server)
        await rig.start_static_roles(*OLD_CLAIMS, **STATIC)
        master, slave = (rig.programs[name].address for name in OLD_CLAIMS)
        producer = DemoProducer(route=lambda: master, broker_name=GROUP, topic=TOPIC, send_timeout_seconds=20.0)
        stop = asyncio.Event()
        sending = asyncio.create_task(producer.run(stop))
        await eventually(lambda: len(producer.ledger.acknowledgements) >= 300, f"300 messages\n{rig.logs()}")
        stop.set()
        await sending

        async def alike() -> bool:
            return await end_of_log(client, master) == await end_of_log(client, slave)

        await eventually(alike, "the slave has everything")
        for name in OLD_CLAIMS:
            await asyncio.to_thread(rig.programs[name].process.stop, 40.0)
        return producer.ledger
    finally:
        rig.stop()
        await client.close()


async def give_volumes(house: ClusterHouse, folder: Path) -> None:
    """Make a volume of each broker's folder, with the claim that a StatefulSet would have made: the store is a folder in it."""
    for name in OLD_CLAIMS:
        size = {"storage": "1Gi"}
        volume = {
            "capacity": size,
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "by-hand",
            "hostPath": {"path": str(folder / name)},
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


async def adopt(house: ClusterHouse, *more: str, code: int = 0) -> str:
    claims = [word for name in OLD_CLAIMS for word in ("--claim", f"{name}:store")]
    command = ["adopt", "claims", GROUP, *claims, "--cluster", CLUSTER, "--broker-name", GROUP, "-n", NAMESPACE]
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
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


async def volume_of(house: ClusterHouse, claim: str) -> dict[str, Any]:
    found = await house.api.get(PERSISTENT_VOLUME_CLAIMS, claim, namespace=NAMESPACE)
    return await house.api.get(PERSISTENT_VOLUMES, found["spec"]["volumeName"])


async def test_static_roles_become_a_broker_group_with_their_claims(java_house: ClusterHouse, tmp_path: Path) -> None:
    house = java_house
    ledger = await static_roles(tmp_path)
    await give_volumes(house, tmp_path)

    shown = await adopt(house)
    assert "nothing was done" in shown
    assert "broker 1  store-old-0" in shown
    assert (tmp_path / OLD_CLAIMS[0] / "store" / "commitlog").is_dir()
    shown = await adopt(house, "--yes")
    spec = yaml.safe_load(shown[shown.index("spec:") :])["spec"]
    assert spec["storage"] == {"size": "1Gi", "storageClassName": "by-hand"}
    # Asked again, it finds all of it done.
    assert (
        json.loads(next(line for line in (await adopt(house, "--yes")).splitlines() if '"begun"' in line))["record"]
        == "same"
    )
    for broker_id, name in enumerate(OLD_CLAIMS, start=1):
        volume = await volume_of(house, f"{GROUP}-{broker_id}")
        assert (volume["metadata"]["name"], volume["spec"]["persistentVolumeReclaimPolicy"]) == (f"pv-{name}", "Delete")
        with pytest.raises(NotFoundError):
            await house.api.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=NAMESPACE)
    assert (
        await house.api.list(PODS, namespace=NAMESPACE, label_selector="app.kubernetes.io/component=adopt")
    ).items == []

    async with whole_group(house, GROUP, replicas=3) as orders:
        orders.ledger = ledger
        await house.start_operator()
        # What it printed, and one member more: that one gets a volume of the default class.
        await house.create_group(GROUP, **spec | {"replicas": 3, "storage": {"size": "1Gi"}})
        await orders.until_settled()
        assert (orders.seen.master_id, orders.seen.master_epoch) == (1, 2)
        async with orders.under_load():
            await orders.until_acknowledged()
        await orders.verify()
        assert [one["brokerId"] for one in orders.seen.record["replicas"]] == [1, 2, 3]
