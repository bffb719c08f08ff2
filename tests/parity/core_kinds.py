"""Both servers' answers about built-in kinds that the operator writes or reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.parity.peer import CORE, pod

if TYPE_CHECKING:
    from tests.parity.peer import Peer


async def life_of_a_pod(peer: Peer) -> None:
    await peer.post(f"{CORE}/pods", pod(terminationGracePeriodSeconds=5))
    await peer.post(f"{CORE}/pods", pod("q", containers=[]))
    await peer.post(f"{CORE}/pods", pod("q", volumes=[]))
    await peer.post(f"{CORE}/pods", pod("q", restartPolicy="Perhaps"))
    await peer.post(f"{CORE}/pods", pod("q", containers=[{"name": "A b", "image": ""}]))
    await peer.post(f"{CORE}/pods", pod("q", terminationGracePeriodSeconds="5"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "n"},
    }
    await peer.post(f"{CORE}/pods/p/binding", binding)
    await peer.post(f"{CORE}/pods/p/binding", binding)
    status = {"status": {"phase": "Running", "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}]}}
    await peer.strategic(f"{CORE}/pods/p/status", status)
    await peer.merge(f"{CORE}/pods/p", {"spec": {"nodeName": "m"}})
    image = {"spec": {"containers": [{"name": "c", "image": "registry.example/x:2"}]}}
    await peer.strategic(f"{CORE}/pods/p", image)
    await peer.get(f"{CORE}/pods", fieldSelector="spec.nodeName=n,status.phase=Running")
    await peer.get(f"{CORE}/pods", fieldSelector="spec.nothing=1")
    await peer.merge(f"{CORE}/pods/p", {"metadata": {"finalizers": ["example.dev/fence"]}})
    await peer.delete(f"{CORE}/pods/p")
    await peer.delete(f"{CORE}/pods/p", {"gracePeriodSeconds": 2})
    await peer.delete(f"{CORE}/pods/p", {"gracePeriodSeconds": 0})
    await peer.merge(f"{CORE}/pods/p", {"metadata": {"finalizers": None}})
    await peer.get(f"{CORE}/pods/p")
    await peer.post(f"{CORE}/pods", pod("unbound"))
    await peer.delete(f"{CORE}/pods/unbound")
    await peer.get(f"{CORE}/pods")


async def names_in_a_pod(peer: Peer) -> None:
    """Labels, taints, domains, other objects, resources and ports, each wrong by itself."""
    plain = {"name": "c", "image": "registry.example/x:1"}
    wrong: list[dict[str, Any]] = [
        {"nodeSelector": {"-pool": "a"}},
        {"nodeSelector": {"pool": "-a"}},
        {"hostname": "a.b"},
        {"serviceAccountName": "a..b"},
        {"tolerations": [{"key": "a b", "operator": "Exists"}]},
        {"tolerations": [{"operator": "Equal"}]},
        {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]},
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        {"topologySpreadConstraints": [
            {"topologyKey": "", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ]},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "-a", "labelSelector": {"matchLabels": {"a": "b"}}}
        ]}}},
        {"initContainers": [plain], "containers": [plain]},
        {"containers": [plain | {"ports": [{"name": "Broker", "containerPort": 80}]}]},
        {"containers": [plain | {"ports": [{"name": "a" * 16, "containerPort": 80}]}]},
        {"containers": [plain | {"resources": {"requests": {"ram": "1Gi"}}}]},
        {"containers": [plain | {"resources": {"requests": {"a b": "1Gi"}}}]},
        {"containers": [plain | {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
    ]  # fmt: skip
    for spec in wrong:
        await peer.post(f"{CORE}/pods", pod("q", **({"volumes": []} if "containers" in spec else {}), **spec))
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "1st"}, "spec": {"ports": [{"port": 80}]}}
    await peer.post(f"{CORE}/services", service)
    await peer.post(f"{CORE}/services", {**service, "metadata": {"name": "a" * 64}})


async def other_core_kinds(peer: Peer) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    await peer.post(f"{CORE}/services", service)
    headless = {**service, "metadata": {"name": "h"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}
    await peer.post(f"{CORE}/services", headless)
    await peer.post(f"{CORE}/services", {**service, "metadata": {"name": "t"}, "spec": {}})
    two = {"ports": [{"port": 80}, {"port": 99999}]}
    await peer.post(f"{CORE}/services", {**service, "metadata": {"name": "t"}, "spec": two})
    await peer.merge(f"{CORE}/services/s", {"spec": {"clusterIP": "10.96.9.9"}})
    await peer.delete(f"{CORE}/services/s")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await peer.post(f"{CORE}/persistentvolumeclaims", claim)
    await peer.post(f"{CORE}/persistentvolumeclaims", {**claim, "metadata": {"name": "w"}, "spec": {}})
    bigger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await peer.merge(f"{CORE}/persistentvolumeclaims/v", bigger)
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}}
    await peer.merge(f"{CORE}/persistentvolumeclaims/v/status", bound)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    await peer.post(f"{CORE}/configmaps", config)
    await peer.post(f"{CORE}/configmaps", {**config, "metadata": {"name": "d"}, "data": {"a b": "1"}})
    await peer.post(f"{CORE}/configmaps", {**config, "metadata": {"name": "d"}, "data": {"a": 1}})
    await peer.put(f"{CORE}/configmaps/c", {**config, "data": {"a": "2"}})
    await peer.delete(f"{CORE}/configmaps/c")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"a": "text"}}
    await peer.post(f"{CORE}/secrets", secret)


async def leases_budgets_and_events(peer: Peer) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 4, "renewTime": "2026-11-20T00:00:00.000000Z"},
    }
    made = await peer.post(leases, lease)
    await peer.put(f"{leases}/l", lease)
    made["spec"]["holderIdentity"] = "other"
    await peer.put(f"{leases}/l", made)
    await peer.put(f"{leases}/l", made)
    await peer.post(leases, {**lease, "metadata": {"name": "m"}, "spec": {"leaseDurationSeconds": 0}})
    budgets = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
    }
    await peer.post(budgets, budget)
    await peer.merge(f"{budgets}/b", {"spec": {"minAvailable": 2}})
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": peer.namespace},
        "reason": "Killing",
        "message": "text",
        "source": {"component": "example.dev/here"},
        "type": "Normal",
    }
    await peer.post(f"{CORE}/events", event)
    await peer.get(f"{CORE}/events/e")
    await peer.get(f"{CORE}/events", fieldSelector="involvedObject.name=p")


async def node_ports(peer: Peer) -> None:
    """Each node port belongs to one Service, for any protocol and any kind of request."""

    def service(name: str, *ports: tuple[int, str]) -> dict[str, Any]:
        entries = [
            {"name": f"p{index}", "port": 80 + index, "targetPort": 80, "protocol": protocol, "nodePort": number}
            for index, (number, protocol) in enumerate(ports)
        ]
        spec = {"type": "NodePort", "externalTrafficPolicy": "Local", "selector": {"a": "b"}, "ports": entries}
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}

    async def apply(body: dict[str, Any], **query: Any) -> None:
        path = f"{CORE}/services/{body['metadata']['name']}"
        await peer.apply(path, body, fieldManager="alice", **query)

    await peer.post(f"{CORE}/services", service("n", (31100, "TCP"), (31101, "UDP")))
    await peer.post(f"{CORE}/services", service("m", (31099, "TCP"), (31100, "UDP"), (31101, "TCP")))
    await apply(service("m", (31099, "TCP"), (31101, "UDP")))
    await apply(service("m", (31099, "TCP"), (31102, "UDP")), dryRun="All")
    await apply(service("m", (31100, "TCP")), dryRun="All")
    await apply(service("m", (31099, "TCP"), (31102, "UDP")))
    await apply(service("m", (31102, "TCP"), (31101, "UDP")))
    await apply(service("m", (31099, "TCP"), (31102, "UDP")))
    await peer.delete(f"{CORE}/services/n")
    await apply(service("m", (31100, "TCP"), (31101, "UDP")))
    await peer.delete(f"{CORE}/services/m")


async def applying_built_in_kinds(peer: Peer) -> None:
    async def apply(manager: str, body: dict[str, Any], plural: str, **query: Any) -> None:
        path = f"{CORE}/{plural}/{body['metadata']['name']}"
        await peer.apply(path, body, fieldManager=manager, **query)

    service: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    await apply(
        "alice", {**service, "spec": {"ports": [{"name": "a", "port": 80}], "selector": {"a": "b"}}}, "services"
    )
    await apply("bob", {**service, "spec": {"ports": [{"name": "b", "port": 81}]}}, "services")
    await apply("bob", {**service, "spec": {"ports": [{"name": "b", "port": 81}], "selector": {"c": "d"}}}, "services")
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    await apply("alice", {**config, "data": {"a": "1", "b": "2"}}, "configmaps")
    await apply("alice", {**config, "data": {"b": "3"}}, "configmaps")
    await apply("alice", pod(), "pods")
    await apply("alice", pod(), "pods")
    await apply("alice", pod(odd=1), "pods", fieldValidation="Ignore")
    await apply("bob", {**pod(), "spec": {"containers": [{"name": "c", "image": "x", "comand": ["sh"]}]}}, "pods")
    await apply("bob", {**pod(), "spec": {"containers": [{"name": "c", "image": "other"}]}}, "pods")


def owned(kind: str, api_version: str, name: str, **fields: Any) -> dict[str, Any]:
    labels = {"brokergroup.dev/broker-group": "g"}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": labels}, **fields}


async def what_the_operator_sends(peer: Peer) -> None:
    """Every verb of the operator on a kind that is not ours, in the order of a life."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"brokergroup.dev/broker-group": "g"}}}
    headless = {"clusterIP": "None", "ports": [{"port": 10911}], "selector": {"brokergroup.dev/broker-group": "g"}}
    policy = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
    children = [
        (f"{CORE}/configmaps", owned("ConfigMap", "v1", "g-broker", data={"broker.conf": "a=b"})),
        (f"{CORE}/services", owned("Service", "v1", "g-members", spec=headless)),
        (policy, owned("PodDisruptionBudget", "policy/v1", "g", spec=budget)),
        (f"{CORE}/persistentvolumeclaims", owned("PersistentVolumeClaim", "v1", "g-1", spec=claim)),
        (f"{CORE}/pods", {**pod("g-1"), "metadata": owned("Pod", "v1", "g-1")["metadata"]}),
    ]
    how: dict[str, Any] = {"fieldManager": "brokergroup-reconcile", "force": "true"}
    for path, child in children:
        name = child["metadata"]["name"]
        await peer.get(f"{path}/{name}")
        await peer.apply(f"{path}/{name}", child, **how)
        await peer.apply(f"{path}/{name}", child, **how)
        await peer.get(f"{path}/{name}")
        await peer.get(path, labelSelector="brokergroup.dev/broker-group=g")
    role = {"metadata": {"labels": {"brokergroup.dev/role": "master"}}}
    await peer.merge(f"{CORE}/pods/g-1", role, fieldManager="brokergroup-role")
    noted = {"metadata": {"annotations": {"brokergroup.dev/version": "5.5.0"}}}
    await peer.strategic(f"{CORE}/persistentvolumeclaims/g-1", noted, fieldManager="brokergroup-reconcile")
    await peer.get(
        "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies", labelSelector="brokergroup.dev/broker-group=g"
    )
    uid = (await peer.get(f"{CORE}/configmaps/g-broker"))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "g-broker", "uid": uid, "controller": True}
    of_pod = (await peer.get(f"{CORE}/pods/g-1"))["metadata"]["uid"]
    for owners in ([owner], [{"uid": uid, "$patch": "delete"}], [{"uid": "none", "$patch": "delete"}]):
        change = {"ownerReferences": owners, "annotations": {"brokergroup.dev/group-uid": "of-the-group"}}
        patch = {"metadata": {"uid": of_pod, **change}}
        await peer.strategic(
            f"{CORE}/pods/g-1",
            patch,
            fieldManager="brokergroup-reconcile",
            # managedFields name the owner by its uid, which no two servers share.
            only=lambda answer: {key: answer["metadata"].get(key) for key in ("ownerReferences", "annotations")},
        )
    elsewhere = {"metadata": {"uid": "another", "labels": {"app.kubernetes.io/instance": None}}}
    await peer.strategic(f"{CORE}/pods/g-1", elsewhere)
    fence = {"metadata": {"finalizers": ["brokergroup.dev/fence"]}}
    await peer.merge(f"{CORE}/pods/g-1", fence)
    found = await peer.get(f"{CORE}/pods/g-1")
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": "another"}}
    await peer.delete(f"{CORE}/pods/g-1", options)
    await peer.delete(f"{CORE}/pods/g-1", {"gracePeriodSeconds": 0, "preconditions": {"uid": found["metadata"]["uid"]}})
    path = "/metadata/finalizers/0"
    lift = [{"op": "test", "path": path, "value": "brokergroup.dev/fence"}, {"op": "remove", "path": path}]
    await peer.json_patch(f"{CORE}/pods/g-1", lift)
    await peer.get(f"{CORE}/pods/g-1")
    await peer.get("/api/v1/nodes/no-such-node")
    for path, child in children[:-1]:
        if child["kind"] != "PersistentVolumeClaim":  # without a controller-manager a real one is never released
            await peer.delete(f"{path}/{child['metadata']['name']}")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "g.1"},
        "involvedObject": {"kind": "BrokerGroup", "name": "g", "namespace": peer.namespace},
        "reason": "MasterElected",
        "type": "Normal",
        "reportingComponent": "brokergroup-operator",
        "reportingInstance": "operator-0",
    }
    await peer.post(f"{CORE}/events", event)
    await peer.get(f"{CORE}/events", only=lambda answer: len(answer["items"]))
    await peer.delete(f"{CORE}/persistentvolumeclaims/none")


async def what_a_backup_sends_without_a_snapshot_controller(peer: Peer) -> None:
    """Volumes that are attached to nodes; and a kind that only the snapshot controller's definitions bring."""
    await peer.get("/apis/storage.k8s.io/v1/volumeattachments", only=lambda answer: answer["kind"])
    path = "/apis/snapshot.storage.k8s.io/v1/namespaces/{ns}/volumesnapshots"
    await peer.get(path)
    await peer.post(
        path, {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s"}}
    )
    await peer.merge(f"{path}/s", {"metadata": {"annotations": {"a": "b"}}})
