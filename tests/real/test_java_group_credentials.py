"""A BrokerGroup of unmodified Java brokers whose requests must be signed, at a real kube-apiserver with RBAC in force.

The right to read the Secret comes after the group, and the Secret after that: until then the pods wait and the condition says
why. With it the brokers sign, register and elect, although nothing else identifies them to a controller that hears only signed
requests. Brokers with another key are not heard. The secret is found nowhere but in the Secret and in the brokers.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.kube.resources import BROKER_GROUPS
from tests.real.clusters import Cluster, as_yaml, eventually, real_cluster
from tests.real.parts import helm
from tests.real.parts.java import FAST_START
from tests.real.test_java_group import EXAMPLES, GROUP, NAMESPACE, is_true
from tests.support.kube_apiserver import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.json_object import JsonObject

pytestmark = [
    pytest.mark.real("java", "rocketmq", "netns", "kube-apiserver", "helm"),
    pytest.mark.timeout(600),
]
# More than the second pause of a process that never registered, and a Java broker's start.
SECOND_PAUSE_SECONDS = 300.0
PLANTED = "planted-7b52009b64fd0a2a"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "orders-credentials", "namespace": NAMESPACE},
    "stringData": {"accessKey": "orders", "secretKey": PLANTED},
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with real_cluster(tmp_path) as running:
        yield running


async def status(cluster: Cluster) -> JsonObject:
    shown: JsonObject = (await cluster.api.get(BROKER_GROUPS, GROUP, namespace=NAMESPACE)).get("status", {})
    return shown


async def condition(cluster: Cluster, kind: str) -> JsonObject | None:
    return next((item for item in (await status(cluster)).get("conditions", []) if item["type"] == kind), None)


def without_its_name_server() -> JsonObject:
    """The example, smaller, with a NameServer that is not there: a controller is all that is needed to elect."""
    manifest: JsonObject = yaml.safe_load((EXAMPLES / "rocketmq.yaml").read_text(encoding="utf-8"))
    manifest["spec"] |= {
        "replicas": 2,
        "nameServers": ["127.0.0.1:1"],
        "durability": "Available",
        "jvm": {"extraArguments": list(FAST_START)},
        "security": {"signature": "Required", "credentialsSecretRef": {"name": "orders-credentials"}},
    }
    return manifest


def rights_with_the_secret() -> list[JsonObject]:
    """Grant the rights that `helm upgrade` would add."""
    values: dict[str, Any] = {"security__groupSecretNames": "{orders-credentials}"}
    objects = helm.rendered(OPERATOR_NAMESPACE, release="brokergroup-operator", **values)
    return helm.of_kind(objects, "ClusterRole")


async def test_java_brokers_sign_with_the_groups_secret(cluster: Cluster) -> None:
    cluster.start_operator()
    await cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=as_yaml([without_its_name_server()]))

    async def story() -> str:
        return await cluster.story(NAMESPACE)

    async def missing() -> JsonObject | None:
        return await condition(cluster, "CredentialsMissing")

    async def not_found() -> bool:
        found = await missing()
        return found is not None and found["reason"] == "SecretNotFound"

    assert (await eventually(missing, story))["reason"] == "SecretNotReadable"
    await cluster.kubectl("apply", "--server-side", "-f", "-", stdin=as_yaml(rights_with_the_secret()))
    await eventually(not_found, story)
    await cluster.kubectl("apply", "-f", "-", stdin=as_yaml([SECRET]))

    async def ready() -> bool:
        return is_true(await status(cluster), "Ready") and not await missing()

    await eventually(ready, story)
    shown = await status(cluster)
    assert shown["controller"]["signature"] == "Required"
    assert [member["seat"] for member in shown["members"]] == ["InSyncStateSet", "InSyncStateSet"]
    await check_a_broker_with_another_key_is_not_heard(cluster)
    await check_the_secret_is_nowhere_else(cluster)


async def check_a_broker_with_another_key_is_not_heard(cluster: Cluster) -> None:
    """The Secret changes and the controller reads it: brokers that sign with the old key fall silent for it, until it is put back.

    The master answers when it is asked, so it is left alone: a wrong Secret costs no failover. The slave's process may be replaced
    meanwhile, as that of any member that no controller hears. The new process signs with the other key, so it is replaced once more
    after the Secret is put back, after the second pause (`reconcile/decide/silent_members.py`).
    """

    async def slave_is(state: str) -> bool:
        return [item["state"] for item in (await status(cluster))["members"] if item["role"] == "slave"] == [state]

    before = (await status(cluster))["master"]["epoch"]
    for key, annotation, state in (("another-key", "rotated=yes", "OutOfSync"), (PLANTED, "rotated-", "InSync")):
        changed = json.dumps({"stringData": {"secretKey": key}})
        await cluster.kubectl("patch", "secret", "orders-credentials", "-n", NAMESPACE, "--type=merge", "-p", changed)
        await cluster.kubectl("annotate", "bg", GROUP, "-n", NAMESPACE, annotation)
        await eventually(
            partial(slave_is, state), lambda: cluster.story(NAMESPACE), within_seconds=SECOND_PAUSE_SECONDS
        )
    assert (await status(cluster))["master"]["epoch"] == before
    assert cluster.operator is not None
    assert "the signature is wrong for access key 'orders'" in (cluster.folder / "operator.log").read_text()


async def check_the_secret_is_nowhere_else(cluster: Cluster) -> None:
    """Not in any object, Event or log. (A broker writes it into its own configuration and its own table of users.)"""
    kinds = "bg,bgs,pods,configmaps,events,services,persistentvolumeclaims"
    objects = await cluster.kubectl("get", kinds, "-A", "-o", "json")
    assert '"secretKeyRef"' in objects
    paths = [cluster.folder / "operator.log", *(cluster.folder / "node" / "logs").rglob("*.log")]
    logs = [path.read_text(errors="replace") for path in paths]
    assert len(logs) > 2
    for text in (objects, *logs):
        assert PLANTED not in text
