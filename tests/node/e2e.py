"""Two real nodes: every deployment of docs/deployments.md, applied, used by real clients, broken, used again, and deleted.

    python -m tests.node.e2e                         all of them, one after the other
    python -m tests.node.e2e --only single --only replicated
    python -m tests.node.e2e --keep                  leaves the nodes up

For each: Java's client sends, a fault meets a master under load, Java's client sends again and another one reads everything; with
a Proxy the gRPC client does the same, and goes on while the master dies. Then it is deleted, and only its claims are left.
`tls-authority` takes another authority before that, by the commands of docs/concepts/security.md, while both clients send.

`ready_s` counts from the command to Ready with all brokers at the NameServer and all slaves in sync. `failover_s` is the longest
time between two acknowledgements around a fault, over all faults of the line; null where nothing fails over (then `back_s` is that
time). `sent` and `consumed` count the messages of the Java and gRPC clients, `load` those that were acknowledged under the faults,
and `lost` those of all three that were not there afterwards. The last line of standard output is JSON; the exit code is 0 only if
all are ok.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.address import join_address
from tests.interop.clients import compile_client, start_client_by
from tests.node import authority, faults, policies, snapshots
from tests.node.acts import RELEASE, wait_for_operator
from tests.node.bench import Bench, expect
from tests.node.brokers import Brokers, incarnation
from tests.node.cluster import OPERATOR_NAMESPACE, say
from tests.node.deployments import DEPLOYMENTS, GONE_SECONDS, TOPIC, Deployment
from tests.node.evidence import RECORDS, keep_brokers_labelled, keep_what_runs
from tests.node.kubectl import CHART, get, helm, kubectl, until
from tests.node.leftovers import claims, delete_claims, delete_what_stays, inventory, left_over
from tests.node.lines import Line, verdict
from tests.node.load import GAP_SECONDS
from tests.node.places import nodes, state_folder
from tests.node.processes import NodeError
from tests.node.records import OperatorRecords
from tests.node.whole_cluster import READERS as GRPC_READERS
from tests.node.whole_cluster import TOPIC as GRPC_TOPIC
from tests.node.whole_cluster import GrpcClient
from tests.node.whole_run import ERRORS, run_on_two_nodes, told
from tests.real.parts.install import ROCKETMQ_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.interop.clients import JavaClient
    from tests.node.authority import Authorities

# Messages of Java's client before the faults and after them, and of the gRPC client before, during and after.
MESSAGES, GRPC_MESSAGES = 200, 50
CLIENT_SECONDS = 90.0
BROKEN_SECONDS = 120.0
STEADY_SECONDS = 2.0
# Messages of the gRPC client at once while a fault is under way.
GRPC_BATCH = 5
DRAIN_SECONDS = 60
# Java's client while another authority comes: so many messages in each of these times.
FLOW, FLOW_SECONDS = 2, 0.1
LOOK_SECONDS = 1.0


@dataclass
class Run:
    """The state that all deployments of a run share."""

    folder: Path
    bench: Bench
    class_path: list[str]
    # Of the deployment that is under way, if it has TLS.
    tls: Authorities | None = None

    def line_of(self, deployment: Deployment) -> Line:
        """Make one deployment, use it, break it, delete it."""
        if not deployment.new_authority:
            return self.whole_line_of(deployment)
        with authority.served(self.folder / "authorities") as tls:
            return replace(self, tls=tls).whole_line_of(deployment)

    def whole_line_of(self, deployment: Deployment) -> Line:
        line, before, mine = Line(deployment.name), inventory(), claims()
        say(f"{deployment.name} …")
        try:
            self.make(deployment, line)
            self.use(deployment, line)
        except ERRORS as error:
            line.why.append(told(error))
            say(f"{deployment.name}: FAILED: {line.why[-1]}")
            keep_what_runs(RECORDS / deployment.name, [])
            keep_brokers_labelled(RECORDS / deployment.name, "", "Java")
            clients = self.folder / deployment.name
            if clients.exists():
                shutil.copytree(clients, RECORDS / deployment.name / "clients", dirs_exist_ok=True)
        finally:
            # After an interrupt too: the cluster may be one that stays. What one step leaves, the others still remove.
            self.bench.end_loads()
            for step in (
                partial(self.delete, deployment, line, before),
                forget_records,
                lambda: delete_claims(claims() - mine),
            ):
                try:
                    step()
                except ERRORS as error:
                    line.why.append(told(error))
        return line

    def make(self, deployment: Deployment, line: Line) -> None:
        """Apply it; Ready is by Kubernetes, and by the brokers' own words."""
        began = time.monotonic()
        deployment.apply(self.folder / "values.yaml")
        deployment.wait_until_ready()
        Brokers(deployment).wait_until_whole()
        line.ready_s = round(time.monotonic() - began, 1)
        say(f"  ready after {line.ready_s} s")

    def use(self, deployment: Deployment, line: Line) -> None:
        """Send before the faults and after them, read all of it at the end."""
        with contextlib.ExitStack() as open_clients:
            if deployment.policies:
                open_clients.enter_context(policies.enforced(deployment.parts()))
            java = open_clients.enter_context(self.java_client(deployment, "produce", workers=2))
            grpc = open_clients.enter_context(self.grpc_client(deployment)) if deployment.proxy else None
            Brokers(deployment).make_topics_and_groups((TOPIC, GRPC_TOPIC), GRPC_READERS)
            Brokers(deployment).wait_until_all_have(TOPIC)
            sent = Sent(java, grpc)
            sent.exchange(line)
            if self.tls is not None:
                self.take_another_authority(self.tls, deployment, line, sent)
                sent.grpc = open_clients.enter_context(self.grpc_client(deployment))
            for fault in deployment.faults:
                with sent.meanwhile(line, fault):
                    self.strike(deployment, line, fault)
            if deployment.snapshots:
                self.lose_and_restore(deployment, line)
            sent.exchange(line)
            acknowledged = {one.key for one in java.acknowledged()}
            if deployment.reads_while_away:
                self.read_while_away(deployment, line, acknowledged)
            missing = self.unread(deployment, acknowledged, "after")
            line.sent += len(acknowledged)
            line.consumed += len(acknowledged - missing)
            line.lost += len(missing)
            say(f"  {line.sent} sent, {line.consumed} consumed, {len(missing)} of Java's client missing")
        if self.tls is not None:
            self.tls.refuse_the_old_one(deployment)

    def take_another_authority(self, tls: Authorities, deployment: Deployment, line: Line, sent: Sent) -> None:
        """The page's steps, each while both clients send; afterwards every part trusts, and shows, the new authority alone."""
        for step in authority.BLOCKS:
            began = time.monotonic()
            with sent.meanwhile(line, step), sent.going_on(line, step), listed(Brokers(deployment), line, step):
                tls.take(step)
            line.step_s[step] = round(time.monotonic() - began, 1)
            told = f"nothing acknowledged for at most {line.silent_s[step]} s, by the Proxy {line.proxy_s.get(step)} s"
            say(f"  {step}: {line.step_s[step]} s, {told}")
        tls.trust_the_new_one_alone(deployment)
        Brokers(deployment).wait_until_whole()

    def lose_and_restore(self, deployment: Deployment, line: Line) -> None:
        """A group that is backed up by snapshots under load, lost, and made anew: what it had acknowledged before is there."""
        seen = snapshots.lose_and_restore(self.bench, Brokers(deployment).name_servers()[0])
        line.load += seen.acknowledged
        line.lost += len(seen.lost)
        told = f"{seen.acknowledged} messages were confirmed before the backup, {len(seen.lost)} of them are lost"
        say(f"  snapshots: {told}; the new group has {seen.restored}")

    @contextlib.contextmanager
    def java_client(self, deployment: Deployment, role: str, **options: str | int) -> Iterator[JavaClient]:
        """The unmodified Java client, until the block ends."""
        # NameServers that take another authority get other addresses; their Service keeps its own.
        addresses = ";".join(Brokers(deployment).name_servers()) if self.tls is None else self.tls.name_servers()
        folder = self.folder / deployment.name
        client = start_client_by(
            ("java",) if self.tls is None else (*nodes()[0].enter, "java", *self.tls.java_arguments()),
            folder,
            f"{role}-{time.monotonic_ns()}",
            self.class_path,
            role,
            {"name_server": addresses, "topic": TOPIC, **options},
        )
        try:
            yield client
        finally:
            if client.process.poll() is None:
                client.process.kill()
            client.process.wait()

    def grpc_client(self, deployment: Deployment) -> GrpcClient:
        """The gRPC client at the Service of the proxies, whose address exists on the nodes' networks only."""
        if self.tls is not None:
            return self.tls.grpc_client(deployment.proxy_service)
        address = get("service", deployment.proxy_service)["spec"]["clusterIP"]
        return GrpcClient(join_address(address, 8081), nodes()[0].enter)

    def read_while_away(self, deployment: Deployment, line: Line, acknowledged: set[str]) -> None:
        """Read everything while the master's pod cannot start."""
        brokers = Brokers(deployment)
        pod = brokers.master_pod()
        say(f"  away: {pod['metadata']['name']}")
        began = time.monotonic()
        with away(pod, faults.delete):
            until("the pod is gone", lambda: is_gone(pod), BROKEN_SECONDS)
            until("the master has left the NameServer", lambda: not brokers.has_registered(pod), BROKEN_SECONDS)
            missing = self.unread(deployment, acknowledged, "away")
            line.read_while_away_s = round(time.monotonic() - began, 1)
            say(f"  {len(acknowledged - missing)} of {len(acknowledged)} read after {line.read_while_away_s} s")
        if missing:
            line.why.append(f"while the master's pod was away {len(missing)} messages could not be read")
        brokers.wait_until_whole()

    def unread(self, deployment: Deployment, wanted: set[str], name: str) -> set[str]:
        """Return those of these keys that a new consumer group has not received within `CLIENT_SECONDS`."""
        with self.java_client(deployment, "pull", group=f"readers-{name}") as reader:
            with contextlib.suppress(NodeError):
                until("all are read", lambda: wanted <= {one.key for one in reader.seen()}, CLIENT_SECONDS)
            return wanted - {one.key for one in reader.seen()}

    def strike(self, deployment: Deployment, line: Line, fault: str) -> None:
        """One fault of the master under load, and the longest gap between two acknowledgements around it."""
        brokers = Brokers(deployment)
        pod = brokers.master_pod()
        # A drain takes the NameServer of its node too.
        brokers.name_server = brokers.name_server_beside(pod["spec"]["nodeName"])
        load = self.bench.load_on(
            deployment.struck,
            brokers.name_server,
            brokers.master(),
            f"{fault}-{deployment.name}",
            with_tls=deployment.new_authority,
        )
        time.sleep(STEADY_SECONDS)
        say(f"  {fault}: {pod['metadata']['name']} on {pod['spec']['nodeName']}")
        before, there, began = incarnation(pod), brokers.pods_on(pod["spec"]["nodeName"]), time.time()
        with FAULTS[fault](pod):
            if deployment.fails_over:
                ours = ("", pod["metadata"]["name"])
                until("another broker leads", lambda: brokers.master_pod_name() not in ours, BROKEN_SECONDS)
            else:
                until("the broker is back", lambda: brokers.is_back(before), BROKEN_SECONDS)
            if fault == "drain":
                # Of two brokers on the node the second one stays until the first is back, which waits for its node.
                until("one of its pods has left the node", lambda: any(map(is_gone, there)), BROKEN_SECONDS)
        leads = time.time()
        brokers.wait_until_whole()
        time.sleep(STEADY_SECONDS)
        seen = load.stop()
        expect(seen["last_acknowledged"] > leads, f"{fault}: nothing was acknowledged once a broker led again")
        line.load += seen["acknowledged"]
        line.lost_before_fault_s += [began - at for at in seen["lost_at"]]
        line.gaps_s[fault] = max(
            (length for begin, length in seen["gaps"] if begin + length > began), default=GAP_SECONDS
        )
        say(f"  {seen['acknowledged']} acknowledged, longest gap {line.gaps_s[fault]} s, lost {len(seen['lost'])}")

    def delete(self, deployment: Deployment, line: Line, before: set[str]) -> None:
        """Delete it by its users' command; what is new and does not stay by intent is left over."""
        began = time.monotonic()
        deployment.delete()
        with contextlib.suppress(NodeError):
            until("nothing is left", lambda: not left_over(before, inventory()), GONE_SECONDS, 1.0)
        line.deleted_s = round(time.monotonic() - began, 1)
        line.left = left_over(before, inventory())


