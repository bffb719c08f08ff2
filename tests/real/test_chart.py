"""The chart: lints strictly, renders what the real kube-apiserver accepts, and asks for no right it does not need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import typer
import yaml

from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.cli.main import app
from brokergroup_operator.kubectl import operator_pods
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.pods import build_pod
from brokergroup_operator.reconcile.settings import ReconcileSettings
from controller_core import metric_names
from tests.real.parts import helm, prometheus

if TYPE_CHECKING:
    from tests.real.parts.kubernetes_api import KubeApiserver

pytestmark = pytest.mark.real("helm")

RIGHTS = Path(__file__).with_name("rights.yaml")
VARIANTS: dict[str, dict[str, str]] = {
    "defaults": {},
    "one pod, one namespace": {"replicaCount": "1", "watch__namespace": "{namespace}"},
    "everything on": {
        "dashboards__create": "true",
        "networkPolicy__create": "true",
        "image__tag": "test",
        "incidentLog__storage": "100Mi",
    },
    "secured": {
        "security__tls__secretName": "controller-tls",
        "security__tls__clientCertificates": "required",
        "security__tls__dialBrokers": "true",
        "security__tls__dialNameServers": "true",
        "security__admin__secretName": "administrator",
        "security__admin__certificateNames": "{{admin.example}}",
        "security__configurationReadable": "true",
        "security__brokersWithoutPods": "true",
        "networkPolicy__create": "true",
        "networkPolicy__controllerFrom[0].ipBlock.cidr": "192.0.2.0/24",
    },
}


def rendered(namespace: str, **values: str) -> list[dict[str, Any]]:
    return helm.objects(helm.template(namespace, **values))


def rules(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [rule for item in objects if item["kind"] == kind for rule in item["rules"]]


def test_the_chart_lints_strictly() -> None:
    done = helm.helm("lint", "--strict", str(helm.CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.real("kube-apiserver")
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_real_apiserver_accepts_what_is_rendered(with_kinds: KubeApiserver, namespace: str, variant: str) -> None:
    values = {name: value.format(namespace=namespace) for name, value in VARIANTS[variant].items()}
    manifests = helm.template(namespace, **values)
    options = ["--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"]
    done = with_kinds.kubectl("apply", *options, "-f", "-", stdin=manifests)
    assert done.returncode == 0, done.stderr
    accepted = done.stdout.count("serverside-applied (server dry run)")
    assert accepted == len(helm.objects(manifests)) >= 8


@pytest.mark.real("kube-apiserver")
def test_the_operator_may_do_its_work_and_nothing_else(with_kinds: KubeApiserver, namespace: str) -> None:
    manifests = helm.template(namespace, release=f"rights-{namespace}", crds__create="false")
    with_kinds.must("apply", "--server-side", "-f", "-", stdin=manifests)
    account = next(item for item in helm.objects(manifests) if item["kind"] == "ServiceAccount")["metadata"]["name"]
    identity = f"--as=system:serviceaccount:{namespace}:{account}"

    def may(right: str, where: str = "default") -> bool:
        verb, _, resource = right.partition(" ")
        resource, _, subresource = resource.partition("/")
        done = with_kinds.kubectl(
            "auth", "can-i", verb, resource, f"--subresource={subresource}", "-n", where, identity
        )
        return done.stdout.strip() == "yes"

    needed = [
        *("update brokergroupstates", "patch brokergroups/status", "patch brokergroups", "watch pods", "delete pods"),
        *("create persistentvolumeclaims", "create events", "patch poddisruptionbudgets"),
        *(
            "watch nodes",
            "watch brokergroupoperations",
            "update brokergroupoperations/status",
            "delete brokergroupoperations",
        ),
    ]
    assert [right for right in needed if not may(right)] == []
    assert may("create leases", where=namespace)
    refused = [
        *("list secrets", "get secrets", "create pods/exec", "get pods/log", "delete namespaces", "patch nodes"),
        *("create brokergroups", "delete brokergroups", "patch brokergroupstates", "create leases", "escalate roles"),
        *("create brokergroupoperations", "create pods/eviction", "deletecollection pods", "delete nodes"),
    ]
    assert [right for right in refused if may(right)] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_rule_has_a_wildcard_a_secret_or_a_shell(variant: str) -> None:
    """apache/rocketmq-operator #80: it works by exec in its pods."""
    values = {name: value.format(namespace="served") for name, value in VARIANTS[variant].items()}
    objects = rendered("system", **values)
    every_rule = [*rules(objects, "ClusterRole"), *rules(objects, "Role")]
    assert every_rule
    for rule in every_rule:
        named = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert named.isdisjoint({"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"}), rule


