"""What has to hold on the two nodes: a function for each, in the order in which they run.

A check raises CheckError with what it saw; the ones after it run all the same. `slow` ones are left out of the short run.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from brokergroup_operator.kubectl.its_operator import silent_for
from tests.node import faults, network
from tests.node.bench import NEW_MASTER_SECONDS, STEADY_SECONDS, Bench, CheckError, Group, Seen, expect, operator_pods
from tests.node.cluster import GROUPS_NAMESPACE, OPERATOR_NAMESPACE, condition
from tests.node.images import NEXT_TAG, full_name, names_in_chart
from tests.node.install_page import follow
from tests.node.kubectl import CHART, environment, get, helm, kubectl, kubectl_run, until
from tests.node.places import REPOSITORY, nodes
from tests.node.processes import NodeError, command
from tests.node.runbooks import FOLDER as RUNBOOKS
from tests.node.runbooks import look

if TYPE_CHECKING:
    from collections.abc import Callable

RELEASE = "brokergroup-operator"
EXAMPLES = REPOSITORY / "examples"
# Named by the issue; generous, for these machines are noisy.
QUICKSTART_SECONDS = 15.0
OBSERVED_SECONDS = 5.0
# So long a broker that has only just started might be taken for dead by a pod that never heard it.
FRESH_SECONDS = 10.0
# The node the NameServer is not on: the one that is drained and cut.
SPARE_NODE = nodes()[1]
# After the failover, so that the cut-off side has done what it does.
CUT_SECONDS = 8.0
DRAIN_SECONDS = 60
UPGRADE_SECONDS = 300.0
# The blocks of docs/install.md, in its order.
INSTALL_PAGE = ("install", "first-group", "plugin", "upgrade", "uninstall", "release")


@dataclass(frozen=True)
class Check:
    """One thing that has to hold. `sets_up`: the others stand on it, and a cluster that is used again has it done."""

    name: str
    run: Callable[[Bench], None]
    slow: bool = False
    sets_up: bool = False


def install_chart(bench: Bench) -> None:
    """The chart as it stands, by README's line."""
    helm("install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE)
    wait_for_operator()


def wait_for_operator() -> None:
    kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", f"statefulset/{RELEASE}", "--timeout=120s", seconds=130)


def start_name_server(bench: Bench) -> None:
    """As a pod of its own, not on the node that is taken away later."""
    documents = list(yaml.safe_load_all((EXAMPLES / "nameserver.yaml").read_text(encoding="utf-8")))
    for document in documents:
        if document["kind"] == "Pod":
            document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": nodes()[0].name}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    find_name_server(bench)


def find_name_server(bench: Bench) -> None:
    def address() -> str:
        pod = faults.pod_named("nameserver")
        ready = condition(pod, "Ready").get("status") == "True"
        return f"{pod['status']['podIP']}:9876" if ready else ""

    bench.name_server = until("the NameServer is ready", address)


def quickstart(bench: Bench) -> None:
    """FailoverSafe soon after `kubectl apply`, with the images on the nodes."""
    began = time.monotonic()
    kubectl("apply", "-f", str(EXAMPLES / "quickstart.yaml"))
    arguments = ("--for=condition=FailoverSafe", "brokergroup/quickstart", "--timeout=120s")
    kubectl("wait", *arguments, seconds=130)
    took = bench.seconds["quickstart"] = round(time.monotonic() - began, 1)
    bench.groups["replica"].wait_until_whole()
    expect(
        took < QUICKSTART_SECONDS,
        f"FailoverSafe {took} s after kubectl apply: expected less than {QUICKSTART_SECONDS:g} s",
    )


def name_server_for_replicas(bench: Bench) -> None:
    """Where the quick start names no NameServer, it gets ours: the load's client asks one."""
    group = bench.groups["replica"]
    if not group.read()["spec"].get("nameServers"):
        change(group, {"nameServers": ["nameserver:9876"]})
        group.wait_until_whole()


def change(group: Group, spec: dict[str, Any]) -> float:
    """Patch the spec; hand back after how many seconds the status is about it."""
    kubectl("patch", "brokergroup", group.name, "--type=merge", "-p", json.dumps({"spec": spec}))
    wanted, began = group.read()["metadata"]["generation"], time.monotonic()
    until("the change is observed", lambda: group.status().get("observedGeneration", 0) >= wanted, 60, 0.1)
    return round(time.monotonic() - began, 1)


def spec_change(bench: Bench) -> None:
    """Somebody changes a spec, and the status is about it soon: a watch lives, not only the resync."""
    group = bench.groups["replica"]
    master = group.status()["master"]["brokerId"]
    took = [change(group, {"failover": {"preferredMaster": wanted}}) for wanted in (master, None, master, None)]
    bench.seconds["spec_change_observed"] = max(took)
    expect(max(took) < OBSERVED_SECONDS, f"observed after {took} s: expected less than {OBSERVED_SECONDS:g} s each")


def fresh_java_group(bench: Bench) -> None:
    """Nobody is taken for dead who was never heard: epoch 1, and no failover to tell of."""
    group, began = bench.groups["java"], time.monotonic()
    kubectl("apply", "-f", str(EXAMPLES / "rocketmq.yaml"))
    group.wait_until_whole()
    bench.seconds["java_group"] = round(time.monotonic() - began, 1)
    time.sleep(FRESH_SECONDS)
    status, incidents = group.status(), bench.records.incidents(group.name)
    counted = sum(bench.records.failovers_total(group.name).values())
    bench.false_failovers += max(len(incidents), status["masterEpoch"] - 1)
    expect(
        status["masterEpoch"] == 1 and not incidents and not counted and not status.get("lastFailover"),
        f"a fresh group is at epoch {status['masterEpoch']} with {len(incidents)} incidents, failovers_total {counted}: "
        "expected 1, 0, 0",
    )


def restricted(bench: Bench) -> None:
    """No privileged pod is let in, and of ours none runs as root."""
    for namespace in (GROUPS_NAMESPACE, OPERATOR_NAMESPACE):
        arguments = (
            "-n",
            namespace,
            "run",
            "privileged",
            "--image=localhost/pause:1",
            "--privileged",
            "--restart=Never",
        )
        done = kubectl_run(*arguments)
        expect(
            "violates PodSecurity" in done.stderr,
            f"{namespace}: a privileged pod got the answer {done.stdout}{done.stderr}",
        )
    pods = [*operator_pods(), *(pod for group in bench.groups.values() for pod in group.pods())]
    expect(len(pods) == 9, f"expected 3 operators and 6 brokers: {[pod['metadata']['name'] for pod in pods]}")
    roots = [
        (pod["metadata"]["name"], faults.command_line(pid))
        for pod in pods
        for pid in faults.pod_pids(pod)
        if faults.user_of(pid) == 0 and "/pause" not in faults.command_line(pid)
    ]
    expect(not roots, f"as root: {roots}")


def on_both(bench: Bench, strike: Callable[[Group], None]) -> None:
    """Java's and Python's master at the same time; both are told of."""
    with ThreadPoolExecutor(len(bench.groups)) as side_by_side:
        done = [side_by_side.submit(strike, group) for group in bench.groups.values()]
    wrong = [str(one.exception()) for one in done if one.exception() is not None]
    expect(not wrong, "; ".join(wrong))


def freeze(bench: Bench) -> None:
    """SIGSTOP: silent, and not dead. Another is elected only when it is confirmed dead, at default settings."""

    def strike(group: Group) -> None:
        wrong = []
        try:
            bench.strike(group, "freeze", faults.freeze, kind="failover")
        except (CheckError, NodeError) as error:
            wrong.append(str(error))
        times = bench.unfenced.get("freeze", {}).get(group.label, 0)
        if times:
            wrong.append(f"{group.name}: Unfenced {times} times, gap {bench.gaps['freeze'].get(group.label)} s")
        expect(not wrong, "; ".join(wrong))

    on_both(bench, strike)


def kill(bench: Bench) -> None:
    """kill -9 of the broker."""
    on_both(bench, lambda group: bench.strike(group, "kill", faults.kill, kind="failover"))


def delete_by_force(bench: Bench) -> None:
    """kubectl delete pod --force --grace-period=0."""
    on_both(bench, lambda group: bench.strike(group, "delete_force", faults.delete_by_force))


def delete(bench: Bench) -> None:
    """kubectl delete pod: the master may hand over first."""
    on_both(bench, lambda group: bench.strike(group, "delete", faults.delete))


def move_to_spare_node(group: Group) -> None:
    """Have the master on the node that is taken away."""
    if group.master()["spec"]["nodeName"] == SPARE_NODE.name:
        return
    there = {pod["metadata"]["name"] for pod in group.pods() if pod["spec"]["nodeName"] == SPARE_NODE.name}
    target = next((one["brokerId"] for one in group.status()["members"] if one["pod"] in there), None)
    expect(target is not None, f"{group.name}: no member is on {SPARE_NODE.name}")
    plugin = REPOSITORY / ".venv" / "bin" / "kubectl-brokergroup"
    words = [str(plugin), "switchover", group.name, "--to", str(target), "--wait"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    expect(done.returncode == 0, f"{' '.join(words[1:])}: {done.stdout}{done.stderr}")
    until(
        f"{group.name}'s master is on {SPARE_NODE.name}", lambda: group.master()["spec"]["nodeName"] == SPARE_NODE.name
    )
    group.wait_until_whole()


def under_load(bench: Bench, name: str, act: Callable[[], None]) -> dict[Group, Seen]:
    """Something that concerns all groups: they are whole again afterwards, and nothing acknowledged is lost."""
    groups = list(bench.groups.values())
    before = {group: Seen.of(bench, group) for group in groups}
    loads = [bench.start_load(group, name) for group in groups]
    time.sleep(STEADY_SECONDS)
    act()
    wrong = []
    for group, load in zip(groups, loads, strict=True):
        try:
            group.wait_until_whole()
            bench.gaps.setdefault(name, {})[group.label] = bench.end_load(load)
        except (CheckError, NodeError) as error:
            wrong.append(str(error))
    expect(not wrong, "; ".join(wrong))
    return before


def drain(bench: Bench) -> None:
    """kubectl drain of the node of both masters. Volumes stay on their node, so that its pods come back when it does."""

    def act() -> None:
        # A second pod of a group stays until the first is back, and that waits for its node: the drain itself does not end.
        options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={DRAIN_SECONDS}s"]
        words = ["kubectl", "drain", SPARE_NODE.name, *options]
        draining = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for group in bench.groups.values():
                until(
                    f"{group.name}'s master has left {SPARE_NODE.name}", lambda one=group: has_left(one), DRAIN_SECONDS
                )
        finally:
            draining.terminate()
            draining.wait()
            kubectl("uncordon", SPARE_NODE.name)

    for group in bench.groups.values():
        move_to_spare_node(group)
    under_load(bench, "drain", act)


def has_left(group: Group) -> bool:
    """By the status: while nobody is master, or its pod has no node yet, it has not."""
    status = group.status()
    name = (status.get("master") or {}).get("pod")
    node = next((one.get("node") for one in status.get("members", []) if one["pod"] == name), None)
    return bool(name) and node not in (None, "", SPARE_NODE.name)


def cut(bench: Bench) -> None:
    """The cable of the node of both masters is pulled, and put back when others are masters."""

    def act() -> None:
        network.cut(SPARE_NODE)
        try:
            for group in bench.groups.values():
                until(f"{group.name}'s master is elsewhere", lambda one=group: has_left(one), NEW_MASTER_SECONDS)
            time.sleep(CUT_SECONDS)
        finally:
            network.heal(SPARE_NODE)

    for group in bench.groups.values():
        move_to_spare_node(group)
    before = under_load(bench, "cut", act)
    for group, seen in before.items():
        bench.judge(group, "cut", seen, "failover")


def upgrade(bench: Bench) -> None:
    """helm upgrade to another tag: operators roll, and every pod that runs our image."""

    def act() -> None:
        helm(
            "upgrade",
            RELEASE,
            str(CHART),
            "--namespace",
            OPERATOR_NAMESPACE,
            "--reset-then-reuse-values",
            "--set",
            f"image.tag={NEXT_TAG}",
        )
        wait_for_operator()
        until("every pod runs the new image", lambda: not pods_of_old_images(bench), UPGRADE_SECONDS, 1)

    under_load(bench, "upgrade", act)


def pods_of_old_images(bench: Bench) -> list[str]:
    old = {full_name(name) for name in names_in_chart()}
    pods = [*operator_pods(), *(pod for group in bench.groups.values() for pod in group.pods())]
    return [
        pod["metadata"]["name"]
        for pod in pods
        if any(full_name(container["image"]) in old for container in pod["spec"]["containers"])
    ]


def uninstall_and_install(bench: Bench) -> None:
    """Without an operator the groups serve on; a new one takes them up as they are."""

    def act() -> None:
        helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
        until("the operator is gone", lambda: not operator_pods())
        time.sleep(STEADY_SECONDS)
        helm("install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE)
        wait_for_operator()

    epochs = {group: group.status()["masterEpoch"] for group in bench.groups.values()}
    under_load(bench, "reinstall", act)
    spec_change(bench)
    changed = {
        group.name: (epoch, now) for group, epoch in epochs.items() if (now := group.status()["masterEpoch"]) != epoch
    }
    # Python's pods go back to the image of the tag that is installed now; Java's do where the fence is of our image.
    expect(all(now > epoch for epoch, now in changed.values()), f"an epoch fell: {changed}")


def install_page(bench: Bench) -> None:
    """docs/install.md as it stands, from an empty cluster: the chart's objects and both groups are taken away first."""
    for group in bench.groups.values():
        kubectl("delete", "brokergroup", group.name, "--ignore-not-found", "--timeout=180s", seconds=190)
    helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
    kubectl("delete", "-f", str(EXAMPLES / "nameserver.yaml"), "--wait=true")
    command("make", "-C", str(REPOSITORY), "dist", seconds=600)
    *page, release = INSTALL_PAGE
    follow(page)
    # The last block is of the case in which the operator went first.
    follow(("install", "first-group"))
    helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
    # Its rights went with the chart, so its last pod could not give the Lease back: `release` refuses until that is stale.
    lease = ("lease", RELEASE, "--namespace", OPERATOR_NAMESPACE)
    until("the operator's Lease is given back or stale", lambda: silent_for(get(*lease)["spec"]), 90.0)
    follow((release,))


def runbooks(bench: Bench) -> None:
    """What each runbook says to look at can be looked at, on a group that is well."""
    group = bench.groups["java"]
    group.wait_until_whole()
    for page in sorted(RUNBOOKS.glob("*.md")):
        look(page.stem, group.name)


def told_once(bench: Bench) -> None:
    """Over the whole run, each epoch that ended a failover or a switchover has one completed incident."""
    for group in bench.groups.values():
        epochs = Counter(
            one.get("epoch") for one in bench.records.incidents(group.name) if one["outcome"] == "completed"
        )
        twice = {epoch: times for epoch, times in epochs.items() if times > 1}
        expect(not twice, f"{group.name}: completed incidents by epoch {twice}: expected one each")


def watch_lives(bench: Bench) -> None:
    """No operator pod, of all that there were, ever lost its watch."""
    lines = [(pod, line) for pod, line in bench.records.log_lines() if "watch.ended" in line]
    by_pod = dict(Counter(pod for pod, _ in lines))
    expect(bench.records.log_lines(), "no operator pod has told anything: expected its log")
    expect(not lines, f"watch.ended by pod {by_pod}; the last: {lines[-1][1][:300] if lines else ''}")


CHECKS = (
    Check("install", install_chart, sets_up=True),
    Check("name-server", start_name_server, sets_up=True),
    Check("quickstart", quickstart, sets_up=True),
    Check("name-server-for-replicas", name_server_for_replicas, sets_up=True),
    Check("fresh-java-group", fresh_java_group, sets_up=True),
    Check("spec-change", spec_change),
    Check("restricted", restricted),
    Check("freeze", freeze),
    Check("kill", kill),
    Check("delete-by-force", delete_by_force),
    Check("delete", delete),
    Check("drain", drain, slow=True),
    Check("cut", cut, slow=True),
    Check("upgrade", upgrade, slow=True),
    Check("uninstall-and-install", uninstall_and_install, slow=True),
    Check("runbooks", runbooks, slow=True),
    Check("told-once", told_once),
    Check("watch-lives", watch_lives),
    # The last: it leaves no group.
    Check("install-page", install_page, slow=True),
)
