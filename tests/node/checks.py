"""The checks on the two nodes: a function for each, in their order.

A check raises CheckError with the observed state; later ones still run. The short run omits `slow` ones.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from tests.node import faults, network
from tests.node.acts import EXAMPLES, RELEASE, change, plugin, under_load, wait_for_operator
from tests.node.bench import NEW_MASTER_SECONDS, Bench, CheckError, Group, epoch_of, expect, operator_pods
from tests.node.cluster import GROUPS_NAMESPACE, OPERATOR_NAMESPACE, condition
from tests.node.images import NEXT_TAG, full_name, names_in_chart
from tests.node.kubectl import CHART, get, helm, kubectl, kubectl_run, until
from tests.node.live_page import dashboard
from tests.node.places import nodes
from tests.node.processes import NodeError, command_line
from tests.node.runbooks import FOLDER as RUNBOOKS
from tests.node.runbooks import look
from tests.node.whole_cluster import whole_cluster
from tests.node.without_operator import install_page, spec_change, uninstall_and_install
from tests.real.parts.java import FAST_START

if TYPE_CHECKING:
    from collections.abc import Callable

# From the issue; generous, as these machines are noisy.
QUICKSTART_SECONDS = 15.0
# For this long a pod that never heard a just started broker might take it for dead.
FRESH_SECONDS = 10.0
# The node the NameServer is not on: the one that is drained and cut.
SPARE_NODE = nodes()[1]
TAINT = "brokergroup.dev/no-new-pods"
# After the failover, so that the cut-off side has finished its reaction.
CUT_SECONDS = 8.0
DRAIN_SECONDS = 60
# The kubelet's `minimumGracePeriodInSeconds`: with any grace period SIGKILL comes no sooner.
LEAST_GRACE_SECONDS = 2.0
# The evidence's text for a fence's signed answer, and the number of sequential API calls of a fence and a failover.
SIGNED = "signed that it is dead"
API_CALLS = 4
UPGRADE_SECONDS = 300.0
# 30 s without a link, and the time of a pod.
REPLACED_SECONDS = 90.0


@dataclass(frozen=True)
class Check:
    """One check. `sets_up`: the others need it, and a reused cluster already has it."""

    name: str
    run: Callable[[Bench], None]
    slow: bool = False
    sets_up: bool = False


def install_chart(bench: Bench) -> None:
    """Install the unchanged chart by README's line. The NameServer, which needs no operator, starts meanwhile."""
    apply_name_server()
    helm("install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE)
    wait_for_operator()


def apply_name_server() -> None:
    """Start it in a separate pod, not on the node that is removed later."""
    documents = list(yaml.safe_load_all((EXAMPLES / "nameserver.yaml").read_text(encoding="utf-8")))
    for document in documents:
        if document["kind"] == "Pod":
            document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": nodes()[0].name}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))


def find_name_server(bench: Bench) -> None:
    """Wait for its pod; the loads get their route from it."""

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
    """Add our NameServer to a quick start without one: the load's client needs it."""
    group = bench.groups["replica"]
    if not group.read()["spec"].get("nameServers"):
        change(group, {"nameServers": ["nameserver:9876"]})
        group.wait_until_whole()


def fresh_java_group(bench: Bench) -> None:
    """A broker that was never heard does not count as dead: epoch 1, and no failover."""
    group, began = bench.groups["java"], time.monotonic()
    wanted = yaml.safe_load((EXAMPLES / "rocketmq.yaml").read_text(encoding="utf-8"))
    wanted["spec"]["jvm"] = {"extraArguments": list(FAST_START)}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(wanted))
    group.wait_until_whole()
    bench.seconds["java_group"] = round(time.monotonic() - began, 1)
    time.sleep(FRESH_SECONDS)
    status, incidents = group.status(), bench.records.incidents(group.name)
    counted = sum(bench.records.failovers_total(group.name).values())
    bench.false_failovers += max(len(incidents), epoch_of(status) - 1)
    expect(
        epoch_of(status) == 1 and not incidents and not counted and not status.get("failovers"),
        f"a fresh group is at epoch {epoch_of(status)} with {len(incidents)} incidents, failovers_total {counted}: "
        "expected 1, 0, 0",
    )


