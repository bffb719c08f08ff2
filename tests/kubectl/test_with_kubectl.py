"""The real kubectl with the plugin on its PATH: it finds and runs it, and kubectl's own verbs work on the plugin's objects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kubectl.cluster import BrokerGroupOperation
from tests.real.parts import install

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench

pytestmark = pytest.mark.real("kube-apiserver")  # the part that brings kubectl

DEADLINE_SECONDS = 60
PLUGIN = f'#!/bin/sh\nexec {sys.executable} -m brokergroup_operator.kubectl.main "$@"\n'


def kubectl(bench: Bench, *arguments: str) -> subprocess.CompletedProcess[str]:
    """kubectl, with the plugin and its completion program in the first folder of the PATH."""
    folder = bench.folder / "bin"
    folder.mkdir(exist_ok=True)
    for name, text in (("kubectl-brokergroup", PLUGIN), ("kubectl_complete-brokergroup", bench.must("completion"))):
        program = folder / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    return subprocess.run(
        [str(install.kubernetes_folder() / "kubectl"), *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
        env={
            "HOME": str(bench.folder),
            "KUBECONFIG": str(bench.kubeconfig),
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )


def test_kubectl_finds_and_runs_it(bench: Bench) -> None:
    bench.create_group()
    listed = kubectl(bench, "plugin", "list", "--name-only")
    assert "kubectl-brokergroup" in listed.stdout.split()
    shown = kubectl(bench, "brokergroup", "status", "orders")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"{bench.namespace}/orders ")
    missing = kubectl(bench, "brokergroup", "status", "nobody")
    assert (missing.returncode, missing.stderr) == (3, f"error: brokergroups {bench.namespace}/nobody: not found\n")


def test_kubectl_completes_it(bench: Bench) -> None:
    bench.create_group()
    done = kubectl(bench, "__complete", "brokergroup", "status", "or")
    assert done.stdout.splitlines()[0] == "orders", done
    assert kubectl(bench, "__complete", "brokergroup", "dri").stdout.splitlines()[0] == "drill"


def test_kubectl_waits_for_what_it_asked_for(bench: Bench) -> None:
    bench.create_group()
    condition = {
        "type": "Complete", "status": "True", "reason": "Succeeded", "message": "done",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    }  # fmt: skip
    with bench.operator(lambda _: {"phase": "Succeeded", "result": {"message": "done"}, "conditions": [condition]}):
        created = kubectl(bench, "brokergroup", "switchover", "orders").stdout.split()[0]
        name = created.partition("/")[2]
        waited = kubectl(bench, "wait", "--for=condition=Complete", f"bgop/{name}", "--timeout=30s")
    assert waited.returncode == 0, waited.stderr
    assert "condition met" in waited.stdout
    described = kubectl(bench, "describe", f"bgop/{name}")
    assert "Deadline Seconds:  60" in described.stdout


def test_what_was_asked_never_changes(bench: Bench) -> None:
    bench.create_group()
    bench.must("switchover", "orders")
    (item,) = bench.items(BrokerGroupOperation)
    patch = '{"spec": {"switchover": {"deadlineSeconds": 5}}}'
    changed = kubectl(bench, "patch", "bgop", item["metadata"]["name"], "--type=merge", "-p", patch)
    assert changed.returncode != 0
    assert "an operation is immutable" in changed.stderr


def test_the_installed_command_is_the_plugin() -> None:
    installed = Path(sys.executable).parent / "kubectl-brokergroup"
    assert shutil.which(str(installed)), f"{installed} is not there: uv sync"
    assert "brokergroup_operator.kubectl.main" in installed.read_text(encoding="utf-8")
