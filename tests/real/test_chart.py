"""The chart: lints strictly, renders what the real kube-apiserver accepts, and asks for no right it does not need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer
import yaml

from brokergroup_operator.cli.main import app
from controller_core import metric_names
from tests.real.parts import helm, prometheus

if TYPE_CHECKING:
    from tests.real.parts.kubernetes_api import KubeApiserver

pytestmark = pytest.mark.real("helm")

VARIANTS: dict[str, dict[str, str]] = {
    "defaults": {},
    "one pod, one namespace": {"replicaCount": "1", "watch__namespace": "{namespace}"},
    "everything on": {"dashboards__create": "true", "networkPolicy__create": "true", "image__tag": "test"},
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
    ]
    assert [right for right in needed if not may(right)] == []
    assert may("create leases", where=namespace)
    refused = [
        *("list secrets", "get secrets", "create pods/exec", "get pods/log", "delete namespaces", "patch nodes"),
        *("create brokergroups", "delete brokergroups", "patch brokergroupstates", "create leases", "escalate roles"),
    ]
    assert [right for right in refused if may(right)] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_rule_has_a_wildcard_a_secret_or_a_shell(variant: str) -> None:
    values = {name: value.format(namespace="served") for name, value in VARIANTS[variant].items()}
    objects = rendered("system", **values)
    every_rule = [*rules(objects, "ClusterRole"), *rules(objects, "Role")]
    assert every_rule
    for rule in every_rule:
        named = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert named.isdisjoint({"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"}), rule


def test_one_namespace_needs_no_cluster_wide_right() -> None:
    objects = rendered("system", watch__namespace="served", rbac__aggregate="false")
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
    for values in ({}, {"watch__namespace": "served", "replicaCount": "1"}):
        stateful_set = next(item for item in rendered("system", **values) if item["kind"] == "StatefulSet")
        name, *arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
        assert name == "operator"
        parsed = command.make_context(name, arguments).params
        assert parsed["namespace"] == values.get("watch__namespace")
        assert len(parsed["controller_addresses"]) == int(values.get("replicaCount", "3"))


def test_the_kinds_outlive_the_release_and_can_be_left_out() -> None:
    kinds = [item for item in rendered("system") if item["kind"] == "CustomResourceDefinition"]
    assert len(kinds) >= 2
    assert all(kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for kind in kinds)
    without = rendered("system", crds__create="false")
    assert not [item for item in without if item["kind"] == "CustomResourceDefinition"]


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
    [({"replicaCount": "0"}, "replicaCount"), ({"replicas": "3"}, "replicas"), ({"metrics__port": "80"}, "metrics")],
    ids=["too few", "unknown value", "privileged port"],
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
    for rule in in_chart["spec"]["groups"][0]["rules"]:
        assert any(name in rule["expr"] for name in metric_names.METRICS), rule["alert"]
