"""What users say about pods reaches the pod, ours wins, and the pod stays within Pod Security "restricted"."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.api.tls_steps import TlsAsMade
from brokergroup_operator.fence import deletion
from brokergroup_operator.fence.settings import PROCESS_VARIABLE
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from brokergroup_operator.reconcile.render.pods import build_pod
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from collections.abc import Callable

IMPLEMENTATIONS = ("Java", "Python")
SIDECAR = {"name": "shipper", "image": "example/shipper:1", "volumeMounts": [{"name": "spool", "mountPath": "/spool"}]}
Pod = dict[str, Any]


def pod(**spec: Any) -> Pod:
    return build_pod(b.group(**spec), b.member(2), b.SETTINGS)


def pod_with_a_bundle(**spec: Any) -> Pod:
    group = b.group(**spec, tls={"certificateSecretRef": {"name": "tls"}, "mode": "Enforcing"})
    assert group.spec.tls is not None
    made = TlsAsMade(
        certificate_secret_ref=group.spec.tls.certificate_secret_ref,
        mode=TlsMode.ENFORCING,
        file="trust-000000000000.pem",
        authorities="PEM",
    )
    return build_pod(structs.replace(group, spec=structs.replace(group.spec, tls=made)), b.member(2), b.SETTINGS)


def revision(**spec: Any) -> str:
    return str(pod(**spec)["metadata"]["annotations"][names.ANNOTATION_REVISION])


# The rules of https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline and restricted) that speak of
# something a pod can say; each returns whether the pod keeps it.
VOLUME_TYPES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}


def every(check: Callable[[dict[str, Any]], bool]) -> Callable[[Pod], bool]:
    """For each container, with what it inherits from the pod."""

    def holds(of: Pod) -> bool:
        inherited = of["spec"]["securityContext"]
        all_of_them = [*of["spec"]["containers"], *of["spec"].get("initContainers", [])]
        return all(check(inherited | item["securityContext"]) for item in all_of_them)

    return holds


RESTRICTED: dict[str, Callable[[Pod], bool]] = {
    "no host namespaces": lambda of: not {"hostNetwork", "hostPID", "hostIPC"} & set(of["spec"]),
    "no privileged container": every(lambda security: not security.get("privileged")),
    "all capabilities dropped, none added": every(lambda security: security["capabilities"] == {"drop": ["ALL"]}),
    "only these volume types": lambda of: all(set(one) - {"name"} <= VOLUME_TYPES for one in of["spec"]["volumes"]),
    "no host ports": lambda of: (
        not [port for item in of["spec"]["containers"] for port in item.get("ports", []) if "hostPort" in port]
    ),
    "no AppArmor or SELinux of its own": every(lambda security: not {"appArmorProfile", "seLinuxOptions"} & set(security)),
    "default /proc": every(lambda security: "procMount" not in security),
    "seccomp RuntimeDefault": every(lambda security: security["seccompProfile"] == {"type": "RuntimeDefault"}),
    "no sysctls": lambda of: "sysctls" not in of["spec"]["securityContext"],
    "no privilege escalation": every(lambda security: security["allowPrivilegeEscalation"] is False),
    "not root": every(lambda security: security["runAsNonRoot"] is True and security["runAsUser"] > 0),
    # Beyond the standard.
    "read-only root file system": every(lambda security: security["readOnlyRootFilesystem"] is True),
    "no API token": lambda of: of["spec"]["automountServiceAccountToken"] is False,
    "the volume is the broker's user's": lambda of: of["spec"]["securityContext"]["fsGroup"] > 0,
}  # fmt: skip


@pytest.mark.parametrize("rule", RESTRICTED)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_pod_is_restricted(implementation: str, rule: str) -> None:
    """apache/rocketmq-operator #60, #61, #67: no security context."""
    added = {"spec": {"containers": [SIDECAR], "initContainers": [SIDECAR | {"name": "prepare"}]}}
    assert RESTRICTED[rule](pod(implementation=implementation))
    assert RESTRICTED[rule](pod(implementation=implementation, podTemplate=added))


