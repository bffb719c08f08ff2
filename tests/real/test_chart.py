"""The chart: lints strictly, renders what the real kube-apiserver accepts, and asks for no right it does not need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import typer
import yaml

import metric_names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.cli.main import app
from brokergroup_operator.cli.operator_command import OperatorOptions
from brokergroup_operator.kubectl import operator_pods
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.settings import ReconcileSettings
from tests.real.parts import helm, prometheus

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


def rendered(namespace: str, **values: Any) -> list[dict[str, Any]]:
    return helm.objects(helm.template(namespace, **values))


def rules(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [rule for item in objects if item["kind"] == kind for rule in item["rules"]]


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
        place = (
            f"at '/{where.replace('__', '/')}': missing property '{name}'"
            if where
            else f"at '': missing property '{name}'"
        )
        assert place in str(refusal)  # noqa: PT017 - most are refused; a map of anything may be taken away


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
    roles = {item["metadata"]["name"]: item for item in rendered("system") if item["kind"] == "ClusterRole"}
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
    services = [item["spec"] for item in objects if item["kind"] == "Service"]
    assert len(services) >= 4
    for spec in services:
        assert {key: value for key, value in spec.items() if key.startswith("ipFamil")} == families
    stateful_set = next(item for item in objects if item["kind"] == "StatefulSet")
    arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--listen=[::]:9878", "--metrics-listen=[::]:9879"} <= set(arguments)


def test_the_operator_understands_its_command_line() -> None:
    command = typer.main.get_group(app).commands["operator"]
    variants: tuple[dict[str, str], ...] = (
        {},
        {
            "watch__namespace": "served",
            "replicaCount": "1",
            "leaseSeconds": "30",
            "leaseName": "mine",
            "maxGroupsRolling": "0",
        },
        VARIANTS["secured"],
    )
    for values in ({name: value.format() for name, value in variant.items()} for variant in variants):
        stateful_set = next(item for item in rendered("system", **values) if item["kind"] == "StatefulSet")
        name, *arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
        assert name == "operator"
        parsed = command.make_context(name, arguments).params
        assert parsed["namespace"] == values.get("watch__namespace")
        assert len(parsed["controller_addresses"]) == int(values.get("replicaCount", "3"))
        assert parsed["lease_name"] == values.get("leaseName", "bg-brokergroup-operator")
        assert parsed["lease_seconds"] == int(values.get("leaseSeconds", "3"))
        assert parsed["max_groups_rolling"] == int(values.get("maxGroupsRolling", "1"))


def test_two_releases_in_one_namespace_have_a_lease_each_and_may_write_no_other() -> None:
    """Both would take one fixed name, and one pod of the two releases reconcile."""
    leases = []
    for release in ("bg", "blue"):
        objects = helm.objects(helm.template("system", release=release))
        [stateful_set] = [item for item in objects if item["kind"] == "StatefulSet"]
        arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
        [name] = [one.removeprefix("--lease-name=") for one in arguments if one.startswith("--lease-name=")]
        writable = [
            rule["resourceNames"]
            for rule in rules(objects, "Role")
            if rule["resources"] == ["leases"] and "resourceNames" in rule
        ]
        assert writable == [[name]]
        leases.append(name)
    assert leases == ["bg-brokergroup-operator", "blue-brokergroup-operator"]


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


def test_the_operator_trusts_a_bundle_in_place_of_its_secrets_authority() -> None:
    """While an authority changes it must accept both, and cert-manager's ca.crt has one."""
    bundle = {"configMapName": "authorities", "key": "ca-bundle.crt"}
    values = {"security__tls__secretName": "controller-tls"} | {
        f"security__tls__trustBundle__{name}": value for name, value in bundle.items()
    }
    stateful_set = next(item for item in rendered("system", **values) if item["kind"] == "StatefulSet")
    pod = stateful_set["spec"]["template"]["spec"]
    mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert f"--tls-ca={mounted['trust']}/ca-bundle.crt" in pod["containers"][0]["args"]
    [volume] = [one for one in pod["volumes"] if one["name"] == "trust"]
    assert volume["configMap"] == {"name": "authorities"}


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


