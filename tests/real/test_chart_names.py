"""The charts with names that YAML takes for a boolean, a number or a comment, and with names that Kubernetes refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.real.parts import helm

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real("helm")

CLUSTER_CHART = Path(__file__).resolve().parents[2] / "charts" / "rocketmq-cluster"
# A namespace for each country, or year, is nothing odd: `no` is Norway's.
NAMESPACE = "no"
RELEASE = "2024"
# Each is a text here; a template without quotes makes something else of it.
ODD: dict[str, Any] = {
    "crds": {"create": False},
    "fullnameOverride": "on",
    "nameOverride": "off",
    "leaseName": "1234",
    "watch": {"namespace": "2025"},
    "image": {"repository": "brokergroup-operator", "tag": "1"},
    "imagePullSecrets": ["10"],
    "priorityClassName": "true",
    "serviceAccount": {"name": "11"},
    "incidentLog": {"storage": "1000000000", "storageClassName": "12"},
    "security": {
        "tls": {
            "secretName": "13",
            "clientCertificates": "required",
            "trustBundle": {"configMapName": "14"},
            "certManager": {"create": True, "issuerRef": {"name": "15", "group": "16"}},
        },
        "admin": {"secretName": "17", "certificateNames": ["operations #1"]},
        "groupSecretNames": ["18"],
    },
    "page": {"access": "token", "tokenSecretName": "19", "tlsSecretName": "20"},
    "metrics": {"podMonitor": True, "brokerPodMonitor": True, "prometheusRule": True},
    "dashboards": {"create": True},
    "networkPolicy": {"create": True},
}
REPORT: dict[str, Any] = {
    "enabled": True,
    "namespace": "2026",
    "source": {
        "prometheusUrl": "https://prometheus:9090",
        "bearerTokenSecretName": "30",
        "headersSecretName": "31",
        "tls": {"secretName": "32"},
    },
    "volumes": [{"name": "33", "claimName": "34", "mountPath": "/inputs/incidents"}],
    "incidents": ["/inputs/incidents"],
    "amendmentsConfigMapName": "35",
    "objectivesConfigMapName": "36",
    "output": {"storage": "1000000000", "storageClassName": "37"},
    "daily": {"store": "s3a://reports/runs", "storeSecretName": "38"},
}
TEXTS = frozenset(
    {
        *("name", "namespace", "secretName", "claimName", "storageClassName", "priorityClassName", "commonName"),
        *(
            "serviceAccountName",
            "serviceAccount",
            "serviceName",
            "image",
            "group",
            "key",
            "path",
            "mountPath",
            "storage",
        ),
    }
)
LISTS_OF_TEXTS = frozenset({"args", "resourceNames", "matchNames", "dnsNames"})
MAPS_OF_TEXTS = frozenset({"labels", "matchLabels", "annotations"})


def no_texts(value: Any, place: str) -> Iterator[str]:
    """Yield each place at which the API server wants a text and the chart has something else."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from no_texts(item, f"{place}[{number}]")
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        here = f"{place}.{key}"
        if key in TEXTS and not isinstance(item, str | dict):
            yield f"{here} is {item!r}"
        elif key in LISTS_OF_TEXTS:
            yield from (f"{here} has {one!r}" for one in item if not isinstance(one, str))
        elif key in MAPS_OF_TEXTS:
            yield from (f"{here}.{name} is {one!r}" for name, one in item.items() if not isinstance(one, str))
        else:
            yield from no_texts(item, here)


def found_in(manifests: str) -> list[str]:
    objects = helm.objects(manifests)
    assert objects
    return [place for one in objects for place in no_texts(one, one["kind"])]


@pytest.mark.parametrize("mode", ["CronJob", "SparkSubmit", "ScheduledSparkApplication"])
def test_the_operators_names_stay_texts(mode: str) -> None:
    """`--namespace no` ended with `cannot unmarshal bool into Go struct field ObjectMeta.metadata.namespace of type string`."""
    values = ODD | {"slaReport": REPORT | {"mode": mode}}
    spark = ("sparkoperator.k8s.io/v1beta2/ScheduledSparkApplication",)
    manifests = helm.template(NAMESPACE, release=RELEASE, values_file=values, capabilities=spark)
    assert found_in(manifests) == []
    [operator] = [one for one in helm.objects(manifests) if one["kind"] == "StatefulSet"]
    # Without quotes the name ended at the space, and a certificate of the name `operations` was an administrator's.
    arguments = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--admin-certificate-name=operations #1" in arguments


def test_a_clusters_names_stay_texts() -> None:
    values = {
        "labels": {"year": "2024"},
        "tls": {"certificateSecretRef": {"name": "13"}},
        "certificate": {"issuerRef": {"name": "15", "group": "16"}},
    }
    manifests = helm.template(NAMESPACE, chart=CLUSTER_CHART, release="no", values_file=values)
    assert found_in(manifests) == []
    [cluster] = [one for one in helm.objects(manifests) if one["kind"] == "RocketMQCluster"]
    assert (cluster["metadata"]["name"], cluster["metadata"]["namespace"]) == ("no", "no")


@pytest.mark.parametrize("release", ["9-orders", "shop.v2"])
def test_a_release_that_no_service_can_be_called_after_is_refused(release: str) -> None:
    with pytest.raises(ValueError, match=rf"{release}-brokergroup-operator: .*begin with a letter and have no dot"):
        helm.template("ns", release=release)
    assert helm.template("ns", release=release, fullnameOverride="orders")


def test_a_long_release_name_leaves_room_for_every_suffix() -> None:
    """Helm allows 53 characters, a Service's name and a label 63, a CronJob's name 52."""
    longest = "r" + "0" * 51 + "x"
    report = {"slaReport": REPORT, "networkPolicy": {"create": True}, "page": {"access": "kubernetes"}}
    objects = helm.objects(helm.template("ns", release=longest, values_file=report))
    longest_of: dict[str, int] = {}
    for one in objects:
        longest_of[one["kind"]] = max(longest_of.get(one["kind"], 0), len(one["metadata"]["name"]))
        labels = one["metadata"].get("labels") or {}
        assert max((len(value) for value in labels.values()), default=0) <= 63
    assert longest_of["CronJob"] <= 52
    # A StatefulSet's pods have a label with its name and a hash of ten characters and a hyphen.
    assert longest_of["StatefulSet"] + 11 <= 63
    assert longest_of["Service"] <= 63