def restricted(bench: Bench) -> None:
    """The API refuses privileged pods, and none of ours runs as root."""
    for namespace in (GROUPS_NAMESPACE, OPERATOR_NAMESPACE):
        options = ("--image=localhost/pause:1", "--privileged", "--restart=Never")
        done = kubectl_run("-n", namespace, "run", "privileged", *options)
        expect(
            "violates PodSecurity" in done.stderr,
            f"{namespace}: a privileged pod got the answer {done.stdout}{done.stderr}",
        )
    pods = [*operator_pods(), *(pod for group in bench.groups.values() for pod in group.pods())]
    expect(len(pods) == 9, f"expected 3 operators and 6 brokers: {[pod['metadata']['name'] for pod in pods]}")
    roots = [
        (pod["metadata"]["name"], command_line(pid))
        for pod in pods
        for pid in faults.pod_pids(pod)
        if faults.user_of(pid) == 0 and "/pause" not in command_line(pid)
    ]
    expect(not roots, f"as root: {roots}")


def on_both(bench: Bench, strike: Callable[[Group], None]) -> None:
    """Strike Java's and Python's master at once; both failovers are reported."""
    with ThreadPoolExecutor(len(bench.groups)) as side_by_side:
        done = [side_by_side.submit(strike, group) for group in bench.groups.values()]
    wrong = [str(one.exception()) for one in done if one.exception() is not None]
    expect(not wrong, "; ".join(wrong))


def freeze(bench: Bench) -> None:
    """SIGSTOP: silent but alive. At default settings another master is elected soon, but only after its confirmed death."""

    def strike(group: Group) -> None:
        wrong = []
        try:
            bench.strike(group, "freeze", faults.freeze, kind="failover")
        except (CheckError, NodeError) as error:
            wrong.append(str(error))
        times = bench.unfenced.get("freeze", {}).get(group.label, 0)
        if times:
            wrong.append(f"{group.name}: Unfenced {times} times, gap {bench.gaps['freeze'].get(group.label)} s")
        wrong += slow_freeze(bench, group)
        expect(not wrong, "; ".join(wrong))

    on_both(bench, strike)


def slow_freeze(bench: Bench, group: Group) -> list[str]:
    """Return a freeze's delays that a working in-pod fence excludes.

    No kubelet gives a container less than `LEAST_GRACE_SECONDS`: a confirmation that took this long without the fence's
    signed answer was the kubelet's, or none. And the whole gap between acknowledgements is less than the allowed silence
    plus that grace, plus some API calls, each as slow as the failover's commit.
    """
    gap, incident = bench.gaps.get("freeze", {}).get(group.label), bench.told.get("freeze", {}).get(group.label)
    if gap is None or incident is None:
        return []  # already reported
    wrong, steps = [], incident["stepsMilliseconds"]
    fenced, evidence = steps.get("fenced", 0.0) / 1000, "; ".join(incident["evidence"])
    if fenced >= LEAST_GRACE_SECONDS and SIGNED not in evidence:
        how = f"{fenced:.1f} s until it was confirmed ({evidence})"
        wrong.append(f"{group.name}: {how}: expected less than the kubelet's least grace, {LEAST_GRACE_SECONDS:g} s")
    silence = group.read()["spec"]["failover"]["heartbeatTimeoutMilliseconds"] / 1000
    api = API_CALLS * (steps["committed"] - steps["decided"]) / 1000
    if gap >= silence + LEAST_GRACE_SECONDS + api:
        allowed = f"{silence:g} s of silence, {LEAST_GRACE_SECONDS:g} s to kill, {api:.1f} s for the API"
        wrong.append(f"{group.name}: nothing was acknowledged for {gap} s: expected less than {allowed}")
    return wrong


