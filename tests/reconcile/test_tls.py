"""spec.tls: what pods are made with, and how a group and a whole cluster change to it."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.controller.directory.group_directory import binding_of
from brokergroup_operator.fence.settings import FenceSettings
from brokergroup_operator.kube.errors import InvalidError, NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUPS, DEPLOYMENTS, PODS, STATEFUL_SETS
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.decide import tls_order
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import ApplyObject, DeleteObject, SwitchMaster
from brokergroup_operator.reconcile.render import certificate, proxy_config
from brokergroup_operator.reconcile.render.pods import build_pod
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cluster_place import Place

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.settings import ReconcileSettings

SERVED = replace(b.SETTINGS, controller_tls=True, controller_authority="PEM\n")
JAVA = {"implementation": "Java", "nameServers": ["ns:9876"]}
MODES = ("Permissive", "Enforcing")


def tls(mode: str = "Permissive", secret: str = "shop-tls") -> dict[str, Any]:
    return {"certificateSecretRef": {"name": secret}, "mode": mode}


# ---- what is rendered


@pytest.mark.parametrize("mode", MODES)
def test_a_broker_serves_the_secrets_certificate_and_verifies_once_it_enforces(mode: str) -> None:
    pod = build_pod(b.group(**JAVA, tls=tls(mode)), b.member(2), SERVED)
    both = b.containers(pod)
    assert {"name": names.VOLUME_TLS, "secret": {"secretName": "shop-tls", "defaultMode": 0o440}} in pod["spec"][
        "volumes"
    ]
    mount = {"name": names.VOLUME_TLS, "mountPath": names.TLS_DIR, "readOnly": True}
    assert all(mount in both[name]["volumeMounts"] for name in ("broker", "fence"))
    assert {"name": "TLS_DIR", "value": names.TLS_DIR} in both["broker"]["env"]
    assert pod["metadata"]["annotations"][names.ANNOTATION_TLS] == mode
    shell = both["broker"]["command"][-1]
    assert f"-Dtls.server.mode={mode.lower()} " in shell
    for argument in (
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        '-Dtls.server.certPath="$TLS_DIR/tls.crt"',
        '-Dtls.server.keyPath="$TLS_DIR/tls.key"',
    ):
        assert argument in shell
    verifies = '-Dtls.client.authServer=true -Dtls.client.trustCertPath="$TLS_DIR/ca.crt"'
    assert (verifies in shell) == (mode == "Enforcing")


def test_without_it_nothing_of_a_pod_changes() -> None:
    assert "tls" not in json.dumps(build_pod(b.group(**JAVA), b.member(2), b.SETTINGS)).lower()
    pod = build_pod(b.group(**JAVA), b.member(2), SERVED)
    assert "tls" not in json.dumps(b.containers(pod)["broker"]).lower()
    assert {one["name"] for one in b.containers(pod)["fence"]["env"] if "TLS" in one["name"]} == {
        "FENCE_CONTROLLER_TLS"
    }
    assert names.ANNOTATION_TLS not in pod["metadata"]["annotations"]
    assert names.VOLUME_TLS not in {one["name"] for one in pod["spec"]["volumes"]}


def test_the_fence_reaches_a_broker_that_enforces_and_shows_the_groups_certificate() -> None:
    pod = build_pod(b.group(**JAVA, tls=tls("Enforcing")), b.member(2), SERVED)
    told = {entry["name"]: str(entry.get("value", "10.0.0.2")) for entry in b.containers(pod)["fence"]["env"]}
    told |= {"FENCE_BROKER_ADDRESS": "10.0.0.2:10911", "FENCE_LOCAL_ADDRESS": "10.0.0.2:10911"}
    settings = FenceSettings.from_environment(told)
    assert settings.broker_tls is not None
    assert settings.controller_tls is not None
    assert str(settings.controller_tls.certificate) == f"{names.TLS_DIR}/tls.crt"


def test_a_certificate_for_controllers_is_shown_to_servers_and_not_served() -> None:
    own = {"security": {"certificateSecretRef": {"name": "orders-certificate"}}}
    shell = b.containers(build_pod(b.group(**JAVA, **own, tls=tls()), b.member(2), SERVED))["broker"]["command"][-1]
    assert '-Dtls.client.certPath="$CERTIFICATE_DIR/tls.crt"' in shell
    assert '-Dtls.server.certPath="$TLS_DIR/tls.crt"' in shell


def test_the_proxy_in_a_brokers_process_serves_it_too_and_looks_for_a_renewed_one() -> None:
    group = b.group(**JAVA, localProxy={"config": {"tlsTestModeEnable": "true"}}, tls=tls())
    settings = json.loads(proxy_config.local_mode(group.spec))
    assert settings["tlsTestModeEnable"] is False, "it overrides the broker's"
    assert (settings["tlsCertPath"], settings["tlsKeyPath"]) == (f"{names.TLS_DIR}/tls.crt", f"{names.TLS_DIR}/tls.key")
    assert settings["tlsCertWatchIntervalMs"] <= 10_000


def test_a_container_restarts_before_its_turn_while_the_proxy_in_it_changes_to_tls() -> None:
    """A pod without TLS has no folder with the certificate: with that in its rmq-proxy.json its Proxy would crash at each start."""
    proxy: dict[str, Any] = JAVA | {"localProxy": {}}
    before = c.settled(**proxy)
    seen = c.wishing(before, **proxy, tls=tls())
    name = names.config_map_name("orders")
    actions = evaluate(seen, SERVED, now=b.NOW).actions
    [made] = [
        one.object["data"] for one in actions if isinstance(one, ApplyObject) and one.object["kind"] == "ConfigMap"
    ]
    [old] = {file for pod in before.pods.values() if (file := proxy_file_of(pod))}
    assert made[old] == before.config_maps[name]["data"][old]
    new = proxy_file_of(build_pod(seen.group, b.member(2), SERVED))
    assert json.loads(made[new])["tlsCertPath"] == f"{names.TLS_DIR}/tls.crt"


def proxy_file_of(pod: dict[str, Any]) -> str:
    """The configuration with which the pod starts its Proxy."""
    [found] = re.findall(r'-pc "\$CONFIG_DIR/([^"]+)"', b.containers(pod)["broker"]["command"][-1])
    return str(found)


@pytest.mark.parametrize("mode", MODES)
def test_name_servers_and_proxies_have_the_same_secret(mode: str) -> None:
    cluster = b.cluster(tls=tls(mode), proxy={"replicas": 1})
    made = [*parts.name_servers(cluster, SERVED), *parts.proxies(cluster, SERVED)]
    templates = [one["spec"]["template"] for one in made if "template" in (one.get("spec") or {})]
    assert len(templates) == 2
    for template in templates:
        assert template["metadata"]["annotations"][names.ANNOTATION_TLS] == mode
        assert {"name": names.VOLUME_TLS, "secret": {"secretName": "shop-tls", "defaultMode": 0o440}} in (
            template["spec"]["volumes"]
        )
        shell = template["spec"]["containers"][0]["command"][-1]
        assert f"-Dtls.server.mode={mode.lower()} " in shell
        assert ("-Dtls.client.authServer=true" in shell) == (mode == "Enforcing")
    [config] = [one["data"] for one in made if one["kind"] == "ConfigMap"]
    assert json.loads(config[names.PROXY_TLS_CONFIG_FILE])["tlsTestModeEnable"] is False
    [proxy] = [one["spec"]["template"] for one in made if one["kind"] == "Deployment"]
    assert proxy["spec"]["containers"][0]["command"][-1].endswith(f"-pc /etc/rocketmq/{names.PROXY_TLS_CONFIG_FILE}")


def test_a_proxy_that_starts_again_before_its_turn_reads_what_it_was_made_with() -> None:
    """It mounts no certificate yet; with one in its configuration it would crash at each start."""
    clusters = (b.cluster(proxy={"replicas": 1}, **more) for more in ({}, {"tls": tls()}))
    before, after = ({one["kind"]: one for one in parts.proxies(cluster, SERVED)} for cluster in clusters)
    assert before["ConfigMap"]["data"] == after["ConfigMap"]["data"], "both ways"
    [file] = re.findall(
        r"-pc /etc/rocketmq/(\S+)", before["Deployment"]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    )
    assert "tlsCertPath" not in json.loads(after["ConfigMap"]["data"][file])


# ---- a group


def seen_with(
    wanted: dict[str, Any] | None, made: list[dict[str, Any] | None], settings: ReconcileSettings = SERVED
) -> Any:
    """A settled group that wants this, and whose pods were made with those."""
    seen = b.settled(**JAVA, **({"tls": wanted} if wanted else {}))
    pods = {}
    for number, (name, pod) in enumerate(sorted(seen.pods.items())):
        spec = made[number]
        built = build_pod(b.group(**JAVA, **({"tls": spec} if spec else {})), b.member(number + 1), settings)
        # The annotation decides nothing: a user with the right to edit pods can remove it.
        annotations = {
            key: text for key, text in built["metadata"]["annotations"].items() if key != names.ANNOTATION_TLS
        }
        pods[name] = pod | {
            "metadata": pod["metadata"] | {"annotations": annotations},
            "spec": built["spec"],
        }
    return replace(seen, pods=pods)


@pytest.mark.parametrize(
    ("wanted", "made", "now"),
    [
        ("Enforcing", [None, None, None], "Permissive"),
        ("Enforcing", ["Permissive", None, "Permissive"], "Permissive"),
        ("Enforcing", ["Permissive", "Permissive", "Permissive"], "Enforcing"),
        ("Enforcing", ["Enforcing", "Permissive", "Permissive"], "Enforcing"),
        (None, ["Enforcing", "Enforcing", "Enforcing"], "Permissive"),
        (None, ["Permissive", "Enforcing", "Permissive"], "Permissive"),
        (None, ["Permissive", "Permissive", None], None),
    ],
)
def test_a_group_goes_one_step_while_a_pod_is_behind(
    wanted: str | None, made: list[str | None], now: str | None
) -> None:
    seen = seen_with(tls(wanted) if wanted else None, [tls(one) if one else None for one in made])
    group = tls_order.with_next_tls(seen, SERVED)
    assert (group.spec.tls.mode if group.spec.tls else None) == now
    if group.spec.tls is not None:
        assert group.spec.tls.certificate_secret_ref.name == "shop-tls"


def replaced(seen: Any, settings: Any) -> set[str]:
    """The pods that a pass deletes to make them anew, or moves the master away from first."""
    actions = evaluate(seen, settings, now=b.NOW).actions
    return {one.target for one in actions if isinstance(one, DeleteObject | SwitchMaster)}


def test_pods_are_replaced_for_each_step_and_for_none_without_an_operator_that_serves_tls() -> None:
    """A broker with TLS is not heard by such an operator: the first one would be lost to the group."""
    assert replaced(seen_with(tls("Enforcing"), [None] * 3), SERVED)
    behind = seen_with(tls("Enforcing"), [None] * 3, b.SETTINGS)
    assert not replaced(behind, b.SETTINGS)
    assert "speak no TLS" in certificate.problem(behind.group, b.SETTINGS)
    assert replaced(seen_with(tls("Enforcing"), [tls()] * 3), SERVED)
    assert not replaced(seen_with(tls("Enforcing"), [tls("Enforcing")] * 3), SERVED)


def test_an_operator_without_tls_takes_it_from_no_group_that_has_it() -> None:
    assert not replaced(seen_with(tls("Enforcing"), [tls("Enforcing")] * 3, b.SETTINGS), b.SETTINGS)


def test_a_group_on_its_way_goes_back_to_none_when_the_operator_serves_tls_no_more() -> None:
    """A pod that comes again would not be heard with TLS, while the members without it are."""
    seen = seen_with(tls("Enforcing"), [tls(), None, None], b.SETTINGS)
    assert tls_order.with_next_tls(seen, b.SETTINGS).spec.tls is None
    lost = replace(seen, pods={name: pod for name, pod in seen.pods.items() if name != "orders-3"})
    assert tls_order.with_next_tls(lost, b.SETTINGS).spec.tls is None


def test_the_directory_knows_how_a_groups_name_servers_are_reached() -> None:
    assert binding_of(b.group_object(**JAVA, tls=tls("Enforcing"))).tls is TlsMode.ENFORCING
    assert binding_of(b.group_object(**JAVA)).tls is None


# ---- a cluster


@pytest.fixture
def place(namespace: tuple[KubernetesApi, str]) -> Place:
    """Under an operator that serves TLS."""
    return Place(*namespace, SERVED)


CLUSTER = {
    "brokerGroups": {"count": 1, "template": {"replicas": 1}},
    "nameServer": {"replicas": 1},
    "proxy": {"replicas": 1},
}
PODS_OF_PARTS = ("shop-nameserver-0", "shop-proxy-x", "shop-0-1")


async def modes(place: Place) -> set[str | None]:
    """With which mode the parts are made now: one for all of them."""
    group = await place.get(BROKER_GROUPS, "shop-0")
    found: set[str | None] = {(group["spec"].get("tls") or {}).get("mode")}
    for resource, name in ((STATEFUL_SETS, "shop-nameserver"), (DEPLOYMENTS, "shop-proxy")):
        found.add((await annotations_of_template(place, resource, name)).get(names.ANNOTATION_TLS))
    return found


async def annotations_of_template(place: Place, resource: Resource, name: str) -> dict[str, str]:
    metadata = (await place.get(resource, name))["spec"]["template"]["metadata"]
    return dict(metadata.get("annotations") or {})


async def pod_is_made(place: Place, name: str, mode: str | None, *, secret: str = "shop-tls", trusts: str = "") -> None:
    """As the controllers of the parts replace their pods."""
    labels = {names.LABEL_BROKER_GROUP: "shop-0"} if name == "shop-0-1" else {names.LABEL_ROCKETMQ_CLUSTER: "shop"}
    container: dict[str, Any] = {"name": "main", "image": "none"}
    spec: dict[str, Any] = {"containers": [container]}
    if mode:
        container["command"] = ["sh", "-c", f"java -Dtls.server.mode={mode.lower()} {trusted_by(trusts)}"]
        spec["volumes"] = [{"name": names.VOLUME_TLS, "secret": {"secretName": secret}}]
    with contextlib.suppress(NotFoundError):
        await place.api.delete(PODS, name, namespace=place.key.namespace, grace_period_seconds=0)
    metadata = {"name": name, "namespace": place.key.namespace, "labels": labels}
    await place.api.create(PODS, {"metadata": metadata, "spec": spec})


def trusted_by(file: str) -> str:
    return f'-Dtls.client.trustCertPath="$TRUST_DIR/{file}"' if file else ""


async def all_are_ready(place: Place) -> None:
    await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 1)
    await place.pods_are_ready(DEPLOYMENTS, "shop-proxy", 1)
    await place.group_is("shop-0", "True")


async def test_a_new_cluster_enforces_from_its_beginning(place: Place) -> None:
    await place.made(**CLUSTER, tls=tls("Enforcing"))
    assert await modes(place) == {"Enforcing"}
    group = await place.get(BROKER_GROUPS, "shop-0")
    assert group["spec"]["tls"] == tls("Enforcing")
    await all_are_ready(place)
    await place.run()
    assert (await place.condition("Ready"))[:2] == ("True", "AllReady")


async def test_a_running_cluster_goes_step_by_step_there_and_back_and_says_what_it_waits_for(place: Place) -> None:
    """A NameServer that enforced at once would shut out every broker that has not been restarted yet."""
    await place.made(**CLUSTER)
    for name in PODS_OF_PARTS:
        await pod_is_made(place, name, None)
    await place.changed({"tls": tls("Enforcing")})
    assert await modes(place) == {"Permissive"}
    for done, name in enumerate(PODS_OF_PARTS):
        await all_are_ready(place)
        await place.run()
        assert await modes(place) == {"Permissive"}
        status, reason, message = await place.condition("Ready")
        assert (status, reason) == ("False", "TlsPending")
        assert message == (
            "spec.tls is on its way to Enforcing, trusts ca.crt: all parts are made with Permissive, and waits for "
            + ", ".join(f"{one} (no TLS)" for one in sorted(PODS_OF_PARTS[done:]))
        )
        await pod_is_made(place, name, "Permissive")
    await place.run()
    assert await modes(place) == {"Enforcing"}
    for name in PODS_OF_PARTS:
        await pod_is_made(place, name, "Enforcing")
    await all_are_ready(place)
    await place.run()
    assert (await place.condition("Ready"))[:2] == ("True", "AllReady")

    await place.changed({"tls": None})
    assert await modes(place) == {"Permissive"}
    template = (await place.get(STATEFUL_SETS, "shop-nameserver"))["spec"]["template"]["spec"]
    [secret] = [one["secret"]["secretName"] for one in template["volumes"] if one["name"] == names.VOLUME_TLS]
    assert secret == "shop-tls"
    for name in PODS_OF_PARTS[:2]:
        await pod_is_made(place, name, "Permissive")
    await place.run()
    assert await modes(place) == {"Permissive"}, "a broker still verifies"
    await pod_is_made(place, PODS_OF_PARTS[2], "Permissive")
    await place.run()
    assert await modes(place) == {None}


async def test_a_wrong_secret_can_be_taken_back(place: Place) -> None:
    """Its pods never start; the ones without TLS still run."""
    await place.made(**CLUSTER)
    for name in PODS_OF_PARTS:
        await pod_is_made(place, name, None)
    await place.changed({"tls": tls("Enforcing", "misspelt")})
    await pod_is_made(place, PODS_OF_PARTS[0], "Permissive")
    await place.changed({"tls": None})
    assert await modes(place) == {None}


async def test_a_group_beyond_count_that_holds_the_next_step_up_is_named_also_without_pods(place: Place) -> None:
    """Its BrokerGroup is left as it is. Without its name the cluster would wait for nothing that the message says."""
    two = CLUSTER | {"brokerGroups": {"count": 2, "template": {"replicas": 1}}}
    await place.made(**two)
    await place.changed({"brokerGroups": {"count": 1}, "tls": tls("Enforcing")})
    for name in PODS_OF_PARTS:
        await pod_is_made(place, name, "Permissive")
    await all_are_ready(place)
    await place.run()
    assert await modes(place) == {"Permissive"}
    status, reason, message = await place.condition("Ready")
    assert (status, reason) == ("False", "TlsPending")
    assert message == (
        "spec.tls is on its way to Enforcing, trusts ca.crt: all parts are made with Permissive, and waits for shop-1"
        " (a group beyond count)"
    )


async def test_no_part_changes_while_the_operator_serves_no_tls(place: Place) -> None:
    plain = Place(place.api, place.key.namespace)
    await plain.made(**CLUSTER, tls=tls("Enforcing"))
    assert await modes(place) == {None}
    status, reason, message = await plain.condition("Stalled")
    assert (status, reason) == ("True", "OperatorWithoutTls")
    assert "security.tls" in message
    assert await plain.events() == ["ClusterOperatorWithoutTls"]
    await place.run()
    assert (await place.condition("Stalled"))[0] == "False"
    assert await modes(place) == {"Permissive"}, "what was made without it may have pods without it"
    await plain.run()
    assert await modes(place) == {"Permissive"}, "and what has it keeps it"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"brokerGroups": {"template": {"tls": tls()}}}, "template.tls must be absent"),
        ({"tls": tls(), "brokerGroups": {"template": {"implementation": "Python"}}}, "tls needs .*implementation Java"),
        ({"tls": {"mode": "Enforcing"}}, "certificateSecretRef"),
        ({"tls": tls("enforcing")}, "mode"),
    ],
)
async def test_a_bad_spec_is_refused_with_its_field(place: Place, spec: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        await place.make(**spec)