def test_the_kubelet_waits_for_longer_than_a_pod_refers_brokers_to_another_one() -> None:
    """With 30 s and the default of 20 it was killed in the middle: the incident log was not written, the Lease not given back."""
    said = r"terminationGracePeriodSeconds is 20: expected 38 or more, 8 beyond controller.drainSeconds \(30\)"
    with pytest.raises(ValueError, match=said):
        rendered("system", controller__drainSeconds="30")
    assert rendered("system", controller__drainSeconds="30", terminationGracePeriodSeconds="38")
    assert rendered("system", controller__drainSeconds="30", replicaCount="1")


def test_the_operator_may_get_the_named_secrets_and_no_others() -> None:
    objects = rendered("system", security__groupSecretNames="{orders-credentials,payments-credentials}")
    found = [
        rule for rule in [*rules(objects, "ClusterRole"), *rules(objects, "Role")] if "secrets" in rule["resources"]
    ]
    may_create = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
    assert found == [
        may_create,
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["orders-credentials", "payments-credentials"],
            "verbs": ["get"],
        },
        may_create,
        OWN_SECRET,
    ]
    without = rendered("system", security__signedFence="false")
    assert not [
        rule for rule in [*rules(without, "ClusterRole"), *rules(without, "Role")] if "secrets" in rule["resources"]
    ]
    nodes = [
        rule
        for rule in rules(rendered("system", rbac__readNodes="true"), "ClusterRole")
        if "nodes" in rule["resources"]
    ]
    assert nodes == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]


def test_prometheus_finds_the_operators_metrics_by_label_and_port_name() -> None:
    objects = rendered("system", metrics__podMonitor="true")
    [monitor] = [item for item in objects if item["kind"] == "PodMonitor"]
    [operator] = [item for item in objects if item["kind"] == "StatefulSet"]
    [service] = [
        item for item in objects if item["kind"] == "Service" and item["metadata"]["name"].endswith("-metrics")
    ]
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
    [monitor] = [item for item in objects if item["kind"] == "PodMonitor"]
    metadata = {"name": "orders", "namespace": "served", "uid": "u"}
    spec = {"implementation": "Java", "monitoring": {"exporter": True}}
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


@pytest.mark.parametrize("create", ["true", "false"])
def test_where_no_server_is_asked_the_steps_from_v1alpha1_come_first(create: str) -> None:
    """Argo CD renders so, and would replace the operator by one that can't read its groups."""
    before, after = "brokergroup.dev/v1alpha1", "brokergroup.dev/v1beta1"
    with pytest.raises(ValueError, match=r"take the steps of docs/tasks/upgrade\.md"):
        helm.template("shop", capabilities=(before,), crds__create=create)
    assert helm.template("shop", capabilities=(before, after), crds__create=create)


def test_the_kinds_outlive_the_release_and_can_be_left_out() -> None:
    kinds = [item for item in rendered("system") if item["kind"] == "CustomResourceDefinition"]
    assert len(kinds) >= 2
    assert all(kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for kind in kinds)
    without = rendered("system", crds__create="false")
    assert not [item for item in without if item["kind"] == "CustomResourceDefinition"]


@pytest.mark.parametrize("values", [{}, {"nameOverride": "theirs"}, {"fullnameOverride": "theirs"}])
def test_the_plugin_finds_the_operators_pods_whatever_the_release_calls_them(values: dict[str, Any]) -> None:
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


def test_a_catalogue_of_versions_is_what_the_operator_takes() -> None:
    digest = "registry.example/rocketmq@sha256:" + "a" * 64
    listed = {"images": [{"version": "5.5.0", "image": digest}, {"version": "5.3.3", "image": "b/c:5.3.3"}]}
    objects = rendered("system", values_file={"brokers": listed | {"onlyListedVersions": True}})
    stateful_set = next(item for item in objects if item["kind"] == "StatefulSet")
    _, *arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
    found = [one for one in arguments if "rocketmq-image=" in one or "listed" in one]
    assert found == [
        f"--rocketmq-image=5.5.0={digest}",
        "--rocketmq-image=5.3.3=b/c:5.3.3",
        "--only-listed-versions",
    ]
    options = OperatorOptions(
        controller_addresses=["a:1"],
        rocketmq_images=[one.partition("=")[2] for one in found[:2]],
        only_listed_versions=True,
    )
    assert options.catalogue().image("5.5.0") == digest
    assert options.catalogue().choice == {"5.5.0", "5.3.3"}