def right(rule: dict[str, Any]) -> str:
    """One line: verbs, what of which group, by which names alone."""
    what = ", ".join(f"{group or 'core'}/{name}" for group in rule["apiGroups"] for name in rule["resources"])
    alone = f" only {', '.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
    return f"{' '.join(rule['verbs'])}: {what}{alone}"


def test_every_right_is_one_that_a_person_has_read() -> None:
    """All roles, with everything on that gives a right. UPDATE_GOLDEN=1 writes them anew: read the difference."""
    objects = rendered("system", rbac__readNodes="true", security__groupSecretNames="{orders-credentials}")
    roles = {
        f"{item['kind']} {item['metadata']['name']}": [right(rule) for rule in item["rules"]]
        for item in objects
        if item["kind"] in {"Role", "ClusterRole"}
    }
    if os.environ.get("UPDATE_GOLDEN") == "1":
        RIGHTS.write_text(yaml.safe_dump(roles, width=200, sort_keys=False), encoding="utf-8")
    assert roles == yaml.safe_load(RIGHTS.read_text(encoding="utf-8"))


def test_who_may_edit_may_ask_for_operations_and_who_may_view_sees_them() -> None:
    roles = {item["metadata"]["name"]: item for item in rendered("system") if item["kind"] == "ClusterRole"}
    [view] = [item for name, item in roles.items() if name.endswith("-view")]
    [edit] = [item for name, item in roles.items() if name.endswith("-edit")]
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {name for rule in view["rules"] for name in rule["resources"]} == {
        "brokergroups",
        "brokergroupoperations",
        "brokergroupstates",
    }
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    # The record is nobody's but the operator's, and a status is not edited.
    assert {name for rule in edit["rules"] for name in rule["resources"]} == {
        "brokergroups",
        "brokergroupoperations",
        "brokergroups/scale",
    }


def test_one_namespace_needs_no_cluster_wide_right() -> None:
    objects = rendered("system", watch__namespace="served", rbac__aggregate="false", rbac__readNodes="false")
    assert not rules(objects, "ClusterRole")
    assert not [item for item in objects if item["kind"] == "ClusterRoleBinding"]
    namespaces = {item["metadata"]["namespace"] for item in objects if item["kind"] == "Role"}
    assert namespaces == {"served", "system"}


def test_brokers_get_one_address_per_operator_pod() -> None:
    objects = rendered("system", replicaCount="2")
    stateful_set = next(item for item in objects if item["kind"] == "StatefulSet")
    arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
    addresses = [text.partition("=")[2] for text in arguments if text.startswith("--controller-address=")]
    services = {
        item["metadata"]["name"]: item["spec"]["selector"]["statefulset.kubernetes.io/pod-name"]
        for item in objects
        if item["kind"] == "Service" and "statefulset.kubernetes.io/pod-name" in item["spec"]["selector"]
    }
    name = stateful_set["metadata"]["name"]
    assert addresses == [f"{service}.system.svc.cluster.local:9878" for service in services]
    assert services == {f"{name}-0": f"{name}-0", f"{name}-1": f"{name}-1"}


def test_the_operator_understands_its_command_line() -> None:
    command = typer.main.get_group(app).commands["operator"]
    variants: tuple[dict[str, str], ...] = (
        {},
        {"watch__namespace": "served", "replicaCount": "1", "leaseSeconds": "30", "maxGroupsRolling": "0"},
        VARIANTS["secured"],
    )
    for values in ({name: value.format() for name, value in variant.items()} for variant in variants):
        stateful_set = next(item for item in rendered("system", **values) if item["kind"] == "StatefulSet")
        name, *arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
        assert name == "operator"
        parsed = command.make_context(name, arguments).params
        assert parsed["namespace"] == values.get("watch__namespace")
        assert len(parsed["controller_addresses"]) == int(values.get("replicaCount", "3"))
        assert parsed["lease_seconds"] == int(values.get("leaseSeconds", "3"))
        assert parsed["max_groups_rolling"] == int(values.get("maxGroupsRolling", "1"))


