"""A second operator beside the first, and one of another name after it: blocks of docs/tasks/install.md at a real kube-apiserver.

No operator runs here: Helm's refusals and the API server's answers are the subject.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from brokergroup_operator.api import names
from tests.real.test_upgrade import Administrator
from tests.support.kube_apiserver import running_kube_apiserver
from tests.support.page_blocks import page_blocks

pytestmark = [pytest.mark.real("kube-apiserver", "helm"), pytest.mark.timeout(600)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks" / "install.md"
FIRST = (
    "helm install brokergroup-operator charts/brokergroup-operator --namespace brokergroup-system --create-namespace"
)
HELD = {names.ANNOTATION_OPERATOR: "brokergroup-system/brokergroup-operator"}
OBJECTS = (
    (names.ROCKETMQ_CLUSTER_KIND, "trade", "shop", {"brokerGroups": {"count": 1}}),
    (names.BROKER_GROUP_KIND, "default", "orders", {"implementation": "Python"}),
)
ALL = "rocketmqclusters,brokergroups"


def blocks(what: str) -> list[str]:
    return [one.commands for one in page_blocks(PAGE.read_text(encoding="utf-8")) if one.what == what]


def manifests() -> str:
    return yaml.safe_dump_all(
        {
            "apiVersion": names.API_VERSION,
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace, "annotations": HELD},
            "spec": spec,
        }
        for kind, namespace, name, spec in OBJECTS
    )


def test_a_second_release_and_one_of_another_name(tmp_path: Path) -> None:
    second, another = blocks("another release")
    [uninstall] = blocks("uninstall")
    (tmp_path / "home").mkdir()
    # Its own: Helm takes over no kind that another test has installed.
    with running_kube_apiserver(tmp_path / "api") as server:
        administrator = Administrator(server, tmp_path / "home")
        administrator.environment["REGISTRY"] = "registry.example"
        administrator.run(FIRST)
        assert "STATUS: deployed" in administrator.run(second)
        server.must("apply", "-f", "-", stdin=manifests())

        administrator.run("helm uninstall brokergroup-operator --namespace brokergroup-system")
        [install] = [line for line in another.splitlines() if line.startswith("helm install ")]
        assert "invalid ownership metadata" in administrator.run(install, may_exit=(1,))
        assert "STATUS: deployed" in administrator.run(another)
        found = server.get(ALL, "--all-namespaces")["items"]
        assert len(found) == len(OBJECTS)
        assert [one["metadata"]["name"] for one in found if one["metadata"].get("annotations", {}).keys() & HELD] == []
        # The kinds are this release's now.
        upgrade = (
            "helm upgrade operator charts/brokergroup-operator --namespace rocketmq-system --reset-then-reuse-values"
        )
        assert "STATUS: deployed" in administrator.run(upgrade)

        administrator.run(uninstall.splitlines()[0])
        assert server.get(ALL, "--all-namespaces")["items"] == []
