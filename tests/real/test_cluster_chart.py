"""The chart rocketmq-cluster: each layout is a cluster that the API takes, with what the layout promises; a typo is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.brokergroup_status import Durability
from brokergroup_operator.api.durability import acknowledgement_rule
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.resources import BROKER_GROUPS, ROCKETMQ_CLUSTERS
from brokergroup_operator.reconcile.clusters import parts
from tests.our_kinds import api_with_our_kinds
from tests.real.parts import helm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.real("helm")

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "rocketmq-cluster"
PAGE = ROOT / "docs" / "tasks" / "clusters.md"
NAMESPACE = "default"
# Groups, brokers of each, durability, and: on how many brokers a message is before it is acknowledged.
LAYOUTS = {
    "single": (1, 1, Durability.AVAILABLE, 1),
    "multi-master": (2, 1, Durability.AVAILABLE, 1),
    "2m-2s-async": (2, 2, Durability.FAST, 1),
    "2m-2s-sync": (2, 2, Durability.STRICT, 2),
    "replicated": (2, 3, Durability.STRICT, 2),
}
EVERYTHING: dict[str, Any] = yaml.safe_load("""
version: 5.3.3
imagePullPolicy: Always
imagePullSecrets: [{name: registry}]
nameServer: {replicas: 3, resources: {limits: {memory: 1Gi}}}
brokerGroups:
  count: 4
  template:
    replicas: 5
    durability: Available
    storage: {size: 100Gi, storageClassName: fast}
    resources: {requests: {cpu: "1", memory: 4Gi}, limits: {memory: 4Gi}}
    config: {fileReservedTime: "48"}
    security: {signature: Required, credentialsSecretRef: {name: keys}}
    podTemplate: {metadata: {labels: {team: shop}}, spec: {nodeSelector: {disk: nvme}, affinity: {nodeAffinity: {}}}}
    failover: {uncleanElection: Allowed}
  overrides: [{index: 3, replicas: 1, labels: {tenant: small}}]
topics: [{name: orders, queues: 4, messageType: Fifo}]
proxy: {replicas: 2, config: {grpcMaxInboundMessageSize: "1048576"}}
network: {ipFamilies: [IPv6]}
""")


def cluster(release: str = "shop", **options: Any) -> dict[str, Any]:
    [found] = helm.rendered(NAMESPACE, chart=CHART, release=release, **options)
    return found


def contains(found: Any, wanted: Any) -> bool:
    """Whether every field that is wanted was found with its value."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and contains(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(contains, found, wanted))
    return bool(found == wanted)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[KubernetesApi]:
    """With the CRDs and their rules; tests/parity shows that a kube-apiserver answers the same."""
    async with api_with_our_kinds(KubernetesApi) as client:
        yield client


async def taken(api: KubernetesApi, manifest: dict[str, Any]) -> list[BrokerGroup]:
    """The groups that the operator makes of the manifest, both taken by the API."""
    stored = await api.create(ROCKETMQ_CLUSTERS, manifest)
    # What the API server has dropped would be a field that does not exist.
    assert contains(stored["spec"], manifest["spec"])
    typed = msgspec.convert(stored, RocketMQCluster)
    groups = [await api.create(BROKER_GROUPS, one) for one in parts.broker_groups(typed, stored)]
    return [msgspec.convert(one, BrokerGroup) for one in groups]


def test_the_layouts_are_these() -> None:
    assert yaml.safe_load((CHART / "files" / "layouts.yaml").read_text(encoding="utf-8")).keys() == LAYOUTS.keys()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_each_layout_is_taken_by_the_api_and_acknowledges_as_it_promises(api: KubernetesApi, layout: str) -> None:
    groups = await taken(api, cluster(f"shop-{layout}", layout=layout))
    count, replicas, durability, copies = LAYOUTS[layout]
    assert len(groups) == count
    for group in groups:
        assert (group.spec.replicas, group.spec.durability) == (replicas, durability)
        rule = acknowledgement_rule(group.spec)
        assert rule.all_acknowledge is (durability is not Durability.FAST)
        assert rule.minimum_in_sync == copies
        assert group.spec.config["timerFlushIntervalMs"] == "10000"


def test_without_a_word_it_is_replicated_and_has_no_proxies() -> None:
    assert cluster() == cluster(layout="replicated")
    assert "proxy" not in cluster()["spec"]