def test_further_environment_reaches_the_operator() -> None:
    values = {"extraEnv[0]__name": "HTTPS_PROXY", "extraEnv[0]__value": "proxy:3128"}
    stateful_set = next(item for item in rendered("system", **values) if item["kind"] == "StatefulSet")
    assert {"name": "HTTPS_PROXY", "value": "proxy:3128"} in stateful_set["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]


def test_what_is_secured_reaches_the_command_line_and_the_pod() -> None:
    values = {name: value.format() for name, value in VARIANTS["secured"].items()}
    stateful_set = next(item for item in rendered("system", **values) if item["kind"] == "StatefulSet")
    pod = stateful_set["spec"]["template"]["spec"]
    name, *arguments = pod["containers"][0]["args"]
    parsed = typer.main.get_group(app).commands["operator"].make_context(name, arguments).params
    mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert parsed["tls_mode"].value == "enforcing"
    assert parsed["tls_client_certificates"].value == "required"
    assert {str(parsed[f"tls_{one}"]) for one in ("certificate", "key", "ca")} == {
        f"{mounted['tls']}/{file}" for file in ("tls.crt", "tls.key", "ca.crt")
    }
    assert str(parsed["admin_credentials"]) == mounted["admin"]
    assert parsed["admin_certificate_names"] == ["admin.example"]
    for flag in ("broker_tls", "name_server_tls", "configuration_readable", "brokers_without_pods"):
        assert parsed[flag] is True
    assert parsed["drain_seconds"] == 6
    assert parsed["max_groups_rolling"] == 1
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert secrets == {"tls": "controller-tls", "admin": "administrator"}


def test_without_a_word_nothing_is_opened_and_nothing_mounted() -> None:
    stateful_set = next(item for item in rendered("system") if item["kind"] == "StatefulSet")
    pod = stateful_set["spec"]["template"]["spec"]
    name, *arguments = pod["containers"][0]["args"]
    parsed = typer.main.get_group(app).commands["operator"].make_context(name, arguments).params
    assert not any(parsed[flag] for flag in ("configuration_readable", "brokers_without_pods", "broker_tls"))
    assert parsed["admin_credentials"] is None
    assert not [volume for volume in pod["volumes"] if "secret" in volume]


def test_the_incident_log_outlives_its_pod_where_it_is_given_a_volume() -> None:
    [plain] = [item["spec"] for item in rendered("system") if item["kind"] == "StatefulSet"]
    assert "volumeClaimTemplates" not in plain
    assert {"name": "incidents", "emptyDir": {}} in plain["template"]["spec"]["volumes"]
    values = {"incidentLog__storage": "100Mi", "incidentLog__storageClassName": "fast"}
    [kept] = [item["spec"] for item in rendered("system", **values) if item["kind"] == "StatefulSet"]
    [claim] = kept["volumeClaimTemplates"]
    assert (claim["metadata"]["name"], claim["spec"]["storageClassName"]) == ("incidents", "fast")
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Mi"
    assert "incidents" not in [volume["name"] for volume in kept["template"]["spec"]["volumes"]]


def test_one_pod_alone_has_nobody_to_send_brokers_to() -> None:
    stateful_set = next(item for item in rendered("system", replicaCount="1") if item["kind"] == "StatefulSet")
    assert "--drain-seconds=0" in stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_operator_may_get_the_named_secrets_and_no_others() -> None:
    objects = rendered("system", security__groupSecretNames="{orders-credentials,payments-credentials}")
    found = [
        rule for rule in [*rules(objects, "ClusterRole"), *rules(objects, "Role")] if "secrets" in rule["resources"]
    ]
    assert found == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["orders-credentials", "payments-credentials"],
            "verbs": ["get"],
        }
    ]
    nodes = [
        rule
        for rule in rules(rendered("system", rbac__readNodes="true"), "ClusterRole")
        if "nodes" in rule["resources"]
    ]
    assert nodes == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]


def test_prometheus_finds_the_brokers_exporters_by_label_and_port_name() -> None:
    objects = rendered("system", metrics__brokerPodMonitor="true", watch__namespace="served")
    [monitor] = [item for item in objects if item["kind"] == "PodMonitor"]
    metadata = {"name": "orders", "namespace": "served", "uid": "u"}
    spec = {"implementation": "rocketmq", "monitoring": {"exporter": True}}
    group = msgspec.convert({"metadata": metadata, "spec": spec}, BrokerGroup)
    pod = build_pod(group, Member(broker_id=1, pod="orders-1"), ReconcileSettings(controller_addresses=("a:1",)))

    assert pod["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["served"]}
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert ports[monitor["spec"]["podMetricsEndpoints"][0]["port"]] == 5557
    everywhere = rendered("system", metrics__brokerPodMonitor="true")
    [monitor] = [item for item in everywhere if item["kind"] == "PodMonitor"]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}


