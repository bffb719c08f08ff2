"""A group under load on the two nodes: faults of its master, and their observed effects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.node.cluster import OPERATOR_NAMESPACE, condition, say
from tests.node.faults import pod_named
from tests.node.kubectl import get, until
from tests.node.load import any_certificate, create_topic
from tests.node.places import REPOSITORY, state_folder
from tests.node.processes import NICENESS, NodeError
from tests.node.strikes import Strike

if TYPE_CHECKING:
    from collections import Counter

    from tests.node.faults import Fault
    from tests.node.records import OperatorRecords

NEW_MASTER_SECONDS = 90.0
WHOLE_SECONDS = 180.0
FIRST_SEND_SECONDS = 60.0
STEADY_SECONDS = 2.0
# The pod that ran the failover writes the incident when the set is full again.
INCIDENT_SECONDS = 20.0
# Another pod's view of the same failover would be written by then.
OTHERS_SECONDS = 4.0


class CheckError(Exception):
    """A check failed; the message has the observed state."""


def expect(holds: object, told: str) -> None:
    if not holds:
        raise CheckError(told)


@dataclass(frozen=True)
class Group:
    """A BrokerGroup of the run."""

    name: str
    implementation: str

    @property
    def label(self) -> str:
        """Return the group's name in figures."""
        return "java" if self.implementation == "Java" else "replica"

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = get("brokergroup", self.name)
        return found

    def status(self) -> dict[str, Any]:
        return self.read().get("status") or {}

    def master(self) -> dict[str, Any]:
        """The master's pod."""
        return pod_named(self.master_name())

    def master_name(self) -> str:
        name: str = (self.status().get("master") or {}).get("pod", "")
        return name

    def is_whole(self) -> bool:
        group = self.read()
        judged = [condition(group, name) for name in ("Ready", "FailoverSafe", "UpToDate")]
        return all(one.get("status") == "True" for one in judged) and group["metadata"]["generation"] == group[
            "status"
        ].get("observedGeneration")

    def wait_until_whole(self) -> None:
        until(f"{self.name} is Ready, FailoverSafe and UpToDate", self.is_whole, WHOLE_SECONDS, 0.3)

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = get("pods", "-l", f"brokergroup.dev/broker-group={self.name}")["items"]
        return found


