"""The faults of the chaos run, and the check of what must hold afterwards.

A fault names a role, not a broker: the record at the moment of the strike decides which pod it hits. If that pod does not exist
(it is being started), the strike does nothing, and the run reports that. The history of the record is what a watch of the
BrokerGroupState delivers; a deletion of the object would show as epochs that fall.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokergroup_operator.demo.processes import ChildProcess, hold
from brokergroup_operator.demo.watched_group import WatchedGroup
from brokergroup_operator.kube import ApiError, KubernetesApi
from brokergroup_operator.kube.resources import PODS
from kube_sandbox.kubelet.files import read_container_pid
from rocketmq_remoting.message_record import Host
from rocketmq_replica.log.message_store import MessageStore, StorePaths

SINGLE = (
    "kill_master",
    "kill_slave",
    "freeze_master",
    "freeze_slave",
    "kill_slaves",
    "delete_master",
    "delete_slave",
    "delete_master_now",
    "delete_slave_now",
    "kill_operator",
    "freeze_operator",
    "freeze_sandbox",
)
KINDS = (*SINGLE, "freeze_all", "kill_all", "two_at_once")
_POD_GRACE_SECONDS = 10


@dataclass(frozen=True)
class Fault:
    """One planned strike; `seconds` is how long a freeze lasts or the operator stays away."""

    kind: str
    seconds: float
    pick: float
    also: "Fault | None" = None

    def __str__(self) -> str:
        """As the run's log shows it."""
        return f"{self.kind}({self.seconds:.1f})" + (f"+{self.also}" if self.also else "")


def plan(seed: int, count: int, kinds: tuple[str, ...] = KINDS) -> list[tuple[Fault, bool, float]]:
    """(fault, whether to wait for Ready after it, the pause after it otherwise); the same for the same seed."""
    choose = random.Random(seed)
    planned = []
    for _ in range(count):
        fault = _one(choose, choose.choice(kinds))
        planned.append((fault, choose.random() < 0.5, choose.uniform(0.0, 4.0)))
    return planned


def _one(choose: random.Random, kind: str) -> Fault:
    seconds, pick = choose.uniform(1.0, 6.0), choose.random()
    if kind != "two_at_once":
        return Fault(kind, seconds, pick)
    first, second = (_one(choose, choose.choice(SINGLE)) for _ in range(2))
    return Fault(first.kind, first.seconds, first.pick, also=second)


@dataclass
class Striker:
    """Strikes faults at a running group."""

    group: WatchedGroup
    api: KubernetesApi
    sandbox_directory: Path
    namespace: str
    sandbox: ChildProcess
    operator: ChildProcess
    restart_operator: Callable[[], Awaitable[ChildProcess]]
    later: set["asyncio.Task[None]"] = field(default_factory=set)

    async def strike(self, fault: Fault) -> bool:
        """Strike now; what ends later (a thaw, the operator's return) goes on by itself. False: no target was there."""
        hit = await self._strike(fault)
        if fault.also is not None:
            hit |= await self._strike(fault.also)
        return hit

    def all_run(self) -> bool:
        """Whether every replica of the record has a process."""
        return all(
            self._broker_pid(replica["brokerId"]) is not None for replica in self.group.record.get("replicas", [])
        )

    async def settle(self) -> None:
        """Wait for every thaw and return that is still to come."""
        while self.later:
            await asyncio.gather(*list(self.later))

    async def _strike(self, fault: Fault) -> bool:
        verb, _, target = fault.kind.partition("_")
        if target == "operator":
            return self._strike_operator(verb, fault.seconds)
        if target == "sandbox":  # the API server and the kubelet are one process there
            return self._freeze(self.sandbox.process.pid, fault.seconds)
        victims = self._victims(target.removesuffix("_now"), fault.pick)
        if verb == "delete":
            grace = 0 if target.endswith("_now") else _POD_GRACE_SECONDS
            return any([await self._delete(victim, grace) for victim in victims])
        hits = [self._signal(victim, verb, fault.seconds) for victim in victims]  # all of them, whatever the first says
        return any(hits)

    def _broker_pid(self, broker_id: int) -> int | None:
        return read_container_pid(self.sandbox_directory, self.namespace, f"{self.group.name}-{broker_id}", "broker")

    def _victims(self, target: str, pick: float) -> list[int]:
        members = sorted(replica["brokerId"] for replica in self.group.record.get("replicas", []))
        master = self.group.master_id
        slaves = [broker_id for broker_id in members if broker_id != master]
        if target == "all":
            return members
        if target == "slaves":
            return slaves
        if target == "slave":
            return [slaves[int(pick * len(slaves))]] if slaves else []
        return [master] if master is not None else []

    def _signal(self, broker_id: int, verb: str, seconds: float) -> bool:
        pid = self._broker_pid(broker_id)
        if pid is None:
            return False
        if verb == "freeze":
            return self._freeze(pid, seconds)
        try:
            with hold(pid) as held:
                held.kill()
        except ProcessLookupError:
            return False
        return True

    async def _thaw(self, pid: int, seconds: float) -> None:
        try:
            with hold(pid) as held:
                await asyncio.sleep(seconds)
                held.thaw()
        except ProcessLookupError:
            return

    async def _delete(self, broker_id: int, grace_seconds: int) -> bool:
        try:
            await self.api.delete(
                PODS, f"{self.group.name}-{broker_id}", namespace=self.namespace, grace_period_seconds=grace_seconds
            )
        except ApiError:
            return False
        return True

    def _strike_operator(self, verb: str, seconds: float) -> bool:
        process = self.operator.process
        if process.returncode is not None:
            return False
        if verb == "freeze":
            return self._freeze(process.pid, seconds)
        process.kill()
        self._do_later(self._bring_operator_back(process, seconds / 2))
        return True

    def _freeze(self, pid: int, seconds: float) -> bool:
        try:
            with hold(pid) as held:
                held.freeze()
        except ProcessLookupError:
            return False
        self._do_later(self._thaw(pid, seconds))
        return True

    async def _bring_operator_back(self, process: asyncio.subprocess.Process, after_seconds: float) -> None:
        await process.wait()
        await asyncio.sleep(after_seconds)
        self.operator = await self.restart_operator()

    def _do_later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.later.add(task)
        task.add_done_callback(self.later.discard)


