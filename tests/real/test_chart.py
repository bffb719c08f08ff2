"""The chart: lints strictly, renders what the real kube-apiserver accepts, and asks for no right it does not need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

import metric_names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.settings import ReconcileSettings
from tests.real.parts import helm, prometheus
from tests.real.parts.helm import of_kind, one, rendered

if TYPE_CHECKING:
    from tests.support.kube_apiserver import KubeApiserver

pytestmark = pytest.mark.real("helm")

OWN_SECRET = {
    "apiGroups": [""],
    "resources": ["secrets"],
    "resourceNames": ["bg-brokergroup-operator-fence-key"],
    "verbs": ["get"],
}
RIGHTS = Path(__file__).with_name("rights.yaml")
VARIANTS: dict[str, dict[str, str]] = {
    "defaults": {},
    "one pod, one namespace": {"replicaCount": "1", "watch__namespace": "{namespace}"},
    "everything on": {
        "dashboards__create": "true",
        "networkPolicy__create": "true",
        "page__access": "token",
        "page__tokenSecretName": "page-token",
        "page__tlsSecretName": "page-tls",
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


def rules(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [rule for item in of_kind(objects, kind) for rule in item["rules"]]


def rules_about(objects: list[dict[str, Any]], resource: str) -> list[dict[str, Any]]:
    return [rule for kind in ("ClusterRole", "Role") for rule in rules(objects, kind) if resource in rule["resources"]]


def test_the_policy_of_brokers_is_not_the_charts() -> None:
    """spec.network.policy of a BrokerGroup or RocketMQCluster makes it, so that it follows the group's own ports."""
    asked = {"networkPolicy__brokers[0].namespace": "shop", "networkPolicy__brokers[0].group": "orders"}
    with pytest.raises(
        ValueError, match=r"networkPolicy.brokers: .*spec.network.policy.*networkPolicy.brokers=null"
    ) as raised:
        rendered("ns", **asked)
    assert "docs/tasks/upgrade.md" in str(raised.value)


def test_the_default_of_an_earlier_chart_is_taken() -> None:
    """`helm upgrade --reuse-values` hands every default of the release over, this one as an empty list; null is the way out."""
    assert rendered("ns", values_file={"networkPolicy": {"brokers": []}}) == rendered("ns")
    of_before = {"networkPolicy": {"brokers": [{"namespace": "shop", "group": "orders"}]}}
    assert rendered("ns", values_file=of_before, networkPolicy__brokers="null") == rendered("ns")


@pytest.mark.parametrize("wrong", ["Bad_NS", "../x", "-a"])
def test_a_namespace_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="watch/namespace"):
        rendered("ns", watch__namespace=wrong)


WRONG_NAMES = [
    ("security__groupSecretNames", "{orders,*}", "security/groupSecretNames/1"),
    ("security__groupSecretNames", "{Bad_NS}", "security/groupSecretNames/0"),
    ("imagePullSecrets", "{Bad_NS}", "imagePullSecrets/0"),
    ("security__admin__secretName", "*", "security/admin/secretName"),
    ("security__tls__secretName", "../x", "security/tls/secretName"),
    ("page__tokenSecretName", "Bad_NS", "page/tokenSecretName"),
    ("page__tlsSecretName", "../x", "page/tlsSecretName"),
    ("slaReport__source__bearerTokenSecretName", "Bad_NS", "slaReport/source/bearerTokenSecretName"),
    ("serviceAccount__name", "../x", "serviceAccount/name"),
    ("incidentLog__storageClassName", "Bad_NS", "incidentLog/storageClassName"),
    ("incidentLog__storage", "0Gi", "incidentLog/storage"),
    ("priorityClassName", "Bad_NS", "priorityClassName"),
    ("controller__clusterDomain", "../x", "controller/clusterDomain"),
    ("fullnameOverride", "9-orders", "fullnameOverride"),
]


@pytest.mark.parametrize(("value", "wrong", "place"), WRONG_NAMES, ids=[f"{one[0]}={one[1]}" for one in WRONG_NAMES])
def test_a_name_that_no_object_can_have_is_refused(value: str, wrong: str, place: str) -> None:
    with pytest.raises(ValueError, match=f"at '/{place}': .* does not match pattern"):
        rendered("ns", **{value: wrong})


def sections(values: dict[str, Any], path: str = "") -> list[str]:
    """Every section of the chart's values that has one of its own below it or a value that is not empty."""
    inner = {name: value for name, value in values.items() if isinstance(value, dict) and value}
    return [name for key, value in inner.items() for name in (f"{path}{key}", *sections(value, f"{path}{key}__"))]


