"""A container's environment: its variables, its files, its claim's volume, its address."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import CONFIG_MAPS, EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS, SECRETS
from kube_sandbox.kubelet.environment import Image, ImageCatalogue, expand, mount_rewriter
from kube_sandbox.kubelet.network import AddressCounter, AddressesUsedUpError, LoopbackNetwork
from tests.kubelet.node_under_test import NAMESPACE, is_ready, is_running, pod_object, state_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from brokergroup_operator.json_object import JsonObject
    from tests.kubelet.node_under_test import Node


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_expand(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/etc/rocketmq", "/h/config"),
        ("/etc/rocketmq/broker.conf", "/h/config/broker.conf"),
        ("--config=/etc/rocketmq/broker.conf", "--config=/h/config/broker.conf"),
        ('sed s/a/b/ "/etc/rocketmq/a" > /var/lib/store/b', 'sed s/a/b/ "/h/config/a" > /h/store/b'),
        ("/etc/rocketmq/lib/*:/var/lib/store/*", "/h/config/lib/*:/h/store/*"),
        ("/etc/rocketmq-old", "/etc/rocketmq-old"),
        ("/other/etc/rocketmq", "/other/etc/rocketmq"),
        ("/etc/rocketmq/deep/x", "/h/deep/x"),
        ("https://host/etc/rocketmq", "https://host/etc/rocketmq"),
    ],
)
def test_mount_paths(text: str, expected: str) -> None:
    mounts = {
        "/etc/rocketmq": Path("/h/config"),
        "/etc/rocketmq/deep": Path("/h/deep"),
        "/var/lib/store/": Path("/h/store"),
    }
    assert mount_rewriter(mounts)(text) == expected


def test_the_first_fitting_image_wins_and_added_ones_go_first() -> None:
    catalogue = ImageCatalogue({"a:*": Image(entrypoint=("first",)), "*": Image(entrypoint=("any",))})
    assert catalogue.find("a:1").entrypoint == ("first",)
    assert catalogue.find("b").entrypoint == ("any",)


def test_addresses_come_in_turn_skip_the_used_and_go_on_after_a_restart(tmp_path: Path) -> None:
    network = ipaddress.IPv4Network("10.0.0.0/29")
    counter = AddressCounter(network, tmp_path / "next")
    assert [counter.next_address(set()) for _ in range(2)] == ["10.0.0.2", "10.0.0.3"]
    again = AddressCounter(network, tmp_path / "next")
    assert again.next_address({"10.0.0.4"}) == "10.0.0.5"
    assert [again.next_address(set()) for _ in range(3)] == ["10.0.0.6", "10.0.0.2", "10.0.0.3"]


def test_no_address_left_is_an_error(tmp_path: Path) -> None:
    counter = AddressCounter(ipaddress.IPv4Network("10.0.0.0/30"), tmp_path / "next")
    with pytest.raises(AddressesUsedUpError, match="all 1 addresses"):
        counter.next_address({"10.0.0.2"})


async def test_two_sandboxes_on_one_machine_never_hold_the_same_address() -> None:
    small = ipaddress.IPv4Network("127.100.0.0/29")
    one, two = LoopbackNetwork(small), LoopbackNetwork(small)
    try:
        addresses = [(await network.attach(uid)).ip for uid in "abc" for network in (one, two)]
        assert len(set(addresses)) == 6
        with pytest.raises(AddressesUsedUpError):
            await one.attach("d")
    finally:
        await one.close()
        await two.close()


def config_map(name: str, **data: str) -> JsonObject:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def claim_object(name: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}},
    }


def field(path: str) -> JsonObject:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


async def output_of(node: Node, script: str, **arguments: Any) -> str:
    """Return the output of a pod that runs to its end."""
    await node.create(pod_object("a", script, restartPolicy="Never", **arguments))
    await node.until("a", lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
    return node.output("a")


async def test_variables(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_HOST", "x")
    await node.api.create(CONFIG_MAPS, config_map("settings", colour="red"))
    env = [
        {"name": "NAME", **field("metadata.name")},
        {"name": "NAMESPACE", **field("metadata.namespace")},
        {"name": "APP", **field("metadata.labels['app']")},
        {"name": "NODE", **field("spec.nodeName")},
        {"name": "HOST", **field("status.hostIP")},
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
        {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "BOTH", "value": "$(NAME)-$(COLOUR)-$$(NAME)-$(LATER)"},
        {"name": "LATER", "value": "x"},
    ]
    container = {
        "env": env,
        "command": [
            "sh",
            "-c",
            'echo "$NAME $NAMESPACE $APP $NODE $HOST $BOTH ${ABSENT-unset} ${OF_THE_HOST-clean} $0 $1"',
        ],
        "args": ["$(COLOUR)", "$(UNKNOWN)"],
    }
    expected = "a default a node-a 127.0.0.1 a-red-$(NAME)-$(LATER) unset clean red $(UNKNOWN)\n"
    assert await output_of(node, "", container=container) == expected


async def test_a_config_map_and_a_secret_as_files(node: Node) -> None:
    metadata = {"name": "key", "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"token": "c2VjcmV0"}}
    await node.api.create(SECRETS, secret)
    await node.api.create(CONFIG_MAPS, config_map("settings", **{"broker.conf": "x = ${POD_IP}\n", "other": "y"}))
    container = {
        "env": [{"name": "CONFIG_DIR", "value": "/etc/rocketmq"}],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/rocketmq"}, {"name": "secret", "mountPath": "/secret"}],
    }
    items = [{"key": "broker.conf", "path": "sub/broker.conf"}]
    volumes = [
        {"name": "config", "configMap": {"name": "settings", "items": items}},
        {"name": "secret", "secret": {"secretName": "key"}},
    ]
    script = 'cat "$CONFIG_DIR/sub/broker.conf" /etc/rocketmq/sub/broker.conf; ls "$CONFIG_DIR"; cat /secret/token'
    output = await output_of(node, script, container=container, volumes=volumes)
    assert output == "x = ${POD_IP}\nx = ${POD_IP}\nsub\nsecret"


async def test_a_downward_volume_follows_the_pods_annotations(node: Node) -> None:
    """As under the real kubelet: a missing annotation is an empty file, and a changed one reaches the running container."""
    source = {"items": [{"path": "order", "fieldRef": {"fieldPath": "metadata.annotations['example.com/order']"}}]}
    container = {"volumeMounts": [{"name": "orders", "mountPath": "/orders"}]}
    script = 'echo "empty $(wc -c < /orders/order)"; until [ -s /orders/order ]; do sleep 0.05; done; cat /orders/order; sleep 1000'
    created = await node.create(
        pod_object("a", script, container=container, volumes=[{"name": "orders", "downwardAPI": source}])
    )
    await node.until_output("a", "empty 0")
    patch = {"metadata": {"annotations": {"example.com/order": "stop"}}}
    await node.api.patch(PODS, "a", patch, namespace=NAMESPACE)
    assert await node.until_output("a", "stop") == "empty 0\nstop"
    pod = await node.until("a", is_running)
    assert pod["metadata"]["uid"] == created["metadata"]["uid"]


@pytest.mark.parametrize(
    ("container", "volumes", "says"),
    [
        ({"envFrom": [{"configMapRef": {"name": "none"}}]}, [], "envFrom is not supported here"),
        ({"startupProbe": {"tcpSocket": {"port": 80}}}, [], "startupProbe is not supported here"),
        ({}, [{"name": "v", "projected": {"sources": []}}], "volume 'v' is a 'projected', expected emptyDir"),
    ],
)
async def test_what_the_kubelet_does_not_do_is_told(
    node: Node, container: JsonObject, volumes: list[JsonObject], says: str
) -> None:
    await node.create(pod_object("a", "exec sleep 1000", container=container, volumes=volumes))

    async def told() -> bool:
        return any(says in event["message"] for event in (await node.api.list(EVENTS)).items)

    await eventually(told)


async def test_a_missing_config_map_is_waited_for(node: Node) -> None:
    container = {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "x"}}}]}
    await node.create(pod_object("a", "echo $X; exec sleep 1000", container=container))

    def waits(pod: JsonObject) -> bool:
        waiting = state_of(pod)["state"].get("waiting", {})
        return waiting.get("reason") == "CreateContainerConfigError" and "late" in waiting["message"]

    await node.until("a", waits)
    await node.api.create(CONFIG_MAPS, config_map("late", x="came"))
    await node.until("a", is_ready)
    assert await node.until_output("a", "came")


async def test_a_claim_is_bound_and_outlives_the_pod_and_goes_with_its_deletion(node: Node) -> None:
    await node.api.create(PERSISTENT_VOLUME_CLAIMS, claim_object("data"))
    script = "echo $POD >> /data/log; cat /data/log; exec sleep 1000"
    container = {
        "env": [{"name": "POD", **field("metadata.uid")}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    uids = []
    for _ in range(2):
        created = await node.create(pod_object("a", script, container=container, volumes=volumes))
        uids.append(created["metadata"]["uid"])
        await node.until("a", is_ready)
        await node.until_output("a", uids[-1])
        if len(uids) == 2:
            assert node.output("a").split() == uids
        await node.delete("a")
        await node.until_gone("a", uids[-1])
    claim = await node.api.get(PERSISTENT_VOLUME_CLAIMS, "data", namespace=NAMESPACE)
    assert claim["status"]["phase"] == "Bound"
    assert claim["status"]["capacity"] == {"storage": "5Gi"}
    folders = list((node.data_dir / "claims").iterdir())
    assert len(folders) == 1
    await node.api.delete(PERSISTENT_VOLUME_CLAIMS, "data", namespace=NAMESPACE)

    await eventually(lambda: not folders[0].exists())


async def test_a_claim_in_use_is_kept_until_the_pod_is_gone(node: Node) -> None:
    protected = claim_object("data")
    protected["metadata"]["finalizers"] = ["kubernetes.io/pvc-protection"]
    await node.api.create(PERSISTENT_VOLUME_CLAIMS, protected)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    created = await node.create(pod_object("a", volumes=volumes))
    await node.until("a", is_ready)
    await node.api.delete(PERSISTENT_VOLUME_CLAIMS, "data", namespace=NAMESPACE)
    await node.create(pod_object("b", restartPolicy="Never", container={"command": ["true"]}))
    await node.until("b", lambda pod: pod["status"]["phase"] == "Succeeded")
    claim = await node.api.get(PERSISTENT_VOLUME_CLAIMS, "data", namespace=NAMESPACE)
    assert "deletionTimestamp" in claim["metadata"]
    assert len(list((node.data_dir / "claims").iterdir())) == 1
    await node.delete("a")
    await node.until_gone("a", created["metadata"]["uid"])

    async def removed() -> bool:
        claims = await node.api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)
        return not claims.items and not list((node.data_dir / "claims").iterdir())

    await eventually(removed)


async def test_many_pods_at_once_have_different_addresses(node: Node) -> None:
    names = [f"p{number}" for number in range(6)]
    await asyncio.gather(*(node.create(pod_object(name)) for name in names))
    pods = [await node.until(name, is_ready) for name in names]
    assert len({pod["status"]["podIP"] for pod in pods}) == len(names)