def test_cert_manager_writes_the_secret_that_is_mounted() -> None:
    values = {
        "security__tls__secretName": "controller-tls",
        "security__tls__certManager__create": "true",
        "security__tls__certManager__issuerRef__name": "ours",
    }
    objects = rendered("system", **values)
    [certificate] = [item for item in objects if item["kind"] == "Certificate"]
    assert certificate["spec"]["secretName"] == "controller-tls"
    assert certificate["spec"]["issuerRef"] == {"name": "ours", "kind": "Issuer"}
    assert certificate["spec"]["privateKey"]["encoding"] == "PKCS8"
    assert len(certificate["spec"]["dnsNames"]) == 3


def test_the_kinds_outlive_the_release_and_can_be_left_out() -> None:
    kinds = [item for item in rendered("system") if item["kind"] == "CustomResourceDefinition"]
    assert len(kinds) >= 2
    assert all(kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for kind in kinds)
    without = rendered("system", crds__create="false")
    assert not [item for item in without if item["kind"] == "CustomResourceDefinition"]


@pytest.mark.parametrize("values", [{}, {"nameOverride": "theirs"}, {"fullnameOverride": "theirs"}])
def test_the_plugin_finds_the_operators_pods_whatever_the_release_calls_them(values: dict[str, str]) -> None:
    objects = helm.objects(helm.template("system", release="any", **values))
    stateful_set = next(item for item in objects if item["kind"] == "StatefulSet")
    key, _, value = operator_pods.SELECTOR.partition("=")
    assert stateful_set["spec"]["template"]["metadata"]["labels"][key] == value
    # What a StatefulSet selects by can't be changed later: it stays out of there.
    assert key not in stateful_set["spec"]["selector"]["matchLabels"]


def test_the_pod_is_restricted() -> None:
    stateful_set = next(item for item in rendered("system") if item["kind"] == "StatefulSet")
    pod = stateful_set["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replicaCount": "0"}, "replicaCount"),
        ({"replicas": "3"}, "replicas"),
        ({"leaseSeconds": "2"}, "leaseSeconds"),
        ({"metrics__port": "80"}, "metrics"),
        ({"security__tls__clientCertificates": "required"}, "security.tls.secretName is empty"),
        ({"security__tls__secretName": "x", "security__tls__mode": "off"}, "mode"),
        (
            {"security__tls__secretName": "x", "security__admin__certificateNames": "{admin}"},
            "certificateNames: expected security.tls.clientCertificates",
        ),
        ({"security__tls__secretName": "x", "security__tls__certManager__create": "true"}, "issuerRef.name"),
        ({"controller__port": "9879"}, "controller.port and metrics.port are both 9879"),
        ({"nameOverride": "My_Operator"}, "nameOverride"),
        ({"fullnameOverride": "operator.eu"}, "fullnameOverride"),
    ],
    ids=[
        *("too few", "unknown value", "too short", "privileged port", "client certificates without TLS", "no mode"),
        *("nobody is asked for a certificate", "no issuer", "one port for two", "no name", "no label"),
    ],
)
def test_bad_values_are_refused_and_named(values: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        helm.template("system", **values)


@pytest.mark.real("prometheus")
def test_the_alerts_are_valid_and_ask_for_metrics_that_exist() -> None:
    source = helm.CHART / "files" / "alerts.yaml"
    done = prometheus.promtool("check", "rules", str(source))
    assert done.returncode == 0, done.stderr
    in_chart = next(
        item for item in rendered("system", metrics__prometheusRule="true") if item["kind"] == "PrometheusRule"
    )
    assert in_chart["spec"] == yaml.safe_load(source.read_text(encoding="utf-8"))
    elsewhere = rendered("system", metrics__prometheusRule="true", metrics__runbooks="https://wiki.example/rocketmq/")
    rules = next(item for item in elsewhere if item["kind"] == "PrometheusRule")["spec"]["groups"][0]["rules"]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example/rocketmq/{rule['alert']}.md"
    for rule in in_chart["spec"]["groups"][0]["rules"]:
        assert any(name in rule["expr"] for name in metric_names.METRICS), rule["alert"]