@dataclass
class Load:
    """A sending program."""

    broker_name: str
    process: subprocess.Popen[str]

    def wait_until_it_sends(self) -> None:
        assert self.process.stdout is not None
        answered, _, _ = select.select([self.process.stdout], [], [], FIRST_SEND_SECONDS)
        line = self.process.stdout.readline() if answered else f"(nothing within {FIRST_SEND_SECONDS:g} s)"
        expect(line.strip() == "ready", f"{self.broker_name}: nothing was acknowledged before the fault: {line!r}")

    def stop(self) -> dict[str, Any]:
        """Stop it, and return its observations. Raises CheckError if the load itself failed or did not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            told, _ = self.process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise CheckError(f"{self.broker_name}: the load did not end within 90 s") from None
        expect(self.process.returncode == 0, f"{self.broker_name}: the load ended with {self.process.returncode}")
        seen: dict[str, Any] = json.loads(told.strip().splitlines()[-1])
        return seen

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@dataclass
class Bench:
    """The state that all checks share."""

    groups: dict[str, Group]
    records: OperatorRecords
    name_server: str = ""
    image_mib: int = 0
    # By fault and kind of broker, the last of each.
    gaps: dict[str, dict[str, float]] = field(default_factory=dict)
    # All strikes in order, with the data to explain a gap.
    strikes: list[Strike] = field(default_factory=list)
    unfenced: dict[str, dict[str, int]] = field(default_factory=dict)
    # The strike's incident, if there is exactly one.
    told: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    checks: int = 0
    false_failovers: int = 0
    lost: int = 0
    loads: list[Load] = field(default_factory=list)

    def start_load(self, group: Group, name: str) -> Load:
        """Start a load on the group; each load has its own topic."""
        master = group.master()
        broker = next(one for one in group.status()["members"] if one["pod"] == master["metadata"]["name"])
        address = broker.get("address") or f"{master['status']['podIP']}:10911"
        broker_name = group.read()["spec"].get("brokerName") or group.name
        return self.load_on(broker_name, self.name_server, address, f"{name}-{group.name}")

    def load_on(self, broker_name: str, name_server: str, master: str, name: str, *, with_tls: bool = False) -> Load:
        """Start a load on the brokers of this name, whose master has this address; its topic's name begins with `name`."""
        topic = f"{name}-{int(time.time())}"
        asyncio.run(create_topic(master, topic, tls=any_certificate() if with_tls else None))
        program = ["nice", "-n", NICENESS, sys.executable, "-m", "tests.node.load"]
        command = [*program, name_server, broker_name, topic, *(["tls"] if with_tls else [])]
        errors = state_folder() / "logs" / f"load-{topic}.log"
        with errors.open("w") as output:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, text=True
            )
        load = Load(broker_name, process)
        self.loads.append(load)
        load.wait_until_it_sends()
        return load

    def end_load(self, load: Load, group: Group, name: str, *, began: float) -> Strike:
        """Stop a load; return its gap at the fault of that time. Raises CheckError if an acknowledged message is lost."""
        seen = load.stop()
        self.lost += len(seen["lost"])
        say(
            f"  {group.name}: {seen['acknowledged']} acknowledged, longest gap {seen['longest_gap_s']} s, "
            f"lost {len(seen['lost'])}"
        )
        expect(not seen["lost"], f"{group.name}: acknowledged and lost: {seen['lost'][:5]} of {len(seen['lost'])}")
        strike = Strike(name, group.label, began, seen["longest_gap_s"], seen["gaps"], seen["masters"])
        self.gaps.setdefault(name, {})[group.label] = strike.longest_gap_s
        self.strikes.append(strike)
        return strike

    def end_loads(self) -> None:
        """Stop the loads that a failed check has left."""
        for load in self.loads:
            load.kill()
        self.loads.clear()

    def close(self) -> None:
        self.end_loads()
        self.records.stop()

    def strike(self, group: Group, name: str, fault: Fault, *, kind: str | None = None) -> None:
        """Cause one fault of the group's master under load: another member leads, the group is whole, no acknowledged message is
        lost, and the report is one failover. With `kind` only that one is accepted.
        """
        before = Seen.of(self, group)
        load = self.start_load(group, name)
        time.sleep(STEADY_SECONDS)
        pod = group.master()
        say(f"  {name}: {pod['metadata']['name']} on {pod['spec']['nodeName']}")
        began = time.time()
        fault(pod, group.implementation)
        struck = pod["metadata"]["name"]
        until(f"{group.name} has another master", lambda: self._is_another(group, struck), NEW_MASTER_SECONDS, 0.2)
        group.wait_until_whole()
        self.end_load(load, group, name, began=began)
        self.judge(group, name, before, kind)

    def _is_another(self, group: Group, struck: str) -> bool:
        """Whether another member leads, by its pod: an epoch may have risen for another reason, which would be another failover."""
        return group.master_name() not in ("", struck)

    def judge(self, group: Group, name: str, before: Seen, kind: str | None) -> None:
        """Check for exactly one completed incident, one count of the metric, and that incident in the status."""
        with contextlib.suppress(NodeError):
            until("an incident", lambda: self._new(group, before), INCIDENT_SECONDS, 0.5)
        time.sleep(OTHERS_SECONDS)
        after, new, status = Seen.of(self, group), self._new(group, before), group.status()
        self.false_failovers += max(0, epoch_of(status) - before.epoch - 1 - epochs_without_a_member(status, new))
        self.unfenced.setdefault(name, {})[group.label] = self.times_unfenced(group, before, new)
        if len(new) == 1:
            self.told.setdefault(name, {})[group.label] = new[0]
        for strike in self.strikes:
            if (strike.fault, strike.label, strike.incidents) == (name, group.label, None):
                strike.incidents = new
        wrong = told_wrong(status, new, after.counts - before.counts, kind)
        expect(not wrong, f"{group.name}: {'; '.join(wrong)}: {[described(one) for one in new]}")

    def times_unfenced(self, group: Group, before: Seen, new: list[dict[str, Any]]) -> int:
        """Return the number of unfenced failovers, by incidents and by Events."""
        events = get("events", "--field-selector", f"reason=Unfenced,involvedObject.name={group.name}")["items"]
        fresh = [one for one in events if one["metadata"]["uid"] not in before.events]
        return max(len(fresh), len([one for one in new if one.get("unfenced")]))

    def _new(self, group: Group, before: Seen) -> list[dict[str, Any]]:
        return [one for one in self.records.incidents(group.name) if incident_key(one) not in before.incidents]