@pytest.mark.parametrize("rule", RESTRICTED)
def test_each_rule_sees_a_pod_that_breaks_it(rule: str) -> None:
    broken = pod()
    broken["spec"] |= {"hostNetwork": True, "automountServiceAccountToken": True}
    broken["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    broken["spec"]["securityContext"] = {
        "runAsNonRoot": True, "runAsUser": 0, "fsGroup": 0, "sysctls": [{}], "seccompProfile": {"type": "Unconfined"},
    }  # fmt: skip
    container = broken["spec"]["containers"][0]
    container["ports"].append({"containerPort": 1, "hostPort": 1})
    container["securityContext"] |= {
        "privileged": True, "capabilities": {"add": ["NET_ADMIN"]}, "appArmorProfile": {}, "procMount": "Unmasked",
        "allowPrivilegeEscalation": True, "readOnlyRootFilesystem": False,
    }  # fmt: skip
    assert not RESTRICTED[rule](broken)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_whatever_is_written_has_a_volume(implementation: str) -> None:
    """The root file system is read-only: Java's logs and temporary files go where its home is."""
    broker = b.containers(pod(implementation=implementation))[names.CONTAINER_BROKER]
    writable = {mount["mountPath"] for mount in broker["volumeMounts"] if not mount.get("readOnly")}
    environment = {entry["name"]: entry.get("value") for entry in broker["env"]}
    assert writable == {names.STORE_DIR, names.RUN_DIR}
    assert (environment["STORE_DIR"], environment["RUN_DIR"]) == (names.STORE_DIR, names.RUN_DIR)
    if implementation == "Java":
        assert '-Duser.home="$RUN_DIR" -Djava.io.tmpdir="$RUN_DIR"' in broker["command"][-1]


def test_the_fence_knows_its_broker_and_nothing_else() -> None:
    of = pod(implementation="Java", brokerName="orders-a", failover={"heartbeatTimeoutMilliseconds": 6000})
    both = b.containers(of)
    fence = {entry["name"]: entry for entry in both[names.CONTAINER_FENCE]["env"]}
    broker = {entry["name"]: entry for entry in both[names.CONTAINER_BROKER]["env"]}

    assert of["spec"]["shareProcessNamespace"] is True
    assert fence["POD_UID"] == broker["POD_UID"]
    assert (fence["BROKERGROUP_CONTAINER"]["value"], broker["BROKERGROUP_CONTAINER"]["value"]) == ("fence", "broker")
    assert fence["FENCE_BROKER_NAME"]["value"] == "orders-a"
    assert fence["FENCE_ISOLATION_MILLISECONDS"]["value"] == "5000"
    assert fence["FENCE_CONTROLLERS"]["value"].split(";") == list(b.SETTINGS.controller_addresses)
    # Kubernetes fills $(POD_IP) in only from a variable that stands before it.
    assert list(fence).index("POD_IP") < list(fence).index("FENCE_BROKER_ADDRESS")
    assert not [one for one in both[names.CONTAINER_FENCE]["env"] if "secretKeyRef" in one.get("valueFrom", {})]


def fence_environment(of: Pod) -> dict[str, str]:
    return {entry["name"]: entry.get("value") for entry in b.containers(of)[names.CONTAINER_FENCE]["env"]}


def test_the_fence_speaks_as_the_operator_is_spoken_to() -> None:
    """Else it hears no controller, and is of no use where TLS is enforced."""
    of = b.group(implementation="Java")
    settings = dataclasses.replace(
        b.SETTINGS, controller_tls=True, controller_authority="PEM of the authority\n", broker_tls=True
    )
    made = build_pod(of, b.member(2), settings)
    told = fence_environment(made)

    assert (told["FENCE_CONTROLLER_TLS"], told["FENCE_BROKER_TLS"]) == ("true", "true")
    assert told["FENCE_CONTROLLER_CA"] == f"{names.CONFIG_DIR}/{names.AUTHORITY_FILE}"
    assert children.build_config_map(of, settings)["data"][names.AUTHORITY_FILE] == "PEM of the authority\n"
    mounted = {one["mountPath"]: one for one in b.containers(made)[names.CONTAINER_FENCE]["volumeMounts"]}
    assert mounted[names.CONFIG_DIR] == {"name": names.VOLUME_CONFIG, "mountPath": names.CONFIG_DIR, "readOnly": True}
    assert "PEM" not in str(made)


def test_without_tls_the_fence_knows_nothing_of_it() -> None:
    of = b.group(implementation="Java")
    assert not [name for name in fence_environment(pod(implementation="Java")) if "TLS" in name or name.endswith("_CA")]
    assert list(children.build_config_map(of, b.SETTINGS)["data"]) == [names.CONFIG_FILE]


