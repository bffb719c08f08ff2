"""Users' complaints about pods and volumes of apache/rocketmq-operator, and the behaviour of ours."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.pods import build_pod
from tests.reconcile import builders as b

ROOT = Path(__file__).resolve().parents[2]
IMPLEMENTATIONS = ("Java", "Python")
OTHER_SPECS: list[dict[str, Any]] = [
    {},
    {"replicas": 5},
    {"image": "example.com/other:2"},
    {"storage": {"size": "9Ti", "storageClassName": "longhorn"}},
    {"podTemplate": {"metadata": {"labels": {"team": "shop"}}}},
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_issue_117_a_claim_is_called_after_its_broker_id_whatever_the_spec_says(implementation: str) -> None:
    """apache/rocketmq-operator #117, #92, emqx-operator #1151: with another name, the data stayed on the old name's volume."""
    for spec in OTHER_SPECS:
        of = b.group(implementation=implementation, **spec)
        claim = children.build_claim(of, b.member(2))
        volumes = build_pod(of, b.member(2), b.SETTINGS)["spec"]["volumes"]
        assert claim["metadata"]["name"] == "orders-2"
        assert [one["persistentVolumeClaim"] for one in volumes if "persistentVolumeClaim" in one] == [
            {"claimName": "orders-2"}
        ]


def test_issue_117_volumes_outlive_the_group_unless_somebody_says_otherwise() -> None:
    """apache/rocketmq-operator #117: by default neither deletion nor scaling in of a group deletes a volume."""
    retention = b.group().spec.storage.retention
    assert (retention.when_deleted.value, retention.when_scaled.value) == ("Retain", "Retain")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_docker_115_the_store_is_on_the_claim(implementation: str) -> None:
    """apache/rocketmq-docker #115: the volume was mounted beside the store, so a restarted pod had an empty store."""
    of = b.group(implementation=implementation)
    pod = build_pod(of, b.member(1), b.SETTINGS)
    [container] = [one for one in pod["spec"]["containers"] if one["name"] == "broker"]
    [mounted] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "store"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["STORE_DIR"] == mounted
    configuration = children.build_config_map(of, b.SETTINGS)["data"]["broker.conf"]
    stores = [line for line in configuration.splitlines() if line.startswith("storePath")]
    assert stores
    assert all("=${STORE_DIR}" in line for line in stores)


def test_issue_80_nothing_is_done_by_a_shell_in_a_pod() -> None:
    """apache/rocketmq-operator #80: metadata was copied by exec and echo, with `<nil>` in it, and the replica never restarted.

    The chart gives no right to exec (tests/real/test_chart.py), and the operator never requests it.
    """
    package = ROOT / "operator" / "brokergroup_operator"
    asking = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        # The sandbox is an API server: it answers such requests.
        if "sandbox" not in path.parts
        and any(word in path.read_text() for word in ("pods/exec", "/exec?", "ws_connect"))
    ]
    assert asking == []


@pytest.mark.parametrize("version", ["5.1.1", "5.3.3", "5.5.0", "6.0.0"])
def test_issue_69_any_version_is_upstreams_own_image(version: str) -> None:
    """apache/rocketmq-operator #69, #226: only images of 4.5 existed, which the project had built in an undocumented way."""
    pod = build_pod(b.group(implementation="Java", version=version), b.member(1), b.SETTINGS)
    assert pod["spec"]["containers"][0]["image"] == f"apache/rocketmq:{version}"


def test_issue_154_every_dependency_is_there_for_arm() -> None:
    """apache/rocketmq-operator #154: amd64 only. Our image is built from wheels; each is universal, or exists for ARM too."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "--platform" not in dockerfile
    assert "amd64" not in dockerfile
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    for package in _needed_at_run_time(locked):
        wheels = [wheel["url"].rpartition("/")[2] for wheel in package.get("wheels", [])]
        fits = any("-none-any" in name for name in wheels) or any(
            "manylinux" in name and "aarch64" in name and ("cp311" in name or "abi3" in name) for name in wheels
        )
        # uv builds a package without wheels from its source.
        assert fits or not wheels, package["name"]


def _needed_at_run_time(locked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the packages of `uv sync --no-default-groups`: our dependencies and theirs, without extras."""
    by_name = {package["name"]: package for package in locked}
    wanted, found = ["brokergroup-operator"], {}
    while wanted:
        package = by_name[wanted.pop()]
        if package["name"] not in found:
            found[package["name"]] = package
            wanted += [entry["name"] for entry in package.get("dependencies", [])]
    assert len(found) > 10
    return [package for name, package in found.items() if name != "brokergroup-operator"]