def described(incident: dict[str, Any]) -> str:
    return f"{incident['kind']} {incident['outcome']} epoch {incident.get('epoch')} by {incident.get('writtenBy')}"


def epoch_of(status: dict[str, Any]) -> int:
    """The master's epoch; 0 without a master."""
    return int((status.get("master") or {}).get("epoch", 0))


def told_wrong(status: dict[str, Any], new: list[dict[str, Any]], counted: Counter[str], kind: str | None) -> list[str]:
    """Return contradictions in one failover's report: new incidents, the metric's rise and the group's status."""
    epoch, last = epoch_of(status), next((one.get("epoch") for one in status.get("failovers") or []), None)
    wrong = []
    if [one["outcome"] for one in new] != ["completed"]:
        wrong.append(f"one failover, {len(new)} incidents: expected one that is completed")
    if kind is not None and {one["kind"] for one in new} != {kind}:
        wrong.append(f"expected a {kind}")
    told = epoch - epochs_without_a_member(status, new)
    if told not in [one.get("epoch") for one in new]:
        wrong.append(f"no incident of epoch {epoch}")
    if any(one["kind"] == "failover" for one in new):
        if sum(counted.values()) != 1:
            wrong.append(f"failovers_total rose by {dict(counted)}: expected 1")
        if last != told:
            wrong.append(f"failovers[0].epoch is {last}, master.epoch {epoch}")
    return wrong


def epochs_without_a_member(status: dict[str, Any], new: list[dict[str, Any]]) -> int:
    """Return 1 if the master of the one incident has gone on under the next epoch, else 0.

    A broker that stops may still be in the SyncStateSet when its link ends: its master has to go on without it (ADR 8, *A slave
    whose link flaps*). More than one such epoch for a strike would be a fault.
    """
    if len(new) != 1:
        return 0
    is_same_master = (status.get("master") or {}).get("brokerId") == new[0].get("to")
    return int(is_same_master and epoch_of(status) == int(new[0].get("epoch") or 0) + 1)


def incident_key(incident: dict[str, Any]) -> str:
    return f"{incident['id']} {incident.get('writtenBy')} {incident['outcome']}"


@dataclass(frozen=True)
class Seen:
    """A group at one moment."""

    epoch: int
    incidents: frozenset[str]
    counts: Counter[str]
    events: frozenset[str]

    @staticmethod
    def of(bench: Bench, group: Group) -> Seen:
        known = frozenset(map(incident_key, bench.records.incidents(group.name)))
        events = get("events", "--field-selector", f"involvedObject.name={group.name}")["items"]
        told = frozenset(one["metadata"]["uid"] for one in events)
        return Seen(epoch_of(group.status()), known, bench.records.failovers_total(group.name), told)


def operator_pods() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get("-n", OPERATOR_NAMESPACE, "pods")["items"]
    return found
