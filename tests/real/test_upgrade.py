"""From v1alpha1 to v1beta1 at a real kube-apiserver: the unchanged commands of docs/tasks/upgrade.md, with a real Helm.

The release before it is this chart with the kinds as they were (tests/api/v1alpha1). No controller makes the pods of a StatefulSet:
`OperatorPods` plays its controller, and an operator that writes until its pods are gone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.conversion import OLD_API_VERSION, OLD_VERSION
from brokergroup_operator.reconcile.see.fetch import read_group
from brokergroup_operator.records.serialize import record_from_json
from tests.api.test_conversion import EXAMPLES, FORMER, documents
from tests.api.test_upgrade import FULL, KINDS, RECORD
from tests.real.parts import helm, install
from tests.support.kube_apiserver import OPERATOR_NAMESPACE, KubeApiserver, running_kube_apiserver
from tests.support.page_blocks import page_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real("kube-apiserver", "helm"), pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "brokergroup-operator"
ALL_KINDS = ",".join(f"{kind.plural}.{kind.group}" for kind in KINDS.values())
LEFT_ALONE = "pods,persistentvolumeclaims"
GRACE_SECONDS = 3.0
FAILOVER = {
    "id": "a", "cause": "silent", "trigger": "silent", "from": 2, "to": 1, "epoch": 7, "startedAt": "2026-11-21T00:00:00Z",
    "durationMilliseconds": 700,
}  # fmt: skip
AS_OPERATOR = f"--server-side --subresource=status --field-manager={names.FIELD_MANAGER_STATUS}"
SET_EPOCH = 12
Json = dict[str, Any]
# Kind, namespace and name of an object.
Name = tuple[str, str, str]


class Administrator:
    """A shell with kubectl, helm and brokergroup, in a folder of its own."""

    def __init__(self, server: KubeApiserver, home: Path) -> None:
        self.server, self.home = server, home
        programs = home / "programs"
        programs.mkdir()
        for name, command in (
            ("kubectl", str(install.kubernetes_folder() / "kubectl")),
            ("helm", str(install.helm_program())),
            ("brokergroup", f"{sys.executable} -m brokergroup_operator.cli.main"),
        ):
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        (home / "charts").symlink_to(ROOT / "charts")
        self.environment = {**os.environ, "PATH": path, "HOME": str(home), "KUBECONFIG": str(server.kubeconfig)}

    def run(self, commands: str, *, may_exit: tuple[int, ...] = (0,), given: str | None = None) -> str:
        """Run commands and return their output; AssertionError with it on another exit code.

        KINDS, which a block sets, is there in the next one, as in a user's shell.
        """
        kept = self.home / "kinds"
        kept.touch()
        script = f"KINDS=$(cat {kept})\n{commands}\necho $KINDS > {kept}\n"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.home,
            env=self.environment,
            input=given or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in may_exit, f"{commands}\nexit code {done.returncode}:\n{done.stdout}"
        return done.stdout

    def objects(self, kinds: str = ALL_KINDS) -> dict[Name, Json]:
        """Return all objects by kind, namespace and name."""
        items = self.server.get(kinds, "--all-namespaces", "--show-managed-fields")["items"]
        return {(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]): one for one in items}


class OperatorPods(threading.Thread):
    """The controller of the StatefulSet observes a wish at once; the pods end some time later, and write until then."""

    def __init__(self, server: KubeApiserver) -> None:
        super().__init__(daemon=True)
        self._server, self._ended = server, threading.Event()
        self.last_words = 0

    def run(self) -> None:
        there = 0
        while not self._ended.wait(1.0):
            found = self._server.kubectl("get", "statefulset", RELEASE, "-n", OPERATOR_NAMESPACE, "-o", "json")
            if found.returncode != 0:
                continue
            stateful_set = json.loads(found.stdout)
            wanted, generation = stateful_set["spec"]["replicas"], stateful_set["metadata"]["generation"]
            if generation == stateful_set.get("status", {}).get("observedGeneration") and wanted == there:
                continue
            self._tell(generation, max(there, wanted))
            if wanted < there:
                self._ended.wait(GRACE_SECONDS)
                self._write()
                self._tell(generation, wanted)
            there = wanted

    def _tell(self, generation: int, pods: int) -> None:
        status = {"observedGeneration": generation, "replicas": pods, "readyReplicas": pods, "updatedReplicas": pods}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        self._server.must("patch", "statefulset", RELEASE, "-n", OPERATOR_NAMESPACE, *patch)

    def _write(self) -> None:
        self.last_words += 1
        record = {"record": {"syncStateSetEpoch": SET_EPOCH + self.last_words}}
        state = f"brokergroupstates.{OLD_VERSION}.{names.GROUP}"
        self._server.must("patch", state, "full", "--type=merge", "-p", json.dumps(record))

    def stop(self) -> None:
        self._ended.set()
        self.join()


@pytest.fixture(scope="module")
def administrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administrator]:
    """The administrator of a cluster with the previous release, its pods, and objects of v1alpha1."""
    home = tmp_path_factory.mktemp("upgrade")
    with running_kube_apiserver(home / "api") as server:
        one = Administrator(server, home)
        chart = home / "former-chart"
        shutil.copytree(helm.CHART, chart)
        for path in (FORMER / "crds").glob("*.yaml"):
            shutil.copy(path, chart / "files" / "crds")
        one.run(
            f"helm install {RELEASE} {chart} --namespace {OPERATOR_NAMESPACE} --create-namespace --set image.tag=before"
        )
        server.client.wait_for_kinds()
        store_all(one)
        pods = OperatorPods(server)
        pods.start()
        try:
            one.run(f"kubectl -n {OPERATOR_NAMESPACE} rollout status statefulset/{RELEASE} --timeout=60s")
            yield one
        finally:
            pods.stop()


def store_all(one: Administrator) -> None:
    """Every example, as `kubectl apply` stores it; a full group as an operator leaves it; an operation that is over."""
    one.run(f"kubectl apply -f {FORMER / 'examples'}")
    one.run("kubectl apply -f -", given=FULL)
    group = one.server.get("brokergroup", "full")
    member = {
        "role": "slave",
        "state": "InSync",
        "addresses": [{"source": "Heartbeat", "address": "10.0.0.1:10911", "since": "2026-11-21T00:00:00Z"}],
    }
    status = {
        "phase": "Stalled",
        "masterEpoch": 7,
        "lastFailover": FAILOVER,
        "members": [member | {"brokerId": number, "pod": f"full-{number}"} for number in (1, 2, 3)],
    }
    applied = {"apiVersion": OLD_API_VERSION, "kind": "BrokerGroup", "metadata": {"name": "full"}, "status": status}
    one.run(f"kubectl apply {AS_OPERATOR} -f -", given=json.dumps(applied))
    record = RECORD | {"syncStateSetEpoch": SET_EPOCH}
    state = {"apiVersion": OLD_API_VERSION, "kind": "BrokerGroupState", "metadata": {"name": "full"}, "record": record}
    one.run("kubectl create -f -", given=json.dumps(state))
    over = json.dumps({"status": {"phase": "Succeeded"}})
    one.run(f"kubectl patch brokergroupoperation quickstart-switchover --subresource=status --type=merge -p '{over}'")
    owner = {"apiVersion": OLD_API_VERSION, "kind": "BrokerGroup", "name": "full", "uid": group["metadata"]["uid"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "full-1", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "broker", "image": "a"}]},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "full-1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    one.run("kubectl create -f -", given=yaml.safe_dump_all([pod, claim]))


def blocks_of(page: str, how: str, what: str) -> list[str]:
    """The commands of the page's blocks with that marker."""
    found = page_blocks((ROOT / "docs" / "tasks" / page).read_text(encoding="utf-8"))
    return [one.commands for one in found if (one.how, one.what) == (how, what)]