@pytest.mark.asyncio(loop_scope="module")
async def test_every_field_of_the_spec_overrides_the_layout(api: KubernetesApi) -> None:
    metadata = {
        "fullnameOverride": "market",
        "labels": {"team": "shop"},
        "annotations": {"helm.sh/resource-policy": "keep"},
    }
    found = cluster(values_file=EVERYTHING | metadata | {"layout": "2m-2s-sync"})
    assert contains(found["spec"], EVERYTHING)
    # Maps of the values are merged with those of values.yaml.
    assert found["spec"]["brokerGroups"]["template"]["config"].keys() == {
        *("fileReservedTime", "timerFlushIntervalMs", "transactionMetricFlushInterval")
    }
    assert found["metadata"]["name"] == "market"
    assert found["metadata"]["labels"]["team"] == "shop"
    assert found["metadata"]["annotations"] == metadata["annotations"]
    groups = await taken(api, found)
    assert [group.spec.replicas for group in groups] == [5, 5, 5, 1]


def test_one_value_changes_one_field() -> None:
    wanted = cluster(layout="2m-2s-async")
    wanted["spec"]["brokerGroups"]["template"]["replicas"] = 3
    wanted["spec"]["image"] = "registry.example/rocketmq:5.5.0"
    values = {"brokerGroups__template__replicas": "3", "image": "registry.example/rocketmq:5.5.0"}
    assert cluster(layout="2m-2s-async", **values) == wanted


@pytest.mark.parametrize(
    "taken_away", ["brokerGroups", "brokerGroups__template", "nameServer", "topics", "labels", "certificate"]
)
def test_a_section_that_is_taken_away_leaves_the_layout(taken_away: str) -> None:
    groups = cluster(**{taken_away: "null"})["spec"]["brokerGroups"]
    assert (groups["count"], groups["template"]["replicas"], groups["template"]["durability"]) == (2, 3, "Strict")


def test_a_key_of_the_chart_can_be_removed() -> None:
    found = cluster(brokerGroups__template__config__timerFlushIntervalMs="null")
    assert found["spec"]["brokerGroups"]["template"]["config"] == {"transactionMetricFlushInterval": "1000"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"layuot": "single"}, r"at '': additional properties 'layuot' not allowed"),
        ({"layout": "2m-2s"}, r"at '/layout': value must be one of 'single', 'multi-master', '2m-2s-async'"),
        ({"layout": "null"}, r"missing property 'layout'"),
        ({"nameServer__replcias": "3"}, r"at '/nameServer': .*'replcias'"),
        ({"brokerGroups__cuont": "3"}, r"at '/brokerGroups': .*'cuont'"),
        ({"brokerGroups__template__replcias": "3"}, r"at '/brokerGroups/template': .*'replcias'"),
        ({"brokerGroups__template__storage__szie": "1Gi"}, r"at '/brokerGroups/template/storage': .*'szie'"),
        (
            {"brokerGroups__template__durability": "strict"},
            r"at '/brokerGroups/template/durability': value must be one",
        ),
        ({"brokerGroups__template__replicas": "17"}, r"at '/brokerGroups/template/replicas': maximum"),
        (
            {"brokerGroups__template__config__fileReservedTime": "48"},
            r"config/fileReservedTime': got number, want string",
        ),
        ({"brokerGroups__overrides[0].replcias": "1"}, r"at '/brokerGroups/overrides/0': .*'replcias'"),
        ({"topics[0].name": "orders", "topics[0].queus": "1"}, r"at '/topics/0': .*'queus'"),
        ({"proxy__replcias": "1"}, r"at '/proxy': .*'replcias'"),
        ({"labels__tier": "1"}, r"at '/labels/tier': got number, want string"),
        ({"fullnameOverride": "9shop"}, r"at '/fullnameOverride': '9shop' does not match pattern"),
        ({"fullnameOverride": "s" * 42}, r"at '/fullnameOverride': maxLength: got 42, want 41"),
        ({"version": "5.5"}, r"at '/version': '5.5' does not match pattern|at '/version': got number"),
    ],
    ids=lambda one: next(iter(one.items()))[0] if isinstance(one, dict) else "",
)
def test_a_bad_value_is_refused_and_named(values: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cluster(**values)


def open_places(schema: dict[str, Any], path: str = "") -> list[str]:
    """Every object that takes a field of any name."""
    inner = {**schema.get("properties", {}), "[]": schema.get("items"), "{}": schema.get("additionalProperties")}
    own = [path] if "object" in schema.get("type", ()) and schema.get("additionalProperties", True) is True else []
    return own + [
        place for name, one in inner.items() if isinstance(one, dict) for place in open_places(one, f"{path}/{name}")
    ]


def test_only_what_kubernetes_checks_itself_takes_any_name() -> None:
    found = open_places(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))
    spec = "/brokerGroups/template/podTemplate/spec"
    assert sorted(found) == sorted(
        [
            "/global",
            *(f"{one}/podTemplate/spec/affinity" for one in ("/nameServer", "/proxy", "/brokerGroups/template")),
            *(
                f"{spec}/{one}"
                for one in ("volumes/[]", "initContainers/[]", "containers/[]", "hostAliases/[]", "dnsConfig")
            ),
            *(f"{spec}/broker/{one}/[]" for one in ("env", "volumeMounts")),
        ]
    )


