"""The operator's pod as the chart makes it: the command understands its arguments, and values reach it."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from brokergroup_operator.cli.main import app
from brokergroup_operator.cli.operator_command import OperatorOptions
from brokergroup_operator.kubectl import operator_pods
from tests.real.parts.helm import of_kind, one, rendered
from tests.real.test_chart import VARIANTS, rules

pytestmark = pytest.mark.real("helm")

SECURED = {name: value.format() for name, value in VARIANTS["secured"].items()}


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = one(objects, "StatefulSet")["spec"]["template"]["spec"]
    return found


def arguments_of(objects: list[dict[str, Any]]) -> list[str]:
    words: list[str] = pod_of(objects)["containers"][0]["args"]
    assert words[0] == "operator"
    return words[1:]


def parsed(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """What the command's own parser reads from the arguments."""
    command = typer.main.get_group(app).commands["operator"]
    found: dict[str, Any] = command.make_context("operator", arguments_of(objects)).params
    return found


def mounted(objects: list[dict[str, Any]]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in pod_of(objects)["containers"][0]["volumeMounts"]}


OTHER = {"watch__namespace": "served", "replicaCount": "1", "leaseSeconds": "30", "leaseName": "mine"}


@pytest.mark.parametrize("values", [{}, OTHER | {"maxGroupsRolling": "0"}, SECURED], ids=["none", "other", "secured"])
def test_the_operator_understands_its_command_line(values: dict[str, str]) -> None:
    read = parsed(rendered("system", **values))
    assert read["namespace"] == values.get("watch__namespace")
    assert len(read["controller_addresses"]) == int(values.get("replicaCount", "3"))
    assert read["lease_name"] == values.get("leaseName", "bg-brokergroup-operator")
    assert read["lease_seconds"] == int(values.get("leaseSeconds", "3"))
    assert read["max_groups_rolling"] == int(values.get("maxGroupsRolling", "1"))


def test_two_releases_in_one_namespace_have_a_lease_each_and_may_write_no_other() -> None:
    """Both would take one fixed name, and one pod of the two releases reconcile."""
    leases = []
    for release in ("bg", "blue"):
        objects = rendered("system", release=release)
        [name] = [one.partition("=")[2] for one in arguments_of(objects) if one.startswith("--lease-name=")]
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
    [container] = pod_of(rendered("system", **values))["containers"]
    assert {"name": "HTTPS_PROXY", "value": "proxy:3128"} in container["env"]


def test_what_is_secured_reaches_the_command_line_and_the_pod() -> None:
    objects = rendered("system", **SECURED)
    read, folders = parsed(objects), mounted(objects)
    assert read["tls_mode"].value == "enforcing"
    assert read["tls_client_certificates"].value == "required"
    assert {str(read[f"tls_{one}"]) for one in ("certificate", "key", "ca")} == {
        f"{folders['tls']}/{file}" for file in ("tls.crt", "tls.key", "ca.crt")
    }
    assert str(read["admin_credentials"]) == folders["admin"]
    assert read["admin_certificate_names"] == ["admin.example"]
    for flag in ("broker_tls", "name_server_tls", "configuration_readable", "brokers_without_pods"):
        assert read[flag] is True
    assert read["drain_seconds"] == 6
    assert read["max_groups_rolling"] == 1
    volumes = pod_of(objects)["volumes"]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert secrets == {"tls": "controller-tls", "admin": "administrator"}


def test_the_operator_trusts_a_bundle_in_place_of_its_secrets_authority() -> None:
    """While an authority changes it must accept both, and cert-manager's ca.crt has one."""
    bundle = {"configMapName": "authorities", "key": "ca-bundle.crt"}
    values = {f"security__tls__trustBundle__{name}": value for name, value in bundle.items()}
    objects = rendered("system", security__tls__secretName="controller-tls", **values)
    assert f"--tls-ca={mounted(objects)['trust']}/ca-bundle.crt" in arguments_of(objects)
    [volume] = [one for one in pod_of(objects)["volumes"] if one["name"] == "trust"]
    assert volume["configMap"] == {"name": "authorities"}