def versions(objects: dict[Name, Json]) -> dict[Name, str]:
    return {name: one["metadata"]["resourceVersion"] for name, one in objects.items()}


def without_last_words(objects: dict[Name, Json]) -> dict[Name, str]:
    """The versions of all but the record, into which the operator writes until it ends."""
    return {name: version for name, version in versions(objects).items() if name[0] != "BrokerGroupState"}


def operators_image(one: Administrator) -> str:
    found = one.server.get("statefulset", RELEASE, "-n", OPERATOR_NAMESPACE)
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"]).rpartition(":")[2]


def test_the_steps_of_the_page_take_a_cluster_to_v1beta1_and_delete_nothing(administrator: Administrator) -> None:
    one = administrator
    manifests, save, replace = blocks_of("upgrade.md", "run", "upgrade")
    [upgrade] = blocks_of("install.md", "test-node", "upgrade")
    before, left_alone = one.objects(), versions(one.objects(LEFT_ALONE))
    assert {name[0] for name in before} == set(KINDS)

    # Without the steps nothing changes: Helm itself would replace the operator after the API server has refused a definition.
    said = one.run(f"export TAG=too-early; {upgrade}", may_exit=(1,))
    assert f"has {OLD_API_VERSION} and not v1beta1" in said
    assert "docs/tasks/upgrade.md" in said
    assert (versions(one.objects()), operators_image(one)) == (versions(before), "before")

    shutil.copytree(FORMER / "examples", one.home / "groups")
    one.run(manifests)
    for example in EXAMPLES:
        assert documents(one.home / "groups" / example) == documents(ROOT / "examples" / example)

    # Step 1, back, and again: nothing has changed but what the operator wrote until it ended, and that is saved.
    one.run(save)
    one.run(f"kubectl -n {OPERATOR_NAMESPACE} scale statefulset/{RELEASE} --replicas=3")
    one.run(f"kubectl -n {OPERATOR_NAMESPACE} rollout status statefulset/{RELEASE} --timeout=60s")
    one.run(save)
    assert without_last_words(one.objects()) == without_last_words(before)

    one.run(replace)
    written = versions(one.objects())
    assert "the object has been modified" in one.run("kubectl replace -f objects.yaml", may_exit=(1,))
    assert versions(one.objects()) == written
    one.run(f"export TAG=after; {upgrade}")
    assert operators_image(one) == "after"

    after = one.objects()
    assert after.keys() == before.keys()
    assert versions(one.objects(LEFT_ALONE)) == left_alone, "pods and claims are unchanged"
    for name, now in after.items():
        the_same_object(before[name], now)
    record = after["BrokerGroupState", "default", "full"]["record"]
    last_words = {"syncStateSetEpoch": SET_EPOCH + 2}
    assert record == before["BrokerGroupState", "default", "full"]["record"] | last_words
    assert record_from_json(record, source="full").master_epoch == 7
    for definition in one.server.get("crd")["items"]:
        assert definition["status"]["storedVersions"] == [names.VERSION]
        assert [version["name"] for version in definition["spec"]["versions"]] == [names.VERSION]