_MONOTONIC = ("masterEpoch", "syncStateSetEpoch", "nextBrokerId")


@dataclass
class RecordHistory:
    """Judges each version of the record against those before it."""

    highest: dict[str, int] = field(default_factory=dict)
    check_codes: dict[int, set[str]] = field(default_factory=dict)
    masters: dict[int, set[int]] = field(default_factory=dict)
    fallen: list[str] = field(default_factory=list)

    def see(self, record: dict[str, Any]) -> None:
        """One version of the record."""
        for name in _MONOTONIC:
            value, before = int(record.get(name, 0)), self.highest.get(name, 0)
            if value < before:
                self.fallen.append(f"{name} fell from {before} to {value}")
            self.highest[name] = max(value, before)
        for replica in record.get("replicas", []):
            if replica.get("registerCheckCode"):
                self.check_codes.setdefault(replica["brokerId"], set()).add(replica["registerCheckCode"])
        if record.get("masterBrokerId") is not None:
            self.masters.setdefault(int(record["masterEpoch"]), set()).add(int(record["masterBrokerId"]))

    @property
    def reused_ids(self) -> list[int]:
        """Broker ids that were claimed under two check codes."""
        return sorted(broker_id for broker_id, codes in self.check_codes.items() if len(codes) > 1)

    @property
    def shared_epochs(self) -> list[int]:
        """Master epochs under which the record named two masters."""
        return sorted(epoch for epoch, masters in self.masters.items() if len(masters) > 1)


def compare_logs(store_directories: list[Path]) -> list[str]:
    """Where the stopped replicas' commit logs differ below the shortest end, byte by byte; empty when they don't."""
    logs = {str(directory): _log_bytes(directory) for directory in store_directories}
    (first_name, first), *others = sorted(logs.items())
    differences = []
    for name, data in others:
        length = min(len(first), len(data))
        if first[:length] != data[:length]:
            at = next(index for index in range(length) if first[index] != data[index])
            differences.append(f"{first_name} and {name} differ at offset {at}")
    return differences


def _log_bytes(directory: Path) -> bytes:
    """The valid part of a log, as the replica itself reads it when it starts."""
    store = MessageStore(
        StorePaths(directory, directory / "commitlog", directory / "epochFileCheckpoint"),
        file_size_bytes=_file_size(directory / "commitlog"),
        store_host=Host("127.0.0.1", 10911),
    )
    try:
        parts: list[bytes] = []
        while part := store.log.read(sum(map(len, parts)), store.max_offset):
            parts.append(part)
        return b"".join(parts)
    finally:
        store.close()


def _file_size(commit_log: Path) -> int:
    return next(file.stat().st_size for file in sorted(commit_log.iterdir()))
