"""The whole system as a user runs it: a sandbox process, operator processes, groups of Python replicas, a loading producer.

`java_house.py` is the other house: a real kube-apiserver and Java brokers. A story that runs in both gets the differences from
the house: the spec of a group, the start of operators, the patience of waits.

Tests observe and strike from outside: through the API, the brokers' own ports, and signals. Operator and
sandbox have no test hooks.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from brokergroup_operator.demo.client import DemoProducer, Ledger, ReadbackError, read_keys
from brokergroup_operator.demo.processes import ChildProcess, DemoProcesses
from brokergroup_operator.demo.watched_group import WatchedGroup, watch_group
from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import BROKER_GROUPS, PODS
from rocketmq_remoting.broker_protocol import HARuntimeInfoBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from tests.e2e.history import RecordHistory, record_history
from tests.support import waiting
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from brokergroup_operator.kube.resources import Resource

NAMESPACE = "default"
TOPIC = "e2e"
QUEUES = 4
# The test reads a log again if its master was replaced meanwhile.
READS = 3
# One wait. A machine with two cores starts three replicas in 5 to 15 s; at a load of 15 an operator alone took more than 60 s.
DEADLINE_SECONDS = 180.0
eventually = partial(waiting.eventually, within_seconds=DEADLINE_SECONDS, every_seconds=0.02)


@dataclass
class House:
    """A running sandbox, and the operators that a test starts and kills."""

    folder: Path
    processes: DemoProcesses
    api: KubernetesApi
    kubeconfig: Path
    ports: dict[str, int] = field(default_factory=dict)
    # The spec of every group of this house.
    group_spec: Mapping[str, Any] = field(default_factory=lambda: {"implementation": "Python"})
    # The previous and the new version of a group's brokers.
    older: Mapping[str, Any] = field(default_factory=lambda: {"image": "brokergroup-replica:1"})
    newer: Mapping[str, Any] = field(default_factory=lambda: {"image": "brokergroup-replica:2"})
    operator_arguments: tuple[str, ...] = ("--namespace", NAMESPACE)
    operator_host: str = "127.0.0.1"
    operator_kubeconfig: Path | None = None
    # The factor by which waits of this house are longer.
    patience: float = 1.0

    @property
    def node_folder(self) -> Path:
        return self.folder / "sandbox"

    def controller_address(self, name: str) -> str:
        """Return the address at which the operator of that name listens, now and after every restart."""
        if name not in self.ports:
            self.ports[name] = free_port(self.operator_host)
        return f"{self.operator_host}:{self.ports[name]}"

    def incidents(self, operator: str = "operator") -> list[dict[str, Any]]:
        """Return that operator's incident log."""
        log = self.folder / f"{operator}-incidents.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    async def start_operator(
        self, name: str = "operator", *, kubeconfig: Path | None = None, all_names: Iterable[str] = ()
    ) -> ChildProcess:
        """Start an operator; `all_names` are the operators whose addresses brokers get."""
        addresses: list[str] = []
        for each in all_names or (name,):
            addresses += ["--controller-address", self.controller_address(each)]
        own = self.controller_address(name)
        return await self.processes.start(
            name, "operator",
            "--kubeconfig", str(kubeconfig or self.operator_kubeconfig or self.kubeconfig), *self.operator_arguments,
            "--listen", own, "--advertise", own, *addresses,
            "--incident-log", str(self.folder / f"{name}-incidents.jsonl"),
        )  # fmt: skip

    async def kill_operator(self, child: ChildProcess) -> None:
        """Kill an operator by SIGKILL, without a shutdown."""
        if child.process.returncode is None:
            child.process.kill()
        await child.process.wait()
        if child in self.processes.children:
            self.processes.children.remove(child)

    async def create_group(self, name: str, **spec: Any) -> None:
        """Create a BrokerGroup with this house's spec."""
        await self.create(BROKER_GROUPS, name, {**self.group_spec, **spec})

    async def create(self, resource: Resource, name: str, spec: Mapping[str, Any]) -> None:
        """Create an object of one of our kinds."""
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        await self.api.create(resource, {**kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    async def patch_group(self, name: str, **spec: Any) -> None:
        """Change a BrokerGroup's spec."""
        await self.api.patch(BROKER_GROUPS, name, {"spec": spec}, namespace=NAMESPACE)

    async def scale_group(self, name: str, replicas: int) -> None:
        """Scale a group by the subresource, as `kubectl scale` does."""
        wish = {"spec": {"replicas": replicas}}
        await self.api.patch(
            BROKER_GROUPS, name, wish, namespace=NAMESPACE, content_type=PatchType.MERGE, subresource="scale"
        )

    async def delete_group(self, name: str) -> None:
        """Delete a BrokerGroup; objects that it retains stay."""
        await self.api.delete(BROKER_GROUPS, name, namespace=NAMESPACE)

    def pid_of(self, pod: str) -> int | None:
        """Return a pod's broker process, as the process kubelet recorded it; None while none is alive."""
        try:
            entries = json.loads((self.node_folder / "pods.json").read_text())["pods"]
        except (FileNotFoundError, ValueError):
            return None
        # A terminating pod may still be listed beside its successor of the same name.
        own = [entry for entry in entries if (entry["namespace"], entry["name"]) == (NAMESPACE, pod)]
        pids = [item["pid"] for entry in own for item in entry["containers"] if item["name"] == "broker"]
        return next((pid for pid in pids if pid is not None and runs(pid)), None)

    def tails(self) -> str:
        """Return the ends of the operators' logs."""
        logs = sorted((self.folder / "logs").glob("operator*.log"))
        return "\n".join(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-12:]) for log in logs)