def the_same_object(before: Json, now: Json) -> None:
    assert now["apiVersion"] == names.API_VERSION
    for key in ("uid", "creationTimestamp", "name", "finalizers", "labels"):
        assert now["metadata"].get(key) == before["metadata"].get(key)
    managers = [(entry["manager"], entry["operation"]) for entry in before["metadata"].get("managedFields", [])]
    left = {(entry["manager"], entry["operation"]): entry["apiVersion"] for entry in now["metadata"]["managedFields"]}
    assert {left.get(manager) for manager in managers} <= {names.API_VERSION, None}


def test_what_is_stored_reads_as_if_it_were_created_from_the_present_examples(administrator: Administrator) -> None:
    one, stored = administrator, administrator.objects()
    one.run("kubectl create namespace present")
    for path in (ROOT / "examples").glob("*.yaml"):
        created = one.run(f"kubectl create --dry-run=server -o json -n present -f {path}")
        for item in as_items(created):
            if item["apiVersion"] == names.API_VERSION:
                found = stored[item["kind"], "default", item["metadata"]["name"]]
                assert found["spec"] == item["spec"], path.name
                assert found["metadata"].get("labels") == item["metadata"].get("labels")
    spec = read_group(stored["BrokerGroup", "default", "full"]).spec
    assert (spec.implementation, spec.security.signature, spec.anti_affinity.type) == ("Java", "Disabled", "Required")
    assert spec.pod_template.spec.node_selector == {"disk": "fast"}
    over = stored["BrokerGroupOperation", "default", "quickstart-switchover"]
    assert over["status"]["phase"] == "Succeeded", "a second run changes nothing"


def as_items(text: str) -> list[Json]:
    """The objects of kubectl's JSON: one after the other, or a list."""
    decoder, items, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        found, at = decoder.raw_decode(text, at)
        items += found.get("items", [found])
        at += len(text[at:]) - len(text[at:].lstrip())
    return items


def test_a_status_loses_what_the_operator_no_longer_applies(administrator: Administrator) -> None:
    """It does only while the API server knows that the operator applied it."""
    one = administrator
    member = {"brokerId": 1, "pod": "full-1", "role": "slave", "state": "InSync"}
    applied = {"apiVersion": names.API_VERSION, "kind": "BrokerGroup", "metadata": {"name": "full"}}
    one.run(f"kubectl apply {AS_OPERATOR} -f -", given=json.dumps(applied | {"status": {"members": [member]}}))
    status = one.server.get("brokergroup", "full")["status"]
    assert [found["brokerId"] for found in status.pop("members")] == [1]
    assert status == {}


def test_a_rollback_by_helm_brings_back_the_operator_but_not_its_kinds(administrator: Administrator) -> None:
    """A rollback renders no template. The page states that, and the next steps."""
    one = administrator
    [upgrade] = blocks_of("install.md", "test-node", "upgrade")
    before = versions(one.objects())
    said = one.run(f"helm rollback {RELEASE} 1 --namespace {OPERATOR_NAMESPACE}", may_exit=(1,))
    assert f"{names.VERSION} was previously a storage version" in said
    assert operators_image(one) == "before"
    one.run(f"export TAG=after; {upgrade}")
    assert (versions(one.objects()), operators_image(one)) == (before, "after")