def kill(bench: Bench) -> None:
    """kill -9 of the broker."""
    on_both(bench, partial(strike_at_once, bench, name="kill", fault=faults.kill, kind="failover"))


def delete_by_force(bench: Bench) -> None:
    """kubectl delete pod --force --grace-period=0."""
    on_both(bench, partial(strike_at_once, bench, name="delete_force", fault=faults.delete_by_force))


def delete(bench: Bench) -> None:
    """kubectl delete pod: a switchover may come first."""
    on_both(bench, partial(strike_at_once, bench, name="delete", fault=faults.delete))


def strike_at_once(bench: Bench, group: Group, *, name: str, fault: faults.Fault, kind: str | None = None) -> None:
    """One fault that ends the broker's connections. Raise CheckError if the failover waited for its silence instead."""
    bench.strike(group, name, fault, kind=kind)
    gap = bench.gaps[name][group.label]
    silence = group.read()["spec"]["failover"]["heartbeatTimeoutMilliseconds"] / 1000
    told = f"{group.name}: {name}: nothing was acknowledged for {gap} s: expected less than {silence:g} s"
    expect(gap < silence, f"{told}, the silence after which a broker with open connections is taken for lost")


def switchover(bench: Bench) -> None:
    """kubectl brokergroup switchover: a planned change; prints the time of the brokers' role changes."""

    def strike(group: Group) -> None:
        def hand_over(_pod: dict[str, Any], _implementation: str) -> None:
            done = plugin("switchover", group.name, "--wait")
            expect(done.returncode == 0, f"switchover {group.name}: {done.stdout}{done.stderr}")

        bench.strike(group, "switchover", hand_over, kind="switchover")
        steps = bench.told["switchover"][group.label]["stepsMilliseconds"]
        bench.seconds[f"switchover_role_changed_{group.label}"] = steps["roleChanged"] / 1000

    on_both(bench, strike)


def move_to_spare_node(group: Group) -> None:
    """Move the master to the node that is removed."""
    if group.master()["spec"]["nodeName"] == SPARE_NODE.name:
        return
    there = {pod["metadata"]["name"] for pod in group.pods() if pod["spec"]["nodeName"] == SPARE_NODE.name}
    target = next((one["brokerId"] for one in group.status()["members"] if one["pod"] in there), None)
    expect(target is not None, f"{group.name}: no member is on {SPARE_NODE.name}")
    done = plugin("switchover", group.name, "--to", str(target), "--wait")
    expect(done.returncode == 0, f"switchover {group.name} --to {target}: {done.stdout}{done.stderr}")
    until(
        f"{group.name}'s master is on {SPARE_NODE.name}", lambda: group.master()["spec"]["nodeName"] == SPARE_NODE.name
    )
    group.wait_until_whole()


def leave_the_master_alone_there(group: Group) -> None:
    """Leave only the master on that node: with two of three members cut off, no election could end the gap before the cut."""
    master = group.master_name()
    there = {pod["metadata"]["name"] for pod in group.pods() if pod["spec"]["nodeName"] == SPARE_NODE.name} - {master}
    # Not by `kubectl cordon`: the operator moves a master off a node that is being drained.
    kubectl("taint", "nodes", SPARE_NODE.name, f"{TAINT}=true:NoSchedule", "--overwrite")
    try:
        for broker_id in [one["brokerId"] for one in group.status()["members"] if one["pod"] in there]:
            done = plugin("rebuild", group.name, str(broker_id), "--confirm", group.name, "--wait")
            expect(done.returncode == 0, f"rebuild {group.name} {broker_id}: {done.stdout}{done.stderr}")
            group.wait_until_whole()
    finally:
        kubectl("taint", "nodes", SPARE_NODE.name, f"{TAINT}-")


def drain(bench: Bench) -> None:
    """kubectl drain of the node of both masters. Volumes stay on their node, so its pods return with it."""

    def act() -> None:
        with faults.draining(SPARE_NODE.name, DRAIN_SECONDS):
            for group in bench.groups.values():
                until(f"{group.name}'s master has left {SPARE_NODE.name}", partial(has_left, group), DRAIN_SECONDS)

    for group in bench.groups.values():
        move_to_spare_node(group)
    under_load(bench, "drain", act)