@pytest.mark.parametrize(
    ("failover", "expected"),
    [({}, ("3000", "3000", "500")), ({"heartbeatTimeoutMilliseconds": 1500}, ("1500", "3000", "250"))],
)
def test_the_fence_knows_when_another_is_elected_at_the_earliest(
    failover: dict[str, Any], expected: tuple[str, ...]
) -> None:
    told = fence_environment(pod(implementation="Java", failover=failover))
    found = (told[f"FENCE_{name}_MILLISECONDS"] for name in ("HEARTBEAT_TIMEOUT", "TIMEOUT", "HEARTBEAT_INTERVAL"))
    assert tuple(found) == expected


def test_the_fence_of_a_python_broker_only_waits_for_the_deletion_of_its_pod() -> None:
    of = pod(implementation="Python")
    both = b.containers(of)
    fence = both[names.CONTAINER_FENCE]
    assert of["spec"]["shareProcessNamespace"] is True
    assert fence["command"][-1] == deletion.__name__
    assert {entry["name"] for entry in fence["env"]} == {
        "POD_UID",
        "BROKERGROUP_CONTAINER",
        "STOP_ORDER_FILE",
        "STOP_GRACE_SECONDS",
    }
    assert {"name": "BROKERGROUP_CONTAINER", "value": "broker"} in both[names.CONTAINER_BROKER]["env"]
    assert "ports" not in fence
    assert [mount["mountPath"] for mount in fence["volumeMounts"]] == [names.ORDERS_DIR]
    assert "lifecycle" not in both[names.CONTAINER_BROKER]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_where_no_fence_is_wanted_nothing_of_it_is_there(implementation: str) -> None:
    of = pod(implementation=implementation, failover={"isolation": {"enabled": False}})
    assert list(b.containers(of)) == [names.CONTAINER_BROKER]
    assert "shareProcessNamespace" not in of["spec"]
    assert "lifecycle" not in b.containers(of)[names.CONTAINER_BROKER]


@pytest.mark.parametrize(("grace", "steps"), [(60, 200), (20, 100), (1, 0)])
def test_sigterm_is_held_back_for_at_most_half_of_the_grace(grace: int, steps: int) -> None:
    broker = b.containers(pod(implementation="Java", terminationGracePeriodSeconds=grace))[names.CONTAINER_BROKER]
    assert f"[ $i -lt {steps} ]" in broker["lifecycle"]["preStop"]["exec"]["command"][-1]


def test_ports_are_the_same_wherever_they_are_said() -> None:
    of = b.group(implementation="Java", network={"listenPort": 20911, "haPort": 20920})
    both = b.containers(build_pod(of, b.member(1), b.SETTINGS))
    properties = broker_properties("orders", of.spec, b.SETTINGS)
    ports = {port["name"]: port for port in both[names.CONTAINER_BROKER]["ports"]}
    service = {port["name"]: port for port in children.build_master_service(of)["spec"]["ports"]}

    assert (properties["listenPort"], properties["haListenPort"]) == ("20911", "20920")
    expected = {"broker": 20911, "ha": 20920, "fast": 20909}
    assert {name: port["containerPort"] for name, port in ports.items()} == expected
    assert both[names.CONTAINER_BROKER]["readinessProbe"]["tcpSocket"] == {"port": 20911}
    assert (service["broker"]["port"], service["broker"]["targetPort"]) == (20911, "broker")
    assert (service["ha"]["port"], service["ha"]["targetPort"]) == (20920, "ha")
    assert both[names.CONTAINER_FENCE]["ports"] == [{"name": "fence", "containerPort": 20913, "protocol": "UDP"}]
    assert {entry["name"]: entry for entry in both[names.CONTAINER_FENCE]["env"]}["FENCE_LOCAL_ADDRESS"][
        "value"
    ] == "$(POD_IP):20911"


def test_an_exporter_is_configured_and_has_a_port() -> None:
    of = b.group(implementation="Java", monitoring={"exporter": True, "port": 9400})
    properties = broker_properties("orders", of.spec, b.SETTINGS)
    ports = {port["name"]: port for port in b.containers(build_pod(of, b.member(1), b.SETTINGS))["broker"]["ports"]}
    assert (properties["metricsExporterType"], properties["metricsPromExporterPort"]) == ("PROM", "9400")
    assert ports["metrics"]["containerPort"] == 9400
    assert not [key for key in broker_properties("orders", b.group().spec, b.SETTINGS) if key.startswith("metrics")]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"implementation": "Java"}, "5.5.0"),
        ({"implementation": "Java", "version": "5.3.3"}, "5.3.3"),
        ({"implementation": "Java", "image": "example/mine:1"}, None),
        ({"implementation": "Python"}, None),
    ],
)
def test_a_pod_carries_its_version_where_that_is_known(spec: dict[str, Any], expected: str | None) -> None:
    assert pod(**spec)["metadata"]["labels"].get("app.kubernetes.io/version") == expected


