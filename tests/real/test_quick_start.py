"""Runs the commands of docs/start/quick-start.md unchanged; the others have a reason.

Changed are only places that others may be using: the folder /tmp/sandbox and two ports. What is started in the background ends with
the shell's process group.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.parts import install
from tests.support.kube_apiserver import running_kube_apiserver
from tests.support.page_blocks import IN_THE_SAME_CLUSTER, page_blocks
from tests.support.places import free_port

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 300
PLUGIN = f'#!/bin/sh\nexec {sys.executable} -m brokergroup_operator.kubectl.main "$@"\n'


def page(name: str = "docs/start/quick-start.md") -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands(what: str, *, of: str = "docs/start/quick-start.md") -> str:
    """All blocks of one kind, in the page's order."""
    found = [block.commands for block in page_blocks(page(of)) if (block.how, block.what) == ("run", what)]
    assert found, what
    return "".join(found)


def shell(script: str, folder: Path, **environment: str) -> str:
    """Run it with the real programs on the PATH; the output, after everything that it started has ended."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (
        ("kubectl-brokergroup", PLUGIN),
        ("kubectl", f'#!/bin/sh\nexec {install.kubernetes_folder() / "kubectl"} "$@"\n'),
        ("helm", f'#!/bin/sh\nexec {install.helm_program()} "$@"\n'),
    ):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    with (folder / "output").open("w", encoding="utf-8") as output:
        started = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), **environment},
        )
        try:
            code = started.wait(DEADLINE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # everything has ended by itself
                os.killpg(started.pid, signal.SIGTERM)
    said = (folder / "output").read_text(encoding="utf-8")
    assert code == 0, said
    return said


def test_what_is_left_out_is_what_was_left_out() -> None:
    left_out = [block.text.split()[:2] for block in page_blocks(page()) if block.how == "not run"]
    assert left_out == [["make", "demo"], ["docker", "build"], ["kubectl", "-n"], ["kubectl", "wait"]]


def test_the_make_targets_are_there_and_the_demo_has_its_own_test() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([\w-]+)", page(), re.MULTILINE):
        assert f"\n{target}:" in makefile, target
    assert (ROOT / "tests" / "real" / "test_demo.py").is_file()


@pytest.mark.real("kube-apiserver", "helm")
@pytest.mark.timeout(2 * DEADLINE_SECONDS)
def test_issue_149_the_quick_start_does_what_it_says(tmp_path: Path) -> None:
    """apache/rocketmq-operator #65, #149, apache/rocketmq #6435: how is controller mode set up, and what must be started for it?"""
    script = commands("sandbox").replace("/tmp/sandbox", str(tmp_path / "sandbox"))
    for port in ("9876", "9878"):
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
    said = shell(script, tmp_path)
    assert "brokergroup.brokergroup.dev/first created" in said
    assert re.search(r"Succeeded: .*broker \d", said)
    history = next(line for line in said.splitlines() if " Failover " in line)
    assert "Completed" in history
    # Messages acknowledged before the master's kill are read from its successor.
    assert "first-message" in said.partition("Succeeded: ")[2]
    assert 'brokergroup.brokergroup.dev "first" deleted' in said


@pytest.mark.real("kube-apiserver", "helm")
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_the_cluster_s_commands_are_taken_by_a_real_apiserver(tmp_path: Path) -> None:
    # Its own: Helm takes over no kind that another test has installed.
    with running_kube_apiserver(tmp_path / "api") as server:
        script = commands("cluster") + "".join(commands("cluster", of=name) for name in IN_THE_SAME_CLUSTER)
        said = shell(script, tmp_path, KUBECONFIG=str(server.kubeconfig))
    assert "STATUS: deployed" in said
    assert "brokergroup.brokergroup.dev/orders created" in said
    assert re.search(r"^orders +3 ", said, re.MULTILINE)
    assert "rocketmqcluster.brokergroup.dev/shop created" in said
    assert "layout 2m-2s-sync: broker groups trade-0, trade-1, each of 2 broker(s), durability Strict" in said
    assert re.search(r"^trade +", said, re.MULTILINE)
    assert "rocketmqcluster.brokergroup.dev/shop patched" in said
    assert 'rocketmqcluster.brokergroup.dev "shop" deleted' in said