def has_left(group: Group) -> bool:
    """Whether the master has left the node, by the status: not while there is no master, or its pod has no node."""
    status = group.status()
    name = (status.get("master") or {}).get("pod")
    node = next((one.get("node") for one in status.get("members", []) if one["pod"] == name), None)
    return bool(name) and node not in (None, "", SPARE_NODE.name)


def cut(bench: Bench) -> None:
    """Cut the network of both masters' node, and restore it once other members lead."""

    def act() -> None:
        network.cut(SPARE_NODE)
        try:
            for group in bench.groups.values():
                until(f"{group.name}'s master is elsewhere", partial(has_left, group), NEW_MASTER_SECONDS)
            time.sleep(CUT_SECONDS)
        finally:
            network.heal(SPARE_NODE)

    for group in bench.groups.values():
        move_to_spare_node(group)
        leave_the_master_alone_there(group)
    before = under_load(bench, "cut", act)
    for group, seen in before.items():
        bench.judge(group, "cut", seen, "failover")


def unlinked(bench: Bench) -> None:
    """A slave with heartbeats but without a link: it gets its role again, then new epochs, then its process is replaced."""

    def act() -> None:
        slaves = {group: least_replaced_slave(group) for group in groups}
        for group, (name, _) in slaves.items():
            pod = faults.pod_named(name)
            uids[name] = pod["metadata"]["uid"]
            faults.refuse_links(pod, group.implementation)
        for group, (name, replacements) in slaves.items():
            # Each pause is twice as long as the last one.
            bound_seconds = REPLACED_SECONDS * 2**replacements
            until(f"{name}'s process is replaced", partial(is_another, name, uids[name]), bound_seconds)
            told = get("events", "--field-selector", f"involvedObject.name={group.name},reason=UnlinkedMemberReplaced")
            expect(bool(told["items"]), f"{group.name}: {name} was replaced without an Event UnlinkedMemberReplaced")

    uids: dict[str, str] = {}
    groups = list(bench.groups.values())
    masters = {group: group.master_name() for group in groups}
    under_load(bench, "unlinked", act)
    changed = {group.name: group.master_name() for group in groups if group.master_name() != masters[group]}
    expect(not changed, f"a slave's link cost the master its role: {changed}")


def least_replaced_slave(group: Group) -> tuple[str, int]:
    """Return its pod's name, and the number of its process's replacements."""
    counts = {one["pod"]: one.get("replacements", 0) for one in group.status()["members"]}
    slaves = [name for name in counts if name != group.master_name()]
    name = min(slaves, key=counts.__getitem__)
    return name, counts[name]


def is_another(name: str, uid: str) -> bool:
    """Whether a new pod of that name exists."""
    found = get("pods", "--field-selector", f"metadata.name={name}")["items"]
    return any(pod["metadata"]["uid"] != uid for pod in found)


def upgrade(bench: Bench) -> None:
    """helm upgrade to another tag, then two operator pods in place of three, then three: only operator pods are replaced."""

    def act() -> None:
        before = {group: uids_of(group) for group in bench.groups.values()}
        helm_upgrade(f"image.tag={NEXT_TAG}")
        until("every operator pod runs the new image", lambda: not operators_of_old_images(), UPGRADE_SECONDS, 1)
        same_pods(before, "another image of the operator")
        for count in (2, 3):
            replicas = f"replicaCount={count}"
            helm_upgrade(replicas)
            for group in bench.groups.values():
                until(
                    f"{group.name} has {count} controllers", partial(has_controllers, group, count), UPGRADE_SECONDS, 1
                )
            same_pods(before, replicas)

    under_load(bench, "upgrade", act)


def helm_upgrade(value: str) -> None:
    options = ("--namespace", OPERATOR_NAMESPACE, "--reset-then-reuse-values", "--set", value)
    helm("upgrade", RELEASE, str(CHART), *options)
    wait_for_operator()