def test_an_operator_without_this_kind_is_missed_where_a_server_is_asked() -> None:
    with pytest.raises(
        ValueError, match=r"no RocketMQCluster of brokergroup\.dev/v1beta1: install the chart brokergroup-operator"
    ):
        cluster(capabilities=("v1/Pod",))
    kind = f"{names.API_VERSION}/{names.ROCKETMQ_CLUSTER_KIND}"
    assert cluster(capabilities=("v1/Pod", kind)) == cluster()


def test_the_chart_lints_strictly() -> None:
    done = helm.helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def notes(folder: Path, **values: Any) -> str:
    """What `helm install` prints: `helm template` leaves NOTES.txt out, so a template of a copied chart holds it."""
    chart = shutil.copytree(CHART, folder / "chart")
    (chart / "templates" / "NOTES.txt").rename(chart / "files" / "notes.txt")
    holder = "kind: Notes\nnotes: {{ tpl (.Files.Get `files/notes.txt`) . | toJson }}\n"
    (chart / "templates" / "notes.yaml").write_text(holder, encoding="utf-8")
    objects = helm.rendered("shops", chart=chart, release="shop", **values)
    [said] = [str(one["notes"]) for one in objects if one["kind"] == "Notes"]
    return said


def commands(said: str) -> str:
    """Its indented lines."""
    found = "".join(f"{line.strip()}\n" for line in said.splitlines() if line.startswith("  "))
    subprocess.run(["bash", "-n"], input=found, text=True, check=True)
    return found


def test_the_notes_name_what_the_operator_makes(tmp_path: Path) -> None:
    said = notes(tmp_path, **{"topics[0].name": "orders", "proxy__replicas": "2"})
    assert said.startswith(
        "RocketMQCluster shops/shop, layout replicated: broker groups shop-0, shop-1, each of 3 broker(s)"
    )
    assert "durability Strict" in said.splitlines()[0]
    found = commands(said)
    assert f"get statefulset {parts.name_server_name('shop')} -o" in found
    assert f"-n {parts.name_server_name('shop')}:{parts.NAME_SERVER_PORT} -t orders " in found
    assert f"-l {names.LABEL_ROCKETMQ_CLUSTER}=shop" in found
    assert "{.status.clients.nameServer}" in found
    assert "{.status.clients.proxy}" in found
    assert "helm uninstall shop -n shops\n" in found
    groups = parts.group_names("shop", 2)
    assert f"persistentvolumeclaims -l '{names.LABEL_BROKER_GROUP} in ({','.join(groups)})'" in found
    assert f"delete brokergroupstates {' '.join(groups)}\n" in found
    assert all(
        line.startswith(("kubectl -n shops ", "IMAGE=$(kubectl -n shops ", "helm ")) for line in found.splitlines()
    )


def test_the_notes_follow_the_values(tmp_path: Path) -> None:
    gone = {"brokerGroups__template__storage__retention__whenDeleted": "Delete"}
    said = notes(tmp_path, layout="single", fullnameOverride="alone", **gone)
    assert "RocketMQCluster shops/alone, layout single: broker groups alone-0, each of 1 broker(s)" in said
    found = commands(said)
    assert " -t greetings " in found
    assert "proxy" not in found
    assert "ALL MESSAGES ARE DELETED" in said
    assert "persistentvolumeclaims" not in said


