"""What the demo observes from outside: the BrokerGroup and its record by watches, and the operator's incident log."""

import asyncio
import datetime
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokergroup_operator.demo.screen import MemberRow
from brokergroup_operator.kube import KubernetesApi, Reflector
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, BROKER_GROUPS

_SYNC_SECONDS = 10.0
# The names of the incident log's steps in the demo's result, where they differ.
_STEP_NAMES = {
    "roleChanged": "role_changed",
    "indexCaughtUp": "index_caught_up",
    "routeVisible": "route_visible",
    "inSync": "in_sync",
    "firstAck": "canary_ack",
}


@dataclass(frozen=True)
class WatchedGroup:
    """One group as of the last watch event."""

    namespace: str
    name: str
    groups: Mapping[tuple[str, str], dict[str, Any]]
    states: Mapping[tuple[str, str], dict[str, Any]]

    @property
    def record(self) -> dict[str, Any]:
        """The group's record; empty until there is one."""
        record: dict[str, Any] = self.states.get((self.namespace, self.name), {}).get("record", {})
        return record

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.groups.get((self.namespace, self.name), {}).get("status", {})
        return status

    @property
    def master_id(self) -> int | None:
        return self.record.get("masterBrokerId")

    @property
    def master_epoch(self) -> int:
        return int(self.record.get("masterEpoch", 0))

    @property
    def sync_state_set(self) -> list[int]:
        return sorted(self.record.get("syncStateSet", []))

    def master_address(self) -> str | None:
        """Return the master's address by the record."""
        master_id = self.master_id
        for replica in self.record.get("replicas", []):
            if replica["brokerId"] == master_id:
                return replica.get("address") or None
        return None

    def is_ready(self) -> bool:
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in self.status.get("conditions", [])
        )

    def members(self) -> list[MemberRow]:
        return [
            MemberRow(
                broker_id=int(member["brokerId"]),
                pod=str(member.get("pod", "")),
                address=str(member.get("address", "")),
                role=str(member.get("role", "")),
                state=str(member.get("state", "")),
            )
            for member in self.status.get("members", [])
        ]


@asynccontextmanager
async def watch_group(api: KubernetesApi, namespace: str, name: str) -> AsyncIterator[WatchedGroup]:
    """Watch a group for the length of a block."""
    groups = Reflector(api, BROKER_GROUPS, namespace=namespace, on_change=lambda _: None)
    states = Reflector(api, BROKER_GROUP_STATES, namespace=namespace, on_change=lambda _: None)
    tasks = [asyncio.create_task(reflector.run()) for reflector in (groups, states)]
    try:
        for reflector in (groups, states):
            await reflector.wait_synced(_SYNC_SECONDS)
        yield WatchedGroup(namespace, name, groups.objects, states.objects)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class DemoFailover:
    """One failover of the demo; `steps_ms` ends with `first_ack`."""

    fault: str
    trigger: str
    from_broker_id: int
    to_broker_id: int | None
    epoch: int | None
    outcome: str
    unfenced: bool
    steps_ms: dict[str, float] = field(default_factory=dict)

    @property
    def completed(self) -> bool:
        return self.outcome == "completed" and "first_ack" in self.steps_ms

    def as_json(self) -> dict[str, Any]:
        return {
            "fault": self.fault,
            "trigger": self.trigger,
            "from": self.from_broker_id,
            "to": self.to_broker_id,
            "epoch": self.epoch,
            "outcome": self.outcome,
            "unfenced": self.unfenced,
            "steps_ms": self.steps_ms,
        }


def incidents(log: Path) -> list[dict[str, Any]]:
    """Return the incidents in the operator's log; the operator may be writing it."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        with suppress(ValueError):  # a line that is being written
            found.append(json.loads(line))
    return found


def find_incident(log: Path, *, from_broker_id: int, epoch_before: int) -> dict[str, Any] | None:
    """Return the finished failover of that master at that epoch, None until there is one."""
    wanted = ("failover", from_broker_id, epoch_before)
    of_it = (one for one in incidents(log) if (one.get("kind"), one.get("from"), one.get("epochBefore")) == wanted)
    return next(of_it, None)


def steps_since(incident: dict[str, Any], fault_at_seconds: float) -> dict[str, float]:
    """Return the incident's steps in milliseconds after the fault, by this machine's clock: what a user of the group feels."""
    started = datetime.datetime.fromisoformat(incident["startedAt"]).timestamp()
    offset_ms = (started - fault_at_seconds) * 1000
    steps: dict[str, float] = incident["stepsMilliseconds"]
    return {_STEP_NAMES.get(name, name): round(offset_ms + value, 1) for name, value in steps.items()}