@pytest.mark.parametrize("section", sections(yaml.safe_load((helm.CHART / "values.yaml").read_text(encoding="utf-8"))))
def test_a_section_that_is_taken_away_is_missed_by_its_name(section: str) -> None:
    """`--set crds=null` ended in a template, with `nil pointer evaluating interface {}.create`."""
    where, _, name = section.rpartition("__")
    try:
        assert rendered("ns", **{section: "null"})
    except ValueError as refusal:
        place = f"/{where.replace('__', '/')}" if where else ""
        assert f"at '{place}': missing property '{name}'" in str(refusal)  # noqa: PT017 - most are refused; a map of anything may be taken away


def test_the_chart_lints_strictly() -> None:
    done = helm.helm("lint", "--strict", str(helm.CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.real("kube-apiserver")
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_real_apiserver_accepts_what_is_rendered(with_kinds: KubeApiserver, namespace: str, variant: str) -> None:
    values: dict[str, Any] = {name: value.format(namespace=namespace) for name, value in VARIANTS[variant].items()}
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
    account = one(helm.objects(manifests), "ServiceAccount")["metadata"]["name"]
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
        *("create persistentvolumeclaims", "create events", "patch poddisruptionbudgets", "watch nodes"),
        *(f"{verb} brokergroupoperations" for verb in ("watch", "delete")),
        "update brokergroupoperations/status",
        # A Retire deletes its group, by name and uid.
        *("watch rocketmqclusters", "patch rocketmqclusters/status", "create brokergroups", "delete brokergroups"),
        *("create statefulsets", "patch deployments", "delete deployments"),
    ]
    assert [right for right in needed if not may(right)] == []
    assert may("create leases", where=namespace)
    assert may("create secrets")
    refused = [
        *("list secrets", "get secrets", "watch secrets", "patch secrets", "update secrets", "delete secrets"),
        *("create pods/exec", "get pods/log", "delete namespaces", "patch nodes"),
        *("create rocketmqclusters", "delete rocketmqclusters", "watch statefulsets", "create daemonsets"),
        *("deletecollection brokergroups", "patch brokergroupstates", "create leases", "escalate roles"),
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
        assert named.isdisjoint({"*", "pods/exec", "escalate", "bind", "impersonate"}), rule
        assert "secrets" not in named or rule["verbs"] == ["create"] or OWN_SECRET.items() <= rule.items(), rule


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
    roles = {item["metadata"]["name"]: item for item in of_kind(rendered("system"), "ClusterRole")}
    [view] = [item for name, item in roles.items() if name.endswith("-view")]
    [edit] = [item for name, item in roles.items() if name.endswith("-edit")]
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {name for rule in view["rules"] for name in rule["resources"]} == {
        "brokergroups",
        "brokergroupoperations",
        "brokergroupstates",
        "rocketmqclusters",
    }
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    # Only the operator has rights to the record, and users do not edit a status.
    assert {name for rule in edit["rules"] for name in rule["resources"]} == {
        "brokergroups",
        "brokergroupoperations",
        "brokergroups/scale",
        "rocketmqclusters",
    }


def test_one_namespace_needs_no_cluster_wide_right() -> None:
    objects = rendered("system", watch__namespace="served", rbac__aggregate="false", rbac__readNodes="false")
    assert not rules(objects, "ClusterRole")
    assert not of_kind(objects, "ClusterRoleBinding")
    namespaces = {item["metadata"]["namespace"] for item in of_kind(objects, "Role")}
    assert namespaces == {"served", "system"}


def test_brokers_get_one_address_per_operator_pod() -> None:
    objects = rendered("system", replicaCount="2")
    stateful_set = one(objects, "StatefulSet")
    arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
    addresses = [text.partition("=")[2] for text in arguments if text.startswith("--controller-address=")]
    services = {
        item["metadata"]["name"]: item["spec"]["selector"]["statefulset.kubernetes.io/pod-name"]
        for item in of_kind(objects, "Service")
        if "statefulset.kubernetes.io/pod-name" in item["spec"]["selector"]
    }
    name = stateful_set["metadata"]["name"]
    assert addresses == [f"{service}.system.svc.cluster.local:9878" for service in services]
    assert services == {f"{name}-0": f"{name}-0", f"{name}-1": f"{name}-1"}


@pytest.mark.parametrize(
    ("values", "families"),
    [
        ({}, {}),
        ({"network__ipFamilies": "{IPv6}"}, {"ipFamilies": ["IPv6"]}),
        (
            {
                "network__ipFamilies": "{IPv6,IPv4}",
                "network__ipFamilyPolicy": "PreferDualStack",
                "page__access": "kubernetes",
            },
            {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack"},
        ),
        ({"network__ipFamilyPolicy": "RequireDualStack"}, {"ipFamilyPolicy": "RequireDualStack"}),
    ],
)
def test_every_service_has_the_families_of_the_values_and_the_pods_listen_for_both(
    values: dict[str, str], families: dict[str, Any]
) -> None:
    objects = rendered("system", **values)
    services = [item["spec"] for item in of_kind(objects, "Service")]
    assert len(services) >= 4
    for spec in services:
        assert {key: value for key, value in spec.items() if key.startswith("ipFamil")} == families
    stateful_set = one(objects, "StatefulSet")
    arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--listen=[::]:9878", "--metrics-listen=[::]:9879"} <= set(arguments)


def test_the_operator_may_get_the_named_secrets_and_no_others() -> None:
    objects = rendered("system", security__groupSecretNames="{orders-credentials,payments-credentials}")
    may_create = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
    named = OWN_SECRET | {"resourceNames": ["orders-credentials", "payments-credentials"]}
    assert rules_about(objects, "secrets") == [may_create, named, may_create, OWN_SECRET]
    assert rules_about(rendered("system", security__signedFence="false"), "secrets") == []
    nodes = rules_about(rendered("system", rbac__readNodes="true"), "nodes")
    assert nodes == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]


def test_prometheus_finds_the_operators_metrics_by_label_and_port_name() -> None:
    objects = rendered("system", metrics__podMonitor="true")
    monitor, operator = one(objects, "PodMonitor"), one(objects, "StatefulSet")
    [service] = [item for item in of_kind(objects, "Service") if item["metadata"]["name"].endswith("-metrics")]
    template = operator["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}

    assert template["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    assert {item["metadata"]["namespace"] for item in (monitor, operator, service)} == {"system"}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["path"], endpoint["honorLabels"]) == ("/metrics", True)
    assert template["metadata"]["labels"].items() >= service["spec"]["selector"].items()
    [served] = [port for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
    assert ports[endpoint["port"]] == ports[served["targetPort"]] == served["port"]
    assert f"--metrics-listen=[::]:{served['port']}" in template["spec"]["containers"][0]["args"]


def test_prometheus_finds_the_brokers_exporters_by_label_and_port_name() -> None:
    objects = rendered("system", metrics__brokerPodMonitor="true", watch__namespace="served")
    monitor = one(objects, "PodMonitor")
    metadata = {"name": "orders", "namespace": "served", "uid": "u"}
    spec = {"implementation": "Java", "monitoring": {"exporter": True}}
    group = msgspec.convert({"metadata": metadata, "spec": spec}, BrokerGroup)
    pod = build_pod(group, Member(broker_id=1, pod="orders-1"), ReconcileSettings(controller_addresses=("a:1",)))

    assert pod["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["served"]}
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert ports[monitor["spec"]["podMetricsEndpoints"][0]["port"]] == 5557
    everywhere = one(rendered("system", metrics__brokerPodMonitor="true"), "PodMonitor")
    assert everywhere["spec"]["namespaceSelector"] == {"any": True}


def test_cert_manager_writes_the_secret_that_is_mounted() -> None:
    values = {
        "security__tls__secretName": "controller-tls",
        "security__tls__certManager__create": "true",
        "security__tls__certManager__issuerRef__name": "ours",
    }
    spec = one(rendered("system", **values), "Certificate")["spec"]
    assert spec["secretName"] == "controller-tls"
    assert spec["issuerRef"] == {"name": "ours", "kind": "Issuer"}
    assert spec["privateKey"]["encoding"] == "PKCS8"
    assert len(spec["dnsNames"]) == 3


@pytest.mark.parametrize("create", ["true", "false"])
def test_where_no_server_is_asked_the_steps_from_v1alpha1_come_first(create: str) -> None:
    """Argo CD renders so, and would replace the operator by one that can't read its groups."""
    before, after = "brokergroup.dev/v1alpha1", "brokergroup.dev/v1beta1"
    with pytest.raises(ValueError, match=r"take the steps of docs/tasks/upgrade\.md"):
        helm.template("shop", capabilities=(before,), crds__create=create)
    assert helm.template("shop", capabilities=(before, after), crds__create=create)


def test_the_kinds_outlive_the_release_and_can_be_left_out() -> None:
    kinds = of_kind(rendered("system"), "CustomResourceDefinition")
    assert len(kinds) >= 2
    assert all(kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for kind in kinds)
    assert not of_kind(rendered("system", crds__create="false"), "CustomResourceDefinition")


@pytest.mark.parametrize(
    ("brokers", "word"),
    [
        ({"images": [{"version": "latest", "image": "a/b:1"}]}, "/brokers/images/0/version"),
        ({"images": [{"version": "5.5.0"}]}, "/brokers/images/0"),
        ({"images": [{"version": "5.3.3", "image": "a/b:1"}], "onlyListedVersions": True}, "brokers.version is 5.5.0"),
        ({"onlyListedVersions": True}, "brokers.version is 5.5.0"),
        ({"images": [{"version": "5.3.3", "image": "a/b:1"}] * 2}, "brokers.images lists 5.3.3 twice"),
        ({"images": [{"version": "5.3.3", "image": "a/b: 1"}]}, "/brokers/images/0/image"),
        ({"version": "latest"}, "/brokers/version"),
        ({"version": "5.1.2"}, "/brokers/version"),
        ({"version": "5.0.0"}, "/brokers/version"),
    ],
)
def test_a_catalogue_that_nothing_could_run_by_is_refused(brokers: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        rendered("system", values_file={"brokers": brokers})


BAD_VALUES: dict[str, tuple[dict[str, str], str]] = {
    "too few": ({"replicaCount": "0"}, "replicaCount"),
    "unknown value": ({"replicas": "3"}, "replicas"),
    "too short": ({"leaseSeconds": "2"}, "leaseSeconds"),
    "no Lease": ({"leaseName": "Bad_Name"}, "leaseName"),
    "a path in place of an address": ({"metrics__runbooks": "docs/runbooks"}, "runbooks"),
    "privileged port": ({"metrics__port": "80"}, "metrics"),
    "client certificates without TLS": (
        {"security__tls__clientCertificates": "required"},
        "security.tls.secretName is empty",
    ),
    "no mode": ({"security__tls__secretName": "x", "security__tls__mode": "off"}, "mode"),
    "nobody is asked for a certificate": (
        {"security__tls__secretName": "x", "security__admin__certificateNames": "{admin}"},
        "certificateNames: expected security.tls.clientCertificates",
    ),
    "no issuer": (
        {"security__tls__secretName": "x", "security__tls__certManager__create": "true"},
        "issuerRef.name",
    ),
    "one port for two": ({"controller__port": "9879"}, "controller.port and metrics.port are both 9879"),
    "no family": ({"network__ipFamilies": "{IPv5}"}, "/network/ipFamilies/0"),
    "one family twice": ({"network__ipFamilies": "{IPv6,IPv6}"}, "/network/ipFamilies"),
    "no policy": ({"network__ipFamilyPolicy": "DualStack"}, "/network/ipFamilyPolicy"),
    "no name": ({"nameOverride": "My_Operator"}, "nameOverride"),
    "no label": ({"fullnameOverride": "operator.eu"}, "fullnameOverride"),
}


@pytest.mark.parametrize(("values", "word"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_bad_values_are_refused_and_named(values: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        helm.template("system", **values)


@pytest.mark.real("prometheus")
def test_the_alerts_are_valid_and_ask_for_metrics_that_exist() -> None:
    source = helm.CHART / "files" / "alerts.yaml"
    done = prometheus.promtool("check", "rules", str(source))
    assert done.returncode == 0, done.stderr
    in_chart = one(rendered("system", metrics__prometheusRule="true"), "PrometheusRule")
    assert in_chart["spec"] == yaml.safe_load(source.read_text(encoding="utf-8"))
    elsewhere = rendered("system", metrics__prometheusRule="true", metrics__runbooks="https://wiki.example/rocketmq/")
    for rule in one(elsewhere, "PrometheusRule")["spec"]["groups"][0]["rules"]:
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example/rocketmq/{rule['alert']}.md"
        assert "runbook" not in rule["annotations"]
    for rule in in_chart["spec"]["groups"][0]["rules"]:
        assert "runbook_url" not in rule["annotations"], "an alert needs a full link, not a path"
        assert any(name in rule["expr"] for name in metric_names.METRICS), rule["alert"]