def test_the_page_has_each_layout_as_it_is() -> None:
    rows = re.findall(r"^\| `([\w-]+)`[^|]*\| (\d) \W (\d), `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: (int(groups), int(brokers), word) for name, groups, brokers, word in rows} == {
        name: (groups, brokers, durability.value) for name, (groups, brokers, durability, _) in LAYOUTS.items()
    }


SECURED: dict[str, Any] = {
    "layout": "2m-2s-sync",
    "certificate__issuerRef__name": "ours",
    "certificate__issuerRef__kind": "ClusterIssuer",
    "tls__certificateSecretRef__name": "shop-tls",
}


def certificate(**values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Certificate and the cluster of a release that asks for both."""
    objects = helm.rendered("trade", chart=CHART, release="shop", **{**SECURED, **values})
    found = {one["kind"]: one for one in objects}
    assert len(found) == len(objects) == 2
    return found["Certificate"], found["RocketMQCluster"]


def test_cert_manager_writes_the_secret_that_all_parts_mount() -> None:
    issued, made = certificate(proxy__replicas="1", tls__mode="Enforcing", certificate__duration="2160h")
    assert made["spec"]["tls"] == {"certificateSecretRef": {"name": "shop-tls"}, "mode": "Enforcing"}
    assert "certificate" not in made["spec"]
    spec = issued["spec"]
    assert spec["secretName"] == "shop-tls"
    assert spec["issuerRef"] == {"name": "ours", "kind": "ClusterIssuer"}
    assert spec["duration"] == "2160h"
    assert "renewBefore" not in spec
    # Java reads PKCS#8 only, and a renewed certificate only together with a new key (tests/real/test_java_tls.py).
    assert spec["privateKey"] == {"encoding": "PKCS8", "rotationPolicy": "Always"}


def test_the_bundle_of_authorities_is_a_value() -> None:
    bundle = {"tls__trustBundleRef__name": "authorities", "tls__trustBundleRef__key": "ca-bundle.crt"}
    _, made = certificate(tls__mode="Enforcing", **bundle)
    assert made["spec"]["tls"]["trustBundleRef"] == {"name": "authorities", "key": "ca-bundle.crt"}


def test_the_certificate_has_the_names_by_which_clients_and_the_operator_know_the_parts() -> None:
    """Those of the objects that the operator makes."""
    issued, made = certificate(proxy__replicas="1")
    dns_names = issued["spec"]["dnsNames"]
    assert len(dns_names) == len(set(dns_names))
    typed = msgspec.convert(made | {"metadata": made["metadata"] | {"uid": "u"}}, RocketMQCluster)
    [first, second] = [one["metadata"]["name"] for one in parts.broker_groups(typed, made)]
    services = (
        parts.name_server_name("shop"),
        parts.proxy_name("shop"),
        *map(names.master_service_name, (first, second)),
    )
    for service in services:
        assert {service, f"{service}.trade.svc", f"{service}.trade.svc.cluster.local"} <= set(dns_names)
    assert f"*.{parts.name_server_pods('shop')}.trade.svc" in dns_names
    assert {f"{first}.trade", f"{second}.trade", "localhost"} <= set(dns_names)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"certificate__issuerRef__name": "ours"}, r"tls\.certificateSecretRef\.name: expected the name of the Secret"),
        (
            {"certificate__issuerRef__kind": "Issuer", "tls__certificateSecretRef__name": "a"},
            r"certificate\.issuerRef\.name",
        ),
        (SECURED | {"certificate__duration": "soon"}, "duration"),
        (SECURED | {"certificate__issuerRef__nane": "ours"}, "nane"),
    ],
)
def test_a_certificate_without_its_secret_or_issuer_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        helm.template("trade", chart=CHART, release="shop", **values)


def test_without_cert_manager_the_chart_says_what_to_install() -> None:
    served = ("v1/Pod", "brokergroup.dev/v1beta1/RocketMQCluster")
    with pytest.raises(ValueError, match="no Certificate of cert-manager"):
        helm.template("trade", chart=CHART, release="shop", capabilities=served, **SECURED)
    with_it = (*served, "cert-manager.io/v1/Certificate")
    assert helm.template("trade", chart=CHART, release="shop", capabilities=with_it, **SECURED)
