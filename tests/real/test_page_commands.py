"""Runs the commands of docs/'s pages for daily work unchanged, page by page, on one group.

A sandbox with its NameServer, an operator and a group `orders` of three Python replicas are there before; changed is only
the port of the NameServer, which others may be using.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.node.runbooks import FOLDER as RUNBOOKS
from tests.node.runbooks import commands_of, parts_of
from tests.real.parts import install
from tests.support.page_blocks import IN_ONE_SANDBOX, PageBlock, page_blocks
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SAFE = "kubectl wait --for=condition=FailoverSafe brokergroup/orders --timeout=3m"
GROUP = f"""
kubectl brokergroup generate orders --implementation Python --size 1Gi --name-server 127.0.0.1:9876 | kubectl apply -f -
{SAFE}
"""
# Without a Lease there is no proof that the operator is alive, and `explain` reports that.
LEASE = ("--leader-election-namespace", "default")
SECONDS = 300.0


class Reader:
    """A user's shell in the checkout, with kubectl, the plugin and a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.name_server = f"127.0.0.1:{free_port()}"
        programs = home / "programs"
        programs.mkdir()
        plugin = f"{sys.executable} -m brokergroup_operator.kubectl.main"
        for name, command in (
            ("kubectl-brokergroup", plugin),
            ("kubectl", str(install.kubernetes_folder() / "kubectl")),
        ):
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        kubeconfig = str(home / "sandbox" / "kubeconfig")
        self.environment = {**os.environ, "PATH": path, "HOME": str(home), "KUBECONFIG": kubeconfig}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with (self.home / f"{arguments[0]}.log").open("w", encoding="utf-8") as log:
            command = [sys.executable, "-m", "brokergroup_operator.cli.main", "--until-stdin-ends", *arguments]
            return subprocess.Popen(
                command, env=self.environment, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
            )

    def run(
        self, commands: str, *, may_exit: tuple[int, ...] = (0,), given: str = "", keyboard: int | None = None
    ) -> str:
        """Run commands and return their output; AssertionError with it on another exit code."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands.replace("127.0.0.1:9876", self.name_server)],
            cwd=ROOT,
            env=self.environment,
            **({"input": given} if keyboard is None else {"stdin": keyboard}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode in may_exit, f"{commands}\nexit code {done.returncode}:\n{done.stdout}"
        return done.stdout

    def type(self, command: str) -> str:
        """At a terminal: the plugin asks there for the name of the group, and gets it."""
        terminal, keyboard = pty.openpty()
        os.write(terminal, b"orders\n")
        try:
            return self.run(command, keyboard=keyboard)
        finally:
            os.close(keyboard)
            os.close(terminal)

    def follow(self, block: PageBlock) -> str:
        if block.language == "yaml":
            return self.run("kubectl apply -f -", given=block.text)
        return self.run(block.commands, may_exit=(0, 1) if block.what.endswith("exit 0 or 1") else (0,))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path)
    started = [one.start("sandbox", "--data-dir", str(tmp_path / "sandbox"), "--name-server", one.name_server)]
    try:
        _until_it_answers(one, started[0])
        address = f"127.0.0.1:{free_port()}"
        kubeconfig = one.environment["KUBECONFIG"]
        started.append(
            one.start(
                "operator", "--kubeconfig", kubeconfig, *LEASE, "--listen", address, "--controller-address", address
            )
        )
        one.run(GROUP)
        yield one
    finally:
        for program in reversed(started):
            program.communicate(timeout=SECONDS)  # the end of its input ends it


def _until_it_answers(reader: Reader, sandbox: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        assert sandbox.poll() is None, (reader.home / "sandbox.log").read_text(encoding="utf-8")
        try:
            reader.run("kubectl get nodes")
        except AssertionError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        else:
            return


@pytest.mark.real("kube-apiserver")
@pytest.mark.timeout(4 * SECONDS)
def test_the_pages_for_daily_work_do_what_they_say(reader: Reader) -> None:
    said: dict[str, str] = {}
    for page in IN_ONE_SANDBOX:
        found = page_blocks((ROOT / page).read_text(encoding="utf-8"))
        blocks = [one for one in found if one.how == "run" and one.what.startswith("sandbox")]
        assert blocks, page
        reader.run(SAFE)  # the page before may have ended with a change of the group
        said[page] = "".join(reader.follow(block) for block in blocks)
    assert "hello" in said["docs/start/connect-clients.md"].splitlines()
    assert said["docs/tasks/operations.md"].count("Succeeded: ") >= 5
    assert "brokergroup.brokergroup.dev/orders condition met" in said["docs/tasks/upgrade.md"]
    gone = said["docs/tasks/delete.md"]
    assert 'brokergroup.brokergroup.dev "orders" deleted' in gone
    assert gone.count("persistentvolumeclaim ") == 3
    assert "brokergroupstate.brokergroup.dev " in gone
    assert "No resources found" in reader.run("kubectl get brokergroups,brokergroupstates,persistentvolumeclaims")


# A runbook command's output, or the final phase of its operation. In this order, each on a healthy group.
# An election by hand is rejected, for the group has a master; tests/e2e/test_operations.py has one that is carried out.
DO_THAT = (
    ("kubectl logs -n NAMESPACE GROUP-BROKER-ID -c broker", ""),
    ("kubectl logs -n NAMESPACE GROUP-BROKER-ID -c broker --previous", ""),
    ("kubectl brokergroup restart GROUP BROKER-ID -n NAMESPACE", "Succeeded"),
    ("kubectl brokergroup rebuild GROUP BROKER-ID -n NAMESPACE", "Succeeded"),
    ("kubectl annotate bg GROUP -n NAMESPACE brokergroup.dev/accept-epoch=EPOCH", "orders annotated"),
    ("kubectl brokergroup elect GROUP --to BROKER-ID --unclean --yes-lose-data -n NAMESPACE", "Rejected"),
    ("kubectl taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", " tainted"),
)
WORDS = {"NAMESPACE": "default", "GROUP": "orders", "BROKER-ID": "2", "EPOCH": "9"}


def test_every_command_of_a_runbook_is_listed() -> None:
    pages = [path.read_text(encoding="utf-8") for path in RUNBOOKS.glob("*.md")]
    commands = {command for page in pages for command in commands_of(parts_of(page)["Do that"])}
    assert commands == {command for command, _ in DO_THAT}


@pytest.mark.real("kube-apiserver")
@pytest.mark.timeout(4 * SECONDS)
def test_what_a_runbook_says_to_do_can_be_done(reader: Reader) -> None:
    node = reader.run("kubectl get nodes -o name").split()[0].removeprefix("node/")
    for command, answer in DO_THAT:
        reader.run("kubectl wait --for=condition=FailoverSafe brokergroup/orders --timeout=3m")
        words = {**WORDS, "NODE": node}
        here = re.sub(r"\b(?:NAMESPACE|GROUP|BROKER-ID|EPOCH|NODE)\b", lambda word: words[word[0]], command)  # noqa: B023
        said = reader.type(here)
        if operation := re.search(r"brokergroupoperation\S+(?= created)", said):
            reader.run(f"kubectl wait --for=jsonpath={{.status.phase}}={answer} {operation[0]} --timeout=3m")
        else:
            assert answer in said, f"{here}: {said}"


# A command of kubectl in a sentence or a table, with an object; a verb alone, or with its kind, is only mentioned.
IN_PASSING = re.compile(r"`(kubectl (?:get|delete|annotate|taint|explain|describe|create|replace|logs) [^`\n]+)`")
OF_A_BACKUP = "of a backup or a restore, which orders does not have"
# How each is run here: "" as it stands, "server" or "client" as that side's dry run, else why it is not.
PASSING = {
    "kubectl annotate rocketmqclusters,brokergroups --all --all-namespaces brokergroup.dev/operator-": "server",
    # It sends protobuf, which the sandbox does not read.
    "kubectl create configmap objectives --from-file slo/": "client",
    "kubectl delete -n NAMESPACE brokergroupstates GROUP": "server",
    "kubectl delete -n NAMESPACE persistentvolumeclaims -l brokergroup.dev/broker-group=GROUP": "server",
    "kubectl delete brokergroup orders --cascade=orphan": "server",
    "kubectl delete customresourcedefinitions rocketmqclusters.brokergroup.dev brokergroups.brokergroup.dev "
    "brokergroupoperations.brokergroup.dev brokergroupstates.brokergroup.dev": "server",
    "kubectl delete lease -n brokergroup-system brokergroup-operator": "server",
    "kubectl delete pvc -n brokergroup-system -l app.kubernetes.io/name=brokergroup-operator": "server",
    "kubectl delete secret -n brokergroup-system brokergroup-operator-fence-key": "server",
    "kubectl describe bg NAME": "",
    "kubectl describe pod -l brokergroup.dev/rocketmq-cluster=shop,app.kubernetes.io/component=nameserver": "",
    "kubectl describe pvc orders-restored-1": OF_A_BACKUP,
    "kubectl describe volumeattachments": "no driver attaches a volume here",
    "kubectl explain brokergroup.spec --recursive": "the sandbox has no schemas for it; test_kinds.py explains at a kube-apiserver",
    "kubectl get bgop -o yaml": "",
    "kubectl get brokergroups -A -o yaml": "",
    "kubectl get networkpolicy GROUP-brokers": "of a group with network.policy, which orders is not",
    "kubectl get networkpolicy GROUP-brokers -o yaml": "of a group with network.policy, which orders is not",
    "kubectl get pvc CLAIM -o yaml": "",
    "kubectl get svc --all-namespaces": "",
    "kubectl logs GROUP-restore": OF_A_BACKUP,
    "kubectl logs --previous": "of no pod: the runbooks' command has one",
    "kubectl logs POD --previous": "",
    "kubectl replace -f objects.yaml": "its block in upgrade.md says what runs it",
    "kubectl taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute": "server",
}
MENTIONED = {
    "kubectl create configmap",
    "kubectl delete bg",
    "kubectl get pods",
    "kubectl describe bg",
    "kubectl describe pod",
    "kubectl describe service",
}


def test_every_command_that_a_page_names_in_passing_is_listed() -> None:
    decisions = ROOT / "docs" / "adr"
    of_docs = (path for path in (ROOT / "docs").rglob("*.md") if path.parent not in {RUNBOOKS, decisions})
    pages = [ROOT / "README.md", *of_docs]
    texts = [re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE) for path in pages]
    found = {command for text in texts for command in IN_PASSING.findall(text)}
    assert sorted(found - MENTIONED) == sorted(PASSING)


@pytest.mark.real("kube-apiserver")
@pytest.mark.timeout(4 * SECONDS)
def test_a_command_that_a_page_names_in_passing_is_taken(reader: Reader) -> None:
    """Commands with changes run as a dry run at the API server; missing objects are allowed."""
    node, claim = (reader.run(f"kubectl get {kind} -o name").split()[0].partition("/")[2] for kind in ("nodes", "pvc"))
    # A container that has ended has something to print.
    reader.run("kubectl brokergroup restart orders 2 --wait")
    words = {**WORDS, "NODE": node, "CLAIM": claim, "NAME": "orders", "POD": "orders-2 -c broker"}
    (reader.home / "slo").mkdir()
    for command, how in PASSING.items():
        here = re.sub(r"\b(?:NAMESPACE|GROUP|NODE|CLAIM|NAME|POD)\b", lambda word: words[word[0]], command)
        here = here.replace("slo/", f"{reader.home}/slo/")
        if how in {"server", "client"}:
            here += f" --dry-run={how}" + (" --ignore-not-found" if " delete " in command else "")
        if how in {"", "server", "client"}:
            reader.run(here)
    assert "orders" in reader.run("kubectl get brokergroups")