def test_images_are_pulled_as_the_spec_says() -> None:
    of = pod(implementation="Java", imagePullPolicy="Always", imagePullSecrets=[{"name": "registry"}])
    assert {item["imagePullPolicy"] for item in of["spec"]["containers"]} == {"Always"}
    assert of["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert "imagePullSecrets" not in pod()["spec"]


OUR_TERM = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {names.LABEL_BROKER_GROUP: "orders"}},
}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OUR_PREFERRED = {"podAntiAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": OUR_TERM}]}}


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({}, OUR_PREFERRED),
        ({"antiAffinity": {"type": "Preferred"}}, OUR_PREFERRED),
        ({"antiAffinity": {"type": "Required"}}, {"podAntiAffinity": {REQUIRED: [OUR_TERM]}}),
        ({"antiAffinity": {"type": "None"}}, None),
    ],
)
def test_members_keep_apart_as_the_spec_says(wish: dict[str, Any], expected: Any) -> None:
    assert pod(**wish)["spec"].get("affinity") == expected


def test_scheduling_reaches_the_pod() -> None:
    wish: dict[str, Any] = {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "brokers", "operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists"}],
        "priorityClassName": "important",
    }
    spread: dict[str, Any] = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    spec = pod(podTemplate={"spec": wish | {"topologySpreadConstraints": [spread]}})["spec"]
    assert {field: spec[field] for field in wish} == wish
    ours = {"maxSkew": 1, "labelSelector": OUR_TERM["labelSelector"]}
    assert spec["topologySpreadConstraints"] == [spread | ours]


def test_affinity_of_the_user_stands_beside_ours() -> None:
    theirs = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "noisy"}}}
    node: dict[str, Any] = {REQUIRED: {"nodeSelectorTerms": [{"matchFields": []}]}}
    wish: dict[str, Any] = {"nodeAffinity": node, "podAntiAffinity": {REQUIRED: [theirs]}}
    apart = {"type": "Required", "topologyKey": "topology.kubernetes.io/zone"}
    affinity = pod(antiAffinity=apart, podTemplate={"spec": {"affinity": wish}})["spec"]["affinity"]
    assert affinity["nodeAffinity"] == node
    assert affinity["podAntiAffinity"][REQUIRED] == [OUR_TERM | {"topologyKey": "topology.kubernetes.io/zone"}, theirs]
    assert wish["podAntiAffinity"] == {REQUIRED: [theirs]}, "the spec itself is left alone"


def test_a_template_adds_and_never_changes_what_is_ours() -> None:
    mine = {"name": "broker", "image": "example/mine:1"}
    template: dict[str, Any] = {
        "metadata": {
            "labels": {"team": "orders", names.LABEL_BROKER_ID: "7"},
            "annotations": {"note": "x", names.ANNOTATION_REVISION: "mine"},
        },
        "spec": {
            "containers": [SIDECAR, mine],
            "initContainers": [{"name": "prepare", "image": "example/prepare:1"}],
            "volumes": [{"name": "spool", "emptyDir": {}}, {"name": "store", "emptyDir": {}}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["old"]}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
            "runtimeClassName": "gvisor",
            "schedulerName": "other",
            "serviceAccountName": "puller",
        },
    }
    plain, of = pod(), pod(podTemplate=template)

    assert b.containers(of)["broker"] == b.containers(plain)["broker"]
    assert b.containers(of)["shipper"]["volumeMounts"] == SIDECAR["volumeMounts"]
    assert [item["name"] for item in of["spec"]["volumes"]] == ["store", "config", "run", names.VOLUME_ORDERS, "spool"]
    assert of["spec"]["volumes"][:4] == plain["spec"]["volumes"]
    assert [item["name"] for item in of["spec"]["initContainers"]] == ["prepare"]
    for field in ("hostAliases", "dnsConfig", "runtimeClassName", "schedulerName", "serviceAccountName"):
        assert of["spec"][field] == template["spec"][field]
    assert of["metadata"]["labels"] == plain["metadata"]["labels"] | {"team": "orders"}
    assert of["metadata"]["annotations"]["note"] == "x"
    assert of["metadata"]["annotations"][names.ANNOTATION_REVISION] == revision(podTemplate=template) != "mine"