def runs(pid: int) -> bool:
    """Whether a process with this pid exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def open_house(folder: Path) -> AsyncIterator[House]:
    """Start an empty sandbox process; at the end stop all started processes."""
    processes = DemoProcesses(folder / "logs")
    kubeconfig = folder / "kubeconfig"
    try:
        sandbox = await processes.start(
            "sandbox", "sandbox", "--data-dir", str(folder / "sandbox"), "--kubeconfig", str(kubeconfig)
        )

        def ready() -> bool:
            sandbox.check()
            return kubeconfig.exists()

        await eventually(ready, lambda: f"{kubeconfig} does not exist")
        async with KubernetesApi.from_kubeconfig(kubeconfig) as api:
            yield House(folder, processes, api, kubeconfig)
    finally:
        await processes.stop()


@dataclass
class WholeGroup:
    """One group with every version of its record and all acknowledgements to its clients."""

    house: House
    seen: WatchedGroup
    history: RecordHistory
    replicas: int
    # The number of async learners among them.
    learners: int = 0
    # One ledger for the life of the group: messages acknowledged before the first fault must exist after the last one.
    ledger: Ledger = field(default_factory=Ledger)
    # Addresses at which clients send regardless of the record: as real ones, by their known route.
    known_route: str | None = None
    # The generation of the story's last change of the spec: a status of an older one does not count.
    generation: int = 0

    @property
    def name(self) -> str:
        return self.seen.name

    @property
    def master(self) -> int:
        """The id of the master, which the group has to have."""
        assert self.seen.master_id is not None, self.story()
        return self.seen.master_id

    def kill(self, *broker_ids: int) -> None:
        """End the processes of these members by SIGKILL."""
        for pid in self._running(broker_ids):
            os.kill(pid, signal.SIGKILL)

    @contextmanager
    def frozen(self, *broker_ids: int) -> Iterator[None]:
        """The processes of these members stand still meanwhile."""
        pids = self._running(broker_ids)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _running(self, broker_ids: tuple[int, ...]) -> list[int]:
        known = self.pids()
        pids = [pid for one in broker_ids if (pid := known[one]) is not None]
        assert len(pids) == len(broker_ids), f"of {broker_ids} not all run: {known}"
        return pids

    def pod_names(self) -> list[str]:
        return [replica["reservedFor"] for replica in self.seen.record.get("replicas", [])]

    def pod_of(self, broker_id: int) -> str:
        """Return a member's pod. Its ordinal is the broker id, unless the member lost its volume and got a new id."""
        replicas = self.seen.record.get("replicas", [])
        return str(next(replica["reservedFor"] for replica in replicas if replica["brokerId"] == broker_id))

    def pids(self) -> dict[int, int | None]:
        """Return each broker's process by broker id."""
        ids = [replica["brokerId"] for replica in self.seen.record.get("replicas", [])]
        return {broker_id: self.house.pid_of(self.pod_of(broker_id)) for broker_id in ids}

    def story(self) -> str:
        """Return the state of the group for a failure's message."""
        conditions = {
            item["type"]: f"{item['status']} {item['reason']}" for item in self.seen.status.get("conditions", [])
        }
        return (
            f"record {self.seen.record}\nconditions {conditions}\nmembers {self.seen.status.get('members')}\n"
            f"pids {self.pids()}, acknowledged {len(self.ledger.acknowledgements)}\n{self.house.tails()}"
        )

    def is_settled(self) -> bool:
        """Whether the group is Ready with a master, all members run and are in the SyncStateSet, and status and record agree."""
        seen = self.seen
        return (
            seen.is_ready()
            and seen.master_id is not None
            and len(seen.sync_state_set) == self.replicas - self.learners
            and (seen.status.get("master") or {}).get("epoch") == seen.master_epoch
            and seen.status.get("readyReplicas") == self.replicas
            and sorted(member.state for member in seen.members()) == self._states()
            and all(self.pids().values())
        )

    def _states(self) -> list[str]:
        return ["InSync"] * (self.replicas - self.learners) + ["Learning"] * self.learners

    async def until(
        self, condition: Callable[[], Any], what: str, *, deadline_seconds: float = DEADLINE_SECONDS
    ) -> Any:
        """Wait for a condition of this group."""
        seconds = deadline_seconds * self.house.patience
        return await eventually(condition, lambda: f"{what}\n{self.story()}", within_seconds=seconds)

    async def until_settled(self) -> None:
        await self.until(self.is_settled, "the group is Ready with everybody in sync")

    async def incidents_since(self, epoch: int) -> list[dict[str, Any]]:
        """Return the incidents that ended this epoch or a later one, once there is one in the log.

        An operator writes it down when the last awaited step was seen, the route, say: that may be after the group is settled.
        """

        def told() -> list[dict[str, Any]]:
            return [one for one in self.house.incidents() if one["epochBefore"] >= epoch]

        await self.until(told, "the incident is in the log")
        return told()

    async def until_acknowledged(self, count: int = 30) -> None:
        """Wait until `count` more messages are acknowledged."""
        target = len(self.ledger.acknowledgements) + count
        await self.until(lambda: len(self.ledger.acknowledgements) >= target, f"{count} more acknowledgements")

    @asynccontextmanager
    async def under_load(self, *, served: bool = True, send_timeout_seconds: float = 1.0) -> AsyncIterator[None]:
        """Send all the time, with the fault in the middle; `served`: the fault waits for the first acknowledgements."""
        stop = asyncio.Event()
        producer = DemoProducer(
            route=lambda: self.known_route or self.seen.master_address(),
            broker_name=self.name,
            topic=TOPIC,
            pause_seconds=0.02,
            send_timeout_seconds=send_timeout_seconds,
            ledger=self.ledger,
            # Keys continue after those of the last load: none is used twice in the life of a group.
            _keys=itertools.count(1 + len(self.ledger.acknowledgements) + self.ledger.failures),
        )
        sending = asyncio.create_task(producer.run(stop))
        try:
            if served:
                await self.until_acknowledged()
            yield
        finally:
            stop.set()
            await sending

    @asynccontextmanager
    async def lossless(self, *, served: bool = True, send_timeout_seconds: float = 1.0) -> AsyncIterator[None]:
        """Send messages meanwhile; afterwards writes are acknowledged, and no acknowledged message is lost."""
        async with self.under_load(served=served, send_timeout_seconds=send_timeout_seconds):
            yield
            await self.until_acknowledged()
        await self.verify()

    async def lose_master(self) -> tuple[int, int]:
        """Kill the master's process, and wait for another epoch; return the epoch before, and that master.

        Any member may win: an operator that was stalled meanwhile may elect the old master's next process.
        """
        epoch, master = self.seen.master_epoch, self.master
        self.kill(master)
        await self.until(lambda: self.seen.master_epoch > epoch, "another epoch")
        return epoch, master

    async def verify(self, *, record_was_lost: bool = False) -> None:
        """Check the end state after any fault: no message lost, one master, one pod for each id, the record's laws kept.

        For a record that was lost or restored only one law holds: no epoch ever had two masters.
        """
        await self.until_settled()
        broken = self.history.epochs_with_two_masters() if record_was_lost else self.history.violations()
        assert not broken, "\n".join(broken)
        assert await self.masters() == [self.seen.master_id], self.story()
        pods = (await self.house.api.list(PODS, namespace=NAMESPACE)).items
        own = sorted(pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"].startswith(f"{self.name}-"))
        assert own == sorted(self.pod_names()), f"{own}\n{self.story()}"
        assert not any("finalizers" in pod["metadata"] for pod in pods if pod["metadata"]["name"] in own)
        lost = self.ledger.missing_from(await self.keys_in_log())
        assert not lost, f"acknowledged and lost: {lost}\n{self.story()}"

    async def keys_in_log(self) -> set[str]:
        """Return the keys in the master's log, read as by a consumer; in the next master's, if a busy machine cost this one."""
        for _ in range(READS - 1):
            with suppress(ReadbackError):
                return await self._read()
            await self.until_settled()
        return await self._read()

    async def _read(self) -> set[str]:
        address = self.seen.master_address()
        assert address is not None
        return await read_keys(address, TOPIC, QUEUES)

    async def masters(self) -> list[int]:
        """Return the members that answer 907 as master."""
        client = RemotingClient()
        found: list[int] = []
        try:
            for replica in self.seen.record["replicas"]:
                try:
                    answer = await client.invoke(
                        replica["address"], request(RequestCode.GET_BROKER_HA_STATUS), timeout_seconds=5.0
                    )
                except RemotingError:
                    continue
                if HARuntimeInfoBody.decode(answer.body).master:
                    found.append(replica["brokerId"])
        finally:
            await client.close()
        return found


@asynccontextmanager
async def whole_group(house: House, name: str, *, replicas: int, learners: int = 0) -> AsyncIterator[WholeGroup]:
    """Watch a group that exists or will exist."""
    async with watch_group(house.api, NAMESPACE, name) as seen, record_history(house.api, NAMESPACE, name) as history:
        yield WholeGroup(house, seen, history, replicas, learners)


@asynccontextmanager
async def settled_group(
    house: House, name: str, *, replicas: int = 3, learners: int = 0, **spec: Any
) -> AsyncIterator[WholeGroup]:
    """Create a group, which a running operator brings up, and watch it; on entry all its members are in sync."""
    async with whole_group(house, name, replicas=replicas, learners=learners) as group:
        await house.create_group(name, replicas=replicas, **spec)
        await group.until_settled()
        yield group


def kubeconfig_for(url: str, path: Path, *, token: str = "") -> Path:
    """Write a kubeconfig for a server without authentication, or with this token."""
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": token} if token else {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path