@pytest.mark.parametrize(
    ("brokers", "word"),
    [
        ({"images": [{"version": "latest", "image": "a/b:1"}]}, "/brokers/images/0/version"),
        ({"images": [{"version": "5.5.0"}]}, "/brokers/images/0"),
        ({"images": [{"version": "5.3.3", "image": "a/b:1"}], "onlyListedVersions": True}, "brokers.version is 5.5.0"),
        ({"onlyListedVersions": True}, "brokers.version is 5.5.0"),
        (
            {"images": [{"version": "5.3.3", "image": one} for one in ("a/b:1", "a/b:2")]},
            "brokers.images lists 5.3.3 twice",
        ),
        ({"images": [{"version": "5.3.3", "image": "a/b: 1"}]}, "/brokers/images/0/image"),
        ({"version": "latest"}, "/brokers/version"),
        ({"version": "5.1.2"}, "/brokers/version"),
        ({"version": "5.0.0"}, "/brokers/version"),
    ],
)
def test_a_catalogue_that_nothing_could_run_by_is_refused(brokers: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        rendered("system", values_file={"brokers": brokers})


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replicaCount": "0"}, "replicaCount"),
        ({"replicas": "3"}, "replicas"),
        ({"leaseSeconds": "2"}, "leaseSeconds"),
        ({"leaseName": "Bad_Name"}, "leaseName"),
        ({"metrics__runbooks": "docs/runbooks"}, "runbooks"),
        ({"metrics__port": "80"}, "metrics"),
        ({"security__tls__clientCertificates": "required"}, "security.tls.secretName is empty"),
        ({"security__tls__secretName": "x", "security__tls__mode": "off"}, "mode"),
        (
            {"security__tls__secretName": "x", "security__admin__certificateNames": "{admin}"},
            "certificateNames: expected security.tls.clientCertificates",
        ),
        ({"security__tls__secretName": "x", "security__tls__certManager__create": "true"}, "issuerRef.name"),
        ({"controller__port": "9879"}, "controller.port and metrics.port are both 9879"),
        ({"network__ipFamilies": "{IPv5}"}, "/network/ipFamilies/0"),
        ({"network__ipFamilies": "{IPv6,IPv6}"}, "/network/ipFamilies"),
        ({"network__ipFamilyPolicy": "DualStack"}, "/network/ipFamilyPolicy"),
        ({"nameOverride": "My_Operator"}, "nameOverride"),
        ({"fullnameOverride": "operator.eu"}, "fullnameOverride"),
    ],
    ids=[
        *(
            "too few",
            "unknown value",
            "too short",
            "no Lease",
            "a path in place of an address",
            "privileged port",
            "client certificates without TLS",
            "no mode",
        ),
        *(
            "nobody is asked for a certificate",
            "no issuer",
            "one port for two",
            "no family",
            "one family twice",
            "no policy",
            "no name",
            "no label",
        ),
    ],
)
def test_bad_values_are_refused_and_named(values: dict[str, Any], word: str) -> None:
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
        assert "runbook" not in rule["annotations"]
    for rule in in_chart["spec"]["groups"][0]["rules"]:
        assert "runbook_url" not in rule["annotations"], "an alert needs a full link, not a path"
        assert any(name in rule["expr"] for name in metric_names.METRICS), rule["alert"]


def test_the_page_is_on_the_pods_loopback_alone_unless_it_asks_for_tokens() -> None:
    def page(**values: str) -> tuple[list[str], list[str], set[str]]:
        objects = rendered("shop", **values)
        [operator] = [one for one in objects if one["kind"] == "StatefulSet"]
        arguments = [one for one in operator["spec"]["template"]["spec"]["containers"][0]["args"] if "page" in one]
        services = [one["metadata"]["name"] for one in objects if one["kind"] == "Service"]
        reviews = {
            resource
            for one in objects
            if one["kind"] == "ClusterRole"
            for rule in one.get("rules") or []
            for resource in rule["resources"]
            if resource.endswith("reviews")
        }
        return arguments, [name for name in services if name.endswith("-page")], reviews

    assert page() == (["--page-listen=127.0.0.1:9880", "--page-access=open"], [], set())
    assert page(page__enabled="false") == ([], [], set())
    arguments, services, reviews = page(page__access="kubernetes")
    assert arguments == ["--page-listen=[::]:9880", "--page-access=kubernetes"]
    assert len(services) == 1
    assert reviews == {"tokenreviews", "subjectaccessreviews"}
    arguments, services, reviews = page(page__access="token", page__tokenSecretName="page")
    assert "--page-token-file=/etc/brokergroup/page/token" in arguments
    assert not reviews
