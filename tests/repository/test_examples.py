"""The example manifests can be applied unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUPS
from tests.our_kinds import api_with_our_kinds

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def _documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def test_the_example_of_an_operation_is_done_at_once_to_the_group_of_the_quick_start() -> None:
    """For a missing group it would be Rejected after 5 s; before its notBefore it would wait."""
    [operation] = _documents((ROOT / "examples/operation.yaml").read_text())
    groups = [
        document["metadata"]["name"]
        for document in _documents((ROOT / "examples/quickstart.yaml").read_text())
        if document["kind"] == "BrokerGroup"
    ]
    assert groups == [operation["spec"]["brokerGroupRef"]["name"]]
    assert "namespace" not in operation["metadata"]
    assert "notBefore" not in operation["spec"]["switchover"]


def test_no_page_shows_a_manifest_that_apply_refuses_for_its_generate_name() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            if "kind:" in block:
                for document in _documents(block):
                    assert "generateName" not in (document.get("metadata") or {}), page.name


def test_a_group_names_a_name_server_that_an_example_brings() -> None:
    """quickstart.yaml named none, so no client could use it as it was; README named one that nothing brings."""
    deployment, service = _documents((EXAMPLES / "nameserver-deployment.yaml").read_text())
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    address = f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    groups = [
        document
        for path in sorted(EXAMPLES.glob("*.yaml"))
        for document in _documents(path.read_text())
        if document["kind"] == "BrokerGroup"
    ]
    assert len(groups) >= 3
    assert {name for group in groups for name in group["spec"]["nameServers"]} == {address}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f'nameServers: ["{address}"]' in readme
    assert "examples/nameserver-deployment.yaml" in readme


def test_the_pod_and_the_deployment_are_the_same() -> None:
    pod, of_pod = _documents((EXAMPLES / "nameserver.yaml").read_text())
    deployment, of_deployment = _documents((EXAMPLES / "nameserver-deployment.yaml").read_text())
    assert of_pod == of_deployment
    assert deployment["spec"]["template"]["metadata"]["labels"] == pod["metadata"]["labels"]
    assert deployment["spec"]["template"]["spec"] == pod["spec"]


def _manifests_of_ours() -> list[tuple[str, dict[str, Any]]]:
    """Those of the examples and those that a page shows whole."""
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(EXAMPLES.glob("*.yaml"))]
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        texts += [(page.name, block) for block in blocks if "\nkind: BrokerGroup" in block]
    documents = [(name, document) for name, text in texts for document in _documents(text)]
    return [(name, document) for name, document in documents if document["kind"].startswith("BrokerGroup")]


async def test_an_api_server_takes_every_manifest_as_it_stands() -> None:
    resources = {one.kind: one for one in (BROKER_GROUPS, BROKER_GROUP_OPERATIONS)}
    manifests = _manifests_of_ours()
    assert {name for name, _ in manifests} >= {"operation.yaml", "quickstart.yaml", "README.md", "operations.md"}
    async with api_with_our_kinds(KubernetesApi) as api:
        for _, manifest in manifests:
            manifest["metadata"]["namespace"] = "default"
            taken = await api.create(resources[manifest["kind"]], manifest)
            assert manifest["spec"].keys() <= taken["spec"].keys()