def uids_of(group: Group) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in group.pods()}


def same_pods(before: dict[Group, dict[str, str]], what: str) -> None:
    """Whether all groups are up to date by the present operator, with unchanged pods."""
    for group, uids in before.items():
        group.wait_until_whole()
        expect(uids_of(group) == uids, f"{group.name}: {what} replaced broker pods: {uids} became {uids_of(group)}")


def has_controllers(group: Group, count: int) -> bool:
    """Whether the group's brokers have this many controllers, by each pod's annotation."""
    if len(group.status()["controller"]["addresses"]) != count:
        return False
    notes = [json.loads(pod["metadata"]["annotations"]["brokergroup.dev/hot-config"]) for pod in group.pods()]
    return all(len(note.get("controllerAddr", "").split(";")) == count for note in notes)


def operators_of_old_images() -> list[str]:
    old = {full_name(name) for name in names_in_chart()}
    return [
        pod["metadata"]["name"]
        for pod in operator_pods()
        if any(full_name(container["image"]) in old for container in pod["spec"]["containers"])
    ]


def runbooks(bench: Bench) -> None:
    """Each runbook's reading commands work on a healthy group."""
    group = bench.groups["java"]
    group.wait_until_whole()
    for page in sorted(RUNBOOKS.glob("*.md")):
        look(page.stem, group.name)


def told_once(bench: Bench) -> None:
    """Over the whole run, each failover's or switchover's final epoch has one completed incident.

    Two pods may have written its line under one id, if the second took over a change whose end the first could not write.
    """
    for group in bench.groups.values():
        completed = [one for one in bench.records.incidents(group.name) if one["outcome"] == "completed"]
        epochs = Counter(epoch for epoch, _ in {(one.get("epoch"), one["id"]) for one in completed})
        twice = {epoch: times for epoch, times in epochs.items() if times > 1}
        expect(not twice, f"{group.name}: completed incidents by epoch {twice}: expected one each")


def watch_lives(bench: Bench) -> None:
    """No operator pod ever lost its watch."""
    lines = [(pod, line) for pod, line in bench.records.log_lines() if "watch.ended" in line]
    by_pod = dict(Counter(pod for pod, _ in lines))
    expect(bench.records.log_lines(), "no operator pod has told anything: expected its log")
    expect(not lines, f"watch.ended by pod {by_pod}; the last: {lines[-1][1][:300] if lines else ''}")


def names_resolve(bench: Bench) -> None:
    """The operators resolve the specs' NameServers from their own namespace: none was unknown."""
    unknown = [line for _, line in bench.records.log_lines() if "Name or service not known" in line]
    expect(not unknown, f"{len(unknown)} times a name was not known; the last: {unknown[-1][:300] if unknown else ''}")


CHECKS = (
    Check("install", install_chart, sets_up=True),
    Check("name-server", find_name_server, sets_up=True),
    Check("quickstart", quickstart, sets_up=True),
    Check("name-server-for-replicas", name_server_for_replicas, sets_up=True),
    Check("fresh-java-group", fresh_java_group, sets_up=True),
    Check("spec-change", spec_change),
    Check("restricted", restricted),
    Check("dashboard", dashboard),
    Check("freeze", freeze),
    Check("kill", kill),
    Check("delete-by-force", delete_by_force),
    Check("delete", delete),
    Check("switchover", switchover, slow=True),
    Check("drain", drain, slow=True),
    Check("cut", cut, slow=True),
    Check("unlinked", unlinked, slow=True),
    Check("upgrade", upgrade, slow=True),
    Check("whole-cluster", whole_cluster, slow=True),
    Check("uninstall-and-install", uninstall_and_install, slow=True),
    Check("runbooks", runbooks, slow=True),
    Check("told-once", told_once),
    Check("watch-lives", watch_lives),
    Check("names-resolve", names_resolve),
    # It runs last, as it leaves no group.
    Check("install-page", install_page, slow=True),
)