@contextlib.contextmanager
def beside(run: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """Run it in a thread until the block has ended, which sets the event; raise what it has raised."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run)
        try:
            yield
        finally:
            over.set()
        running.result()


@contextlib.contextmanager
def listed(brokers: Brokers, line: Line, step: str) -> Iterator[None]:
    """Until the block has ended, look once a second whether new clients and proxies find a broker at a NameServer."""
    over = threading.Event()

    def run() -> None:
        since, longest = time.monotonic(), 0.0
        while not over.wait(LOOK_SECONDS):
            now, is_listed = time.monotonic(), brokers.is_listed()
            since = time.monotonic() if is_listed else since
            longest = longest if is_listed else max(longest, now - since)
        line.unlisted_s[step] = round(longest, 1)

    with beside(run, over):
        yield


@dataclass
class Sent:
    """The clients that send: Java's, and with a Proxy the gRPC one."""

    java: JavaClient
    grpc: GrpcClient | None
    allowed: int = 0
    by_grpc: int = 0

    def exchange(self, line: Line) -> None:
        """Send by each; the gRPC client also receives its messages."""
        self.allowed += MESSAGES
        self.java.tell(str(self.allowed))
        wanted = self.allowed
        until(
            f"Java's client has {wanted} acknowledged", lambda: len(self.java.acknowledged()) >= wanted, CLIENT_SECONDS
        )
        self.by_the_proxy(line)

    @contextlib.contextmanager
    def meanwhile(self, line: Line, fault: str) -> Iterator[None]:
        """The gRPC client sends and receives, a few messages at once, until the block has ended, and once more after it."""
        over = threading.Event()

        def run() -> None:
            while self.grpc is not None:
                last, began = over.is_set(), time.monotonic()
                self.by_the_proxy(line, GRPC_BATCH)
                line.proxy_s[fault] = max(line.proxy_s.get(fault, 0.0), round(time.monotonic() - began, 1))
                if last:
                    return

        with beside(run, over):
            yield

    @contextlib.contextmanager
    def going_on(self, line: Line, step: str) -> Iterator[None]:
        """Java's client sends at a steady rate until the block has ended; notes its longest time without an acknowledgement."""
        over = threading.Event()

        def run() -> None:
            many, since, longest = len(self.java.outcomes()), time.monotonic(), 0.0
            while not over.wait(FLOW_SECONDS):
                now, found = time.monotonic(), len(self.java.outcomes())
                longest = max(longest, now - since)
                if found > many:
                    many, since = found, now
                self.allowed = found + FLOW
                self.java.tell(str(self.allowed))
            line.silent_s[step] = round(longest, 1)

        with beside(run, over):
            yield

    def by_the_proxy(self, line: Line, count: int = GRPC_MESSAGES) -> None:
        if self.grpc is None:
            return
        first, self.by_grpc = self.by_grpc, self.by_grpc + count
        self.grpc.send(first, count)
        line.sent += count
        missing = self.grpc.receive(first, count).missing
        line.consumed += count - len(missing)
        line.lost += len(missing)


@contextlib.contextmanager
def killed(pod: dict[str, Any]) -> Iterator[None]:
    """kill -9 of the broker in its container."""
    faults.kill(pod, "Java")
    yield


@contextlib.contextmanager
def deleted(pod: dict[str, Any]) -> Iterator[None]:
    """kubectl delete pod."""
    faults.delete(pod, "Java")
    yield


@contextlib.contextmanager
def lost(pod: dict[str, Any]) -> Iterator[None]:
    """kill -9 of the broker, and no pod of it until the block ends: a Raft leader that restarts in time leads on, unelected."""
    with away(pod, faults.kill, faults.delete):
        yield


@contextlib.contextmanager
def away(pod: dict[str, Any], *strikes: faults.Fault) -> Iterator[None]:
    """No pod of it runs until the block ends: its disk is on one node, and that one takes no new pod."""
    kubectl("cordon", pod["spec"]["nodeName"])
    try:
        for strike in strikes:
            strike(pod, "Java")
        yield
    finally:
        kubectl("uncordon", pod["spec"]["nodeName"])


def is_gone(pod: dict[str, Any]) -> bool:
    """Whether this very pod is gone; its successor may wait for the node."""
    found = get("pods", "--field-selector", f"metadata.name={pod['metadata']['name']}")["items"]
    return all(one["metadata"]["uid"] != pod["metadata"]["uid"] for one in found)


@contextlib.contextmanager
def drained(pod: dict[str, Any]) -> Iterator[None]:
    """kubectl drain of the pod's node. Volumes stay on their node, so its brokers return with it."""
    with faults.draining(pod["spec"]["nodeName"], DRAIN_SECONDS):
        yield


FAULTS: dict[str, Callable[[dict[str, Any]], contextlib.AbstractContextManager[None]]] = {
    "kill": killed,
    "delete": deleted,
    "drain": drained,
    "lose": lost,
}


def forget_records() -> None:
    """Delete the records that outlive their groups."""
    kubectl("delete", "brokergroupstates", "--all", "--timeout=60s", seconds=70)


def install_operator() -> None:
    helm("install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE)
    wait_for_operator()


def tidy(chosen: list[Deployment]) -> None:
    """Leave the cluster as it was found, empty: an interrupt may have come while a deployment was being deleted."""
    for deployment in chosen:
        deployment.delete()
    helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--wait")
    delete_what_stays(claims())


def run_all(
    chosen: list[Deployment], bench: Bench, folder: Path, lines: list[dict[str, Any]], failed: dict[str, str]
) -> None:
    """Run the chosen ones; each line is there as soon as it is done, and why it is not ok in `failed`."""
    (folder / "classes").mkdir()
    run = Run(folder, bench, compile_client(folder / "classes", ROCKETMQ_VERSION))
    install_operator()
    for deployment in chosen:
        line = verdict(deployment, run.line_of(deployment))
        lines.append(line)
        if not line["ok"]:
            failed[deployment.name] = "; ".join(line["why"])
        say(f"{deployment.name}: {'ok' if line['ok'] else line['why']}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [one.name for one in DEPLOYMENTS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--keep", action="store_true", help="leave the nodes up")
    options = parser.parse_args(arguments)
    chosen = [one for one in DEPLOYMENTS if not options.only or one.name in options.only]
    began = time.monotonic()
    bench = Bench({}, OperatorRecords(OPERATOR_NAMESPACE))
    lines: list[dict[str, Any]] = []
    failed: dict[str, str] = {}

    def act(_archive: Path) -> None:
        bench.records.start()
        with tempfile.TemporaryDirectory(prefix="e2e-", dir=state_folder()) as folder:
            run_all(chosen, bench, Path(folder), lines, failed)

    run_on_two_nodes("e2e", bench, failed, act, keep=options.keep, tidy=partial(tidy, chosen))
    failed |= {one.name: "not run" for one in chosen if one.name not in {line["name"] for line in lines}}
    seconds = round(time.monotonic() - began)
    print(
        json.dumps(
            {"deployments": lines, "failed": len(failed), "nodes": len(nodes()), "seconds": seconds, "why": failed}
        )
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