def test_without_a_word_nothing_is_opened_and_nothing_mounted() -> None:
    objects = rendered("system")
    read = parsed(objects)
    assert not any(read[flag] for flag in ("configuration_readable", "brokers_without_pods", "broker_tls"))
    assert read["admin_credentials"] is None
    assert not [volume for volume in pod_of(objects)["volumes"] if "secret" in volume]


def test_the_incident_log_outlives_its_pod_where_it_is_given_a_volume() -> None:
    plain = rendered("system")
    assert "volumeClaimTemplates" not in one(plain, "StatefulSet")["spec"]
    assert {"name": "incidents", "emptyDir": {}} in pod_of(plain)["volumes"]
    kept = rendered("system", incidentLog__storage="100Mi", incidentLog__storageClassName="fast")
    [claim] = one(kept, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert (claim["metadata"]["name"], claim["spec"]["storageClassName"]) == ("incidents", "fast")
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Mi"
    assert "incidents" not in [volume["name"] for volume in pod_of(kept)["volumes"]]


def test_one_pod_alone_has_nobody_to_send_brokers_to() -> None:
    assert "--drain-seconds=0" in arguments_of(rendered("system", replicaCount="1"))


@pytest.mark.parametrize("values", [{}, {"nameOverride": "theirs"}, {"fullnameOverride": "theirs"}])
def test_the_plugin_finds_the_operators_pods_whatever_the_release_calls_them(values: dict[str, str]) -> None:
    spec = one(rendered("system", release="any", **values), "StatefulSet")["spec"]
    key, _, value = operator_pods.SELECTOR.partition("=")
    assert spec["template"]["metadata"]["labels"][key] == value
    # What a StatefulSet selects by can't be changed later: it stays out of there.
    assert key not in spec["selector"]["matchLabels"]


def test_the_pod_is_restricted() -> None:
    pod = pod_of(rendered("system"))
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
    arguments = arguments_of(rendered("system", values_file={"brokers": listed | {"onlyListedVersions": True}}))
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


def test_the_page_is_on_the_pods_loopback_alone_unless_it_asks_for_tokens() -> None:
    def page(**values: str) -> tuple[list[str], list[str], set[str]]:
        objects = rendered("shop", **values)
        services = [one["metadata"]["name"] for one in of_kind(objects, "Service")]
        resources = {resource for rule in rules(objects, "ClusterRole") for resource in rule["resources"]}
        return (
            [one for one in arguments_of(objects) if "page" in one],
            [name for name in services if name.endswith("-page")],
            {one for one in resources if one.endswith("reviews")},
        )

    assert page() == (["--page-listen=127.0.0.1:9880", "--page-access=open"], [], set())
    assert page(page__enabled="false") == ([], [], set())
    arguments, services, reviews = page(page__access="kubernetes")
    assert arguments == ["--page-listen=[::]:9880", "--page-access=kubernetes"]
    assert len(services) == 1
    assert reviews == {"tokenreviews", "subjectaccessreviews"}
    arguments, services, reviews = page(page__access="token", page__tokenSecretName="page")
    assert "--page-token-file=/etc/brokergroup/page/token" in arguments
    assert not reviews


def test_the_kubelet_waits_for_longer_than_a_pod_refers_brokers_to_another_one() -> None:
    """With 30 s and the default of 20 it was killed in the middle: the incident log was not written, the Lease not given back."""
    said = r"terminationGracePeriodSeconds is 20: expected 38 or more, 8 beyond controller.drainSeconds \(30\)"
    with pytest.raises(ValueError, match=said):
        rendered("system", controller__drainSeconds="30")
    assert rendered("system", controller__drainSeconds="30", terminationGracePeriodSeconds="38")
    assert rendered("system", controller__drainSeconds="30", replicaCount="1")