def test_a_further_container_may_say_that_it_is_less_restricted() -> None:
    loose = SIDECAR | {"securityContext": {"readOnlyRootFilesystem": False}}
    shipper = b.containers(pod(podTemplate={"spec": {"containers": [loose]}}))["shipper"]
    assert shipper["securityContext"]["readOnlyRootFilesystem"] is False
    assert shipper["securityContext"]["allowPrivilegeEscalation"] is False


def test_a_template_adds_to_the_brokers_container_and_to_no_other() -> None:
    more: dict[str, Any] = {
        "env": [{"name": "JAVA_TOOL_OPTIONS", "value": "-Xlog"}],
        "volumeMounts": [{"name": "spool", "mountPath": "/spool", "readOnly": True}],
        "readinessProbe": {"periodSeconds": 2, "failureThreshold": 9},
    }
    volumes = [{"name": "spool", "emptyDir": {}}]
    plain, of = (
        b.containers(pod(implementation="Java", podTemplate={"spec": spec}))
        for spec in ({}, {"broker": more, "volumes": volumes})
    )

    assert of["fence"] == plain["fence"]
    assert of["broker"]["env"] == [*plain["broker"]["env"], *more["env"]]
    assert of["broker"]["volumeMounts"] == [*plain["broker"]["volumeMounts"], *more["volumeMounts"]]
    assert of["broker"]["readinessProbe"] == plain["broker"]["readinessProbe"] | more["readinessProbe"]


def test_no_variable_of_a_template_marks_probe_and_shell_as_the_broker() -> None:
    """With this one the fence would stop the container that waits at the gate again and again."""
    mark = {"name": PROCESS_VARIABLE, "value": names.CONTAINER_BROKER}
    of = pod(podTemplate={"spec": {"broker": {"env": [mark]}}})
    assert mark not in b.containers(of)[names.CONTAINER_BROKER]["env"]


@pytest.mark.parametrize("addressing", ["PodIP", "NodePort", "LoadBalancer"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_rule_knows_every_variable_and_folder_of_the_broker(implementation: str, addressing: str) -> None:
    """A template that sets one of them is refused: the store's folder, or the mark by which the fence finds the broker."""
    spec: dict[str, Any] = {
        "network": {"addressing": addressing, "ipFamilies": ["IPv6"]},
        "security": {"credentialsSecretRef": {"name": "keys"}, "certificateSecretRef": {"name": "certificate"}},
        "storage": {"commitLog": {"size": "1Gi"}},
    }
    broker = b.containers(pod_with_a_bundle(implementation=implementation, **spec))["broker"]

    assert {item["name"] for item in broker["env"]} <= set(names.OWN_VARIABLES)
    assert {item["mountPath"] for item in broker["volumeMounts"]} == set(names.OWN_FOLDERS)
    wrong = [{"name": name, "value": "x"} for name in names.OWN_VARIABLES]
    template = {"spec": {"broker": {"env": wrong}}}
    smuggled = pod_with_a_bundle(implementation=implementation, podTemplate=template, **spec)
    assert b.containers(smuggled)["broker"] == broker


CHANGES: dict[str, dict[str, Any]] = {
    "a sidecar": {"podTemplate": {"spec": {"containers": [SIDECAR]}}},
    "a label": {"podTemplate": {"metadata": {"labels": {"team": "orders"}}}},
    "an annotation": {"podTemplate": {"metadata": {"annotations": {"note": "x"}}}},
    "a node selector": {"podTemplate": {"spec": {"nodeSelector": {"disk": "fast"}}}},
    "a port": {"network": {"listenPort": 20911}},
    "a pull policy": {"imagePullPolicy": "Always"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_pod_changes_its_revision(change: str) -> None:
    assert revision(**CHANGES[change]) != revision()
    assert revision(**CHANGES[change]) == revision(**CHANGES[change])


def test_what_is_said_as_the_default_has_it_changes_nothing() -> None:
    said = {
        "network": {"addressing": "PodIP", "listenPort": 10911, "haPort": 10912},
        "antiAffinity": {"type": "Preferred", "topologyKey": "kubernetes.io/hostname"},
        "podTemplate": {
            "metadata": {"labels": {}},
            "spec": {"broker": {"env": [], "readinessProbe": {"periodSeconds": 1, "failureThreshold": 3}}},
        },
        "imagePullPolicy": "IfNotPresent",
    }
    assert revision(**said) == revision()
